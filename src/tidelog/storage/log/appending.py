"""Appending to one partition's log, as leader and as follower.

Owns the order of checks, roll and write, and the accounts of each batch. Not the checks of a
client's batches: see `preparing`. Not leadership: the caller has checked it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.model.configs.topic import LOG_APPEND_TIME
from tidelog.model.errors import ErrorCode
from tidelog.model.work import Work, finish
from tidelog.records.batch import (
    CONTROL_BIT,
    MAX_INT32,
    MAX_INT64,
    Buffer,
    Rejected,
    crc_is_right,
    walk,
)
from tidelog.records.record import CorruptRecords
from tidelog.storage.log import inspecting
from tidelog.storage.log.changes import LogChange
from tidelog.storage.log.epoch_writing import begin_epoch, write_epochs
from tidelog.storage.log.fence_writing import fences_in, note_fences
from tidelog.storage.log.fences import FenceEntry
from tidelog.storage.log.inspecting import UNINSPECTED, BatchDemands, Batches, InspectionAllowance
from tidelog.storage.log.preparing import (
    checked,
    chunks_for,
    finished,
    groups_that_fit,
    prepare,
)
from tidelog.storage.log.producers import RESUMES, KnownBatch
from tidelog.storage.log.results import Appended, as_appended
from tidelog.storage.log.retention import ROLL_WAITS, may_outgrow, must_roll, room_in
from tidelog.storage.log.rolling import puts_roll_off, roll, syncing_before_roll
from tidelog.storage.log.service import out_of_service, undo_write, unreadable
from tidelog.storage.log.stable import transaction_ended
from tidelog.storage.log.state import LogState
from tidelog.storage.log.tail import end_at
from tidelog.storage.segments.segment import Room


def append_as_leader(
    log: LogState,
    buffer: Buffer,
    leader_epoch: int,
    now_ms: int,
    *,
    from_client: bool = True,
    allowance: InspectionAllowance | None = None,
    inspected: Batches | None = None,
    resumes: bool = False,
) -> Appended | Rejected:
    """Append a produced buffer of batches, all or none, with offsets from ``end_offset`` on.

    A retried batch of an idempotent producer is not appended again: the result has its first offset
    (``duplicate``). Cost: constant per batch, a CRC and one write; more where the topic wants the
    records checked. With ``allowance`` the result is ``UNINSPECTED``, with nothing done, when
    that would hold the loop: then ``inspect`` makes ``inspected``, which replaces the buffer, and
    which may be refused with ``ROLL_WAITS``, for ``syncing_before_roll``. An unknown producer goes
    on with its sequence only if it ``resumes``, otherwise: ``RESUMES``. Without either the call
    blocks where a roll waits for a sync; the server's own batches go before the roll.
    """
    if log.damaged or log.resources.failed or log.closed or log.change is LogChange.CUT:
        return out_of_service(log)
    configs = log.configs
    if inspected is None:
        wanted = BatchDemands(configs, now_ms, from_client, log.resources.checks_records)
        batches = prepare(buffer, wanted, allowance=allowance)
    else:
        batches = finished(inspected, configs, now_ms)
    if not isinstance(batches, list):
        return batches
    if from_client and (len(batches) > 1 or batches[0][0].producer_id >= 0):
        judged = _judge_producers(log, batches, resumes=resumes)
        if isinstance(judged, Rejected):
            return judged
        if judged is not None:
            return _duplicate(log, judged)
    fences: list[FenceEntry] = []
    if not from_client:
        # A client's batch is no fence: ``check_client_batch``.
        try:
            fences = fences_in(log, batches, assigned=False)
        except (OSError, CorruptRecords) as error:
            return unreadable(log, error)
    stamped = configs.message_timestamp_type is LOG_APPEND_TIME
    chunks = chunks_for(batches, log.end_offset, leader_epoch, stamped=stamped)
    if leader_epoch > log.epochs.latest:
        begin_epoch(log, leader_epoch)
    first_offset = log.end_offset
    refusal = write(log, batches, chunks, now_ms)
    if refusal is ROLL_WAITS:
        if allowance is not None:
            return UNINSPECTED
        if inspected is None:
            refusal = _write_even_so(log, batches, chunks, now_ms, grow=not from_client)
    if refusal is not None:
        return refusal
    if fences:
        note_fences(log, fences)
    time_ms = now_ms if stamped else -1
    return as_appended(
        Appended, (first_offset, log.end_offset - 1, time_ms, log.start_offset, False)
    )


def inspect(
    log: LogState,
    buffer: Buffer,
    now_ms: int,
    allowance: InspectionAllowance,
    *,
    in_transaction: bool = False,
) -> Work[Batches | Rejected]:
    """Return a client's batches as the topic wants them, but for ``finished``; appends nothing.

    The buffer must stay as it is until the end. ``in_transaction``: they may belong to one.
    """
    checks = log.resources.checks_records
    wanted = BatchDemands(log.configs, now_ms, check_records=checks, in_transaction=in_transaction)
    batches = checked(buffer, wanted)
    return (
        (yield from inspecting.inspect(batches, wanted, allowance))
        if isinstance(batches, list)
        else batches
    )


def append_as_follower(
    log: LogState, buffer: Buffer, now_ms: int, *, waits: bool = False
) -> Appended | Rejected:
    """Append fetched batches as they are; an incomplete last one is ignored.

    CORRUPT_MESSAGE for a wrong CRC (promise 27), INVALID_RECORD for offsets that do not go on
    from ``end_offset`` (gaps are fine: the leader may have compacted). A caller that ``waits`` may
    get ``ROLL_WAITS``: it appends the rest, from the log's end on, after ``syncing_before_roll``.
    """
    if log.damaged or log.resources.failed or log.closed or log.change is LogChange.CUT:
        return out_of_service(log)
    view = memoryview(buffer)
    batches = [(header, view[begin : begin + header.size]) for begin, header in walk(view)]
    if not batches and len(view):
        return Rejected(ErrorCode.CORRUPT_MESSAGE, "fetched bytes begin with no whole batch")
    first_offset = expected = log.end_offset
    for header, batch in batches:
        if not crc_is_right(batch, header.crc):
            return Rejected(
                ErrorCode.CORRUPT_MESSAGE,
                f"the fetched batch at offset {header.base_offset} has a wrong CRC",
            )
        if header.base_offset < expected or header.last_offset_delta < 0:
            return Rejected(
                ErrorCode.INVALID_RECORD,
                f"fetched offset {header.base_offset} where {expected} was expected",
            )
        if header.last_offset - expected > MAX_INT32 or header.next_offset > MAX_INT64:
            return Rejected(
                ErrorCode.INVALID_RECORD,
                f"fetched offset {header.last_offset} is too far from {expected}: the indexes "
                f"of a segment have 32 bits for it",
            )
        expected = header.next_offset
    active = log.segments.active
    for group in groups_that_fit(
        batches, active.size, active.base_offset, log.end_offset, log.configs.segment_bytes
    ):
        end = log.end_offset
        bits = 0
        for header, _ in group:
            bits |= header.attributes
            if header.leader_epoch > log.epochs.latest:
                # In a gap that the leader's compaction left, the epoch may have begun anywhere: a
                # later start could keep records that were never committed.
                log.epochs.begin(header.leader_epoch, end)
                write_epochs(log)
            end = header.next_offset
        try:
            fences = fences_in(log, group, assigned=True) if bits & CONTROL_BIT else []
        except (OSError, CorruptRecords) as error:
            return unreadable(log, error)
        chunks = [batch for _, batch in group]
        refusal = write(log, group, chunks, now_ms, assigned=True)
        if refusal is ROLL_WAITS and not waits:
            refusal = finish(syncing_before_roll(log)) or write(
                log, group, chunks, now_ms, assigned=True
            )
        if refusal is not None:
            return refusal
        if fences:
            note_fences(log, fences)
    return Appended(first_offset, log.end_offset - 1, -1, log.start_offset)


def _judge_producers(
    log: LogState, batches: Batches, *, resumes: bool
) -> KnownBatch | Rejected | None:
    if len(batches) == 1:
        verdict = log.producers.judge(batches[0][0])
        return None if resumes and verdict is RESUMES else verdict
    # Several batches: the later ones are judged as if the earlier ones were appended.
    trial = log.producers.copy_of({header.producer_id for header, _ in batches})
    offset = log.end_offset
    for header, _ in batches:
        if header.producer_id >= 0:
            verdict = trial.judge(header)
            if verdict is not None and not (resumes and verdict is RESUMES):
                return verdict
            trial.note(header, offset, 0)
        offset += header.last_offset_delta + 1
    return None


def _duplicate(log: LogState, batch: KnownBatch) -> Appended:
    stamped = log.configs.message_timestamp_type is LOG_APPEND_TIME
    return Appended(
        batch.first_offset,
        batch.last_offset,
        batch.appended_ms if stamped else -1,
        log.start_offset,
        duplicate=True,
    )


def write(
    log: LogState,
    batches: Batches,
    chunks: Sequence[Buffer],
    now_ms: int,
    *,
    assigned: bool = False,
    grow: bool = False,
) -> Rejected | None:
    """Write batches in one go and account for each; a refusal leaves no trace.

    ``grow``: a segment that cannot be closed before a sync grows on, within bounds.

    What can fail is done before the bytes are in the file; after that come plain sums.
    """
    size = 0
    newest = -1
    last_offset = log.end_offset - 1
    for header, batch in batches:
        size += len(batch)
        if header.max_timestamp > newest:
            newest = header.max_timestamp
        last_offset += header.last_offset_delta + 1
    if assigned:
        last_offset = batches[-1][0].last_offset
    active = log.segments.active
    room = active.room
    if not (
        0 <= newest <= room.timestamp
        and active.size + size <= room.size
        and last_offset <= room.offset
    ):
        refusal = _roll_if_due(log, size, newest, last_offset, now_ms, grow=grow)
        if refusal is not None:
            return refusal
        active = log.segments.active
    try:
        position = active.write(chunks, size)
    except OSError as error:
        return undo_write(log, error)
    if not position:
        log.dirty.note_names()  # the file may be new (``first_segment``)
    interval = log.configs.index_interval_bytes
    first = log.end_offset
    for header, batch in batches:
        if assigned:
            first = header.base_offset
        size = len(batch)
        last = first + header.last_offset_delta
        newest = header.max_timestamp if header.record_count else -1
        active.note(position, size, last, newest, interval)
        if header.producer_id >= 0:
            ended = log.producers.note(header, first, now_ms, batch)
            if ended is not None:
                transaction_ended(log, ended)
        position += size
        first = last + 1
    end_at(log, first)
    return None


def _write_even_so(
    log: LogState, batches: Batches, chunks: Sequence[Buffer], now_ms: int, *, grow: bool
) -> Rejected | None:
    """Write batches whose roll waits for a sync: before the roll, or after a sync at once."""
    if grow and puts_roll_off(log):
        return write(log, batches, chunks, now_ms, grow=True)
    return finish(syncing_before_roll(log)) or write(log, batches, chunks, now_ms)


def _roll_if_due(
    log: LogState, size: int, newest: int, last_offset: int, now_ms: int, *, grow: bool
) -> Rejected | None:
    active, configs, jitter_ms = log.segments.active, log.configs, log.jitter_ms
    try:
        is_due = must_roll(active, configs, size, newest, last_offset, jitter_ms, now_ms)
        if is_due or log.aborted.fills(active.base_offset):
            if not log.waits_to_roll:
                return roll(log, now_ms)
            if not (grow and may_outgrow(active, configs, size, last_offset)):
                return ROLL_WAITS
        else:
            active.room = _room_till_sync(log, room_in(active, configs, jitter_ms))
        # ``note`` needs them when the bytes are in the file already, and reading may fail.
        _ = active.newest, active.index, active.time_index
    except (OSError, CorruptRecords) as error:
        return unreadable(log, error)
    return None


def _room_till_sync(log: LogState, room: Room) -> Room:
    """Where a roll would wait for a sync: ask for the sync when the segment is half full."""
    if log.waits_to_roll and log.resources.sync_soon is not None:
        half = log.configs.segment_bytes // 2
        if log.segments.active.size <= half:
            return room._replace(size=min(room.size, half))
        log.resources.asks_for_sync(log.partition)
    return room
