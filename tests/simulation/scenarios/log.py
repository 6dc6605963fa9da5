"""The log alone on a simulated disk: random work, a crash at any disk operation, recovery, again.

Owns the driver: what is done to ``LogDirectory`` and ``PartitionLog``, and when the process or the
power goes. The books are in ``log_model.py``, the checks in ``checkers.py``.

A seed draws one of three regimes:

| regime  | acked when          | crashes        | what must hold                              |
|---------|---------------------|----------------|---------------------------------------------|
| kill    | the watermark passed| kill           | everything                                  |
| power   | a sync returned     | kill and power | everything                                  |
| lossy   | the watermark passed| power          | recovery keeps a prefix; nothing is damaged |
"""

from __future__ import annotations

import errno
import random
import traceback
import uuid
from dataclasses import replace

from tests.simulation.checkers import (
    ALL,
    epochs_end_where_they_did,
    only_the_torn_tail_is_cut,
    violations,
)
from tests.simulation.history import Final, History, Outcome
from tests.simulation.kernel import (
    UNLIMITED,
    Crash,
    DiskOperation,
    DiskView,
    Fail,
    ProcessKilled,
    SimulatedDisk,
    Trace,
)
from tests.simulation.scenarios.log_model import (
    ModelPartition,
    ModelProducer,
    give_up,
)
from tests.simulation.scenarios.log_steps import PATH, RETENTION_MS, ManualClock, Steps
from tests.simulation.scenarios.result import Result
from tests.support.storage_logs import resolve, texts_of
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.topics import TopicPartition
from tidelog.model.work import finish
from tidelog.records.batch import Rejected, walk
from tidelog.records.reader import read_all
from tidelog.records.record import CorruptRecords
from tidelog.runtime.seams import Seams
from tidelog.storage.checkpoints import PartitionMetadata
from tidelog.storage.compaction.plan import CompactionResult
from tidelog.storage.directory.log_directory import LastStop, LogDirectory, open_directory
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.syncing import PendingSync

DELETE = frozenset({"delete"})
COMPACT = frozenset({"compact"})
NEVER = 1 << 30
METADATA = PartitionMetadata(uuid.UUID(int=7), 3)


