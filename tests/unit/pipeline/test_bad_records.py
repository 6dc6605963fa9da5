"""Bad records: what cannot be decoded or represented has a row of its own, and the others go on."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

from tests.support.drawn_seed import drawn_seed
from tidelog.pipeline.decoding.chunks import Decoder, Origin
from tidelog.pipeline.schema import choose_columns
from tidelog.records.batch import (
    CONTROL_BIT,
    HEADER_SIZE,
    TRANSACTIONAL_BIT,
    read_header,
    seal_batch,
)
from tidelog.records.builder import NewRecord, Producer, build_batch
from tidelog.records.control_records import ABORT, COMMIT, control_key
from tidelog.records.raw_frames import walk_frames
from tidelog.records.record import CorruptRecords, decode_records

ALL = choose_columns(None, headers=True, epoch=True, bad=True)
NANOSECONDS = 1_763_000_000_000_000_000
Row = dict[str, object]


@dataclass
class Log:
    """Batches with the offsets that their broker knows of them, whatever their bytes say."""

    batches: Sequence[tuple[int, int, bytes]]
    aborted: Sequence[tuple[int, int]] = ()
    fetches: int = 0

    def fetch(self, offset: int) -> bytes:
        self.fetches += 1
        return b"".join(data for _, end, data in self.batches if end > offset)

    def read(self, start: int = 0, end: int | None = None, **more: object) -> list[Row]:
        """All rows of a range, as a task reads them."""
        until = self.batches[-1][1] if end is None else end
        decoder = Decoder(Origin("t", 3), ALL, start, until, quarantine=True, **more)  # type: ignore[arg-type]
        rows: list[Row] = []
        most = self.fetches + 3 * (until - start) + 3
        while decoder.next_offset < until:
            assert self.fetches < most, "the reading does not move on"
            before = decoder.next_offset
            for batch in decoder.decode(self.fetch(before), self.aborted):
                rows += batch.to_pylist()
            assert decoder.stopped or decoder.next_offset > before
        return rows


def log_of(*parts: tuple[int, bytes], aborted: Sequence[tuple[int, int]] = ()) -> Log:
    """`parts`: how many offsets each takes, and its bytes."""
    made, offset = [], 0
    for count, data in parts:
        made.append((offset, offset + count, data))
        offset += count
    return Log(made, aborted)


def batch(offset: int, count: int = 1, **more: object) -> bytes:
    records = [NewRecord(1000 + n, b"k", b"v%d" % (offset + n)) for n in range(count)]
    return bytes(build_batch(records, base_offset=offset, **more))  # type: ignore[arg-type]


def damaged(data: bytes, position: int = -1) -> bytes:
    made = bytearray(data)
    made[position] ^= 0x81
    return bytes(made)


def message(offset: int, value: bytes, *, magic: int = 1, codec: int = 0) -> bytes:
    """A message of before Kafka 0.11."""
    time = struct.pack(">q", 1000) if magic else b""
    body = bytes((magic, codec)) + time + struct.pack(">ii", -1, len(value)) + value
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def good(rows: Sequence[Row]) -> list[object]:
    return [row["offset"] for row in rows if row["badReason"] is None]


def bad(rows: Sequence[Row]) -> list[tuple[object, object]]:
    return [(row["offset"], row["badTo"]) for row in rows if row["badReason"] is not None]


def test_a_time_that_does_not_fit_is_kept_as_a_number_beside() -> None:
    records = [
        NewRecord(time, b"k%d" % n, b"v", [("h", b"x")])
        for n, time in enumerate((1000, NANOSECONDS, 2000, -NANOSECONDS))
    ]
    log = log_of((4, build_batch(records)), (1, batch(4)))
    rows = log.read()
    assert [row["offset"] for row in rows] == [0, 1, 2, 3, 4] and log.fetches == 1
    assert bad(rows) == [(1, 2), (3, 4)] and good(rows) == [0, 2, 4]
    assert [row["timestampMs"] for row in rows] == [1000, NANOSECONDS, 2000, -NANOSECONDS, 1000]
    row = rows[1]
    assert row["timestamp"] is None and (row["key"], row["value"]) == (b"k1", b"v")
    assert row["headers"] == [{"key": "h", "value": b"x"}]
    assert str(NANOSECONDS) in str(row["badReason"])
    raw = row["badRaw"]
    assert isinstance(raw, bytes)
    (again,) = decode_records(raw, 1, 0, 0)
    assert (again.key, again.value) == (b"k1", b"v")
    assert rows[0]["badRaw"] is rows[0]["badTo"] is None and rows[0]["timestamp"] is not None
    assert bad(log.read(2, 4)) == [(3, 4)]


def test_a_damaged_batch_takes_no_other_with_it() -> None:
    """In the middle, where another fetch looks at it again; with an end that follows from the
    batch after it; at both ends of a log; and in part, where the range begins or ends in it."""
    torn = damaged(batch(2, 3))
    log = log_of((2, batch(0, 2)), (3, torn), (2, batch(5, 2)))
    rows = log.read()
    assert good(rows) == [0, 1, 5, 6] and bad(rows) == [(2, 5)]
    (row,) = [row for row in rows if row["badTo"]]
    assert row["badRaw"] == torn and "wrong checksum" in str(row["badReason"])
    assert (row["topic"], row["partition"], row["key"], row["timestamp"]) == ("t", 3, None, None)
    assert log.fetches == 3
    assert bad(log.read(3, 4)) == [(3, 4)] and bad(log.read(4)) == [(4, 5)]
    assert bad(log_of((3, damaged(batch(0, 3)))).read()) == [(0, 3)]
    for delta in (1, 900):
        header = read_header(batch(2, 3))._replace(last_offset_delta=delta)
        lying = damaged(seal_batch(header, batch(2, 3)[HEADER_SIZE:]))
        rows = log_of((2, batch(0, 2)), (3, lying), (2, batch(5, 2))).read()
        assert good(rows) == [0, 1, 5, 6] and bad(rows) == [(2, 5)]
        torn = damaged(batch(5, 2))
        rows = log_of((2, batch(0, 2)), (3, lying), (2, torn), (1, batch(7))).read()
        assert good(rows) == [0, 1, 7], "of two damaged batches no word counts that leads further"


def test_bytes_that_are_damaged_on_the_way_are_read_whole_the_second_time() -> None:
    log = log_of((2, batch(0, 2)), (3, batch(2, 3)), (2, batch(5, 2)))
    whole = log.fetch

    def torn_once(offset: int) -> bytes:
        data = whole(offset)
        return data if offset else damaged(data, len(batch(0, 2)) + len(batch(2, 3)) - 1)

    log.fetch = torn_once  # type: ignore[method-assign]
    rows = log.read()
    assert good(rows) == list(range(7)) and not bad(rows)


def test_a_batch_with_a_right_checksum_that_holds_no_records_is_alone() -> None:
    """Decoded in one chunk with the others; an impossible count, and a payload of no codec."""
    header = read_header(batch(2, 3))
    for torn in (
        seal_batch(header, b"\x90" * 40),
        seal_batch(header._replace(record_count=1 << 30), batch(2, 3)[HEADER_SIZE:]),
        seal_batch(header._replace(attributes=7), batch(2, 3)[HEADER_SIZE:]),
    ):
        log = log_of((2, batch(0, 2)), (3, torn), (2, batch(5, 2)))
        rows = log.read()
        assert good(rows) == [0, 1, 5, 6] and bad(rows) == [(2, 5)] and log.fetches == 1
        with pytest.raises(CorruptRecords):
            list(Decoder(Origin("t", 3), ALL, 0, 7).decode(log.fetch(0)))


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_former_formats_are_kept_as_they_are(magic: int) -> None:
    """A compressed one has the offset of its last message, and begins at the position."""
    texts = [message(offset, b"old", magic=magic) for offset in range(3)]
    packed = message(5, b"packed", magic=magic, codec=1)
    log = log_of((3, b"".join(texts)), (3, packed), (1, batch(6)))
    rows = log.read()
    assert bad(rows) == [(0, 1), (1, 2), (2, 3), (3, 6)] and good(rows) == [6]
    assert [row["badRaw"] for row in rows[:4]] == [*texts, packed] and log.fetches == 1
    assert f"magic {magic}" in str(rows[0]["badReason"])
    assert bad(log.read(2, 5)) == [(2, 3), (3, 5)]
    with pytest.raises(CorruptRecords, match=f"magic {magic}; only 2 is read"):
        list(Decoder(Origin("t", 3), ALL, 0, 7).decode(log.fetch(0)))


def marked(data: bytes, bits: int) -> bytes:
    header = read_header(data)
    return seal_batch(header._replace(attributes=header.attributes | bits), data[HEADER_SIZE:])


def test_a_damaged_marker_hides_no_later_transaction() -> None:
    """The list of aborted transactions is of one fetch: after a marker that cannot be read, what
    follows is fetched again, and its list no longer has the transaction."""

    def data(offset: int) -> bytes:
        return marked(batch(offset, producer=Producer(7, 0, 0)), TRANSACTIONAL_BIT)

    def marker(offset: int, kind: int) -> bytes:
        made = build_batch(
            [NewRecord(1, control_key(kind), b"\0" * 6)],
            producer=Producer(7, 0, -1),
            base_offset=offset,
        )
        return marked(made, TRANSACTIONAL_BIT | CONTROL_BIT)

    header = read_header(marker(1, ABORT))
    for torn in (damaged(marker(1, ABORT)), seal_batch(header, b"\x90" * 30)):
        log = log_of((1, data(0)), (1, torn), (1, data(2)), (1, marker(3, COMMIT)))
        decoder = Decoder(Origin("t", 3), ALL, 0, 4, quarantine=True)
        rows: list[Row] = []
        while decoder.next_offset < 4:
            aborted = [(7, 0)] if decoder.next_offset <= 1 else []
            for made in decoder.decode(log.fetch(decoder.next_offset), aborted):
                rows += made.to_pylist()
        assert good(rows) == [2] and bad(rows) == [(1, 2)]


def test_random_logs_with_damage_anywhere() -> None:
    """Every whole batch comes out once and in order, and every offset of a damaged one is named."""
    seed = drawn_seed()
    rng = random.Random(seed)
    for _ in range(300):
        parts, broken, offset = [], set(), 0
        for _ in range(rng.randrange(1, 8)):
            count = rng.randrange(1, 6)
            made = batch(offset, count, codec=rng.choice((0, 0, 1, 3, 4)))
            if rng.random() < 0.4:
                # Offset and length are not under the checksum, and nor is the leader epoch.
                made = damaged(made, rng.randrange(16, len(made)))
                broken |= set(range(offset, offset + count))
            parts.append((count, made))
            offset += count
        log = log_of(*parts)
        start = rng.randrange(offset)
        end = rng.randrange(start + 1, offset + 1)
        rows = log.read(start, end)
        wanted = [each for each in range(start, end) if each not in broken]
        assert good(rows) == wanted, (start, end, sorted(broken))
        named = [each for low, high in bad(rows) for each in range(low, high)]  # type: ignore[call-overload]
        assert named == [each for each in range(start, end) if each in broken]
        order = [row["offset"] for row in rows]
        assert order == sorted(order)  # type: ignore[type-var]


def frame_sizes(data: bytes) -> Iterator[int]:
    return (frame.size for frame in walk_frames(data))


def test_frames_end_before_what_is_not_whole() -> None:
    old, new = message(0, b"old"), batch(1)
    assert list(frame_sizes(old + new)) == [len(old), len(new)]
    for cut in range(len(new)):
        assert list(frame_sizes(old + new[:cut])) == [len(old)]
    for length in (-1, 0, 48, 1 << 30):
        wrong = new[:8] + struct.pack(">i", length) + new[12:]
        assert not list(frame_sizes(wrong))
