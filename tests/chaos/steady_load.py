"""A steady load on one server or a cluster, and what it costs while it lasts.

Owns the work (producers, a group, topics that come and go, lookups by time, a producer that times
each record: `produce_probe.py`) and the measure of it: disk, memory, files that wait for their
removal, stalls of the loop. Not the limits: see the test. It causes no faults.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import confluent_kafka
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewTopic

from tests.chaos.produce_probe import ProduceProbe
from tests.support.acked_stream import SOMEWHERE, GroupReader, Place, Writer
from tests.support.clients import admin
from tests.support.cluster import create_replicated
from tests.support.offsets import asked_of_leaders, watermarks
from tests.support.own_time import OwnTime
from tests.support.processes import DEADLINE_S, resident_bytes, wait_until

KEPT, COMPACTED, COMING, PROBED = "kept", "compacted", "coming", "probed"
PARTITIONS = 2
SEGMENT_BYTES = 4 << 10
RETENTION_BYTES = 16 << 10
KEYS = 100
DELETE_DELAY_MS = 500

SERVER = {
    "log.retention.check.interval.ms": 300,
    "log.cleaner.backoff.ms": 300,
    "log.segment.delete.delay.ms": DELETE_DELAY_MS,
    "offsets.topic.segment.bytes": 64 << 10,
    "offsets.topic.num.partitions": 2,
    "auto.create.topics.enable": "false",
}
"""Small and often: in ten seconds everything happens many times. And a client that asks after a
topic that went, as librdkafka does after five minutes, does not make it come again."""

KAFKA_SERVER = {
    **SERVER,
    "log.initial.task.delay.ms": 500,
    "offsets.topic.segment.bytes": 1 << 20,
}
"""The same for Apache Kafka, which otherwise begins with retention after 30 s, and makes no topic
of offsets with smaller segments."""

TIDELOG_SIZES: Mapping[str, object] = {"segment_bytes": SEGMENT_BYTES}
KAFKA_SIZES: Mapping[str, object] = {
    "internal_segment_bytes": SEGMENT_BYTES,
    "segment_index_bytes": SEGMENT_BYTES,
}
"""Apache Kafka allows less than 1 MiB only under this name (KIP-1030), and allocates an index of
10 MiB beforehand for each segment unless it is configured smaller."""

FIGURES = "figures"
"""The property of a test's report whose lines are printed when all tests are done."""

UNKNOWN_TOPIC = confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART
STALLS = "tidelog_loop_stall_seconds"
CHECK_S = 0.1


@dataclass
class Measured:
    """What one server's process and disk came to, by seconds since the load began."""

    disk: list[tuple[float, int]] = field(default_factory=list)
    resident: list[tuple[float, int]] = field(default_factory=list)
    oldest_removed_s: float = 0.0
    """For how long a file that is renamed for its removal was there at most."""
    oldest_removed: Path | None = None
    """Which file that was."""
    oldest_removed_own_s: float = 0.0
    """The same less what the server waited for a processor meanwhile (`own_time.py`)."""

    def most(self, values: list[tuple[float, int]], begin_s: float, end_s: float) -> int:
        """Return the largest value between two times."""
        return max(value for at, value in values if begin_s <= at <= end_s)


class Sampler:
    """Looks at a server's disk and memory."""

    def __init__(self, folder: Path, pid: int) -> None:
        self.measured = Measured()
        self._folder = folder
        self._pid = pid
        self._removed: dict[tuple[Path, int], tuple[float, float]] = {}
        """Since when what waits is seen, by its path and its inode: a log that is compacted twice
        in a row removes two files of one name, the second in the place of the first."""
        self._begun_s = time.monotonic()
        self._own = OwnTime(lambda: [pid])

    def look(self) -> None:
        """Look once."""
        now = self._own.wall_s(), self._own.seconds()
        total = 0
        removed: set[tuple[Path, int]] = set()
        # What goes while one looks is passed over.
        for folder, folders, files in os.walk(self._folder):
            here = Path(folder)
            for name in files:
                with contextlib.suppress(FileNotFoundError):
                    total += (here / name).stat().st_blocks * 512
            names = (*folders, *files)
            for name in names:
                if name.endswith((".deleted", "-delete")):
                    with contextlib.suppress(FileNotFoundError):
                        removed.add((here / name, (here / name).stat().st_ino))
        self._removed = {file: self._removed.get(file, now) for file in removed}
        at_s = time.monotonic() - self._begun_s
        self.measured.disk.append((at_s, total))
        self.measured.resident.append((at_s, resident_bytes(self._pid)))
        measured = self.measured
        for (path, _), since in self._removed.items():
            if now[0] - since[0] > measured.oldest_removed_s:
                measured.oldest_removed_s, measured.oldest_removed = now[0] - since[0], path
            measured.oldest_removed_own_s = max(measured.oldest_removed_own_s, now[1] - since[1])

    @property
    def waiting(self) -> int:
        """How many files and folders wait for their removal, as of the last look."""
        return len(self._removed)


