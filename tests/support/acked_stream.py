"""A stream of records with books: each record written, acknowledged (at which offset) and read.

The workload of the tests that kill nodes. Kills nothing itself; judges with plain comparisons.
"""

from __future__ import annotations

import itertools
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import confluent_kafka
from confluent_kafka import TopicPartition

from tests.support.log_files import BatchOnDisk
from tests.support.offsets import watermarks
from tests.support.processes import DEADLINE_S, wait_until

Place = tuple[int, int]
PARTITION_BY_KEY = -1

SOMEWHERE = -1
"""The offset of a record that was acknowledged without an offset."""


class Writer:
    """A librdkafka producer with acks=all in a thread; its values are `NAME:NUMBER`.

    `acked` maps each acknowledged number to its (partition, offset); `failed` lists the errors of
    records that librdkafka gave up. Where a batch was refused, or its response lost, and the
    next one is acknowledged, librdkafka reports the first one as stored, without an offset: it is
    `SOMEWHERE` in its partition. At most `window` records wait for their answers, and it sends at
    most `per_s` a second. With `keys` each record has one of so many keys, which choose its
    partition. A request without an answer is sent again after `request_timeout_ms`; a broker
    refuses one that the other replicas have not taken after `replicas_within_ms`. `wrong` notes
    what no later look can find: an offset below that of a record of the same partition that was
    acknowledged before this one was sent.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        name: str,
        partitions: int,
        *,
        idempotent: bool,
        keys: int = 0,
        per_s: float | None = None,
        request_timeout_ms: int = 10_000,
        replicas_within_ms: int = 30_000,
    ) -> None:
        self.name = name
        self.idempotent = idempotent
        self.keys = keys
        self.wrong: list[str] = []
        self.longest_gap_s = 0.0
        self._per_s = per_s
        self._highest: dict[int, int] = {}
        self._sent_after: dict[int, dict[int, int]] = {}
        self._acked_at_s = 0.0
        self.acked: dict[int, Place] = {}
        self.failed: list[str] = []
        self.died = ""
        """Why this writer stopped by itself, before a test asked it to."""
        self.sent = 0
        self._topic = topic
        self._partitions = partitions
        self._window = 400
        self._stop = threading.Event()
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": name,
                "acks": "all",
                "enable.idempotence": idempotent,
                "batch.num.messages": 20,
                "linger.ms": 2,
                "message.timeout.ms": 300_000,
                "retries": 1_000_000,
                "retry.backoff.ms": 50,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "socket.timeout.ms": request_timeout_ms,
                "request.timeout.ms": replicas_within_ms,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def key(self, number: int) -> str | None:
        """The key of a record, None when they have none."""
        return f"{self.name}-{number % self.keys}" if self.keys else None

    def _run(self) -> None:
        try:
            self._write()
        except Exception:
            self._die()

    def _die(self) -> None:
        # The first one is the cause; what confluent_kafka makes of it tells nothing.
        self.died = self.died or f"{self.name} died:\n{traceback.format_exc()}"
        self._stop.set()

    def _write(self) -> None:
        begun = time.monotonic()
        while not self._stop.is_set():
            waits = self.sent - len(self.acked) - len(self.failed)
            due = self._per_s is None or self.sent < (time.monotonic() - begun) * self._per_s
            if waits >= self._window or not due:
                self._producer.poll(0.02 if waits >= self._window else 0.002)
                continue
            number, key = self.sent, self.key(self.sent)
            # What was acknowledged before this is sent stands before it (promise 5).
            self._sent_after[number] = dict(self._highest)
            self._producer.produce(
                self._topic,
                f"{self.name}:{number}",
                key,
                number % self._partitions if key is None else PARTITION_BY_KEY,
                on_delivery=lambda error, message, n=number: self._delivered(n, error, message),
            )
            self.sent += 1
            self._producer.poll(0)

    def _delivered(
        self, number: int, error: confluent_kafka.KafkaError | None, message: object
    ) -> None:
        try:
            self._answered(number, error, message)
        except Exception:
            # Of what a callback raises confluent_kafka does not tell the kind, nor where it was.
            self._die()

    def _answered(
        self, number: int, error: confluent_kafka.KafkaError | None, message: object
    ) -> None:
        before = self._sent_after.pop(number)
        if error is not None:
            self.failed.append(f"{number}: {error}")
            return
        partition, offset = message.partition(), message.offset()  # type: ignore[attr-defined]
        now_s = time.monotonic()
        if self._acked_at_s:
            self.longest_gap_s = max(self.longest_gap_s, now_s - self._acked_at_s)
        self._acked_at_s = now_s
        if offset is None or offset < 0:
            self.acked[number] = (partition, SOMEWHERE)
            return
        self.acked[number] = (partition, offset)
        floor = before.get(partition, -1)
        if offset <= floor:
            self.wrong.append(f"{self.name}:{number} at {partition}/{offset}, sent after {floor}")
        self._highest[partition] = max(offset, self._highest.get(partition, -1))

    def state(self) -> str:
        """One line for a failure."""
        said = f"{self.name}: {self.sent} sent, {len(self.acked)} acked, failed {self.failed[:2]}"
        return f"{said}, {self.died}" if self.died else said

    def has_acked(self, count: int) -> bool:
        """Whether so many records are acknowledged; AssertionError when this writer has died."""
        assert not self.died, self.died
        return len(self.acked) >= count

    def abandon(self) -> None:
        """Stop sending; drop the records that have no response yet."""
        self._stop.set()
        self._thread.join(DEADLINE_S)
        self._producer.purge()
        self._producer.flush(5)

    def finish(self, deadline_s: float = DEADLINE_S) -> None:
        """Stop sending and wait for every response; AssertionError when one does not come."""
        self._stop.set()
        self._thread.join(deadline_s)
        assert not self.died, self.died
        left = self._producer.flush(deadline_s)
        assert not self.died, self.died
        assert left == 0, f"{self.name}: {left} records without an answer after {deadline_s} s"


class GroupReader:
    """A member of a group in a thread: reads, and commits after every few batches.

    `seen` counts each value; `commits` notes each committed offset by partition, in order.
    `metadata_ms`: how soon it finds the new partitions of a topic that has grown.
    """

    def __init__(
        self, bootstrap: str, topic: str, group: str, *, metadata_ms: int = 300_000
    ) -> None:
        self.seen: Counter[str] = Counter()
        self.errors: list[str] = []
        self.commits: dict[int, list[int]] = defaultdict(list)
        self.died = ""
        """Why this reader stopped by itself, before a test asked it to."""
        self._doing = "nothing"
        self._since_s = time.monotonic()
        self._stop = threading.Event()
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "topic.metadata.refresh.interval.ms": metadata_ms,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                # librdkafka 2.16 may stop for ever in a re-bootstrap: docs/operating/clients.md.
                "metadata.recovery.strategy": "none",
                "log_level": 0,
            }
        )
        self._consumer.subscribe([topic])
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            self._read()
        except Exception:
            self.died = f"the reader died:\n{traceback.format_exc()}"

    def _read(self) -> None:
        while not self._stop.is_set():
            self._begin("consume")
            got = self._consumer.consume(500, 0.1)
            for message in got:
                if message.error() is None:
                    self.seen[message.value().decode()] += 1
                elif not message.error().retriable():
                    self.errors.append(str(message.error()))
            if got:
                self._begin("commit")
                self._commit()
        self._begin("close")
        self._consumer.close()

    def _begin(self, what: str) -> None:
        self._doing, self._since_s = what, time.monotonic()

    def _commit(self) -> None:
        try:
            for part in self._consumer.commit(asynchronous=False) or ():
                # A partition of which nothing was read has no offset (-1001).
                if part.error is None and part.offset >= 0:
                    self.commits[part.partition].append(part.offset)
        except confluent_kafka.KafkaException as refused:
            # The node is down or the group is rebalancing: what was not committed is read again.
            self.errors.append(f"commit: {refused}")

    def missing(self, found: dict[Place, str]) -> list[tuple[Place, str]]:
        """What is in the log and was not read yet, by place; AssertionError when this reader has
        died."""
        assert not self.died, self.died
        return sorted((place, v) for place, v in found.items() if not self.seen[v])

    def state(self) -> str:
        """One line for a failure: last commits and last errors."""
        last = {partition: offsets[-1] for partition, offsets in self.commits.items()}
        busy_s = time.monotonic() - self._since_s
        return (
            f"{self.seen.total()} read, committed {last}, in {self._doing} for {busy_s:.1f} s, "
            f"errors {self.errors[-3:]}"
        )

    def abandon(self) -> None:
        """Stop reading; the thread ends when its call does."""
        self._stop.set()

    def finish(self, deadline_s: float = DEADLINE_S) -> None:
        """Stop reading and leave the group."""
        self._stop.set()
        self._thread.join(deadline_s)


def read_all(bootstrap: str, topic: str, partitions: int, fences: int = 0) -> dict[Place, str]:
    """The whole topic: (partition, offset) to value. ``fences`` are the offsets without a record:
    one for each resize and partition."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False}
    )
    ends = {
        number: watermarks(consumer, TopicPartition(topic, number))[1]
        for number in range(partitions)
    }
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: dict[Place, str] = {}
    end = time.monotonic() + 120
    count = sum(ends.values()) - fences
    while len(found) < count and time.monotonic() < end:
        for message in consumer.consume(10_000, 0.5):
            assert message.error() is None, message.error()
            found[(message.partition(), message.offset())] = message.value().decode()
    consumer.close()
    assert len(found) == count, f"read {len(found)} of {count} records"
    return found


