"""A node of the simulation that serves one log directory and crashes at a chosen change."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, replace

from tests.simulation.kernel import (
    Crash,
    DiskOperation,
    DiskView,
    Plan,
    SimulatedDisk,
    Trace,
)
from tests.simulation.scenarios.log import METADATA
from tests.simulation.scenarios.log_steps import PATH, ManualClock
from tests.support.storage_logs import resolve, texts_of
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.topics import TopicPartition
from tidelog.model.work import finish
from tidelog.records.batch import Rejected, walk
from tidelog.records.builder import NewRecord, Producer, build_batch
from tidelog.records.reader import read_all
from tidelog.runtime.seams import Seams
from tidelog.storage.checkpoints import PartitionMetadata
from tidelog.storage.directory.log_directory import LogDirectory, open_directory
from tidelog.storage.log.partition_log import PartitionLog

P = TopicPartition("t", 0)
RECORDS = 20
KEYS = 4


def kept(configs: TopicConfigs) -> PartitionMetadata:
    return replace(METADATA, configs=texts_of(configs))


@dataclass
class Node:
    """One machine with one log directory."""

    seed: int
    configs: TopicConfigs
    is_nameless: bool = False
    """Its replica is older than topic ids: it has no ``partition.metadata``."""

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.disk = SimulatedDisk(
            random.Random(self.seed), Trace(lambda: 0.0), self.clock.wall_ms, name="disk"
        )
        self.view: DiskView
        self.directory: LogDirectory
        self.boot = 1

    def open(self) -> LogDirectory:
        self.view = self.disk.view()
        seams = Seams(clock=self.clock, random=random.Random(1), disk=self.view)
        opened = open_directory(seams, PATH, cluster_id="c", node_id=1, boot_id=str(self.boot))
        assert isinstance(opened, LogDirectory), opened
        opened.load(resolve)
        self.directory = opened
        return opened

    def prepare(self) -> PartitionLog:
        """A log of many segments, synced, checkpointed, with more unsynced bytes after it."""
        directory = self.open()
        finish(directory.recording_life(str(self.boot), durability="sync"))
        metadata = None if self.is_nameless else kept(self.configs)
        log = directory.create(P, self.configs, metadata)
        for number in range(RECORDS):
            self.append(log, number)
        log.sync()
        log.high_watermark = log.end_offset
        checkpoint = finish(directory.checkpoint())
        assert checkpoint is not None
        checkpoint.run()
        directory.checkpointed(checkpoint)
        return log

    def append(self, log: PartitionLog, number: int) -> None:
        self.clock.now_ms += 1_000
        record = NewRecord(self.clock.now_ms, b"k%d" % (number % KEYS), b"v%d" % number)
        producer = Producer(7, 0, number)
        answer = log.append_as_leader(
            build_batch([record], producer=producer), 1, self.clock.now_ms, resumes=True
        )
        assert not isinstance(answer, Rejected), answer

    def read(self, log: PartitionLog) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        position = log.start_offset
        while position < log.end_offset:
            data = log.read(position, 1 << 20)
            assert not isinstance(data, Rejected), data
            assert len(data), f"nothing at {position}, end {log.end_offset}"
            found.update((r.offset, bytes(r.value or b"")) for r in read_all(data, position))
            end = 0
            for at, header in walk(data):
                position, end = header.next_offset, at + header.size
            assert end == len(data), f"{len(data) - end} bytes after the last batch are served"
        return found


SMALL = TopicConfigs(segment_bytes=400, index_interval_bytes=100)


def at_change(number: int, crash: Crash) -> Plan:
    """Crash in the operation with this number, reads not counted."""
    changes = itertools.count(1)

    def plan(operation: DiskOperation) -> Crash | None:
        return crash if operation.kind != "read" and next(changes) == number else None

    return plan
