"""Getting a leader's batches ready to be written.

Owns the checks and the rare rewriting (compression.type, LogAppendTime) of produced batches, and
the chunks that go to disk. Does not write. Records are never decoded here, with one exception:
a compacted topic needs a key in every record, and that can only be seen by looking.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.model.errors import ErrorCode
from tidelog.model.topic_configs import LOG_APPEND_TIME, TopicConfigs
from tidelog.records.batch import (
    HEADER_SIZE,
    MAGIC_POSITION,
    BatchHeader,
    Buffer,
    Rejected,
    check_client_batch,
    pack_header,
    pack_prefix,
    read_header,
    split,
    stamped_header,
)
from tidelog.records.builder import recompress
from tidelog.records.compression import CODEC_NAMES
from tidelog.records.reader import payload_of
from tidelog.records.record import CorruptRecords, PayloadTooLarge, without_key

LOOKED_INTO_BYTES = 16 * 1024 * 1024
"""Decompressed size up to which the server looks into a batch (or 4 times max.message.bytes, if
that is more): the event loop waits meanwhile, and few bytes can decompress to very many."""

LOOKED_INTO_RECORDS = 131_072
"""Most records of a batch of a compacted topic; each one's key is looked at."""

NAMED_RECORDS = 1000
"""Most records of a batch that a refusal names (KIP-467)."""

COPIED_BYTES = 2048
"""Batches up to this size are copied behind their new prefix: the kernel takes one buffer in less
time than two, by more than the copy takes."""

Batches = list[tuple[BatchHeader, memoryview]]


def prepare(
    buffer: Buffer, configs: TopicConfigs, now_ms: int, *, from_client: bool
) -> Batches | Rejected:
    """Return the batches of a produce payload, checked and as they will be kept.

    The server's own batches (``from_client`` False) may be control batches and pass unchecked.
    """
    found = split(buffer)
    if found.__class__ is not list:
        return found
    if from_client:
        for header, batch in found:
            refusal = check_client_batch(header, batch, configs, now_ms)
            if refusal is not None:
                return refusal
        if "compact" in configs.cleanup_policy:
            refusal = _check_keys(found, configs)
            if refusal is not None:
                return refusal
    if configs.compression_type != "producer":
        try:
            found = [_recompressed(header, batch, configs) for header, batch in found]
        except CorruptRecords as error:
            return _unusable(error)
    if configs.message_timestamp_type is LOG_APPEND_TIME:
        found = [(stamped_header(header, batch, now_ms), batch) for header, batch in found]
    if len(buffer) > configs.segment_bytes:
        return Rejected(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"the batches of one request are larger than segment.bytes={configs.segment_bytes}",
        )
    return found


def chunks_for(
    batches: Batches, first_offset: int, leader_epoch: int, *, stamped: bool
) -> Sequence[Buffer]:
    """Return what is written: batches with their offsets and leader epoch; only a small one copied.

    The sender's buffer is left alone: new bytes in front stand for the old ones.
    """
    if len(batches) == 1 and not stamped:
        header, batch = batches[0]
        prefix = pack_prefix(first_offset, header.length, leader_epoch)
        rest = batch[MAGIC_POSITION:]
        return (prefix, rest) if len(rest) > COPIED_BYTES else (b"".join((prefix, rest)),)
    chunks: list[Buffer] = []
    offset = first_offset
    for header, batch in batches:
        if stamped:
            assigned = header._replace(base_offset=offset, leader_epoch=leader_epoch)
            chunks += (pack_header(assigned), batch[HEADER_SIZE:])
        else:
            chunks += (
                pack_prefix(offset, header.length, leader_epoch),
                batch[MAGIC_POSITION:],
            )
        offset += header.last_offset_delta + 1
    return chunks


def groups_that_fit(batches: Batches, size: int, segment_bytes: int) -> list[Batches]:
    """Cut fetched batches into groups that a segment takes: the leader's segments differ.

    ``size`` is what the active segment has already.
    """
    groups: list[Batches] = []
    for header, batch in batches:
        if groups and size + len(batch) <= segment_bytes:
            groups[-1].append((header, batch))
        else:
            if groups or size + len(batch) > segment_bytes:
                size = 0
            groups.append([(header, batch)])
        size += len(batch)
    return groups


def _largest_payload(configs: TopicConfigs) -> int:
    """Return how many bytes a batch may decompress to where the server must look inside."""
    return max(LOOKED_INTO_BYTES, 4 * configs.max_message_bytes)


def _unusable(error: CorruptRecords) -> Rejected:
    # Too large is nothing to try again as it is, as a damaged one may be: clients cut it.
    too_large = isinstance(error, PayloadTooLarge)
    code = ErrorCode.MESSAGE_TOO_LARGE if too_large else ErrorCode.CORRUPT_MESSAGE
    return Rejected(code, str(error))


def _check_keys(batches: Batches, configs: TopicConfigs) -> Rejected | None:
    limit = _largest_payload(configs)
    for header, batch in batches:
        if header.record_count > LOOKED_INTO_RECORDS:
            return Rejected(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a batch of a compacted topic has at most {LOOKED_INTO_RECORDS} records, "
                f"not {header.record_count}",
            )
        try:
            payload = payload_of(header, batch, limit)
            missing = without_key(payload, header.record_count, NAMED_RECORDS)
        except CorruptRecords as error:
            return _unusable(error)
        if missing:
            which = ", ".join(map(str, missing[:10])) + (", …" if len(missing) > 10 else "")
            sentence = f"no key, and the topic is compacted by key: record {which} of the batch"
            return Rejected(ErrorCode.INVALID_RECORD, sentence, missing)
    return None


def _recompressed(
    header: BatchHeader, batch: memoryview, configs: TopicConfigs
) -> tuple[BatchHeader, memoryview]:
    codec = CODEC_NAMES[configs.compression_type]
    if header.codec == codec or header.control:
        return header, batch
    levels = {
        "gzip": configs.compression_gzip_level,
        "lz4": configs.compression_lz4_level,
        "zstd": configs.compression_zstd_level,
    }
    level = levels.get(configs.compression_type)
    changed = recompress(header, batch, codec, level, _largest_payload(configs))
    return read_header(changed), memoryview(changed)