def lost_acks(writer: Writer, found: dict[Place, str]) -> list[str]:
    """What was acknowledged to a writer and is not where that was said, or nowhere in its
    partition: one line for each record."""
    lost = []
    partitions = {(place[0], value) for place, value in found.items()}
    for number, place in writer.acked.items():
        value = f"{writer.name}:{number}"
        if place[1] == SOMEWHERE:
            if (place[0], value) not in partitions:
                lost.append(f"lost: {value} acked in partition {place[0]}, it is nowhere there")
        elif found.get(place) != value:
            lost.append(f"lost: {value} acked at {place}, there is {found.get(place)}")
    return lost


def violations(
    writers: Sequence[Writer],
    found: dict[Place, str],
    reader: GroupReader,
    renumbered: frozenset[str] = frozenset(),
) -> list[str]:
    """What was promised and not kept (promises 1, 2, 4, 5, 6); empty when all is well.

    `renumbered` are values that their producer sent again under another epoch or id, which no
    broker can know for the same (see `renumbered_values`).
    """
    wrong: list[str] = []
    times = Counter(found.values())
    for writer in writers:
        wrong += writer.wrong
        wrong += lost_acks(writer, found)
        for number, place in writer.acked.items():
            value = f"{writer.name}:{number}"
            if not reader.seen[value]:
                wrong.append(f"the group never read {value} of {place}")
        mine = [v for v in times if v.startswith(f"{writer.name}:")]
        if writer.idempotent:
            wrong += [
                f"{times[v]} times: {v}" for v in mine if times[v] > 1 and v not in renumbered
            ]
            once = {place: value for place, value in found.items() if value not in renumbered}
            wrong += _disorder(writer, _by_place(writer, once), "in the log")
            wrong += _disorder(writer, _by_first_read(writer, found, reader), "to the group")
    # Nothing was lost, so what was read once is there for ever.
    wrong += [f"read, and not there any more: {value}" for value in reader.seen if not times[value]]
    for partition, offsets in reader.commits.items():
        wrong += [
            f"the group's offset in {partition} fell from {a} to {b}"
            for a, b in itertools.pairwise(offsets)
            if b < a
        ]
    return wrong


