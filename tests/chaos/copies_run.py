"""Copies from topic to topic in transactions, while topics change and everything fails at random.

Owns the course: a writer, copies of the example that are killed and stopped, a reader, resizes and
elections, rounds of faults beside them, and the count of everything. Which faults: see
`schedule.py`. A round begins when the cluster is healed from the former one.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.copies_verdict import Copied
from tests.chaos.fault_run import pause
from tests.chaos.nemesis import FaultyCluster
from tests.chaos.schedule import Kind, Round, schedule
from tests.support.processes import DEADLINE_S, SIGCONT, SIGSTOP, wait_until
from tidelog import Admin, Consumer, ConsumerRecord, Producer, TopicPartition
from tidelog.blocking.send_future import FutureRecordMetadata
from tidelog.errors import KafkaError

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "consume_transform_produce.py"
SOURCE, TARGET = "source", "target"
NEVER = str(1 << 60)
"""The count at which a copy ends."""
KEYS = 40
BURST, PAUSE_S = 40, 1.0
"""So many records are written at once: a copy has a transaction open for longer."""
COPIES = 2
FEWEST, MOST = 3, 8
"""Counts of partitions."""
STOPS_S = (0.4, 3.0, 12.0)
"""How long a copy is stopped: shorter and longer than its session and its transactions may be."""
BACKLOG = 1_500
WITHIN_S = 240.0
ENDS = 4 * DEADLINE_S
"""Seconds until all that was written must be copied when the faults are over."""


@dataclass
class Tally:
    """What happened in one run."""

    acked: int = 0
    undetermined: int = 0
    resizes: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    copies: Counter[str] = field(default_factory=Counter)
    """What was done to copies, and how they ended by themselves."""
    elections: int = 0
    slowest_catch_up_s: float = 0.0
    """From a round's end until all but the last records are copied."""


class Copy:
    """A copy of the example as a process, which begins again whenever it ends."""

    def __init__(self, bootstrap: str, name: str, errors: Path, tally: Tally) -> None:
        self._errors = errors.open("a")
        self._tally = tally
        self._command = [
            sys.executable, str(EXAMPLE), bootstrap, SOURCE, TARGET, NEVER, name,
        ]  # fmt: skip
        self.process = self._begin()

    def _begin(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, stderr=self._errors)

    def check(self) -> None:
        """Begin again if it has ended: it was fenced, or could not go on."""
        if self.process.poll() is not None:
            self._tally.copies["ended by themselves"] += 1
            self.process = self._begin()

    def kill(self) -> None:
        """Kill it, and begin again."""
        self.end()
        self._tally.copies["kill -9"] += 1
        self.process = self._begin()

    def stop(self, seconds: float) -> None:
        """Stop it for so long."""
        self.process.send_signal(SIGSTOP)
        pause(seconds)
        self.process.send_signal(SIGCONT)
        self._tally.copies[f"SIGSTOP for {seconds:.1f} s"] += 1

    def end(self) -> None:
        """End it for good."""
        self.process.kill()
        self.process.wait(DEADLINE_S)


