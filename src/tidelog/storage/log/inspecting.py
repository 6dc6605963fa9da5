"""The inspection of produced batches: their records, keys and times, and another codec for them.

Owns when that is needed and how it is done, in pieces (``model.work``): a thread decompresses
and compresses, records are checked some at a time, and the greatest timestamp of the header is
taken from them. No other code inspects a produced batch, and this code decodes no record.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from tidelog.model.configs.topic import CREATE_TIME, TopicConfigs
from tidelog.model.errors import ErrorCode
from tidelog.model.work import Work
from tidelog.records.batch import (
    CODEC_MASK,
    HEADER_SIZE,
    BatchHeader,
    Rejected,
    read_header,
    seal_batch,
    why_not_in_time,
)
from tidelog.records.compression import CODEC_NAMES, Codec, compress, decompress
from tidelog.records.frames import frame_fault
from tidelog.records.record import CorruptRecords, PayloadTooLarge
from tidelog.records.record_scan import RecordScan
from tidelog.runtime import pace

INSPECTED_BYTES = 16 * 1024 * 1024
"""Decompressed size up to which the server inspects a batch, whatever the topic's
``max.message.bytes``: few bytes can decompress to very many."""

INSPECTED_RECORDS = 131_072
"""Most records of a batch that is inspected: each one is checked."""

NAMED_RECORDS = 1000
"""Most records of a batch that a refusal names (KIP-467)."""

SMALL_RECORDS = 1000
SMALL_BYTES = 64 * 1024
"""Records and plain bytes of a batch that is inspected before the request goes on: less than a
millisecond. To have a thread do it takes 0.15 ms of CPU for each of its two calls."""

SMALL_COMPRESSED_BYTES = {
    Codec.NONE: SMALL_BYTES,
    Codec.GZIP: SMALL_BYTES // 4,
    Codec.SNAPPY: SMALL_BYTES,
    Codec.LZ4: SMALL_BYTES,
    Codec.ZSTD: SMALL_BYTES,
}
"""The same where it is compressed, too: at the codec's default level that takes less than 0.4 ms,
and 2 ms of the worst bytes for gzip."""

SLOW_LEVEL_BYTES = 1024
"""The same at each higher level, where the worst 64 KiB take 40 ms."""

_DEFAULT_LEVELS = {Codec.GZIP: 6, Codec.LZ4: 9, Codec.ZSTD: 3}
"""Kafka's defaults; for gzip -1 stands for it. Of LZ4 all other levels are slow ones."""

REQUEST_BYTES_AT_ONCE = 4 * SMALL_BYTES
"""Plain bytes of one request that the loop checks itself: its batches may be many."""

REQUEST_BYTES, REQUEST_RATIO = 64 * 1024 * 1024, 32
"""Plain bytes of one request in all: so many, and so many for each byte of its batches."""

_RECORDS_IN_A_STEP = 4 * pace.PART
"""Records that are compared between two checks of the clock: a quarter of a millisecond at most."""

Batches = list[tuple[BatchHeader, memoryview]]


@dataclass(slots=True)
class InspectionAllowance:
    """The remaining allowance of one request for work on its batches."""

    at_once: int = REQUEST_BYTES_AT_ONCE
    plain: int = REQUEST_BYTES


ONE_BATCH = InspectionAllowance(at_once=2**62)
"""For a request with one batch, which has a limit of its own."""

UNINSPECTED = Rejected(ErrorCode.REQUEST_TIMED_OUT, "its records wait to be inspected")
"""Refused for now, with nothing done: the batches are inspected in a thread before the append."""


class BatchDemands(NamedTuple):
    """What is asked of batches: the topic's configurations, and now; whether they are of a client,
    whether the records of each one are checked (``log.batch.check=full``), and whether they may
    belong to a transaction."""

    configs: TopicConfigs
    now_ms: int
    from_client: bool = True
    check_records: bool = False
    in_transaction: bool = False

    def needs_inspection(self, header: BatchHeader) -> bool:
        """Whether a batch's records must be checked: without that it stays as it was sent."""
        configs = self.configs
        if configs.compression_type != "producer" and self.codec_for(header) is not None:
            return True
        return self.from_client and (
            self.check_records
            or configs.compacted
            # Some clients leave out the greatest timestamp, or send one before the first.
            or (
                not 0 <= header.base_timestamp <= header.max_timestamp
                and configs.message_timestamp_type is CREATE_TIME
            )
        )

    def codec_for(self, header: BatchHeader) -> int | None:
        """Return the codec that a batch is to get, None when it stays as it is."""
        name = self.configs.compression_type
        if name == "producer" or header.control:
            return None
        codec = CODEC_NAMES[name]
        return None if header.codec == codec else codec


def limit_at_once(batches: Batches, wanted: BatchDemands, allowance: InspectionAllowance) -> int:
    """Return what one of the batches may decompress to where the request does not go on before they
    are inspected; 0 when that takes too long."""
    recompressed = any(wanted.codec_for(header) is not None for header, _ in batches)
    small = _compressed_at_once(wanted.configs) if recompressed else SMALL_BYTES
    for header, batch in batches:
        if len(batch) > small or header.record_count > SMALL_RECORDS:
            return 0
        # What a batch becomes is known later, and charged then: one may go beyond what is left.
        if not header.codec and len(batch) > allowance.at_once:
            return 0
    return small if allowance.at_once > 0 else 0