class Busy:
    """Work in a thread, again and again until it is stopped; the first error ends it."""

    pause_s = 0.0
    """Between two rounds: the load is steady, not all that there is room for."""

    def __init__(self, name: str) -> None:
        self.rounds = 0
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def work(self) -> None:
        """Do one round."""
        raise NotImplementedError

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self.work()
                self.rounds += 1
                self._stop.wait(self.pause_s)
        except BaseException as error:
            self.error = error

    def look(self) -> None:
        """AssertionError when a round failed."""
        assert self.error is None, f"{self._thread.name}, round {self.rounds}: {self.error!r}"

    def finish(self) -> None:
        """End after the round under way; AssertionError when a round failed."""
        self._stop.set()
        self._thread.join(DEADLINE_S)
        self.look()
        assert not self._thread.is_alive(), f"{self._thread.name} does not end"


class Coming(Busy):
    """Topic names that come, are written, and go."""

    pause_s = 0.1

    def __init__(self, bootstrap: str, replicas: int) -> None:
        self._admin = admin(bootstrap)
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "log_level": 0}
        )
        self._replicas = replicas
        super().__init__("topics that come and go")

    def work(self) -> None:
        name = f"{COMING}-{self.rounds % 3}"
        made = self._admin.create_topics([NewTopic(name, 3, self._replicas)])
        made[name].result(DEADLINE_S)
        for number in range(30):
            wait_until(partial(self._sent, name, number % 3), DEADLINE_S, f"{name} is known")
        assert self._producer.flush(DEADLINE_S) == 0
        self._admin.delete_topics([name])[name].result(DEADLINE_S)

    def _sent(self, name: str, partition: int) -> bool:
        try:
            self._producer.produce(name, b"x" * 100, partition=partition)
        except confluent_kafka.KafkaException as refused:
            # The client may have asked between two topic ids, or a broker that lags.
            assert refused.args[0].code() == confluent_kafka.KafkaError._UNKNOWN_TOPIC, refused
            self._producer.list_topics(name, DEADLINE_S)
            return False
        return True


class Lookups(Busy):
    """Lookups by time at random moments of the load."""

    pause_s = 0.02

    def __init__(self, bootstrap: str, rng: random.Random) -> None:
        self._rng = rng
        self._begun_ms = time.time() * 1000
        self._consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "lookups", "log_level": 0}
        )
        # Not every broker knows a new topic at once.
        wait_until(self._known, DEADLINE_S, "a lookup finds its topics")
        super().__init__("lookups")

    def _known(self) -> bool:
        try:
            self.work()
        except confluent_kafka.KafkaException as refused:
            assert refused.args[0].code() == UNKNOWN_TOPIC, refused
            return False
        return True

    def work(self) -> None:
        at_ms = int(self._rng.uniform(self._begun_ms, time.time() * 1000))
        parts = [TopicPartition(name, 0, at_ms) for name in (KEPT, COMPACTED)]

        def look_up() -> None:
            for found in self._consumer.offsets_for_times(parts, DEADLINE_S):
                if found.error is not None:
                    raise confluent_kafka.KafkaException(found.error)

        # A broker that had no processor for two seconds is suspected, and its leaders move.
        asked_of_leaders(look_up, "a lookup is answered")


