"""Well-formed record batches that lie: right length, magic and CRC, and fields that are not true.

Owns making them, from a seed; what must hold of a log that is given them is the tests'. A lie is
one that any client of Produce can send, or that a leader of an older version may hold: no byte of
it is damaged, so no checksum finds it.
"""

from __future__ import annotations

import gzip
import random
import struct
from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from typing import Any, NamedTuple

import cramjam
import lz4.block
import lz4.frame
import zstandard

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
        a_frame,
        a_form_of_a_record,
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


def a_frame(random: random.Random, now_ms: int) -> Lie:
    """Honest records in any frame that a library of its codec writes, or nearly."""
    count = random.choice((1, 2, 9, 3000))
    value = random.randbytes(60)
    plain = b"".join(encode_record(at, at, b"key-4", value) for at in range(count))
    name = random.choice(sorted(FRAMES))
    codec, make = FRAMES[name]
    payload = make(plain)
    fields = {"attributes": codec, "record_count": count, "last_offset_delta": count - 1}
    fields["max_timestamp"] = now_ms + count - 1
    sent = changed(build_batch([NewRecord(now_ms, None, None)]), payload, **fields)
    return Lie(f"{count} records in a frame: {name}", sent)


def _lz4(plain: bytes, **options: Any) -> bytes:
    return bytes(lz4.frame.compress(plain, **({"block_linked": False} | options)))


def _with(frame: bytes, at: int, byte: int) -> bytes:
    return frame[:at] + bytes((byte,)) + frame[at + 1 :]


def _xerial(plain: bytes, *, sizes: int = 32 * 1024) -> bytes:
    # With versions in the other byte order Kafka takes it, too, but aiokafka does not read it.
    parts = [b"\x82SNAPPY\0", struct.pack(">ii", 1, 1)]
    for start in range(0, len(plain), sizes):
        block = bytes(cramjam.snappy.compress_raw(plain[start : start + sizes]))
        parts += (struct.pack(">i", len(block)), block)
    return b"".join(parts)


def _zstd(plain: bytes, **options: Any) -> bytes:
    return bytes(zstandard.ZstdCompressor(**options).compress(plain))


_SKIPPABLE = b"\x50\x2a\x4d\x18\4\0\0\0skip"

FRAMES: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "gzip": (1, gzip.compress),
    "gzip, two members": (1, lambda plain: gzip.compress(plain[:9]) + gzip.compress(plain[9:])),
    "gzip, bytes after it": (1, lambda plain: gzip.compress(plain) + b"\0\0"),
    "gzip, cut": (1, lambda plain: gzip.compress(plain)[:-3]),
    "gzip, nothing": (1, lambda _: gzip.compress(b"")),
    "snappy, raw": (2, lambda plain: bytes(cramjam.snappy.compress_raw(plain))),
    "snappy, xerial": (2, _xerial),
    "snappy, xerial, small blocks": (2, lambda plain: _xerial(plain, sizes=999)),
    "snappy, xerial, no block": (2, lambda _: _xerial(b"")),
    "snappy, xerial, cut": (2, lambda plain: _xerial(plain)[:-1]),
    "snappy, frame format": (2, lambda plain: bytes(cramjam.snappy.compress(plain))),
    "snappy, nothing": (2, lambda _: bytes(cramjam.snappy.compress_raw(b""))),
    "lz4": (3, _lz4),
    "lz4, sums": (3, lambda plain: _lz4(plain, block_checksum=True, content_checksum=True)),
    "lz4, no size": (3, lambda plain: _lz4(plain, store_size=False, block_size=7)),
    "lz4, linked": (3, lambda plain: _lz4(plain, block_linked=True)),
    "lz4, wrong check of the header": (3, lambda plain: _with(_lz4(plain), 14, 1)),
    "lz4, reserved flags": (3, lambda plain: _with(_lz4(plain), 4, 0x6B)),
    "lz4, unknown version": (3, lambda plain: _with(_lz4(plain), 4, 0xA8)),
    "lz4, block size": (3, lambda plain: _with(_lz4(plain), 5, 0x30)),
    "lz4, two frames": (3, lambda plain: _lz4(plain[:9]) + _lz4(plain[9:])),
    "lz4, bytes after it": (3, lambda plain: _lz4(plain) + b"\0"),
    "lz4, no end": (3, lambda plain: _lz4(plain)[:-4]),
    "lz4, nothing": (3, lambda _: _lz4(b"")),
    "lz4, block format": (3, lambda plain: lz4.block.compress(plain)),
    "zstd": (4, _zstd),
    "zstd, no size": (4, lambda plain: _zstd(plain, write_content_size=False)),
    "zstd, a sum": (4, lambda plain: _zstd(plain, write_checksum=True)),
    "zstd, two frames": (4, lambda plain: _zstd(plain[:9]) + _zstd(plain[9:])),
    "zstd, a skipped frame": (4, lambda plain: _SKIPPABLE + _zstd(plain)),
    "zstd, bytes after it": (4, lambda plain: _zstd(plain) + b"\0"),
    "zstd, cut": (4, lambda plain: _zstd(plain)[:-1]),
    "zstd, a window of 2 GB": (4, lambda plain: b"\x28\xb5\x2f\xfd\0\xa8" + _zstd(plain)[6:]),
    "zstd, nothing": (4, lambda _: _zstd(b"")),
}
"""By name: the codec that the batch names, and what makes the frame of its records."""


def a_form_of_a_record(random: random.Random, now_ms: int) -> Lie:
    """One record of fields that are sound, odd or wrong; its length is that of its fields."""
    numbers = [write_varint(each) for each in (0, 0, 0, 1, -1, -2, 2**31)] + [b"\x80\0"]
    numbers += [b"\x80\x80\x80\x80\0", b"\x80\x80\x80\x80\x80\0", b"\x81\0", b"\xff" * 5 + b"\1"]
    names = (b"name", b"", "\u00fc".encode(), b"\xff")
    null, parts = write_varint(-1), [bytes((random.choice((0, 0, 0, 1, 0x7F, 0x80)),))]
    parts += [random.choice(numbers) if random.random() < 0.3 else write_varint(0) for _ in "td"]
    for text in (b"key-5", b"v"):
        parts.append(random.choice((null, write_varint(len(text)) + text, random.choice(numbers))))
    count = random.choice((0, 0, 1, 2, -1, 3))
    parts.append(write_varint(count))
    for _ in range(random.choice((count, count, 1))):
        name = random.choice(names)
        parts += (write_varint(len(name)), name, random.choice((null, b"\2h", b"\0", numbers[-1])))
    body = b"".join(parts)
    return Lie(f"a record {body!r}", _of(random, now_ms, write_varint(len(body)) + body, 1))


def _of(random: random.Random, now_ms: int, payload: bytes, count: int) -> bytes:
    codec = random.choice(CODECS)
    fields = {"attributes": codec, "record_count": count, "last_offset_delta": count - 1}
    return changed(honest(random, now_ms), compress(codec, payload), **fields)