IN_FLIGHT = 5
"""Requests of an idempotent producer, of one partition, that may be without an answer."""

Line = tuple[str, int]
"""What must be in order by itself (a partition, a key), and a number in it."""


def settled(
    bootstrap: str,
    topic: str,
    partitions: int,
    writers: Sequence[Writer],
    reader: GroupReader,
    numbers_of: Callable[[int], list[BatchOnDisk]],
    fences: int = 0,
) -> dict[Place, str]:
    """Let all come to rest and hold their books against the topic; return what is in it.

    ``numbers_of``: see ``renumbered_values``; librdkafka takes a new epoch after a clean stop, too.
    ``fences``: see ``read_all``.

    AssertionError when the group does not read it all, a promise is broken, or a write failed.
    """
    for writer in writers:
        writer.finish()
    found = read_all(bootstrap, topic, partitions, fences)
    wait_until(
        lambda: not reader.missing(found),
        DEADLINE_S,
        lambda: f"the group reads all; {reader.state()}",
    )
    reader.finish()
    names = {writer.name for writer in writers if writer.idempotent}
    idempotent = {at: value for at, value in found.items() if value.partition(":")[0] in names}
    renumbered = renumbered_values(idempotent, numbers_of)
    wrong = violations(writers, found, reader, renumbered)
    wrong += headers_of_doubles(
        {at: value for at, value in idempotent.items() if value not in renumbered}, numbers_of
    )
    assert not wrong, "\n".join(wrong[:20])
    if renumbered:
        print(f"sent again under another number by librdkafka: {sorted(renumbered)}")
    for writer in writers:
        assert not writer.failed, writer.state()
    return found