class Load:
    """All of it on one cluster: begun when it is made, until `finish`."""

    def __init__(
        self,
        bootstrap: str,
        replicas: int,
        per_s: float,
        rng: random.Random,
        sizes: Mapping[str, object],
    ) -> None:
        shared = {"min_insync_replicas": min(2, replicas), **sizes}
        create_replicated(
            bootstrap, KEPT, PARTITIONS, replicas, retention_bytes=RETENTION_BYTES, **shared
        )
        create_replicated(
            *(bootstrap, COMPACTED, PARTITIONS, replicas),
            **{"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.01, **shared},
        )
        create_replicated(bootstrap, PROBED, 1, replicas, retention_bytes=1, **shared)
        self.kept = Writer(bootstrap, KEPT, "kept", PARTITIONS, idempotent=True, per_s=per_s)
        self.compacted = Writer(
            *(bootstrap, COMPACTED, "compacted", PARTITIONS),
            idempotent=True,
            keys=KEYS,
            per_s=per_s,
        )
        self.reader = GroupReader(bootstrap, KEPT, "readers")
        for part in (self.kept, self.compacted, self.reader):
            part.start()
        self.probe = ProduceProbe(bootstrap, PROBED)
        self.took_s: list[float] = []
        self.coming = Coming(bootstrap, replicas)
        self.lookups = Lookups(bootstrap, rng)

    def look(self) -> None:
        """AssertionError when a part of the work has ended."""
        for busy in (self.coming, self.lookups):
            busy.look()

    def has_done(self, count: int) -> bool:
        """Whether each writer has so many acknowledgements, and each other part has come twice to
        its end; AssertionError when a writer has died."""
        acked = all(writer.has_acked(count) for writer in (self.kept, self.compacted))
        twice = self.coming.rounds > 1 and self.lookups.rounds > 1
        return acked and twice and bool(self.reader.seen)

    def finish(self) -> None:
        """End the work; AssertionError when a part of it failed."""
        self.took_s = self.probe.finish()
        for busy in (self.coming, self.lookups):
            busy.finish()
        for writer in (self.kept, self.compacted):
            writer.finish()
            assert not writer.failed and not writer.wrong, writer.state()
        self.reader.finish()

    def said(self) -> str:
        """One line of what was done."""
        return (
            f"{len(self.kept.acked)} + {len(self.compacted.acked)} records acked, "
            f"{self.reader.seen.total()} read, {self.coming.rounds} topics came and went, "
            f"{self.lookups.rounds} lookups"
        )

    def latency(self) -> str:
        """One line of how long a produce took, without those of the first tenth: whoever starts is
        slow, and a JVM most of all."""
        took_s = self.took_s[len(self.took_s) // 10 :]
        shown = {
            "median": percentile(took_s, 0.5),
            "p99": percentile(took_s, 0.99),
            "p99.9": percentile(took_s, 0.999),
            "longest": max(took_s),
        }
        parts = ", ".join(f"{name} {value_s * 1000:.1f} ms" for name, value_s in shown.items())
        return f"{parts} of {len(took_s)} produces"


def percentile(values: list[float], part: float) -> float:
    """Return what this part of the values is at most."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def kept_records(
    bootstrap: str, topic: str, partitions: int
) -> tuple[dict[int, int], dict[Place, str]]:
    """Read what retention and compaction left: where each log starts, and the values by place."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    places = [TopicPartition(topic, number) for number in range(partitions)]
    starts = {x.partition: watermarks(consumer, x)[0] for x in places}
    consumer.assign([TopicPartition(topic, x.partition, starts[x.partition]) for x in places])
    found: dict[Place, str] = {}
    at_end: set[int] = set()

    def read() -> bool:
        for message in consumer.consume(10_000, 0.2):
            error = message.error()
            if error is None:
                found[(message.partition(), message.offset())] = message.value().decode()
            else:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                at_end.add(message.partition())
        return len(at_end) == partitions

    wait_until(read, DEADLINE_S, f"{topic} is read to its ends")
    consumer.close()
    return starts, found


def lost_records(
    writer: Writer, starts: Mapping[int, int], found: Mapping[Place, str], *, newest: bool
) -> list[str]:
    """Return which acknowledged records are missing: of those that retention kept, or (`newest`)
    of each key the newest."""
    acked = {place: number for number, place in writer.acked.items() if place[1] != SOMEWHERE}
    if newest:
        last = {(p, writer.key(n)): (p, at) for (p, at), n in sorted(acked.items())}
        # Of a key whose newest is somewhere, an older one may be gone.
        unknown = {(p, writer.key(n)) for n, (p, at) in writer.acked.items() if at == SOMEWHERE}
        acked = {place: acked[place] for key, place in last.items() if key not in unknown}
    return [
        f"{writer.name}:{number} at {place}, there is {found.get(place)}"
        for place, number in sorted(acked.items())
        if place[1] >= starts[place[0]] and found.get(place) != f"{writer.name}:{number}"
    ]


def stalls(metrics_port: int) -> dict[str, float]:
    """Return the watchdog's histogram of one server: how many stalls took longer than each bound;
    nothing for a server without a watchdog."""
    with urllib.request.urlopen(
        f"http://127.0.0.1:{metrics_port}/metrics", timeout=DEADLINE_S
    ) as answer:
        lines = answer.read().decode().splitlines()
    buckets = [line for line in lines if line.startswith(f"{STALLS}_bucket")]
    counts = {line.split('"')[1]: float(line.rsplit(" ", 1)[1]) for line in buckets}
    total = counts.get("+Inf", 0.0)
    return {bound: total - count for bound, count in counts.items() if bound != "+Inf"}
