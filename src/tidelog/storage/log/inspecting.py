"""The inspection of produced batches: keys of a compacted topic, recompression with another codec.

Owns when that is needed and how it is done, in pieces (``runtime.turns``): a thread decompresses
and compresses, keys are checked some records at a time. No other code looks into a produced batch,
and this code decodes a record only up to its key.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.model.configs.topic_values import TopicConfigs
from tidelog.model.errors import ErrorCode
from tidelog.records.batch import (
    CODEC_MASK,
    HEADER_SIZE,
    BatchHeader,
    Buffer,
    Rejected,
    read_header,
    seal_batch,
)
from tidelog.records.compression import CODEC_NAMES, Codec, compress, decompress
from tidelog.records.record import CorruptRecords, PayloadTooLarge
from tidelog.records.scanning import KeyScan
from tidelog.runtime.turns import Pieces, at_once

LOOKED_INTO_BYTES = 16 * 1024 * 1024
"""Decompressed size up to which the server looks into a batch, whatever the topic's
``max.message.bytes``: few bytes can decompress to very many."""

LOOKED_INTO_RECORDS = 131_072
"""Most records of a batch of a compacted topic; each one's key is looked at."""

NAMED_RECORDS = 1000
"""Most records of a batch that a refusal names (KIP-467)."""

RECORDS_AT_ONCE = 1000
"""About a millisecond of the event loop."""

SMALL_BYTES = 64 * 1024
SMALL_RECOMPRESSED_BYTES = 8 * 1024
"""Plain bytes that the event loop looks at, or compresses, itself: less than a millisecond, and
about what it takes to have a thread do it."""

REQUEST_BYTES_AT_ONCE = 4 * SMALL_BYTES
"""Plain bytes of one request that the loop looks at itself: its batches may be many."""

REQUEST_BYTES, REQUEST_RATIO = 64 * 1024 * 1024, 32
"""Plain bytes of one request in all: so many, and so many for each byte of its batches."""

Batches = list[tuple[BatchHeader, memoryview]]


@dataclass(slots=True)
class Looks:
    """The remaining allowance of one request for work on its batches."""

    at_once: int = REQUEST_BYTES_AT_ONCE
    plain: int = REQUEST_BYTES


ONE_BATCH = Looks(at_once=2**62)
"""For a request with one batch, which has a limit of its own."""

UNLOOKED = Rejected(ErrorCode.REQUEST_TIMED_OUT, "its records wait to be looked into")
"""Refused for now, with nothing done: the batches are inspected in a thread before the append."""


def look_at_once(
    batches: Batches, configs: TopicConfigs, looks: Looks, *, from_client: bool
) -> Batches | Rejected:
    """Look into batches if that is short enough for one turn of the loop; otherwise
    ``UNLOOKED``."""
    recompressed = any(_codec_for(header, configs) is not None for header, _ in batches)
    small = SMALL_RECOMPRESSED_BYTES if recompressed else SMALL_BYTES
    for header, batch in batches:
        plain = small if header.codec else len(batch)
        if max(plain, len(batch)) > small or header.record_count > RECORDS_AT_ONCE:
            return UNLOOKED
        looks.at_once -= plain
    if looks.at_once < 0:
        return UNLOOKED
    found = at_once(look_into(batches, configs, Looks(), from_client=from_client, limit=small))
    if isinstance(found, Rejected) and found.error is ErrorCode.MESSAGE_TOO_LARGE:
        return UNLOOKED  # a thread has a higher limit
    return found


def look_into(
    batches: Batches,
    configs: TopicConfigs,
    looks: Looks,
    *,
    from_client: bool,
    limit: int = LOOKED_INTO_BYTES,
) -> Pieces[Batches | Rejected]:
    """Return the batches as the topic keeps them, or the first refusal.

    ``limit``: what one batch may decompress to.
    """
    kept: Batches = []
    for header, batch in batches:
        codec = _codec_for(header, configs)
        wants_keys = from_client and configs.compacted
        if codec is None and not wants_keys:
            kept.append((header, batch))
            continue
        if wants_keys and header.record_count > LOOKED_INTO_RECORDS:
            return Rejected(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a batch of a compacted topic has at most {LOOKED_INTO_RECORDS} records, "
                f"not {header.record_count}",
            )
        inside = _Inside(header, batch)
        try:
            if header.codec != Codec.NONE:
                looks.plain += REQUEST_RATIO * len(batch)
                # Reserved first, the rest returned: other batches of the request are in work.
                inside.limit = taken = min(limit, max(0, looks.plain))
                looks.plain -= taken
                yield inside.unpack
                looks.plain += taken - len(inside.plain)
            if wants_keys:
                refusal = yield from _check_keys(inside.plain, header.record_count)
                if refusal is not None:
                    return refusal
            if codec is not None:
                inside.pack_with = codec, _level_of(configs)
                yield inside.pack
                batch = memoryview(inside.packed)
                header = read_header(batch)
        except PayloadTooLarge as error:
            # A retry does not help, unlike with a damaged batch: clients split it.
            return Rejected(ErrorCode.MESSAGE_TOO_LARGE, str(error))
        except CorruptRecords as error:
            return Rejected(ErrorCode.CORRUPT_MESSAGE, str(error))
        kept.append((header, batch))
    return kept


class _Inside:
    # One batch, unpacked and packed again by calls that a thread may make.
    __slots__ = ("_header", "limit", "pack_with", "packed", "plain")

    def __init__(self, header: BatchHeader, batch: memoryview) -> None:
        self._header = header
        self.limit = 0
        self.plain: Buffer = batch[HEADER_SIZE:]
        self.pack_with: tuple[int, int | None] = Codec.NONE, None
        self.packed = b""

    def unpack(self) -> None:
        self.plain = decompress(self._header.codec, self.plain, self.limit)

    def pack(self) -> None:
        codec, level = self.pack_with
        attributes = (self._header.attributes & ~CODEC_MASK) | codec
        packed = compress(codec, self.plain, level)
        self.packed = seal_batch(self._header._replace(attributes=attributes), packed)


def _check_keys(plain: Buffer, count: int) -> Pieces[Rejected | None]:
    scan = KeyScan(plain, count, NAMED_RECORDS)
    while not scan.scan(RECORDS_AT_ONCE):
        yield None
    missing = tuple(scan.missing)
    if not missing:
        return None
    which = ", ".join(map(str, missing[:10])) + (", …" if len(missing) > 10 else "")
    sentence = f"no key, and the topic is compacted by key: record {which} of the batch"
    return Rejected(ErrorCode.INVALID_RECORD, sentence, missing)


def _codec_for(header: BatchHeader, configs: TopicConfigs) -> int | None:
    """Return the codec that a batch is to get, None when it stays as it is."""
    if configs.compression_type == "producer" or header.control:
        return None
    codec = CODEC_NAMES[configs.compression_type]
    return None if header.codec == codec else codec


def _level_of(configs: TopicConfigs) -> int | None:
    levels = {
        "gzip": configs.compression_gzip_level,
        "lz4": configs.compression_lz4_level,
        "zstd": configs.compression_zstd_level,
    }
    return levels.get(configs.compression_type)
