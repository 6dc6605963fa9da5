"""Preparation of produced batches for the write: checks, offsets, and groups that fit a segment.

Owns the checks and the rare rewriting (LogAppendTime) of produced batches, and the chunks that go
to disk. Decodes no record. Not the inspection of records: see `inspecting`. Not the write: see
`appending`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.model.configs.topic import LOG_APPEND_TIME, TopicConfigs
from tidelog.model.errors import ErrorCode
from tidelog.model.work import finish
from tidelog.records.batch import (
    HEADER_SIZE,
    MAGIC_POSITION,
    MAX_INT32,
    Buffer,
    Rejected,
    check_batch_in_transaction,
    check_client_batch,
    pack_header,
    pack_prefix,
    split,
    stamped_header,
)
from tidelog.storage.log.inspecting import (
    INSPECTED_BYTES,
    REQUEST_BYTES_AT_ONCE,
    UNINSPECTED,
    BatchDemands,
    Batches,
    InspectionAllowance,
    inspect,
    limit_at_once,
)

COPIED_BYTES = 2048
"""Batches up to this size are copied after their new prefix: one buffer instead of two saves more
time in the kernel than the copy takes."""


def prepare(
    buffer: Buffer, wanted: BatchDemands, *, allowance: InspectionAllowance | None = None
) -> Batches | Rejected:
    """Return the batches of a produce payload, checked and as they will be kept.

    The server's own batches (not from a client) may be control batches and pass unchecked.
    With ``allowance`` it never takes long: otherwise ``UNINSPECTED``.
    """
    batches = checked(buffer, wanted)
    if not isinstance(batches, list):
        return batches
    configs = wanted.configs
    for header, _ in batches:
        if wanted.needs_inspection(header):
            seen = _inspected(batches, wanted, allowance)
            return finished(seen, configs, wanted.now_ms) if isinstance(seen, list) else seen
    if (
        len(batches) > 1
        or len(buffer) > configs.segment_bytes
        or configs.message_timestamp_type is LOG_APPEND_TIME
    ):
        return finished(batches, configs, wanted.now_ms)
    return batches


def _inspected(
    batches: Batches, wanted: BatchDemands, allowance: InspectionAllowance | None
) -> Batches | Rejected:
    limit = INSPECTED_BYTES if allowance is None else limit_at_once(batches, wanted, allowance)
    if not limit:
        return UNINSPECTED
    # Its own: the plain bytes of a request are counted where threads have to bear them.
    used = InspectionAllowance()
    seen = finish(inspect(batches, wanted, used, limit=limit))
    if allowance is None:
        return seen
    allowance.at_once -= REQUEST_BYTES_AT_ONCE - used.at_once
    if isinstance(seen, Rejected):
        # Up to here the work was done, too.
        allowance.at_once -= limit
        # Later the limit is higher.
        return UNINSPECTED if seen.error is ErrorCode.MESSAGE_TOO_LARGE else seen
    return seen


def checked(buffer: Buffer, wanted: BatchDemands) -> Batches | Rejected:
    """Return the batches of a produce payload, each of which is sound by its header and CRC."""
    batches = split(buffer)
    if not isinstance(batches, list) or not wanted.from_client:
        return batches
    check = check_batch_in_transaction if wanted.in_transaction else check_client_batch
    for header, batch in batches:
        refusal = check(header, batch, wanted.configs, wanted.now_ms)
        if refusal is not None:
            return refusal
    return batches


def finished(batches: Batches, configs: TopicConfigs, now_ms: int) -> Batches | Rejected:
    """Return checked batches with the broker's time, if the topic wants it, and as many as fit."""
    if configs.message_timestamp_type is LOG_APPEND_TIME:
        batches = [(stamped_header(header, batch, now_ms), batch) for header, batch in batches]
    if sum(len(batch) for _, batch in batches) > configs.segment_bytes:
        return Rejected(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"the batches of one request are larger than segment.bytes={configs.segment_bytes}",
        )
    if len(batches) > 1 and sum(header.last_offset_delta + 1 for header, _ in batches) > MAX_INT32:
        return Rejected(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            "the batches of one request have more records than a segment has offsets",
        )
    return batches


def chunks_for(
    batches: Batches, first_offset: int, leader_epoch: int, *, stamped: bool
) -> Sequence[Buffer]:
    """Return the chunks to write: batches with offsets and leader epoch; a small one is copied.

    The sender's buffer is not changed: new bytes replace its first ones.
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


def groups_that_fit(
    batches: Batches, size: int, base_offset: int, end_offset: int, segment_bytes: int
) -> list[Batches]:
    """Cut fetched batches into groups that a segment takes: the leader's segments differ.

    ``size`` and ``base_offset`` are those of the active segment, ``end_offset`` is the log's: the
    next segment begins there, or at the end of the group before. Bytes stay within
    ``segment_bytes``, offsets within the 32 bits of the indexes.
    """
    groups: list[Batches] = []
    for header, batch in batches:
        fits = size + len(batch) <= segment_bytes and header.last_offset - base_offset <= MAX_INT32
        if not fits:
            size, base_offset = 0, end_offset
        if groups and fits:
            groups[-1].append((header, batch))
        else:
            groups.append([(header, batch)])
        size += len(batch)
        end_offset = header.next_offset
    return groups
