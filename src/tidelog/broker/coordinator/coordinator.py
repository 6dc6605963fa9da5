"""A coordinator of this broker: the tables in the partitions of one topic that it leads.

Owns the led partitions of the topic: loaded when leadership begins, kept in newer leader epochs of
this broker, closed when it ends; which of them keeps a key; the creation of the topic. Not one
partition and its table: see ``led_partition``; not what kind of table it is: see ``table``, and for
groups ``group_coordinator``. The leader of the partition that keeps a key is its only coordinator.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic

from tidelog.broker.coordinator.led_partition import LedPartition
from tidelog.broker.coordinator.table import TableKind, TableT
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.runtime.tasks import call_off

if TYPE_CHECKING:
    from tidelog.broker.control_plane.topic_creation import TopicCreation
    from tidelog.broker.metadata.cache import MetadataCache
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.runtime.clock import Clock

logger = logging.getLogger(__name__)

_LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@dataclass
class Loads:
    """Partitions that were loaded at the same time: they share one line in the log, because the
    first key of a cluster makes a broker load all of its partitions."""

    topic: str
    noun: str
    spoken: str
    began_ms: int
    partitions: list[int] = field(default_factory=list)
    keys: int = 0
    unknown_records: int = 0

    def add(self, led: LedPartition[Any]) -> None:
        """Count a partition if its load succeeded: a failed load has its own line in the log."""
        if led.error is ErrorCode.NONE:
            self.partitions.append(led.hosted.partition)
            self.keys += len(led.table)
            self.unknown_records += led.table.unknown_records

    def log(self, now_ms: int) -> None:
        """Log the line, if any partition was loaded."""
        if self.partitions:
            logger.info(
                f"loaded %({self.noun}s)d {self.spoken}s of %(count)d partitions of %(topic)s "
                "in %(ms)d ms, %(unknown_records)d records of unknown versions skipped",
                {
                    f"{self.noun}s": self.keys,
                    "count": len(self.partitions),
                    "topic": self.topic,
                    "ms": now_ms - self.began_ms,
                    "unknown_records": self.unknown_records,
                    "partitions": sorted(self.partitions),
                },
            )


@dataclass(slots=True)
class LoadTimes:
    """How long loads took that succeeded, from the beginning of the leadership."""

    count: int = 0
    total_ms: int = 0
    longest_ms: int = 0

    def add(self, ms: int) -> None:
        """Count a load."""
        self.count += 1
        self.total_ms += ms
        self.longest_ms = max(self.longest_ms, ms)


class Coordinator(Generic[TableT]):
    """The entry for the handlers of requests to the tables of one kind."""

    def __init__(
        self,
        kind: TableKind[TableT],
        clock: Clock,
        metadata: MetadataCache,
        topic_creation: TopicCreation,
    ) -> None:
        self._kind = kind
        self._topic = kind.topic.name
        self._clock = clock
        self._metadata = metadata
        self._topic_creation = topic_creation
        self._led: dict[int, LedPartition[TableT]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # One partition is read at a time: fifty at once would take fifty turns each time.
        self._reading = asyncio.Semaphore(1)
        self._loads = Loads(self._topic, kind.noun, kind.spoken, 0)
        self._loading = 0
        self.load_times = LoadTimes()
        """Since this broker's start."""

    async def close(self) -> None:
        """Refuse all waiting requests with NOT_COORDINATOR and stop all tasks."""
        self.resign_all()
        await call_off(self._tasks)

    # Requests ----------------------------------------------------------------------------------

    def decide(self, key: str, event: Any) -> None:
        """Decide an event of a key; its response is sent now or later."""
        led = self._find(key)
        if isinstance(led, ErrorCode):
            self._kind.refuse(event, led)
        else:
            led.decide(key, event)
            self._kind.decided()

    def table_of(self, key: str) -> TableT | ErrorCode:
        """Return the table with a key, or the error if the key is not coordinated here."""
        led = self._find(key)
        return led if isinstance(led, ErrorCode) else led.table

    def tables(self) -> Iterator[TableT]:
        """Yield the loaded tables."""
        for led in self._led.values():
            if led.error is ErrorCode.NONE:
                yield led.table

    def led(self) -> list[LedPartition[TableT]]:
        """Return the led partitions, loaded or not."""
        return list(self._led.values())

    @property
    def is_loading(self) -> bool:
        """Whether some partition is still loading."""
        return not self._has_metadata or any(led.error is _LOADING for led in self._led.values())

    @property
    def _has_metadata(self) -> bool:
        """Whether an UpdateMetadata has come in this life of the broker.

        Before it, this broker knows no coordinator, itself included: NOT_COORDINATOR would be
        wrong, and librdkafka 2.16 waits for ever after that response to OffsetFetch.
        """
        return bool(self._metadata.brokers)

    def _find(self, key: str) -> LedPartition[TableT] | ErrorCode:
        number = self.partition_of(key)
        return self.leading(-1 if number is None else number)

    def leading(self, number: int) -> LedPartition[TableT] | ErrorCode:
        """Return a partition that is led and loaded here, or the error of requests to it."""
        led = self._led.get(number)
        if led is None:
            return ErrorCode.NOT_COORDINATOR if self._has_metadata else _LOADING
        error = led.error
        return led if error is ErrorCode.NONE else error

    # The topic ---------------------------------------------------------------------------------

    def partition_of(self, key: str) -> int | None:
        """Return the partition that keeps a key; None while the topic is not known here.

        Uses the partition count of the controller: while not every partition is known here, a key
        must not be placed in another one.
        """
        topic = self._metadata.topic(self._topic)
        if topic is None:
            return None
        count = topic.undeleted_partition_count
        if count <= 0:
            count = len(topic.partitions)
        return self._kind.place(key, count) if count else None

    async def ensure_topic(self) -> ErrorCode:
        """Create the topic if needed; NONE once its leaders are known here."""
        topic = self._kind.topic
        return await self._topic_creation.ensure(
            topic.name,
            topic.partition_count,
            topic.replication_factor,
            topic.configs,
            topic.advice,
        )

    def why_no_topic(self) -> str | None:
        """Return why the controller refused the topic; None if it did not."""
        return self._topic_creation.why_refused(self._topic)

    # Leadership --------------------------------------------------------------------------------

    async def reloaded(self, hosted: HostedPartition) -> str | None:
        """Ensure that a partition's table is loaded from the log of this leader (KIP-704).

        A table loaded since this broker's leadership began is kept: the log has not changed under
        it. A failed load is started again. Waits while it loads; returns None once it is
        loaded, otherwise why it is not.
        """
        led = self._led.get(hosted.partition)
        if led is None or led.hosted is not hosted or not led.is_current:
            return "this broker does not coordinate them"
        if led.has_failed:
            self.lead(hosted)
            led = self._led[hosted.partition]
        await led.load_ended.wait()
        return None if led.error is ErrorCode.NONE else f"not loaded: {led.error.name}"

    def load_again(self, hosted: HostedPartition) -> None:
        """Load a partition's table again from its log, whatever is served: requests that wait get
        NOT_COORDINATOR."""
        self._close(hosted.partition)
        self.lead(hosted)

    def lead(self, hosted: HostedPartition) -> None:
        """This broker leads a partition in a new epoch: load its table, if it keeps one."""
        if hosted.topic != self._topic:
            return
        present = self._led.get(hosted.partition)
        is_kept = present is not None and present.hosted is hosted and present.is_current
        if present is not None and is_kept and not present.has_failed:
            # A newer leader epoch of the same leadership: the table stays, unless it has failed.
            return
        self._close(hosted.partition)
        led = LedPartition(hosted, self._kind, self._clock)
        self._led[hosted.partition] = led
        self.spawn(self._load(led), f"{self._kind.noun}s-load-{hosted.partition}")

    async def _load(self, led: LedPartition[TableT]) -> None:
        """Load a partition's table; the last of concurrent loads logs one line for all."""
        began_ms = self._clock.monotonic_ms()
        if not self._loading:
            self._loads = Loads(self._topic, self._kind.noun, self._kind.spoken, began_ms)
        self._loading += 1
        try:
            await led.load(self._reading)
        finally:
            self._loading -= 1
            self._loads.add(led)
            if led.error is ErrorCode.NONE:
                self.load_times.add(self._clock.monotonic_ms() - began_ms)
            if not self._loading:
                self._loads.log(self._clock.monotonic_ms())

    def resign(self, key: TopicPartition, epoch: int) -> None:
        """This broker led a partition up to a leader epoch: give its table up, if any."""
        led = self._led.get(key.partition)
        if key.topic == self._topic and led is not None and led.since <= epoch:
            self._close(key.partition)

    def resign_all(self) -> None:
        """Give all tables up: this broker coordinates nothing now."""
        for number in list(self._led):
            self._close(number)

    def _close(self, number: int) -> None:
        led = self._led.pop(number, None)
        if led is not None:
            led.close()

    # Tasks -------------------------------------------------------------------------------------

    async def sweep(self, work: Callable[[LedPartition[TableT]], Awaitable[None]]) -> None:
        """Do periodic work for every led partition, one after the other."""
        for led in self.led():
            try:
                await work(led)
            except Exception:
                # A bug with one key must not stop the sweep of the other partitions.
                logger.exception(
                    f"the {self._kind.spoken}s of %(partition)s could not be swept",
                    {"partition": led.hosted.key},
                )

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Start a task that ends with the coordinator at the latest."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s failed", task.get_name(), exc_info=error)