def _compressed_at_once(configs: TopicConfigs) -> int:
    codec, level = CODEC_NAMES[configs.compression_type], _level_of(configs)
    usual = _DEFAULT_LEVELS.get(codec)
    is_slow = level is not None and (level != usual if codec == Codec.LZ4 else level > (usual or 0))
    return SLOW_LEVEL_BYTES if is_slow else SMALL_COMPRESSED_BYTES[codec]


def inspect(
    batches: Batches,
    wanted: BatchDemands,
    allowance: InspectionAllowance,
    *,
    limit: int = INSPECTED_BYTES,
) -> Work[Batches | Rejected]:
    """Return the batches as the topic keeps them, or the first refusal.

    ``limit``: what one batch may decompress to.
    """
    kept: Batches = []
    for header, batch in batches:
        if not wanted.needs_inspection(header):
            kept.append((header, batch))
            continue
        if wanted.from_client and header.record_count > INSPECTED_RECORDS:
            return Rejected(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a batch that is inspected has at most {INSPECTED_RECORDS} records, "
                f"not {header.record_count}",
            )
        inside = _Inside(header, batch)
        try:
            if header.codec != Codec.NONE:
                fault = frame_fault(header.codec, inside.plain) if wanted.from_client else None
                if fault is not None:
                    return Rejected(ErrorCode.INVALID_RECORD, fault)
                allowance.plain += REQUEST_RATIO * len(batch)
                # Reserved first, the rest returned: other batches of the request are in work.
                taken = min(limit, max(0, allowance.plain))
                allowance.plain -= taken
                # One member of gzip: librdkafka ends after the first, and aborts where it is empty.
                inside.plain = yield partial(decompress, header.codec, inside.plain, taken, 1)
                allowance.plain += taken - len(inside.plain)
            allowance.at_once -= len(inside.plain)
        except PayloadTooLarge as error:
            # A retry of the whole batch does not help: clients split it.
            return Rejected(ErrorCode.MESSAGE_TOO_LARGE, str(error))
        except CorruptRecords as error:
            # Nor here: the CRC is right, so the payload was made so.
            return Rejected(ErrorCode.INVALID_RECORD, str(error))
        if wanted.from_client:
            refusal = yield from _check_records(inside, wanted)
            if refusal is not None:
                return refusal
        codec, packed = wanted.codec_for(header), b""
        if codec is not None:
            packed = yield partial(inside.packed, codec, _level_of(wanted.configs))
        elif inside.header != header:
            packed = seal_batch(inside.header, batch[HEADER_SIZE:])
        if packed:
            batch = memoryview(packed)
            header = read_header(batch)
        kept.append((header, batch))
    return kept


class _Inside:
    # One batch, unpacked by now.
    __slots__ = ("header", "plain")

    def __init__(self, header: BatchHeader, batch: memoryview) -> None:
        self.header = header  # with the greatest timestamp of its records, once they are known
        self.plain: Any = batch[HEADER_SIZE:]

    def packed(self, codec: int, level: int | None) -> bytes:
        # The batch with another codec; in any thread.
        attributes = (self.header.attributes & ~CODEC_MASK) | codec
        packed = compress(codec, self.plain, level)
        return seal_batch(self.header._replace(attributes=attributes), packed)


def _check_records(inside: _Inside, wanted: BatchDemands) -> Work[Rejected | None]:
    """Compare the records of a client's batch with its header, whose greatest timestamp is set."""
    header, configs = inside.header, wanted.configs
    most = NAMED_RECORDS if configs.compacted else 0
    scan = RecordScan(inside.plain, header.record_count, header.base_timestamp, most)
    try:
        while not scan.scan(_RECORDS_IN_A_STEP):
            yield None
    except CorruptRecords as error:
        return Rejected(ErrorCode.INVALID_RECORD, str(error))
    missing = tuple(scan.missing)
    if missing:
        which = ", ".join(map(str, missing[:10])) + (", …" if len(missing) > 10 else "")
        sentence = f"no key, and the topic is compacted by key: record {which} of the batch"
        return Rejected(ErrorCode.INVALID_RECORD, sentence, missing)
    if configs.message_timestamp_type is not CREATE_TIME:
        return None
    for time, index in (scan.newest, scan.oldest):
        refusal = why_not_in_time(time, configs, wanted.now_ms)
        if refusal is not None:
            return replace(refusal, records=(index,))
    if scan.newest[0] != header.max_timestamp:
        inside.header = header._replace(max_timestamp=scan.newest[0])
    return None


def _level_of(configs: TopicConfigs) -> int | None:
    levels = {
        "gzip": configs.compression_gzip_level,
        "lz4": configs.compression_lz4_level,
        "zstd": configs.compression_zstd_level,
    }
    return levels.get(configs.compression_type)
