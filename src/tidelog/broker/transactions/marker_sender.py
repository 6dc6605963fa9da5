"""The markers that this broker's transaction coordinator sends to the leaders of partitions.

Owns the connections to other brokers, which carry nothing else, and the timers. Not what is sent
next: see ``transactions.marker_plan``; not how a leader writes: see ``marker_writer``, which also
gets the markers of partitions that this broker leads, without the network.
Order: ``written`` is called once, when all markers of a transaction are durable, and not after
``stop``.

| event | consequence |
|---|---|
| markers are ready for a broker | they go in batches of ``MOST_IN_BATCH``, ``AT_ONCE`` in flight |
| no connection can be opened, or a response does not come in ``ANSWER_MS`` | the connection is \
reset; a back-off; the markers of its partitions that have another leader go there meanwhile |
| the metadata change | markers go to the present leaders |
| the metadata do not have a partition | the controller is asked whether it exists, one question \
at a time |
| a partition waits for ``SAID_AFTER_MS`` | one line in the log, and again as often |
| no batch for ``IDLE_S`` | the connection is closed |
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.client.connecting.connection import connect
from tidelog.client.errors import ClientError, ConnectionLost, error_code
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages
from tidelog.runtime.backoff import Backoff
from tidelog.runtime.tasks import call_off
from tidelog.transactions.marker_plan import (
    NO_LEADER,
    UNKNOWN,
    MarkerBatch,
    MarkerPlan,
    Question,
    Sending,
)
from tidelog.transactions.markers import Marker

if TYPE_CHECKING:
    from tidelog.broker.metadata.cache import MetadataCache
    from tidelog.broker.transactions.marker_writer import MarkerWriter
    from tidelog.client.connecting.connection import ClientConnection
    from tidelog.model.configs.server import ServerConfigs
    from tidelog.runtime.cluster_secret import ClusterSecret
    from tidelog.runtime.seams import Seams
    from tidelog.runtime.tls_files import TlsFiles
    from tidelog.transactions.decision import SendMarkers

logger = logging.getLogger(__name__)

MOST_IN_BATCH = 500
"""Partitions of one request: the leader appends a batch to the log of each."""

MOST_HERE = 100
"""Partitions that this broker writes itself in one turn of the loop."""

AT_ONCE = 5
"""Requests in flight to one broker."""

CONNECT_MS, ANSWER_MS = 1_000, 3_000
"""Limits of a connection with its proof, and of a response: a leader responds within 0.2 s."""

PAUSE_MS, MOST_PAUSE_MS = 50, 1_000
"""The back-off from a broker."""

IDLE_S = 20.0

SAID_AFTER_MS = 60_000

_Request = messages.WriteTxnMarkersRequest

Grouped = list[tuple[Marker, list[tuple[str, list[int]]]]]
"""The partitions of a batch by marker and topic: ``MarkerBatch.grouped``."""

Exists = Callable[[Collection[TopicPartition]], Awaitable[dict[TopicPartition, bool]]]
"""Ask the controller whether partitions exist; without its response one is not in the result."""


CLIENT_ID = "broker-{}-markers"
"""The client id of a broker that sends markers."""


def is_of_broker(client_id: str | None) -> bool:
    """Whether markers are those of a coordinator, by their client id, and not of an operator."""
    first, last = CLIENT_ID.split("{}")
    named = client_id or ""
    return named.startswith(first) and named.endswith(last)


@dataclass(frozen=True, slots=True)
class Connecting:
    """How other brokers are reached."""

    metadata: MetadataCache
    listener: str
    client_id: str
    secret: ClusterSecret | None
    backoff: Backoff
    tls: TlsFiles | None = None

    @classmethod
    def of(
        cls,
        configs: ServerConfigs,
        metadata: MetadataCache,
        secret: ClusterSecret | None,
        seams: Seams,
        tls: TlsFiles | None = None,
    ) -> Connecting:
        """Return it for a broker with these configurations."""
        backoff = Backoff(PAUSE_MS, MOST_PAUSE_MS, seams.random)
        listener = configs.inter_broker_listener_name
        return cls(metadata, listener, CLIENT_ID.format(configs.node_id), secret, backoff, tls)

    def endpoint(self, broker: int) -> tuple[str, int] | None:
        """Return the address of a broker, None if the metadata have none."""
        listed = self.metadata.brokers.get(broker)
        return None if listed is None else listed.endpoints.get(self.listener)


class MarkerSender:
    """The sender of one broker. Used on its loop."""

    def __init__(
        self,
        node_id: int,
        connecting: Connecting,
        writer: MarkerWriter,
        exists: Exists,
        seams: Seams,
    ) -> None:
        self._node_id = node_id
        self._connecting = connecting
        self._metadata = connecting.metadata
        self._writer = writer
        self._exists = exists
        self._clock = seams.clock
        self.plan = MarkerPlan(self._leader_of)
        """To be read only."""
        self._others: dict[int, _Other] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._soon: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._changed: asyncio.Future[None] | None = None
        self._is_asking = self._is_closed = False
        self._say_at_ms = 0
        self._done: deque[tuple[int, Callable[[], None]]] = deque()
        """What is to be called, and for which partition of the coordinator."""

    def send(
        self,
        state_partition: int,
        coordinator_epoch: int,
        markers: SendMarkers,
        written: Callable[[], None],
    ) -> None:
        """Write these markers; call ``written`` when all are durable, in a later turn of the
        loop."""
        if self._is_closed:
            return
        marker = Marker(markers.producer, markers.committed, coordinator_epoch)
        if not self.plan.add(state_partition, marker, markers.partitions, written, self._now()):
            self._done.append((state_partition, written))
        self._run_soon()

    def stop(self, state_partition: int) -> None:
        """Forget the markers of a partition of ``__transaction_state``: another broker leads it."""
        self._done = deque(each for each in self._done if each[0] != state_partition)
        self.plan.stop(state_partition, self._now())

    async def close(self) -> None:
        """End all connections; call nothing."""
        self._is_closed = True
        self._done.clear()
        for handle in (self._soon, self._timer):
            if handle is not None:
                handle.cancel()
        if self._changed is not None:
            self._changed.cancel()
        for other in self._others.values():
            other.close("this broker stops")
        await call_off(self._tasks)

    # Turns ---------------------------------------------------------------------------------

    def _run_soon(self) -> None:
        """Let what is ready go, in the next turn: what comes in this one goes along."""
        if self._soon is None and not self._is_closed:
            self._soon = asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._soon = None
        self._end(())
        now_ms = self._now()
        questions = self.plan.due(now_ms)
        if questions and not self._is_asking:
            self._is_asking = True
            self._spawn(self._ask(questions), "markers-ask-controller")
        for leader in self.plan.leaders():
            if leader == self._node_id:
                self._write_here()
            else:
                self._other(leader).pump()
        self._watch(now_ms)

    def _watch(self, now_ms: int) -> None:
        """Wake when a pause ends or the metadata change, while there is anything to send."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        if (next_ms := self.plan.next_ms) is not None:
            self._timer = loop.call_later(max(0, next_ms - now_ms) / 1000, self._run_soon)
        if len(self.plan) and self._changed is None:
            self._changed = self._metadata.changed()
            self._changed.add_done_callback(self._metadata_changed)
        elif not len(self.plan) and self._changed is not None:
            self._changed.cancel()
            self._changed = None
        self._say(now_ms)

    def _metadata_changed(self, changed: asyncio.Future[None]) -> None:
        if self._changed is changed and not self._is_closed:
            self._changed = None
            self.plan.moved(self._now())
            self._run_soon()

    def _say(self, now_ms: int) -> None:
        """Log what waits for long, at most once per ``SAID_AFTER_MS``."""
        if now_ms < self._say_at_ms:
            return
        self._say_at_ms = now_ms + SAID_AFTER_MS
        late = [x for x in self.plan.places if now_ms - x.since_ms >= SAID_AFTER_MS]
        if late:
            first = min(late, key=lambda place: place.since_ms)
            logger.warning(
                "markers of transactions wait for %(count)d partitions; for %(partition)s, led by "
                "broker %(leader)d, since %(waited_ms)d ms: %(error)s",
                {
                    "count": len(late),
                    "partition": first.where,
                    "leader": first.leader,
                    "waited_ms": now_ms - first.since_ms,
                    "error": first.error.name,
                },
            )

    # What becomes of markers ---------------------------------------------------------------

    def answered(self, batch: MarkerBatch, answers: list[tuple[int, ErrorCode]]) -> None:
        """Take errors of a batch: for its connection."""
        self._end(self.plan.answered(batch, answers, self._now()))
        self._run_soon()

    def lost(self, batch: MarkerBatch) -> None:
        """A batch has no response: for its connection."""
        self.plan.lost(batch, self._now())
        self._run_soon()

    def _end(self, sendings: Iterable[Sending]) -> None:
        """Say that these are done; what is called may send, and stop others of them."""
        self._done.extend((each.state_partition, each.token) for each in sendings)
        while self._done:
            _, written = self._done.popleft()
            try:
                written()
            except Exception:
                # The other transactions are done as well.
                logger.exception("the end of a transaction failed")

    def _write_here(self) -> None:
        batch = self.plan.take(self._node_id, MOST_HERE)
        if batch is None:
            return
        for number, (sending, place) in enumerate(batch.entries):
            self._writer.write(
                place.where, sending.marker, partial(self._written_here, batch, number)
            )
        self._run_soon()

    def _written_here(self, batch: MarkerBatch, number: int, error: ErrorCode) -> None:
        if not self._is_closed:
            self.answered(batch, [(number, error)])

    async def _ask(self, questions: list[Question]) -> None:
        try:
            found = await self._exists([question.where for question in questions])
        finally:
            self._is_asking = False
        for question in questions:
            if found.get(question.where) is False and question.where.topic not in (
                self._metadata.unreadable
            ):
                self._end(self.plan.gone(question, self._now()))
        self._run_soon()

    # Brokers -------------------------------------------------------------------------------

    def _leader_of(self, where: TopicPartition) -> int:
        listed = self._metadata.partition(*where)
        if listed is None:
            return UNKNOWN
        return listed.leader if listed.leader >= 0 else NO_LEADER

    def _other(self, broker: int) -> _Other:
        if broker not in self._others:
            self._others[broker] = _Other(broker, self, self._connecting)
        return self._others[broker]

    def spawn_batch(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the delivery of a batch: for a connection."""
        self._spawn(work, "markers-batch")

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s failed", task.get_name(), exc_info=error)

    def _now(self) -> int:
        return self._clock.monotonic_ms()


class _Other:
    """One other broker: the connection to it, and the back-off from it."""

    def __init__(self, broker: int, sender: MarkerSender, connecting: Connecting) -> None:
        self._broker = broker
        self._sender = sender
        self._connecting = connecting
        self._connection: ClientConnection | None = None
        self._endpoint: tuple[str, int] | None = None
        self._opening = asyncio.Lock()
        self._in_flight = self._failures = 0
        self._pause: asyncio.TimerHandle | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._is_closed = False

    def pump(self) -> None:
        """Send what is ready for this broker, as far as it may be in flight."""
        while self._pause is None and self._in_flight < AT_ONCE and not self._is_closed:
            batch = self._sender.plan.take(self._broker, MOST_IN_BATCH)
            if batch is None:
                return
            if self._idle is not None:
                self._idle.cancel()
                self._idle = None
            self._in_flight += 1
            self._sender.spawn_batch(self._deliver(batch))

    async def _deliver(self, batch: MarkerBatch) -> None:
        grouped = batch.grouped()
        try:
            connection = await self._connected()
            spoken = connection.version_of(ApiKey.WRITE_TXN_MARKERS)
            response = await connection.send(_request(grouped), spoken, ANSWER_MS)
        except (ClientError, TimeoutError) as error:
            logger.debug("broker %d takes no markers: %s", self._broker, error)
            self._failed()
            self._sender.lost(batch)
        else:
            self._failures = 0
            answers = list(_errors(grouped, response))
            self._sender.answered(batch, list(enumerate(answers)))
        finally:
            self._in_flight -= 1
            if not (self._in_flight or self._is_closed):
                loop = asyncio.get_running_loop()
                self._idle = loop.call_later(IDLE_S, self._drop, "no markers for a while")
            self.pump()

    async def _connected(self) -> ClientConnection:
        async with self._opening:
            endpoint = self._connecting.endpoint(self._broker)
            present = self._connection
            if present is not None and (present.closed or endpoint != self._endpoint):
                self._drop("it has another address now")
                present = None
            if present is not None:
                return present
            if endpoint is None or self._is_closed or self._pause is not None:
                raise ConnectionLost(f"broker {self._broker} has no address, or failed just now")
            self._endpoint = endpoint
            self._connection = await connect(
                *endpoint,
                client_id=self._connecting.client_id,
                max_in_flight=AT_ONCE,
                connect_timeout_ms=CONNECT_MS,
                secret=self._connecting.secret,
                tls=self._connecting.tls,
            )
            # A marker names no transaction: one that arrives when the next has begun ends that.
            self._connection.forget_at_end()
            return self._connection

    def _failed(self) -> None:
        """Close the connection and begin a back-off; what is in flight fails with it, as one."""
        self._drop("a request had no response")
        if self._pause is None and not self._is_closed:
            pause_s = self._connecting.backoff.pause_s(self._failures)
            self._failures += 1
            self._pause = asyncio.get_running_loop().call_later(pause_s, self._go_on)

    def _go_on(self) -> None:
        self._pause = None
        self.pump()

    def _drop(self, why: str) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close(why)

    def close(self, why: str) -> None:
        """Close for ever."""
        self._is_closed = True
        for timer in (self._pause, self._idle):
            if timer is not None:
                timer.cancel()
        self._drop(why)


def _request(grouped: Grouped) -> messages.WriteTxnMarkersRequest:
    made = [
        _Request.WritableTxnMarker(
            *marker.producer,
            marker.committed,
            [_Request.WritableTxnMarkerTopic(topic, indexes) for topic, indexes in topics],
            marker.coordinator_epoch,
        )
        for marker, topics in grouped
    ]
    return _Request(markers=made)


def _errors(grouped: Grouped, response: Any) -> Iterator[ErrorCode]:
    """Yield the error of each partition of a request: a leader responds in the order of it.

    A response with other names or numbers is none for what follows.
    """
    answers = (
        (each.producer_id, topic.name, part.partition_index, part.error_code)
        for each in response.markers
        for topic in each.topics
        for part in topic.partitions
    )
    asked = (
        (marker.producer.producer_id, topic, index)
        for marker, topics in grouped
        for topic, indexes in topics
        for index in indexes
    )
    is_same = True
    for one in asked:
        *named, code = next(answers, (None, None, None, 0))
        is_same = is_same and tuple(named) == one
        yield error_code(code) if is_same else ErrorCode.UNKNOWN_SERVER_ERROR
