"""What the log scenario does to a living log directory, one step at a time.

Owns the steps and what the books learn from each. The incarnations, crashes and checks are in
``log.py``.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator, Sequence

from tests.simulation.history import History, Outcome
from tests.simulation.kernel import UNLIMITED, DiskView, SimulatedDisk
from tests.simulation.scenarios.log_model import REMEMBERED, Batch, ModelPartition, new_batch
from tests.support.storage_logs import removed_now
from tidelog.model.work import Work, finish
from tidelog.records.batch import Rejected
from tidelog.records.builder import NewRecord, build_batch
from tidelog.records.reader import read_all
from tidelog.storage.compaction.cleaner import compact, discard_cleaned
from tidelog.storage.compaction.plan import CompactionResult, plan_compaction
from tidelog.storage.compaction.swap import applying
from tidelog.storage.directory.log_directory import LogDirectory
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.results import Appended
from tidelog.storage.log.syncing import PendingSync

Step = Callable[[ModelPartition, PartitionLog], None]

PATH = "/data/logs"
START_MS = 1_767_225_600_000
RETENTION_MS = 60_000


class ManualClock:
    """Time that moves when the driver says so."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic_ms(self) -> int:
        return self.now_ms - START_MS


class Steps:
    """One life's work. The attributes are those of ``LogRun``."""

    rng: random.Random
    clock: ManualClock
    disk: SimulatedDisk
    view: DiskView
    history: History
    found: list[str]
    counts: dict[str, int]
    regime: str
    life: int
    leader_epoch: int
    directory: LogDirectory
    models: list[ModelPartition]
    logs: dict[str, PartitionLog]
    pending: dict[str, PendingSync]
    cleaned: dict[str, CompactionResult]
    disk_failed: bool

    def _step(self) -> None:
        self.clock.now_ms += self.rng.choice((0, 1, 5, 200, 3_000))
        model = self.rng.choice(self.models)
        log = self.logs[model.name]
        step = self.rng.choices(
            (
                self._append,
                self._send_again,
                self._append_once,
                self._read,
                self._begin_sync,
                self._end_sync,
                self._raise_watermark,
                self._housekeep,
                self._checkpoint,
                self._rare,
                self._compact,
            ),
            (30, 8, 4, 15, 8, 12, 10, 4, 3, 3, 5),
        )[0]
        step(model, log)

    def _append(self, model: ModelPartition, log: PartitionLog) -> None:
        producer = self.rng.choice(model.producers)
        batch = producer.next_to_append
        if batch is None:
            if len(producer.outbox) >= REMEMBERED:
                return
            batch = new_batch(self.rng, self.history, model, producer, self.clock.now_ms)
        self._give(model, log, batch)

    def _give(self, model: ModelPartition, log: PartitionLog, batch: Batch) -> None:
        model.in_doubt = [write.value for write in batch.writes]
        before = log.end_offset
        answer = self._lead(model, log, batch.content)
        if isinstance(answer, Rejected):
            self.counts["refusals"] += 1
            model.in_doubt = []
            if log.end_offset != before:
                self.found.append(f"{model.name}: a refused append moved the end: {answer}")
            if not self.disk_failed and not self._is_full() and not log.failed:
                self.found.append(f"{model.name}: refused without a reason: {answer}")
            return
        self.counts["duplicates" if answer.duplicate else "appends"] += 1
        if not answer.duplicate and answer.first_offset != before:
            self.found.append(f"{model.name}: appended at {answer.first_offset}, end {before}")
        model.appended(batch, answer.first_offset)

    def _lead(
        self, model: ModelPartition, log: PartitionLog, content: bytes | bytearray
    ) -> Appended | Rejected:
        model.led(self.leader_epoch, log.end_offset)
        return log.append_as_leader(content, self.leader_epoch, self.clock.now_ms, resumes=True)

    def _is_full(self) -> bool:
        return self.disk.capacity < UNLIMITED

    def _send_again(self, model: ModelPartition, log: PartitionLog) -> None:
        producer = self.rng.choice(model.producers)
        known = [*producer.answered, *(b for b in producer.outbox if b.offset >= 0)][-5:]
        if not known or producer.next_to_append is not None:
            return
        batch = self.rng.choice(known)
        answer = self._lead(model, log, batch.content)
        if isinstance(answer, Rejected):
            if not log.failed and batch.offset >= log.start_offset:
                self.found.append(f"{model.name}: a retry of {batch.offset} got {answer}")
        elif batch.offset >= log.start_offset and answer.first_offset != batch.offset:
            self.found.append(
                f"{model.name}: a retry of {batch.offset} was answered {answer.first_offset}"
            )
            model.appended(Batch(batch.writes, batch.content), answer.first_offset)
        elif not answer.duplicate:
            model.appended(Batch(batch.writes, batch.content), answer.first_offset)

    def _append_once(self, model: ModelPartition, log: PartitionLog) -> None:
        number = self.history.now
        value = f"{model.name}/once/{number}".encode()
        corrupt = self.rng.random() < 0.5
        content = bytearray(build_batch([NewRecord(self.clock.now_ms, b"once", value)]))
        if corrupt:
            content[self.rng.randrange(21, len(content))] ^= 1 << self.rng.randrange(8)
        write = self.history.send(
            model.name, "once", number, value, idempotent=False, corrupt=corrupt
        )
        model.in_doubt = [value]
        write.outcome = Outcome.UNDETERMINED
        answer = self._lead(model, log, content)
        if isinstance(answer, Rejected):
            model.in_doubt = []
            self.history.end(write, Outcome.REFUSED)
        else:
            model.appended(Batch([write], bytes(content)), answer.first_offset)
            if corrupt:
                self.history.end(write, Outcome.ACKED, answer.first_offset)

    def _read(self, model: ModelPartition, log: PartitionLog) -> None:
        if log.high_watermark <= log.start_offset:
            return
        offset = self.rng.randrange(log.start_offset, log.high_watermark)
        found = log.read(offset, self.rng.choice((1, 500, 5_000)), log.high_watermark)
        if isinstance(found, Rejected):
            self.found.append(f"{model.name}: reading {offset} got {found}")
            return
        self.counts["reads"] += 1
        if self._is_full():
            self.history.disk_space("read")
        for record in read_all(found, offset):
            assert record.value is not None
            self.history.read(model.name, record.offset, bytes(record.value), "r")

    def _begin_sync(self, model: ModelPartition, log: PartitionLog) -> None:
        if model.name not in self.pending and not log.failed:
            try:
                pending = log.unsynced()
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                return  # the broker tries again
            if pending is not None:
                self.pending[model.name] = pending

    def _end_sync(self, model: ModelPartition, log: PartitionLog) -> None:
        pending = self.pending.pop(model.name, None)
        if pending is None:
            return
        if not log.failed:
            pending.run()
        elif pending.error is None:
            pending.error = OSError(errno.EIO, "the directory failed before")
        generation = log.generation
        log.synced(pending)
        if pending.error is None and not log.failed and pending.generation == generation:
            model.claimed = max(model.claimed, min(pending.end_offset, log.end_offset))
            if self.regime == "power":
                self._commit(model, log, model.claimed)

    def _raise_watermark(self, model: ModelPartition, log: PartitionLog) -> None:
        if self.regime != "power" and not log.failed:
            ends = model.boundaries(log.high_watermark, log.end_offset)
            self._commit(model, log, self.rng.choice(ends or [log.high_watermark]))

    def _commit(self, model: ModelPartition, log: PartitionLog, end: int) -> None:
        """The watermark rises: what lies below is acked and readable."""
        log.high_watermark = max(log.high_watermark, end)
        model.readable = max(model.readable, log.high_watermark)
        for producer in model.producers:
            for batch in list(producer.outbox):
                if batch.offset >= 0 and batch.offset + len(batch.writes) <= end:
                    producer.acked(batch)
                    for place, write in enumerate(batch.writes):
                        self.history.end(write, Outcome.ACKED, batch.offset + place)
                    self.history.directory(PATH, str(self.life), "acked")

    def _housekeep(self, model: ModelPartition, log: PartitionLog) -> None:
        if self.rng.random() < 0.3:
            self.clock.now_ms += RETENTION_MS
        model.removing = True
        watermark = log.high_watermark
        for _ in self._in_pieces(log.housekeeping(self.clock.now_ms), self._steps_beside()):
            watermark = log.high_watermark
        if not self.directory.failed:
            removed_now(self.directory)
        self._note_start(model, log, watermark)

    def _steps_beside(self) -> Sequence[Step]:
        """What may happen to a log while segments are taken out of it, or replaced."""
        return (
            self._append,
            self._send_again,
            self._append_once,
            self._read,
            self._begin_sync,
            self._end_sync,
            self._raise_watermark,
            self._checkpoint,
        )

    def _in_pieces(self, pieces: Work[object], beside: Sequence[Step]) -> Iterator[None]:
        """Do work in pieces as a broker does; at times steps of others come before and after each.

        Yields before the work goes on.
        """
        with_others = self.rng.random() < 0.5
        try:
            call = next(pieces)
            while True:
                made: object = None
                for work in (call, None):
                    if with_others and self.rng.random() < 0.5:
                        model = self.rng.choice(self.models)
                        self.rng.choice(beside)(model, self.logs[model.name])
                    if work is not None:
                        made = _called(work)
                    if isinstance(made, OSError):
                        break
                yield None
                call = pieces.throw(made) if isinstance(made, OSError) else pieces.send(made)
        except StopIteration:
            return

    def _note_start(self, model: ModelPartition, log: PartitionLog, watermark: int) -> None:
        model.removing = False
        start = max(log.start_offset, log.segments[0].base_offset)
        if start > model.start:
            model.start = start
            self.history.deleted(model.name, model.start, watermark)

    def _checkpoint(self, _model: ModelPartition, _log: PartitionLog) -> None:
        checkpoint = finish(self.directory.checkpoint())
        if checkpoint is not None and not self.directory.failed:
            checkpoint.run()
            self.directory.checkpointed(checkpoint)

    def _rare(self, model: ModelPartition, log: PartitionLog) -> None:
        steps = [self._roll, self._delete_records, self._truncate, self._space]
        if model.configs.compacted:
            steps += [self._roll, self._compact, self._compact]
        step = self.rng.choice(steps)
        step(model, log)

    def _roll(self, _model: ModelPartition, log: PartitionLog) -> None:
        log.roll(self.clock.now_ms)

    def _compact(self, model: ModelPartition, log: PartitionLog) -> None:
        """Rewrite now, put the result in place at the next call: other things happen between."""
        result = self.cleaned.pop(model.name, None)
        if result is not None:
            before = log.first_dirty_offset
            for _ in self._in_pieces(
                applying(log, result, self.clock.now_ms), self._steps_beside()
            ):
                pass
            self.counts["compactions"] += log.first_dirty_offset > before
            return
        plan = plan_compaction(log, self.clock.now_ms)
        if plan is None:
            return
        try:
            self.cleaned[model.name] = compact(self.view, plan)
        except OSError:
            if not self._is_full():
                raise
            discard_cleaned(self.view, plan)

    def _delete_records(self, model: ModelPartition, log: PartitionLog) -> None:
        watermark = log.high_watermark
        model.removing = True
        log.advance_start(self.rng.randint(log.start_offset, watermark))
        self._note_start(model, log, watermark)

    def _truncate(self, model: ModelPartition, log: PartitionLog) -> None:
        """Cut records that no client can have read, as followers do; producers send them again."""
        if log.failed or self._is_full():
            return
        ends = model.boundaries(max(model.readable, log.start_offset), log.end_offset)
        offset = self.rng.choice(ends or [log.end_offset])
        model.cutting = offset
        for _ in self._in_pieces(
            log.truncation(offset, self.clock.now_ms), (self._read, self._checkpoint)
        ):
            self.counts["pieces of cuts"] += 1
        if log.failed:
            return
        model.cutting = None
        model.cut(log.end_offset)
        for producer in model.producers:
            for batch in producer.outbox:
                if batch.offset + len(batch.writes) > log.end_offset:
                    batch.offset = -1

    def _space(self, _model: ModelPartition, _log: PartitionLog) -> None:
        if self._is_full():
            self.disk.capacity = UNLIMITED
            self.history.disk_space("room")
        else:
            self.disk.capacity = self.disk.used() + self.rng.randint(0, 2_000)
            self.history.disk_space("full")


def _called(work: Callable[[], object]) -> object:
    try:
        return work()
    except OSError as error:
        return error