def _lines(writer: Writer, number: int, partition: int) -> list[Line]:
    lines: list[Line] = [(f"partition {partition}", number)]
    key = writer.key(number)
    return lines if key is None else [*lines, (f"key {key}", number)]


def _by_place(writer: Writer, found: dict[Place, str]) -> list[Line]:
    lines: list[Line] = []
    homes: dict[str, int] = {}
    for (partition, _), value in sorted(found.items()):
        owner, _, text = value.partition(":")
        if owner == writer.name:
            key = writer.key(int(text))
            # A key has one home: then its order in the log is its order.
            if key is not None and homes.setdefault(key, partition) != partition:
                lines.append((f"key {key}", -1))
            lines += _lines(writer, int(text), partition)
    return lines


def _by_first_read(writer: Writer, found: dict[Place, str], reader: GroupReader) -> list[Line]:
    place_of = {value: place for place, value in found.items()}
    lines: list[Line] = []
    # A Counter keeps the order in which its values came first.
    for value in reader.seen:
        owner, _, text = value.partition(":")
        if owner == writer.name and value in place_of:
            lines += _lines(writer, int(text), place_of[value][0])
    return lines


def _disorder(writer: Writer, lines: list[Line], where: str) -> list[str]:
    last: dict[str, int] = {}
    wrong = []
    for line, number in lines:
        if number <= last.get(line, -1):
            wrong.append(f"order {where}: {writer.name}:{number} of {line} after {last[line]}")
        last[line] = number
    return wrong


def renumbered_values(
    found: dict[Place, str], numbers_of: Callable[[int], list[BatchOnDisk]]
) -> frozenset[str]:
    """Values that are there more than once, each time under another producer epoch or id.

    librdkafka takes a new epoch when a request after a failed one was refused for its sequence, and
    sends again what it has no response for, with new sequences: so many duplicates are its own.
    No answer can be wanting to more than what was in flight, the last `IN_FLIGHT` batches of an
    epoch in a partition: a broker that forgot more is not excused.
    `numbers_of` gives the batches of a partition.
    """
    places: dict[str, list[Place]] = defaultdict(list)
    for place, value in found.items():
        places[value].append(place)
    twice = {value: where for value, where in places.items() if len(where) > 1}
    batches = {part: numbers_of(part) for part in {p for w in twice.values() for p, _ in w}}

    def batch_of(place: Place) -> BatchOnDisk:
        partition, offset = place
        (batch,) = [
            each
            for each in batches[partition]
            if each.base_offset <= offset <= each.base_offset + each.last_offset_delta
        ]
        return batch

    def was_in_flight(place: Place) -> bool:
        mine = batch_of(place)
        same = [x for x in batches[place[0]] if _identity(x) == _identity(mine)]
        return mine in sorted(same, key=lambda batch: batch.base_offset)[-IN_FLIGHT:]

    return frozenset(
        value
        for value, where in twice.items()
        if len({_identity(batch_of(place)) for place in where}) == len(where)
        and all(was_in_flight(place) for place in sorted(where)[:-1])
    )


def headers_of_doubles(
    found: dict[Place, str], numbers_of: Callable[[int], list[BatchOnDisk]]
) -> list[str]:
    """A line for each place of a value that is there more than once: the batch's header."""
    times = Counter(found.values())
    return [
        f"{value} at {place}: {batch}"
        for place, value in sorted(found.items())
        if times[value] > 1
        for batch in numbers_of(place[0])
        if batch.base_offset <= place[1] <= batch.base_offset + batch.last_offset_delta
    ]


def _identity(batch: BatchOnDisk) -> tuple[int, int]:
    return batch.producer_id, batch.producer_epoch