class CopyingRun:
    """The clients, the changes and the faults of one run."""

    def __init__(self, faulty: FaultyCluster, folder: Path, seed: int) -> None:
        self.tally = Tally()
        self.sent: dict[int, bytes] = {}
        """Number and key of each record that was handed to the producer."""
        self.acked: set[int] = set()
        self.copied: list[Copied] = []
        self.uncommitted: set[tuple[int, int]] = set()
        """The places of what a reader of uncommitted records got: the control."""
        self._numbers: set[int] = set()
        self._faulty = faulty
        self._bootstrap = faulty.cluster.bootstrap
        self._folder = folder
        self._seed = seed
        self._is_over = threading.Event()
        """Nothing changes any more, and nothing more is written."""
        self._is_read = threading.Event()
        self._errors: list[BaseException] = []

    # --- clients ---------------------------------------------------------------------------------

    def _write(self) -> None:
        chance = random.Random(f"{self._seed}/writer")
        with Producer(bootstrap_servers=self._bootstrap, linger_ms=0) as producer:
            waiting = []
            for number in itertools.count():
                key = b"k%d" % chance.randrange(KEYS)
                self.sent[number] = key
                waiting.append((number, producer.send(SOURCE, b"v-%d" % number, key)))
                while waiting and waiting[0][1].is_done:
                    self._take(*waiting.pop(0))
                if number % BURST == 0 and self._is_over.wait(PAUSE_S):
                    break
            for each in waiting:
                self._take(*each)

    def _take(self, number: int, sent: FutureRecordMetadata) -> None:
        try:
            sent.get(2 * DEADLINE_S)
        except KafkaError:
            self.tally.undetermined += 1
        else:
            self.tally.acked += 1
            self.acked.add(number)

    def _read(self) -> None:
        for record in self._records("readers", "read_committed"):
            number = int(record.value.split(b"-")[1])
            self.copied.append(Copied(record.partition, record.offset, record.key, number))
            self._numbers.add(number)

    def _read_uncommitted(self) -> None:
        for record in self._records("control", "read_uncommitted"):
            self.uncommitted.add((record.partition, record.offset))

    def _records(self, group: str, isolation: str) -> Iterator[ConsumerRecord]:
        with Consumer(
            TARGET,
            bootstrap_servers=self._bootstrap,
            group_id=group,
            isolation_level=isolation,
            auto_offset_reset="earliest",
        ) as consumer:
            while not self._is_read.is_set():
                for records in consumer.poll(timeout_ms=200).values():
                    yield from records

    def _resize(self) -> None:
        chance = random.Random(f"{self._seed}/resizes")
        with Admin(bootstrap_servers=self._bootstrap) as admin:
            while not self._is_over.wait(chance.choice((0.5, 1.0, 3.0))):
                topic, count = chance.choice((SOURCE, TARGET)), chance.randint(FEWEST, MOST)
                try:
                    admin.set_partition_count(topic, count, force=True)
                except KafkaError:
                    self.tally.refused += 1
                else:
                    self.tally.resizes[topic] += 1
                with contextlib.suppress(KafkaError):
                    found = admin.elect_leaders(0, raise_errors=False)
                    self.tally.elections += sum(each is None for each in found.values())

    def _disturb(self, copies: list[Copy]) -> None:
        """Kill and stop the copies."""
        chance = random.Random(f"{self._seed}/copies")
        while not self._is_over.wait(chance.uniform(0.5, 6)):
            for each in copies:
                each.check()
            victim = chance.choice(copies)
            if chance.random() < 0.6:
                victim.kill()
            else:
                victim.stop(chance.choice(STOPS_S))

    @property
    def aborted(self) -> int:
        """How many records of aborted transactions the control got."""
        return len(self.uncommitted - {(each.partition, each.offset) for each in self.copied})

    # --- the course ------------------------------------------------------------------------------

    def course(self, kinds: tuple[Kind, ...], seconds: float) -> None:
        """Run for so long; then let all come to rest."""
        errors = self._folder / "errors"
        copies = [Copy(self._bootstrap, str(each), errors, self.tally) for each in range(COPIES)]
        changing = [self._write, self._resize, lambda: self._disturb(copies)]
        try:
            with self._running(self._is_read, self._read, self._read_uncommitted):
                with self._running(self._is_over, *changing):
                    self._rounds(kinds, seconds)
                self._until(self._is_all_copied(copies), ENDS, "all is copied")
                print(f"all is copied, {self.tally}", flush=True)
        finally:
            for each in copies:
                each.end()

    @contextlib.contextmanager
    def _running(self, over: threading.Event, *works: Callable[[], None]) -> Iterator[None]:
        threads = [threading.Thread(target=self._guarded, args=(work,)) for work in works]
        for each in threads:
            each.start()
        try:
            yield
        finally:
            over.set()
            for each in threads:
                each.join(2 * DEADLINE_S)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._errors.append(error)

    def _until(self, holds: Callable[[], bool], seconds: float, what: str) -> None:
        def checked() -> bool:
            if self._errors:
                raise self._errors[0]
            return holds()

        wait_until(checked, seconds, lambda: f"{what}; {len(self.acked - self._numbers)} lack", 0.1)

    def _is_all_copied(self, copies: list[Copy]) -> Callable[[], bool]:
        def holds() -> bool:
            for each in copies:
                each.check()
            return self.acked <= self._numbers

        return holds

    def _rounds(self, kinds: tuple[Kind, ...], seconds: float) -> None:
        self._until(lambda: len(self._numbers) > 50, WITHIN_S, "copies copy")
        begun = time.monotonic()
        for number, found in enumerate(schedule(self._seed, seconds, kinds)):
            if time.monotonic() - begun > seconds:
                return
            print(f"{time.monotonic() - begun:5.1f} s: round {number}, {found}", flush=True)
            self._do_round(found)
            healed = time.monotonic()
            self._until_written(self.tally.acked + 10, f"writes after {found}")
            for topic in (SOURCE, TARGET, "__consumer_offsets", "__transaction_state"):
                self._faulty.cluster.until_in_sync(topic, 3)
            self._until(
                lambda: len(self.acked) - len(self._numbers) < BACKLOG, WITHIN_S, f"after {found}"
            )
            took_s = time.monotonic() - healed
            self.tally.slowest_catch_up_s = max(self.tally.slowest_catch_up_s, took_s)

    def _until_written(self, count: int, what: str) -> None:
        self._until(lambda: self.tally.acked >= count, WITHIN_S, what)

    def _do_round(self, found: Round) -> None:
        pause(found.work_s)
        ranks = self._faulty.ranks(self._faulty.cluster.leader(TARGET))
        for fault in found.faults:
            self.tally.faults[fault.kind.value] += 1
            self._faulty.begin(fault, ranks)
        since = time.monotonic()
        for fault in sorted(found.faults, key=lambda fault: fault.lasts_s):
            pause(max(0.0, fault.lasts_s - (time.monotonic() - since)))
            self._faulty.end(fault, ranks)
        self._faulty.until_ready()


def what_is_open(bootstrap: str) -> list[str]:
    """Return the partitions whose last stable offset is below their end."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        places = [
            TopicPartition(topic.name, partition)
            for topic in admin.describe_topics([SOURCE, TARGET, "__consumer_offsets"])
            for partition in topic.partitions
        ]
    with (
        Consumer(bootstrap_servers=bootstrap, isolation_level="read_committed") as stable,
        Consumer(bootstrap_servers=bootstrap, isolation_level="read_uncommitted") as every,
    ):
        ends, below = every.end_offsets(places), stable.end_offsets(places)
    return [
        f"{place} is stable below {below[place]} of {end}"
        for place, end in ends.items()
        if below[place] != end
    ]
