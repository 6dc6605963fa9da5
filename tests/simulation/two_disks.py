"""A machine of the simulation with a disk for each of two log directories, and moves between them.

Owns the machine, its starts, and the parts of a move in the order in which a broker does them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from tests.simulation.kernel import DiskView, Plan, SimulatedDisk, Trace
from tests.simulation.log_node import P, kept
from tests.simulation.scenarios.log_steps import ManualClock
from tests.support.storage_logs import removed_now, resolve
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.work import finish
from tidelog.records.batch import Rejected, walk
from tidelog.records.builder import NewRecord, Producer, build_batch
from tidelog.records.reader import read_all
from tidelog.runtime.seams import Seams
from tidelog.storage import names
from tidelog.storage.directory.copies import MOVED, FoundReplica, judge
from tidelog.storage.directory.log_directory import LogDirectory, open_directory
from tidelog.storage.future import places
from tidelog.storage.future.mirror import Mirror
from tidelog.storage.future.moving import Move, taking_place
from tidelog.storage.log.partition_log import PartitionLog

PATHS = "/a", "/b"


class BothViews:
    """The product's ``Disk`` of one life, over both disks."""

    def __init__(self, views: dict[str, DiskView]) -> None:
        self._views = views

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(path: str, *args: Any, **kwargs: Any) -> Any:
            above = path not in self._views and path[:2] not in self._views  # "/" is of both
            views = self._views.values() if above else [self._views[path[:2]]]
            return [getattr(view, name)(path, *args, **kwargs) for view in views][-1]

        return call


class TwoDisks:
    """The machine. Each ``start`` is a new life; a power loss strikes both disks."""

    def __init__(self, seed: int, configs: TopicConfigs) -> None:
        self.configs = configs
        self.clock = ManualClock()
        self.disks = {
            path: SimulatedDisk(
                random.Random(seed + at), Trace(lambda: 0.0), self.clock.wall_ms, name=path
            )
            for at, path in enumerate(PATHS)
        }
        self.boot = 1
        self.acked: dict[int, bytes] = {}
        """All records that were appended, by offset."""
        self.appended = 0
        self.crashed: str | None = None
        for disk in self.disks.values():
            disk.on_crash = self._crash

    def plan(self, make: Callable[[], Plan] | None) -> None:
        """Strike both disks by one plan, which counts the operations of both."""
        plan = None if make is None else make()
        for disk in self.disks.values():
            disk.operations = 0
            disk.plan = plan

    def _crash(self, _view: DiskView, kind: str) -> None:
        self.crashed = kind
        for path, disk in self.disks.items():
            disk.kill(self.views[path])
            if kind == "power":
                disk.lose_power()
        if kind == "power":
            self.boot += 1

    def start(self) -> PartitionLog | None:
        """Open both directories as a broker does; return the log of the partition."""
        self.views = {path: disk.view() for path, disk in self.disks.items()}
        self.disk: Any = BothViews(self.views)
        seams = Seams(clock=self.clock, random=random.Random(1), disk=self.disk)
        self.directories = []
        for path in PATHS:
            found = open_directory(seams, path, cluster_id="c", node_id=1, boot_id=str(self.boot))
            assert isinstance(found, LogDirectory), found
            found.load(resolve)
            self.directories.append(found)
        holding = [each for each in self.directories if P in each.logs]
        if len(holding) > 1:
            copies = [FoundReplica(d, d.logs[P].metadata, d.is_unfinished(P)) for d in holding]
            verdict = judge(copies)
            assert len(verdict.kept) == 1, copies
            for directory, what in verdict.left:
                assert what == MOVED
                directory.delete(P, delay_ms=0)
            holding = list(verdict.kept)
        for directory in self.directories:
            finish(directory.recording_life(str(self.boot), durability="sync"))
        return holding[0].logs[P] if holding else None

    @property
    def directory(self) -> LogDirectory:
        """The directory of the log."""
        return next(each for each in self.directories if P in each.logs)

    @property
    def log(self) -> PartitionLog:
        return self.directory.logs[P]

    def create(self) -> PartitionLog:
        """A log in the first directory."""
        self.start()
        metadata = kept(self.configs)
        return self.directories[0].create(P, self.configs, metadata)

    def append(self, number: int) -> None:
        """Append a record of an idempotent producer, and commit it."""
        self.clock.now_ms += 1_000
        self.appended += 1
        value = b"v%d" % self.appended  # after a cut an offset gets another one
        batch = build_batch(
            [NewRecord(self.clock.now_ms, b"k%d" % (number % 4), value)],
            producer=Producer(7, 0, number),
        )
        log = self.log
        epoch = max(1, log.latest_epoch)
        answer = log.append_as_leader(batch, epoch, self.clock.now_ms, resumes=True)
        assert not isinstance(answer, Rejected), answer
        self.acked[answer.first_offset] = value
        log.high_watermark = log.end_offset

    def checkpoint(self) -> None:
        for directory in self.directories:
            checkpoint = finish(directory.checkpoint())
            if checkpoint is not None:
                checkpoint.run()
                directory.checkpointed(checkpoint)

    def moving(self, slice_bytes: int = 500) -> Iterator[None]:
        """Move the log to the other directory, in steps between which others may work."""
        origin, log = self.directory, self.log
        target = next(each for each in self.directories if each is not origin)
        path = target.futures.get(P)
        assert log.metadata is not None
        log.is_mirrored = True
        if path is None:
            unique = Seams(random=random.Random(3)).new_uuid()
            path = target.futures[P] = places.new_path(target, P, unique)
            places.make(self.disk, path, log.metadata)
        yield
        mirror = Mirror(self.disk, log, path)
        while mirror.left() > slice_bytes:
            mirror.run(mirror.plan(slice_bytes))
            yield
        mirror.flush()
        while True:
            move = Move(
                mirror, log, origin, target, self._new_created, lambda: True, lambda _: None
            )
            pieces = taking_place(move)
            try:
                call = next(pieces)
                while True:
                    yield
                    try:
                        made = None if call is None else call()
                    except Exception as error:
                        call = pieces.throw(error)
                    else:
                        yield
                        call = pieces.send(made)
            except StopIteration as end:
                if end.value is not None:
                    target.futures.pop(P, None)
                    mirror.close()
                    return
            yield

    def _new_created(self) -> tuple[int, int]:
        self.clock.now_ms += 1
        return self.clock.now_ms, 1

    def read(self) -> dict[int, bytes]:
        """Read the whole log."""
        log, found = self.log, {}
        position = log.start_offset
        while position < log.end_offset:
            data = log.read(position, 1 << 20)
            assert not isinstance(data, Rejected), data
            for record in read_all(data, position):
                found[record.offset] = bytes(record.value or b"")
            for _, header in walk(data):
                position = header.next_offset  # the last one may be a control batch
        return found

    def listed(self) -> dict[str, list[str]]:
        """The endings of the partition's directories, by log directory."""
        return {
            path: [
                parsed.ending
                for name in self.disk.list(path)
                if (parsed := names.parse_directory(name)) is not None and parsed.partition == P
            ]
            for path in PATHS
        }

    def remove_due(self) -> None:
        self.clock.now_ms += 1_000_000
        for directory in self.directories:
            removed_now(directory)


def drive(steps: Iterator[None], between: Callable[[], object] = lambda: None) -> None:
    """Run steps to the end; ``between`` is called between each two."""
    for _ in steps:
        between()
