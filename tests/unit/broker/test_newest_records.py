"""A load that needs the newest record of each key finds what a replay of every record leaves."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from tests.support.drawn_seed import drawn_seed
from tidelog.broker.coordinator.newest_records import AT_ONCE, Newest, note_newest
from tidelog.broker.coordinator.replaying import every_record
from tidelog.model.work import finish
from tidelog.records.batch import TRANSACTIONAL_BIT, assign, read_header, seal_batch
from tidelog.records.builder import NewRecord, build_batch
from tidelog.records.compression import Codec
from tidelog.records.control_records import EndMarker, marker_batch
from tidelog.records.record import CorruptRecords, Record

NOW_MS = 1_700_000_000_000


def drawn_record(rng: random.Random) -> NewRecord:
    key = rng.choice((None, b"", b"k", b"k" * 63, b"k" * 64, b"k" * 300, b"%d" % rng.randrange(5)))
    size = rng.choice((0, 1, 10, 50, 60, 63, 64, 100, 127, 128, 8_191, 8_192, 20_000))
    value = None if rng.random() < 0.2 else rng.randbytes(size)
    headers = [("h", b"v")] if rng.random() < 0.1 else []
    return NewRecord(NOW_MS + rng.choice((0, 0, 0, 5, 70)), key, value, headers)


def drawn_log(rng: random.Random) -> tuple[bytes, int]:
    """Return batches of all kinds, and the offset after them."""
    parts, offset = [], rng.randrange(1_000)
    for _ in range(rng.randrange(60)):
        if rng.random() < 0.1:
            made = bytearray(
                marker_batch(
                    EndMarker(True, 0),
                    producer_id=1,
                    producer_epoch=0,
                    leader_epoch=0,
                    timestamp_ms=NOW_MS,
                )
            )
        else:
            count = 1 if rng.random() < 0.8 else rng.randrange(1, 9)
            codec = Codec.GZIP if rng.random() < 0.1 else Codec.NONE
            records = [drawn_record(rng) for _ in range(count)]
            made = bytearray(build_batch(records, codec=codec))
            if rng.random() < 0.1:
                header = read_header(made)
                changed = header._replace(
                    attributes=header.attributes | TRANSACTIONAL_BIT,
                    last_offset_delta=header.last_offset_delta + rng.randrange(3),
                )
                made = bytearray(seal_batch(changed, made[61:]))
        assign(made, offset, 0)
        offset = read_header(made).next_offset
        parts.append(bytes(made))
    return b"".join(parts), offset


def replayed(log: bytes, position: int) -> tuple[int, Newest]:
    """Return what a replay of every record leaves."""
    left: Newest = {}

    def replay(_: Any, records: Sequence[Record]) -> None:
        for record in records:
            left.pop(record.key, None)
            if record.value is not None:
                left[record.key] = record.value

    take = every_record((replay, lambda *_: None), memoryview(log), position)
    return finish(take), left


@pytest.mark.parametrize("seed", [None, *range(40)])
def test_it_is_what_all_records_leave(seed: int | None) -> None:
    rng = random.Random(drawn_seed() if seed is None else seed)
    log, end = drawn_log(rng)
    position = rng.randrange(end + 1)
    newest: Newest = {}
    assert finish(note_newest(memoryview(log), position, newest)) == (replayed(log, position)[0])
    assert newest == replayed(log, position)[1]
    cut = log[: rng.randrange(len(log) + 1)]
    assert finish(note_newest(memoryview(cut), 0, {})) == replayed(cut, 0)[0]


@pytest.mark.parametrize("count", [1, 3])
def test_damaged_bytes_are_refused(count: int) -> None:
    whole = build_batch([NewRecord(NOW_MS, b"key", b"value")] * count)
    damaged = bytearray(whole)
    damaged[-3] ^= 1
    with pytest.raises(CorruptRecords, match="the batch at offset 0 has a wrong CRC"):
        finish(note_newest(memoryview(damaged), 0, {}))
    for place in range(61, len(whole)):
        # The CRC is right, the record is not: as a replay of every record has it.
        wrong = bytearray(whole)
        wrong[place] ^= 0x80
        sealed = memoryview(seal_batch(read_header(whole), wrong[61:]))
        newest: Newest = {}
        outcomes = []
        for take in (partial(note_newest, newest=newest), partial(every_record, NOTHING)):
            try:
                outcomes.append(finish(take(sealed, 0)))
            except CorruptRecords as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1], place


NOTHING: Any = (lambda *_: None, lambda *_: None)


def test_it_goes_in_steps() -> None:
    parts = []
    for number in range(5 * AT_ONCE):
        made = bytearray(build_batch([NewRecord(NOW_MS, b"%d" % number, bytes(50))]))
        assign(made, number, 0)
        parts.append(made)
    steps = before = 0
    newest: Newest = {}
    for _ in note_newest(memoryview(b"".join(parts)), 0, newest):
        assert len(newest) - before == AT_ONCE
        steps, before = steps + 1, len(newest)
    assert steps == 5
