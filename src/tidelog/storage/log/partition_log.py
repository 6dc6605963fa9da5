"""One partition's log: its segments, leader epochs, producers, and what of it is durable.

Owns appending; synchronous, used by one thread (the event loop), but for what is handed to others
as a value or a call of ``Pieces``. Does not know leaders, replicas or the wire. Reading is
``reading``, expiry ``expiring``, cuts ``cutting``, opening ``opening``, rewriting by key
``compaction``.

Ordering rules: bytes are in the file before offsets are given out; indexes and snapshots may be
behind (recovery rebuilds them); the recovery point only ever claims what a sync has returned for.

| state                | append                      | read                        |
|----------------------|-----------------------------|-----------------------------|
| in service           | yes                         | yes                         |
| disk full            | KAFKA_STORAGE_ERROR, heals  | yes                         |
| ``failed`` (fatal)   | KAFKA_STORAGE_ERROR         | as far as the disk gives it |
| ``damaged``          | KAFKA_STORAGE_ERROR         | KAFKA_STORAGE_ERROR         |
| ``cutting``          | KAFKA_STORAGE_ERROR, passes | yes, below the cut          |
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.model.configs.topic_values import LOG_APPEND_TIME
from tidelog.model.errors import ErrorCode
from tidelog.records.batch import MAX_INT32, MAX_INT64, Buffer, Rejected, crc_is_right, walk
from tidelog.records.record import CorruptRecords
from tidelog.runtime.turns import Pieces, at_once
from tidelog.storage.log.appending import (
    chunks_for,
    finished,
    groups_that_fit,
    prepare,
    prepare_in_pieces,
)
from tidelog.storage.log.cutting import LogCutting
from tidelog.storage.log.inspecting import UNLOOKED, Batches, Looks
from tidelog.storage.log.producers import KnownBatch
from tidelog.storage.log.results import Appended, as_appended
from tidelog.storage.log.retention import ROLL_WAITS, may_outgrow, must_roll, room_in
from tidelog.storage.segments.room import Room


class PartitionLog(LogCutting):
    """The log of one replica: appending; cutting is ``LogCutting``'s, expiring ``LogExpiry``'s,
    reading ``LogReading``'s.

    ``high_watermark`` is set by the caller; retention and compaction never pass it. Made by
    ``opening.create_log`` and ``opening.open_log``.
    """

    @property
    def last_stable_offset(self) -> int:
        """Where readers of committed transactions stop; the high watermark without them."""
        return self.high_watermark

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch of the log, -1 when there is none."""
        return self.epochs.latest

    # Appending -------------------------------------------------------------------------------

    def append_as_leader(
        self,
        buffer: Buffer,
        leader_epoch: int,
        now_ms: int,
        *,
        from_client: bool = True,
        looks: Looks | None = None,
        looked_into: Batches | None = None,
    ) -> Appended | Rejected:
        """Append a produced buffer of batches, all or none, with offsets from ``end_offset`` on.

        A retried batch of an idempotent producer is not appended again: its first offset is
        answered (``duplicate``). Cost: constant per batch, a CRC and one write; where the topic has
        its batches looked into, more. With ``looks`` it is ``UNLOOKED``, with nothing done, when
        that would hold the loop: then ``look_into`` makes ``looked_into``, which stands for the
        buffer, and which may be refused with ``ROLL_WAITS``, for ``syncing_before_roll``. Without
        either it blocks where a roll waits for a sync; the server's own batches go before the roll.
        """
        if self.damaged or self.resources.failed or self.closed or self.cutting:
            return self._out_of_service()
        configs = self.configs
        if looked_into is None:
            batches = prepare(buffer, configs, now_ms, from_client=from_client, looks=looks)
        else:
            batches = finished(looked_into, configs, now_ms)
        if not isinstance(batches, list):
            return batches
        if from_client and (len(batches) > 1 or batches[0][0].producer_id >= 0):
            known = self._judge_producers(batches)
            if isinstance(known, Rejected):
                return known
            if known is not None:
                return self._duplicate(known)
        stamped = configs.message_timestamp_type is LOG_APPEND_TIME
        chunks = chunks_for(batches, self.end_offset, leader_epoch, stamped=stamped)
        if leader_epoch > self.epochs.latest:
            self.begin_epoch(leader_epoch)
        first_offset = self.end_offset
        refusal = self._write(batches, chunks, now_ms)
        if refusal is ROLL_WAITS:
            if looks is not None:
                return UNLOOKED
            if looked_into is None:
                refusal = self._write_all_the_same(batches, chunks, now_ms, grow=not from_client)
        if refusal is not None:
            return refusal
        time_ms = now_ms if stamped else -1
        return as_appended(
            Appended, (first_offset, self.end_offset - 1, time_ms, self.start_offset, False)
        )

    def look_into(self, buffer: Buffer, now_ms: int, looks: Looks) -> Pieces[Batches | Rejected]:
        """Return a client's batches as the topic wants them, in pieces; nothing is appended."""
        return prepare_in_pieces(buffer, self.configs, now_ms, looks)

    def append_as_follower(
        self, buffer: Buffer, now_ms: int, *, waits: bool = False
    ) -> Appended | Rejected:
        """Append fetched batches as they are; an incomplete last one is ignored.

        CORRUPT_MESSAGE for a wrong CRC (promise 27), INVALID_RECORD for offsets that do not go on
        from ``end_offset`` (gaps are fine: the leader may have compacted). Who ``waits`` may get
        ``ROLL_WAITS``: the rest, from the log's end on, comes after ``syncing_before_roll``.
        """
        if self.damaged or self.resources.failed or self.closed or self.cutting:
            return self._out_of_service()
        view = memoryview(buffer)
        batches = [(header, view[at : at + header.size]) for at, header in walk(view)]
        if not batches and len(view):
            return Rejected(ErrorCode.CORRUPT_MESSAGE, "fetched bytes begin with no whole batch")
        first_offset = expected = self.end_offset
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
        active = self._active
        for group in groups_that_fit(
            batches, active.size, active.base_offset, self.end_offset, self.configs.segment_bytes
        ):
            end = self.end_offset
            for header, _ in group:
                if header.leader_epoch > self.epochs.latest:
                    # In a gap that compaction left with the leader it may have begun anywhere:
                    # who believed a later start would keep what was never committed.
                    self.epochs.begin(header.leader_epoch, end)
                    self._write_epochs()
                end = header.next_offset
            chunks = [batch for _, batch in group]
            refusal = self._write(group, chunks, now_ms, assigned=True)
            if refusal is ROLL_WAITS and not waits:
                refusal = at_once(self.syncing_before_roll()) or self._write(
                    group, chunks, now_ms, assigned=True
                )
            if refusal is not None:
                return refusal
        return Appended(first_offset, self.end_offset - 1, -1, self.start_offset)

    def begin_epoch(self, leader_epoch: int) -> None:
        """Note that this epoch begins at the log's end (becoming leader; its first batch)."""
        if self.epochs.begin(leader_epoch, self.end_offset):
            # The very first one fences nothing, and its records say it: the first sync writes it.
            self._write_epochs(later=leader_epoch == self.end_offset == 0)

    def forget_empty_epoch(self) -> None:
        """Drop an epoch that began at the log's end and got no record (becoming a follower).

        Else what the next leader has there, of an older epoch, would be taken for that epoch's.
        """
        if self.epochs.truncate_end(self.end_offset):
            self._write_epochs()

    def _judge_producers(self, batches: Batches) -> KnownBatch | Rejected | None:
        if len(batches) == 1:
            return self.producers.judge(batches[0][0])
        # Several batches: the later ones are judged as if the earlier ones were appended.
        trial = self.producers.copy_of({header.producer_id for header, _ in batches})
        offset = self.end_offset
        for header, _ in batches:
            if header.producer_id >= 0:
                verdict = trial.judge(header)
                if verdict is not None:
                    return verdict
                trial.note(header, offset, 0)
            offset += header.last_offset_delta + 1
        return None

    def _duplicate(self, known: KnownBatch) -> Appended:
        stamped = self.configs.message_timestamp_type is LOG_APPEND_TIME
        return Appended(
            known.first_offset,
            known.last_offset,
            known.appended_ms if stamped else -1,
            self.start_offset,
            duplicate=True,
        )

    def _write(
        self,
        batches: Batches,
        chunks: Sequence[Buffer],
        now_ms: int,
        *,
        assigned: bool = False,
        grow: bool = False,
    ) -> Rejected | None:
        """Write batches in one go and account for each; a refusal leaves no trace.

        ``grow``: a segment that cannot be closed before a sync grows on, within bounds.

        What can fail is done before the bytes are in the file: behind them are plain sums.
        """
        size = 0
        newest = -1
        last_offset = self.end_offset - 1
        for header, batch in batches:
            size += len(batch)
            if header.max_timestamp > newest:
                newest = header.max_timestamp
            last_offset += header.last_offset_delta + 1
        if assigned:
            last_offset = batches[-1][0].last_offset
        active = self._active
        room = active.room
        if not (
            0 <= newest <= room.timestamp
            and active.size + size <= room.size
            and last_offset <= room.offset
        ):
            refusal = self._roll_if_due(size, newest, last_offset, now_ms, grow=grow)
            if refusal is not None:
                return refusal
            active = self._active
        try:
            position = active.write(chunks, size)
        except OSError as error:
            return self._write_failed(error)
        if not position:
            self._note_names()  # the file may be new (``first_segment``)
        interval = self.configs.index_interval_bytes
        first = self.end_offset
        for header, batch in batches:
            if assigned:
                first = header.base_offset
            size = len(batch)
            last = first + header.last_offset_delta
            newest = header.max_timestamp if header.record_count else -1
            active.note(position, size, last, newest, interval)
            if header.producer_id >= 0:
                self.producers.note(header, first, now_ms)
            position += size
            first = last + 1
        self.end_offset = first
        return None

    def _write_all_the_same(
        self, batches: Batches, chunks: Sequence[Buffer], now_ms: int, *, grow: bool
    ) -> Rejected | None:
        """Write what belongs behind a roll that waits for a sync: before the roll, or behind a sync
        now."""
        if grow and self._puts_roll_off():
            return self._write(batches, chunks, now_ms, grow=True)
        return at_once(self.syncing_before_roll()) or self._write(batches, chunks, now_ms)

    def _roll_if_due(
        self, size: int, newest: int, last_offset: int, now_ms: int, *, grow: bool
    ) -> Rejected | None:
        active, configs, jitter_ms = self._active, self.configs, self._jitter_ms
        try:
            if must_roll(active, configs, size, newest, last_offset, jitter_ms, now_ms):
                if not self._waits_to_roll:
                    return self.roll(now_ms)
                if not (grow and may_outgrow(active, configs, size, last_offset)):
                    return ROLL_WAITS
            else:
                active.room = self._room_till_sync(room_in(active, configs, jitter_ms))
            # ``note`` needs them when the bytes are in the file already, and reading may fail.
            _ = active.newest, active.index, active.time_index
        except (OSError, CorruptRecords) as error:
            return self._unreadable(error)
        return None

    def _room_till_sync(self, room: Room) -> Room:
        """Where a roll would wait for a sync: have it done when the segment is half full."""
        if self._waits_to_roll and self.resources.sync_soon is not None:
            half = self.configs.segment_bytes // 2
            if self._active.size <= half:
                return room._replace(size=min(room.size, half))
            self.resources.asks_for_sync(self.partition)
        return room

    def _write_failed(self, error: OSError) -> Rejected:
        """Undo a partial write on a full disk; anything else is final (promises 25 and 28)."""
        self._undone += 1
        self._dirty_files.add(self._active.log_path)
        try:
            self._active.open_log().truncate(self._active.size)
        except OSError as second:
            return self._trouble(second)
        return self._trouble(error)
