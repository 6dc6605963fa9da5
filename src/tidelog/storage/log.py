"""One partition's log: its segments, leader epochs, producers, and what of it is durable.

Owns every change of one partition's files; synchronous, used by one thread (the event loop). Does
not know leaders, replicas or the wire. Reading is ``reading``, opening ``opening``, rewriting by
key ``compaction``.

Ordering rules: bytes are in the file before offsets are given out; indexes and snapshots may be
behind (recovery rebuilds them); the recovery point only ever claims what a sync has returned for.

| state                | append                      | read                        |
|----------------------|-----------------------------|-----------------------------|
| in service           | yes                         | yes                         |
| disk full            | KAFKA_STORAGE_ERROR, heals  | yes                         |
| ``failed`` (fatal)   | KAFKA_STORAGE_ERROR         | as far as the disk gives it |
| ``damaged``          | KAFKA_STORAGE_ERROR         | KAFKA_STORAGE_ERROR         |
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.model.errors import ErrorCode
from tidelog.model.topic_configs import LOG_APPEND_TIME
from tidelog.records.batch import Buffer, Rejected, crc_is_right, walk
from tidelog.storage import names
from tidelog.storage.appending import Batches, chunks_for, groups_that_fit, prepare
from tidelog.storage.logfiles import new_segment
from tidelog.storage.producers import KnownBatch
from tidelog.storage.reading import LogReading
from tidelog.storage.results import Appended, as_appended
from tidelog.storage.retention import expired, must_roll, room_in
from tidelog.storage.snapshots import load_producers, remove_snapshots, snapshot_path
from tidelog.storage.soundness import Unsound


class PartitionLog(LogReading):
    """The log of one replica: appending, cutting, expiring; reading is ``LogReading``'s.

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
        self, buffer: Buffer, leader_epoch: int, now_ms: int, *, from_client: bool = True
    ) -> Appended | Rejected:
        """Append a produced buffer of batches, all or none, with offsets from ``end_offset`` on.

        A retried batch of an idempotent producer is not appended again: its first offset is
        answered (``duplicate``). Cost: constant per batch, a CRC and one write.
        """
        if self.damaged or self.resources.failed or self.closed:
            return self._out_of_service()
        configs = self.configs
        batches = prepare(buffer, configs, now_ms, from_client=from_client)
        if isinstance(batches, Rejected):
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
        if refusal is not None:
            return refusal
        time_ms = now_ms if stamped else -1
        return as_appended(
            Appended, (first_offset, self.end_offset - 1, time_ms, self.start_offset, False)
        )

    def append_as_follower(self, buffer: Buffer, now_ms: int) -> Appended | Rejected:
        """Append fetched batches as they are; an incomplete last one is ignored.

        CORRUPT_MESSAGE for a wrong CRC (promise 27), INVALID_RECORD for offsets that do not go on
        from ``end_offset`` (gaps are fine: the leader may have compacted).
        """
        if self.damaged or self.resources.failed or self.closed:
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
            expected = header.next_offset
        for group in groups_that_fit(batches, self._active.size, self.configs.segment_bytes):
            for header, _ in group:
                if header.leader_epoch > self.epochs.latest:
                    self.epochs.begin(header.leader_epoch, header.base_offset)
                    self._write_epochs()
            refusal = self._write(group, [batch for _, batch in group], now_ms, assigned=True)
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
        self, batches: Batches, chunks: Sequence[Buffer], now_ms: int, *, assigned: bool = False
    ) -> Rejected | None:
        """Write batches in one go and account for each; a refusal leaves no trace."""
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
            refusal = self._roll_if_due(size, newest, last_offset, now_ms)
            if refusal is not None:
                return refusal
            active = self._active
        try:
            position = active.write(chunks, size)
        except OSError as error:
            return self._write_failed(error)
        if not position:
            self._dirty_directories.add(self.path)  # the file may be new (``first_segment``)
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

    def _roll_if_due(
        self, size: int, newest: int, last_offset: int, now_ms: int
    ) -> Rejected | None:
        active, configs, jitter_ms = self._active, self.configs, self._jitter_ms
        if must_roll(active, configs, size, newest, last_offset, jitter_ms, now_ms):
            return self.roll(now_ms)
        active.room = room_in(active, configs, jitter_ms)
        return None

    def _write_failed(self, error: OSError) -> Rejected:
        """Undo a partial write on a full disk; anything else is final (promises 25 and 28)."""
        self._undone = True
        self._dirty_files.add(self._active.log_path)
        try:
            self._active.open_log().truncate(self._active.size)
        except OSError as second:
            return self._trouble(second)
        return self._trouble(error)

    # Cutting ---------------------------------------------------------------------------------

    def truncate_to(self, offset: int, now_ms: int) -> Rejected | None:
        """Drop every record from ``offset`` on; a batch across it goes as a whole.

        The log then ends where the last batch that stays does, at or below ``offset``. Below the
        first segment: everything goes. Producers and epochs follow. Durable at once, so that no
        power loss can bring back what new batches replaced. A refusal leaves all as it was,
        or the directory out of service.
        """
        if self.failed or self.closed:
            return self._out_of_service()
        if offset >= self.end_offset:
            return None
        if offset < self.segments[0].base_offset:
            return self.restart_at(offset, now_ms)
        at = self.segment_at(offset)
        segment = self.segments[at]
        try:
            position, end = segment.cut_for(offset)
            self._claim_no_more_than(end)
        except OSError as error:
            return self._trouble(error)
        except Unsound as error:
            return self.found_damaged(f"{self.path}: {error}")
        try:
            self.remove_segments(self.segments[:at:-1], now_ms)
            self._active = segment
            segment.active = True
            self.resources.indexes.forget(segment)
            segment.truncate(position, end)
            self.end_offset = end
            self._after_cut(now_ms)
            segment.open_log().sync()
            self.resources.disk.sync_directory(self.path)
        except OSError as error:
            return self._cut_short(error)
        except Unsound as error:
            return self.found_damaged(f"{self.path}: {error}")
        return None

    def restart_at(self, offset: int, now_ms: int) -> Rejected | None:
        """Drop everything and go on with an empty log that begins at ``offset``."""
        if self.failed or self.closed:
            return self._out_of_service()
        try:
            self._claim_no_more_than(offset)
        except OSError as error:
            return self._trouble(error)
        try:
            self.remove_segments(self.segments[::-1], now_ms)
            remove_snapshots(self.resources, self.path, below=2**63 - 1)
            self.start_offset = self.end_offset = offset
            self._activate(new_segment(self.resources, self.path, offset, now_ms))
            self.synced_end_offset = min(self.synced_end_offset, offset)
            self.epochs.entries.clear()
            self._after_cut(now_ms)
            self.resources.disk.sync_directory(self.path)
        except OSError as error:
            return self._cut_short(error)
        return None

    def _claim_no_more_than(self, offset: int) -> None:
        """Lower the checkpoints before a cut: else the next start takes it for damage.

        An OSError leaves memory as it was: nothing is cut then, and what was read stays readable.
        """
        former = self.synced_end_offset, self.high_watermark
        self.synced_end_offset = min(self.synced_end_offset, offset)
        self.high_watermark = min(self.high_watermark, offset)
        lower = former != (self.synced_end_offset, self.high_watermark)
        try:
            if lower and self.resources.before_cut is not None:
                self.resources.before_cut()
            self.watermark_note.lower(offset)
        except OSError:
            self.synced_end_offset, self.high_watermark = former
            raise
        self.generation += 1

    def _after_cut(self, now_ms: int) -> None:
        end = self.end_offset
        self._hints.clear()
        self._snapshot_size = 0
        self.start_offset = min(self.start_offset, end)
        self.high_watermark = max(min(self.high_watermark, end), self.start_offset)
        self.synced_end_offset = min(self.synced_end_offset, end)
        self.first_dirty_offset = min(self.first_dirty_offset, end)
        self.epochs.truncate_end(end)
        self._write_epochs()
        remove_snapshots(self.resources, self.path, above=end)
        self.producers = load_producers(self.resources, self.path, self.segments, end, now_ms)

    def advance_start(self, offset: int) -> Rejected | None:
        """Begin the log at ``offset`` (DeleteRecords, a leader's log start): older records go.

        OFFSET_OUT_OF_RANGE above the high watermark; below the present start nothing happens.
        """
        if self.damaged or self.closed:
            return self._out_of_service()
        if offset > self.high_watermark:
            return Rejected(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is above the high watermark {self.high_watermark}",
            )
        if offset > self.start_offset:
            self.start_offset = offset
            self.first_dirty_offset = max(self.first_dirty_offset, offset)
            if self.epochs.truncate_start(offset):
                self._write_epochs()
        return None

    # Expiry ----------------------------------------------------------------------------------

    def housekeep(self, now_ms: int, *, at_most: int | None = None) -> str | None:
        """Apply retention, remove what is due, forget silent producers.

        Returns a sentence for the log when segments went: ``at_most`` so many, each of which costs
        a sync of the directory, and the files of so many. Grows with the number of segments.
        """
        if self.failed or self.closed:
            return None
        self.producers.expire(now_ms - self.producer_expiration_ms)
        try:
            sentence = self._apply_retention(now_ms, at_most)
            files = None if at_most is None else at_most * len(names.SEGMENT_SUFFIXES)
            purged = self.purge(now_ms, at_most=files)
        except OSError as error:
            self._trouble(error)
            return None
        if sentence is None and files is not None and purged == files:
            sentence = f"{self.partition}: {purged} files of removed segments deleted"
        return sentence

    def _apply_retention(self, now_ms: int, at_most: int | None) -> str | None:
        expiry = expired(
            self.segments,
            self.configs,
            start_offset=self.start_offset,
            high_watermark=self.high_watermark,
            now_ms=now_ms,
        )
        count = expiry.count if at_most is None else min(expiry.count, at_most)
        if count and count == len(self.segments) and self.roll(now_ms) is not None:
            # A full disk has no room for a new segment: what makes room goes all the same.
            count -= 1
        if not count or self.failed:
            return None
        doomed = self.segments[:count]
        start = self.segments[count].base_offset
        snapshot = snapshot_path(self.path, start)
        if self.resources.disk.exists(snapshot):
            # It alone knows the producers of what goes: their retries must still be recognised.
            self.resources.files.get(snapshot).sync()
        # First: where the removal stops half-way (no descriptor left), readers must not pass over
        # what went as if it had never been.
        self.advance_start(start)
        if self.failed:
            return None
        self.remove_segments(doomed, now_ms)
        remove_snapshots(self.resources, self.path, below=start)
        self.synced_end_offset = max(self.synced_end_offset, start)
        removed = sum(segment.size for segment in doomed)
        return (
            f"{self.partition}: {count} segments with {removed} bytes removed "
            f"({expiry.reason}), the log begins at offset {self.start_offset}"
        )