class LogRun(Steps):
    """One run: several lives of one log directory on one disk."""

    def __init__(self, seed: int, scenario: str = "log") -> None:
        self.seed = seed
        self.scenario = scenario
        self.rng = random.Random(f"{seed}/{scenario}")
        self.clock = ManualClock()
        self.trace = Trace(lambda: self.clock.monotonic_ms() / 1000)
        self.disk = SimulatedDisk(
            random.Random(f"{seed}/disk"), self.trace, self.clock.wall_ms, name="disk"
        )
        self.history = History()
        self.found: list[str] = []
        """Violations that the driver itself saw."""
        self.counts = {"appends": 0, "crashes": 0, "duplicates": 0, "refusals": 0, "reads": 0}
        self.counts["compactions"] = self.counts["pieces of cuts"] = 0
        self.regime = self.rng.choice(("kill", "power", "lossy"))
        self.boot = 1
        self.life = 0
        self.leader_epoch = 0
        self.logs: dict[str, PartitionLog] = {}
        self.pending: dict[str, PendingSync] = {}
        self.cleaned: dict[str, CompactionResult] = {}
        self.disk_failed = False
        self.models = [self._new_model(number) for number in range(self.rng.randint(1, 3))]
        self.directory: LogDirectory
        self.view: DiskView

    def _new_model(self, number: int) -> ModelPartition:
        rng = self.rng
        configs = TopicConfigs(
            segment_bytes=rng.choice((1_500, 4_000, 20_000)),
            index_interval_bytes=rng.choice((0, 300, 4096)),
            retention_ms=rng.choice((RETENTION_MS, -1)),
            retention_bytes=rng.choice((-1, -1, 6_000)),
            file_delete_delay_ms=rng.choice((0, 2_000, 60_000)),
            message_timestamp_before_max_ms=2**62,
            cleanup_policy=rng.choice((DELETE, DELETE, COMPACT)),
            min_cleanable_dirty_ratio=0.0,
        )
        producers = [
            ModelProducer(100 + 10 * number + place, f"p{place}")
            for place in range(rng.randint(1, 3))
        ]
        return ModelPartition(TopicPartition("t", number), configs, producers)

    # --- the course of a run -----------------------------------------------------------------

    def run(self) -> Result:
        lives = self.rng.randint(2, 6)
        try:
            for number in range(lives):
                self._one_life(last=number + 1 == lives)
            self._finish()
        except CorruptRecords as error:
            self.found.append(f"unreadable bytes were served: {error}")
        except (Exception, ProcessKilled):
            self.found.append(f"the run ended with an error:\n{traceback.format_exc()}")
        lossy = only_the_torn_tail_is_cut, epochs_end_where_they_did
        checkers = lossy if self.regime == "lossy" else ALL
        return Result(
            self.scenario,
            self.seed,
            self.trace.digest(),
            self.found + violations(self.history, checkers),
            self.trace.tail(),
            self.counts,
        )

    def _one_life(self, *, last: bool) -> None:
        kind = {"kill": "kill", "lossy": "power"}.get(self.regime) or self.rng.choice(
            ("kill", "power")
        )
        crash_in, at_append = self._when_to_crash()
        fail_in = self.rng.randint(1, 250) if self.rng.random() < 0.4 else 0
        self._plan(crash_in, at_append, kind, fail_in)
        try:
            self._open()
            for _ in range(self.rng.randint(20, 200)):
                self._step()
            if not last and self.rng.random() < 0.2:
                self._close_cleanly()
                return
        except ProcessKilled:
            pass
        else:
            # Nothing happened in an operation: it happens between two.
            if kind == "power":
                self.disk.lose_power()
            else:
                self.disk.kill(self.view)
        self._crashed(kind)

    def _when_to_crash(self) -> tuple[int, int]:
        """Return after how many operations of the disk it crashes, and in which append.

        Half of the lives end by the first, at first in the start itself. The others live
        for a while: only then there is something to compact, and a tail to tear.
        """
        if self.rng.random() < 0.5:
            return int(2 ** self.rng.uniform(0, 11)), NEVER
        return NEVER, self.rng.randint(1, 80)

    def _plan(self, crash_in: int, at_append: int, kind: str, fail_in: int) -> None:
        base = self.disk.operations
        part = self.rng.random()
        kinds = ("sync", self.rng.choice(("sync", "write")))
        if self.regime != "power":
            kinds = ("write",)
        self.disk_failed = False
        appends = 0

        def plan(operation: DiskOperation) -> Crash | Fail | None:
            nonlocal appends
            number = operation.number - base
            appends += operation.kind == "write" and operation.path.endswith(".log")
            if number >= crash_in or appends >= at_append:
                return Crash(kind, part)
            if self.disk_failed and operation.kind == "sync":
                self.history.directory(PATH, str(self.life), "sync")
            due = fail_in and number >= fail_in and not self.disk_failed
            if due and operation.kind in kinds and operation.path.endswith(".log"):
                self.disk_failed = True
                self.history.directory(PATH, str(self.life), f"{operation.kind} failed")
                return Fail(errno.EIO, part)
            return None

        self.disk.plan = plan

    def _crashed(self, kind: str) -> None:
        self.counts["crashes"] += 1
        self.disk.plan = None
        self.disk.capacity = UNLIMITED
        self.logs.clear()
        self.pending.clear()
        self.cleaned.clear()
        if kind == "power":
            self.boot += 1
        self.disk_failed = False
        self.life += 1
        self._inspect(kind)

    def _inspect(self, kind: str) -> None:
        """Open once without faults, compare with the books, and leave as if killed."""
        self._open(register=False)
        for model in self.models:
            log = self.logs.get(model.name)
            if log is None:
                if model.claimed > model.start:
                    self.found.append(f"{model.name} is gone after {kind}")
                model.recovered(self.history, kind, 0, {})
                model.cut(0)
                continue
            if log.damaged:
                self.found.append(f"{model.name} is damaged after {kind}: {log.damaged}")
            after = self._read_back(log)
            model.recovered(self.history, kind, log.start_offset, after)
            model.start = max(model.start, 0)
            was, model.records = model.records, after
            model.cut(log.end_offset)
            fresh = [offset for offset in after if offset not in model.first_of]
            model.first_of.update({offset: min(fresh) for offset in fresh})
            if self.regime == "lossy":
                model.start = min(model.start, log.start_offset)
            self._trust_what_is_there(model, kind, was)
            model.ask_epochs(self.history, log)
        self.disk.kill(self.view)
        self.logs.clear()

    def _trust_what_is_there(self, model: ModelPartition, kind: str, was: dict[int, bytes]) -> None:
        if kind == "power":
            model.claimed = min(model.claimed, model.end)
        model.readable = min(model.readable, model.end)
        for producer in model.producers:
            producer.forget_offsets()
        if self.regime == "lossy" and any(offset not in model.records for offset in was):
            self._renew_producers(model)

    def _renew_producers(self, model: ModelPartition) -> None:
        """Acked records are gone, which this regime allows: producers begin again."""
        for producer in model.producers:
            for batch in producer.outbox:
                for write in batch.writes:
                    self.history.end(write, Outcome.UNDETERMINED)
            producer.outbox, producer.answered = [], []
            producer.producer_id += 1_000
            producer.sequence = 0

    def _open(self, *, register: bool = True) -> None:
        self.view = self.disk.view(f"life-{self.life}")
        self.trace.event("life", self.life, self.boot, self.regime)
        seams = Seams(
            clock=self.clock, random=random.Random(f"{self.seed}/{self.life}"), disk=self.view
        )
        opened = open_directory(
            seams, PATH, cluster_id="c", node_id=1, boot_id=str(self.boot), open_files=8
        )
        assert isinstance(opened, LogDirectory), opened
        self.directory = opened
        opened.load(resolve)
        for model in self.models:
            existing = opened.logs.get(model.partition)
            if existing is None and not register:
                continue
            metadata = replace(METADATA, configs=texts_of(model.configs))
            log = existing or opened.create(model.partition, model.configs, metadata)
            log.configure(model.configs)
            self.logs[model.name] = log
        if register:
            durability = "sync" if self.regime == "power" else "replicated"
            if opened.failed is None:
                finish(opened.recording_life(str(self.boot), durability=durability))
            self.leader_epoch += 1
            for model in self.models:
                self._begin_leading(model)

    def _begin_leading(self, model: ModelPartition) -> None:
        log = self.logs[model.name]
        model.start = max(model.start, 0)
        if self.regime == "power":
            log.high_watermark = max(min(model.claimed, log.end_offset), log.start_offset)
        else:
            # The only replica: what it has is committed.
            log.high_watermark = log.end_offset
        model.readable = max(model.readable, log.high_watermark)
        model.ask_epochs(self.history, log)
        model.led(self.leader_epoch, log.end_offset)
        if not log.failed:
            log.begin_epoch(self.leader_epoch)

    # --- the end -------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Without faults: everything outstanding is sent, synced and read from a clean start."""
        self._open()
        for model in self.models:
            log = self.logs[model.name]
            for producer in model.producers:
                while (batch := producer.next_to_append) is not None and not log.failed:
                    self._give(model, log, batch)
                    if batch.offset < 0:
                        break
            self._begin_sync(model, log)
            self._end_sync(model, log)
            self._commit(model, log, log.end_offset)
        self._close_cleanly()
        self._open()
        if self.directory.last_stop is not LastStop.CLEAN:
            self.found.append(f"after a clean stop the life counts as {self.directory.last_stop}")
        for model in self.models:
            log = self.logs[model.name]
            found = self._read_back(log)
            model.ask_epochs(self.history, log)
            keys = {offset: model.keys.get(offset) for offset in found}
            self.history.finals.append(
                Final(
                    model.name,
                    log.start_offset,
                    log.end_offset,
                    found,
                    keys,
                    model.configs.compacted,
                )
            )
        give_up(self.history, self.models)

    def _close_cleanly(self) -> None:
        self.disk.plan = None
        self.disk.capacity = UNLIMITED
        for model in self.models:
            self._end_sync(model, self.logs[model.name])
        clean = self.directory.close()
        if clean:
            for model in self.models:
                model.claimed = model.end
        elif not self.disk_failed:
            self.found.append(f"no clean stop: {self.directory.failed}")
        self.disk.kill(self.view)
        self.logs.clear()
        self.pending.clear()
        self.cleaned.clear()
        self.life += 1
        if self.disk_failed:
            self.disk_failed = False
            self._inspect("kill")

    def _read_back(self, log: PartitionLog) -> dict[int, bytes]:
        """Return everything between start and end, offset by offset."""
        found: dict[int, bytes] = {}
        position = log.start_offset
        while position < log.end_offset:
            data = log.read(position, 1 << 20)
            if isinstance(data, Rejected):
                self.found.append(f"{log.partition}: reading back {position} got {data}")
                break
            before = position
            found.update((r.offset, bytes(r.value or b"")) for r in read_all(data, position))
            for _, header in walk(data):
                position = header.next_offset
            if position == before:
                self.found.append(f"{log.partition}: nothing at {position}, end {log.end_offset}")
                break
        return found


def run_log(seed: int) -> Result:
    """Run the log scenario once."""
    return LogRun(seed).run()
