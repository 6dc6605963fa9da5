"""Well-formed record batches that lie: right length, magic and CRC, and fields that are not true.

Owns making them, from a seed; what must hold of a log that is given them is the tests'. A lie is
one that any client of Produce can send, or that a leader of an older version may hold: no byte of
it is damaged, so no checksum finds it.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from typing import NamedTuple

from tidelog.records.batch import MAX_INT32, BatchHeader, read_header, seal_batch
from tidelog.records.builder import NewRecord, build_batch
from tidelog.records.compression import Codec, compress
from tidelog.records.record import encode_record, write_varint

MIN_INT64, MAX_INT64 = -(2**63), 2**63 - 1
COUNTS = (0, 2, 1000, 131_072, 131_073, 2**24, 38_347_922, 38_347_923, 2**30, MAX_INT32)
"""Of records: 38,347,922 are what 256 MiB can hold."""

CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)


class Lie(NamedTuple):
    """``claim`` says what is untrue, for the message of a failing test."""

    claim: str
    batch: bytes


def lies(random: random.Random, now_ms: int, count: int) -> Iterator[Lie]:
    """Yield ``count`` lying batches; the kinds take turns, so that few make all of them."""
    kinds: list[Callable[[random.Random, int], Lie]] = [
        a_count,
        an_offset_delta,
        a_time,
        a_sequence,
        an_attribute,
        a_payload,
        a_record,
        a_size,
        members_of_gzip,
    ]
    for at in range(count):
        yield kinds[at % len(kinds)](random, now_ms)


@cache
def family(seed: int, now_ms: int, count: int) -> tuple[Lie, ...]:
    """The lies of a seed, made once for all tests: large ones take a while to make."""
    return tuple(lies(Random(seed), now_ms, count))


def honest(random: random.Random, now_ms: int, codec: int | None = None) -> bytes:
    """A batch of which all is true, of one to five records with keys."""
    records = [
        NewRecord(now_ms + at, b"key-%d" % random.randrange(9), random.randbytes(9))
        for at in range(random.randint(1, 5))
    ]
    return build_batch(records, codec=random.choice(CODECS) if codec is None else codec)


def changed(batch: bytes, payload: bytes | None = None, **fields: int) -> bytes:
    """Return the batch with other header fields and another payload, and the CRC of these."""
    header: BatchHeader = read_header(batch)._replace(**fields)
    return seal_batch(header, batch[61:] if payload is None else payload)


def a_count(random: random.Random, now_ms: int) -> Lie:
    """More records, or fewer, than there are; the last offset delta agrees with them or not."""
    count = random.choice(COUNTS)
    delta = random.choice((count - 1, count - 1, count - 1, count, 0, MAX_INT32, -1))
    batch = changed(honest(random, now_ms), record_count=count, last_offset_delta=delta)
    return Lie(f"{count} records, last offset delta {delta}", batch)


def an_offset_delta(random: random.Random, now_ms: int) -> Lie:
    """Records whose offsets are not those of their places."""
    deltas = random.choice(((1, 0), (0, 0), (5, 9), (-1, 0), (0, 2**40), (MIN_INT64, MAX_INT64)))
    payload = b"".join(encode_record(delta, 0, b"key-1", b"v") for delta in deltas)
    return Lie(f"offset deltas {deltas}", _of(random, now_ms, payload, len(deltas)))


def a_time(random: random.Random, now_ms: int) -> Lie:
    """Times of the header and of the records that do not belong together."""
    times = (MIN_INT64, -2, -1, 0, 1, now_ms, now_ms + 3_600_000, now_ms + 9e6, MAX_INT64)
    first, newest = int(random.choice(times)), int(random.choice(times))
    deltas = random.choice(((0, 1), (-1, -2), (2**40, 0), (MIN_INT64, MAX_INT64)))
    payload = b"".join(encode_record(at, each, b"key-2", b"v") for at, each in enumerate(deltas))
    batch = _of(random, now_ms, payload, 2)
    batch = changed(batch, base_timestamp=first, max_timestamp=newest)
    return Lie(f"times {first} to {newest}, of records {deltas}", batch)


def a_sequence(random: random.Random, now_ms: int) -> Lie:
    """Producers and sequence numbers of anybody."""
    fields = {
        "producer_id": random.choice((-5, -1, 0, 1, 2**40, MAX_INT64)),
        "producer_epoch": random.choice((-1, 0, 1, 32_767)),
        "base_sequence": random.choice((-1, 0, 1, 7, MAX_INT32)),
    }
    return Lie(str(fields), changed(honest(random, now_ms), **fields))


def an_attribute(random: random.Random, now_ms: int) -> Lie:
    """Any attribute bits: a codec that the payload does not have, bits that mean nothing."""
    attributes = random.choice((1, 2, 3, 4, 5, 7, 8, 16, 32, 64, 128, 256, -1, -32_768))
    batch = changed(honest(random, now_ms, Codec.NONE), attributes=attributes)
    return Lie(f"attributes {attributes}", batch)


def a_payload(random: random.Random, now_ms: int) -> Lie:
    """Bytes that do not decompress, are cut short, are of another codec, or are no records."""
    codec, other = random.choice(CODECS), random.choice(CODECS)
    batch = honest(random, now_ms, codec)
    payload = random.choice(
        (
            b"",
            random.randbytes(40),
            batch[61:-1],
            batch[61:] + b"\0",
            compress(other, b"no records"),
            compress(codec, random.randbytes(64)),
            compress(codec, b"\x82SNAPPY\0" + bytes(12)),
        )
    )
    return Lie(f"a payload of {payload[:9]!r} under codec {codec}", changed(batch, payload))


def a_record(random: random.Random, now_ms: int) -> Lie:
    """Records whose fields are longer than they are, or without end."""
    body = random.choice(
        (
            b"\0\0\0" + write_varint(2**31) + b"k",
            b"\0\0\0" + write_varint(-9) + write_varint(-9) + b"\0",
            b"\0\0\0\2k\2v" + write_varint(2**31),
            b"\0\0\0\2k\2v" + write_varint(-1),
            b"\xff" * 12,
            b"",
        )
    )
    size = random.choice((len(body), len(body), 0, -1, 2**31, MAX_INT64))
    return Lie(
        f"a record of {size} bytes {body[:9]!r}",
        _of(random, now_ms, write_varint(size) + body, 1),
    )


def a_size(random: random.Random, now_ms: int) -> Lie:
    """Few bytes that decompress to very many."""
    size = random.choice((2**20, 2**22, 2**24 + 1, 2**25))
    codec = random.choice(CODECS[1:])
    record = encode_record(0, 0, b"key-3", bytes(size))
    if random.random() < 0.5:
        record = bytes(size)
    count = random.choice((1, 1000, len(record) // 7))
    fields = {"attributes": codec, "record_count": count, "last_offset_delta": count - 1}
    batch = changed(honest(random, now_ms), compress(codec, record), **fields)
    return Lie(f"{len(batch)} bytes that become {len(record)} under codec {codec}", batch)


def members_of_gzip(random: random.Random, now_ms: int) -> Lie:
    """Very many members without content, which each reader walks over."""
    count = random.choice((1, 1000, 20_000))
    batch = honest(random, now_ms, Codec.GZIP)
    payload = gzip.compress(b"", mtime=0) * count + random.choice((b"", batch[61:]))
    return Lie(f"{count} empty members of gzip", changed(batch, payload))


def _of(random: random.Random, now_ms: int, payload: bytes, count: int) -> bytes:
    codec = random.choice(CODECS)
    fields = {"attributes": codec, "record_count": count, "last_offset_delta": count - 1}
    return changed(honest(random, now_ms), compress(codec, payload), **fields)
