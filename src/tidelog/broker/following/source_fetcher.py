"""Fetcher of the partitions that one leader (the source) has: its connection and fetch session.

Owns when a fetch is sent and over which connection. Not its contents: see ``fetch_requests``; not
the application of a response: see ``follower_log``. One request is in flight at a time. After an
error of one partition, that partition pauses and the others continue; after a lost connection all
pause. The response for a partition is applied only if the partition is still followed in the leader
epoch of the request: otherwise its ``Followed`` is another object.

A partition that is added while a request waits at the leader would wait with it. So the connection
is closed, and the session continues on the next one: a new leader gets the fetches of its followers
at once. This happens at most once between two responses (``fetch_patience``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from tidelog.broker.following.copies import Copies
from tidelog.broker.following.fence_copies import beginning_again, leaders_fences
from tidelog.broker.following.fetch_patience import INTERRUPT_MS, FetchPatience
from tidelog.broker.following.fetch_requests import Followed, FollowedPartitions
from tidelog.broker.following.follower_log import committed_cut, diverges, take_in
from tidelog.broker.following.life_probe import LifeProbe
from tidelog.broker.following.pause_lines import PauseLines
from tidelog.client.connecting.connection import ClientConnection, connect
from tidelog.client.connecting.patience import GrowingTimeout
from tidelog.client.errors import ClientError, ConnectionLost, error_code
from tidelog.client.fetching.fetch_requests import SESSION_ERRORS
from tidelog.client.fetching.fetch_sessions import SessionRequest
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages
from tidelog.runtime import pace
from tidelog.runtime.backoff import Backoff, steady
from tidelog.runtime.tasks import call_off
from tidelog.storage.log.fences import Fences

if TYPE_CHECKING:
    from tidelog.broker.data_loss.loss_notes import LossNote
    from tidelog.broker.data_loss.loss_reports import LossReports
    from tidelog.broker.metadata.cache import MetadataCache
    from tidelog.broker.partitions.group_commit import GroupCommit
    from tidelog.broker.partitions.log_work import LogWork
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.broker.partitions.throttles import Throttles
    from tidelog.model.configs.server import ServerConfigs
    from tidelog.runtime.clock import Clock
    from tidelog.runtime.cluster_secret import ClusterSecret
    from tidelog.runtime.tls_files import TlsFiles

logger = logging.getLogger(__name__)

FETCH_VERSION = 12
"""The version whose tags carry broker epoch and topic ids (docs/design/wire.md)."""

FIRST_PAUSE_MS = 20
"""First pause after an error; it doubles up to ``replica.fetch.backoff.ms``."""

CONNECT_TIMEOUT_MS = 3_000
"""Timeout of a connection attempt, and of the first greeting; the latter's grows with each greeting
that is late (``client.connecting.patience``)."""

LOST_SHOWN_MS = 1_000
"""How long a source counts as lost after its connection broke: Metadata responses wait before they
name it (``metadata.lost_leaders``). The controller replaces a killed leader after 200 ms; one that
is only unreachable from here is named again."""

UNANSWERED_MS = 500
"""A source counts as lost (stopped or frozen) when a response is overdue by this time."""

SILENT_SHOWN_MS = 2_000
"""How long it counts as lost for that reason. The controller replaces a stopped leader after about
``broker.silence.suspect.ms``; one that is only slow is named again."""

STORED_WITHIN_MS = 1_000
"""How long a log that cannot be synced delays the others of its source, once."""

FENCES_TIMEOUT_MS = 5_000
"""Limit of the question for a leader's fences."""


class Registered(Protocol):
    """The session of this broker with its controller."""

    broker_epoch: int


@dataclass(frozen=True, slots=True)
class Shared:
    """The parts that all fetchers of one broker use."""

    configs: ServerConfigs
    clock: Clock
    metadata: MetadataCache
    session: Registered
    secret: ClusterSecret | None
    commit: GroupCommit
    log_work: LogWork
    loss_reports: LossReports
    throttles: Throttles
    """Of copies that this broker fetches."""
    copies: Copies
    tls: TlsFiles | None
    """The keys for connections to other brokers; None where their listener has no TLS."""


class FollowerFetcher:
    """Follows partitions of one leader. Runs from its creation to ``close``."""

    def __init__(self, shared: Shared, source: int) -> None:
        self._shared = shared
        self._clock = shared.clock
        self._configs = shared.configs
        self._source = source
        self._partitions = FollowedPartitions()
        self._patience = FetchPatience()
        self._greeting = GrowingTimeout(CONNECT_TIMEOUT_MS)
        self._connection: ClientConnection | None = None
        self._added = asyncio.Event()
        self._interrupted = False
        self._lost_at_ms: int | None = None
        self._logged = ""
        """The last reason logged why the source cannot be followed; "" after a response."""
        self._pauses = PauseLines(source)
        self._due_ms: int | None = None
        """When the response to the request in flight is due."""
        self._requests = 0
        """Requests sent and responses received: tells one request in flight from the next."""
        self._probe = LifeProbe()
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name=f"follower-of-{source}"
        )

    def follow(self, hosted: HostedPartition) -> None:
        """Fetch a partition from now on, in its present leader epoch."""
        hosted.log.forget_empty_epoch()
        self._partitions.follow(hosted)
        self._patience.added(self._clock.monotonic_ms())
        if not self._added.is_set():
            # Once for all partitions that are added while one request is in flight.
            self._added.set()
            loop = asyncio.get_running_loop()
            loop.call_later(INTERRUPT_MS / 1000, self._check_request, self._requests)

    def follows(self, key: TopicPartition) -> bool:
        """Whether a partition is fetched, or pauses after an error."""
        return key in self._partitions

    def leave(self, key: TopicPartition) -> None:
        """Stop the fetches of a partition; a response in flight is ignored."""
        self._partitions.leave(key)

    async def close(self) -> None:
        """End at once."""
        await call_off([self._task])
        self._probe.close("this broker stops following")
        self._disconnect("this broker stops following")

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection that is not known to be closed."""
        return self._connection is not None and not self._connection.closed

    def proof(self) -> asyncio.Future[None]:
        """Return a future that is done when the source has responded to a request sent after now.

        It may stay without a result for ever.
        """
        return self._probe.proof()

    @property
    def source_lost_for_ms(self) -> int:
        """For how much longer the source counts as lost, in ms; 0: it does not.

        It does for ``LOST_SHOWN_MS`` after the connection broke, until it responds on another one;
        and for ``SILENT_SHOWN_MS`` while a response is overdue.
        """
        if self._connection is not None and self._connection.closed:
            return LOST_SHOWN_MS
        now_ms = self._clock.monotonic_ms()
        left_ms = 0
        if self._lost_at_ms is not None:
            left_ms = self._lost_at_ms + LOST_SHOWN_MS - now_ms
        if self._is_late(now_ms):
            assert self._due_ms is not None
            left_ms = max(left_ms, self._due_ms + UNANSWERED_MS + SILENT_SHOWN_MS - now_ms)
        return max(0, left_ms)

    def _is_late(self, now_ms: int) -> bool:
        return self._due_ms is not None and now_ms >= self._due_ms + UNANSWERED_MS

    def _check_request(self, request: int) -> None:
        """Close the connection of this request if it is still in flight and idle."""
        connection = self._connection
        if self._requests != request or connection is None:
            return
        now_ms = self._clock.monotonic_ms()
        is_arriving = connection.is_receiving or not connection.in_flight
        left_ms = self._patience.give_up_in_ms(now_ms, is_arriving=is_arriving)
        if left_ms is None:
            return
        if left_ms:
            loop = asyncio.get_running_loop()
            loop.call_later(left_ms / 1000, self._check_request, request)
            return
        self._patience.gave_up()
        self._interrupted = True
        self._close_connection("a partition was added")

    def _close_connection(self, why: str) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close(why)

    def _disconnect(self, why: str) -> None:
        self._close_connection(why)
        self._partitions.begin_again()

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                await self._fetch()
                failures = 0
                continue
            except ClientError as error:
                interrupted, self._interrupted = self._interrupted, False
                if interrupted:
                    # The source has not failed: its session goes on over the next connection, and
                    # nothing pauses.
                    if not self._partitions.has_session:
                        self._partitions.begin_again()
                    continue
                broke = self._connection is not None and self._connection.closed
                if broke and self._lost_at_ms is None:
                    self._lost_at_ms = self._clock.monotonic_ms()
                self._disconnect("its fetch session begins again")
                self._log_once(str(error))
            except Exception:
                # A bug with one response must not end the replication of the other partitions.
                logger.exception("following broker %(leader)d failed", {"leader": self._source})
                self._disconnect("a response could not be applied")
            await self._wait(self._backoff.pause_ms(failures))
            failures += 1

    def _log_once(self, why: str) -> None:
        """Log why the source cannot be followed, once for attempts that fail alike."""
        if why != self._logged:
            logger.info(
                "following broker %(leader)d: %(why)s", {"leader": self._source, "why": why}
            )
        self._logged = why

    @property
    def _backoff(self) -> Backoff:
        longest_ms = max(FIRST_PAUSE_MS, self._configs.replica_fetch_backoff_ms)
        return steady(FIRST_PAUSE_MS, longest_ms)

    async def _wait(self, pause_ms: float) -> None:
        """Wait for ``pause_ms``, or until a partition is added."""
        self._added.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_ms / 1000):
                await self._added.wait()

    async def _fetch(self) -> None:
        """Fetch all partitions that are not paused; apply the response. Raises ClientError."""
        partitions = self._partitions
        if not partitions:
            self._probe.close("nothing is followed")
            self._disconnect("nothing is followed")
            self._added.clear()
            await self._added.wait()
        configs = self._configs
        now_ms = self._clock.monotonic_ms()
        wait_ms = self._patience.wait_ms(configs.replica_fetch_wait_max_ms, now_ms)
        throttles = self._shared.throttles
        if throttles.is_set:
            partitions.pause_limited(throttles.free_in_ms, configs.node_id, now_ms)
        wake_ms = partitions.wake(now_ms)
        if wake_ms is not None:
            wait_ms = min(wait_ms, wake_ms - now_ms)
        if partitions.nothing_to_ask:
            await self._wait(max(1, wait_ms))
            return
        connection = await self._connected()
        if not await self._until_stored():
            return
        self._added.clear()
        self._interrupted = False
        # After the last wait: whatever was followed, left or appended meanwhile is in this request.
        content = partitions.ask(configs.replica_fetch_max_bytes, with_ids=configs.level.topic_ids)
        request = self._request(content, wait_ms)
        partitions.sent()
        self._requests += 1
        timeout_ms = configs.replica_socket_timeout_ms + wait_ms
        sent_ms = self._clock.monotonic_ms()
        self._due_ms = sent_ms + wait_ms
        self._patience.sent(wait_ms, sent_ms)
        try:
            response = await connection.send(request, FETCH_VERSION, timeout_ms)
            self._patience.answered(self._clock.monotonic_ms())
        finally:
            self._patience.ended()
            was_late = self._is_late(self._clock.monotonic_ms())
            self._due_ms = None
        if was_late or self._lost_at_ms is not None:
            self._lost_at_ms = None
            # Metadata responses wait as long as the source counts as lost (0009).
            self._shared.metadata.wake()
        self._requests += 1
        if response.error_code in SESSION_ERRORS:
            partitions.begin_again()
            return
        if response.error_code:
            error = error_code(response.error_code).name
            raise ConnectionLost(f"{connection.peer} refused a follower's fetch with {error}")
        self._logged = ""
        partitions.answered(response.session_id)
        await self._take_in(response)

    async def _until_stored(self) -> bool:
        """Wait until the fetch offsets are synced, as ``log.durability=sync`` requires.

        Return whether all logs are synced; the partitions of the others pause now.
        """
        if not self._shared.commit.before_ack:
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STORED_WITHIN_MS / 1000):
                while unsynced := self._unsynced():
                    # A partition that paused for this before must not delay the others again.
                    waits = [
                        self._shared.commit.until_stored(followed.hosted)
                        for followed in unsynced
                        if not followed.failures
                    ]
                    if not waits:
                        break
                    await asyncio.gather(*waits)
        now_ms = self._clock.monotonic_ms()
        unsynced = self._unsynced()
        for followed in unsynced:
            self._shared.commit.want(followed.hosted)
            self._pause_partition(followed, "its log cannot be synced yet", now_ms)
        self._pauses.log()
        return not unsynced

    def _unsynced(self) -> list[Followed]:
        return [
            followed
            for followed in self._partitions.due()
            if followed.hosted.stored_end < followed.hosted.log.end_offset
            and followed.hosted.offline_reason is None
            and not followed.hosted.log.closed
        ]

    async def _connected(self) -> ClientConnection:
        if self._connection is not None and not self._connection.closed:
            return self._connection
        with self._greeting.counted():
            self._connection = await self._connect(lambda _: self._shared.metadata.wake())
        self._greeting.answered()
        self._probe.open(self._connect)
        return self._connection

    async def _connect(
        self, on_closed: Callable[[ConnectionLost], None] | None = None
    ) -> ClientConnection:
        """Open a connection to the address that the metadata have. Raises ClientError."""
        broker = self._shared.metadata.brokers.get(self._source)
        name = self._configs.inter_broker_listener_name
        endpoint = None if broker is None else broker.endpoints.get(name)
        if endpoint is None:
            raise ConnectionLost(f"no address of broker {self._source} on {name} is known")
        return await connect(
            *endpoint,
            client_id=f"follower-{self._configs.node_id}",
            negotiate=False,
            max_in_flight=1,
            connect_timeout_ms=CONNECT_TIMEOUT_MS,
            greeting_timeout_ms=self._greeting.now_ms,
            on_closed=on_closed,
            secret=self._shared.secret,
            tls=self._shared.tls,
        )

    def _request(self, content: SessionRequest, wait_ms: int) -> messages.FetchRequest:
        request = messages.FetchRequest
        configs = self._configs
        topics: dict[tuple[str, UUID], Any] = {}
        for key, item in content.wanted.items():
            topic = topics.get((key.topic, item.topic_id))
            if topic is None:
                topic = request.FetchTopic(key.topic, follower_topic_id=item.topic_id)
                topics[key.topic, item.topic_id] = topic
            topic.partitions.append(
                request.FetchPartition(
                    partition=key.partition,
                    current_leader_epoch=item.leader_epoch,
                    fetch_offset=item.offset,
                    last_fetched_epoch=item.last_epoch,
                    log_start_offset=item.log_start,
                    partition_max_bytes=item.max_bytes,
                )
            )
        forgotten: dict[str, list[int]] = {}
        for key in content.forgotten:
            forgotten.setdefault(key.topic, []).append(key.partition)
        return request(
            replica_id=self._configs.node_id,
            max_wait_ms=wait_ms,
            min_bytes=configs.replica_fetch_min_bytes,
            max_bytes=configs.replica_fetch_response_max_bytes,
            session_id=content.session_id,
            session_epoch=content.epoch,
            topics=list(topics.values()),
            forgotten_topics_data=[
                request.ForgottenTopic(name, partitions=indexes)
                for name, indexes in forgotten.items()
            ],
            replica_broker_epoch=self._shared.session.broker_epoch,
        )

    async def _take_in(self, response: Any) -> None:
        now_ms = self._clock.monotonic_ms()
        wall_ms = self._clock.wall_ms()
        losses = self._shared.loss_reports
        noted: Collection[LossNote] = ()
        committed_cuts = list(self._committed_cuts(response))
        if committed_cuts:
            # One durable write for all cuts of the response: each of them waits for its note
            # (KIP-704).
            noted = await self._shared.log_work.run(None, losses.before_cuts(committed_cuts))
        beginning = list(beginning_again(self._partitions, response))
        fences: Mapping[TopicPartition, Fences] = {}
        if beginning and self._connection is not None:
            # Such a log begins above its fences, and a leader without them would write them again
            # (0063).
            fences = await leaders_fences(self._connection, beginning, FENCES_TIMEOUT_MS)
        turn = pace.Turn(self._clock)
        for topic in response.responses:
            for part in topic.partitions:
                if diverges(part):
                    # Each syncs, and no session of this broker may time out meanwhile.
                    await turn.pause()
                key = TopicPartition(topic.topic, part.partition_index)
                followed = self._partitions.asked(key)
                if followed is None:
                    continue
                try:
                    of_leader = fences.get(key)
                    outcome = take_in(followed.hosted, part, wall_ms, losses, noted, of_leader)
                    if isinstance(outcome, GeneratorType):
                        log = followed.hosted.log
                        outcome = await self._shared.log_work.run(log, outcome)
                    error_text = outcome if isinstance(outcome, str) else None
                except Exception:
                    logger.exception(
                        "the response for %(partition)s could not be applied", {"partition": key}
                    )
                    error_text = "its response could not be applied"
                if self._partitions.asked(key) is not followed:
                    continue  # no longer followed
                if error_text is None:
                    self._taken(followed, part)
                else:
                    self._pause_partition(followed, error_text, now_ms)
        self._pauses.log()

    def _taken(self, followed: Followed, part: Any) -> None:
        """The records of a partition were applied: fetch it again."""
        hosted, size = followed.hosted, len(part.records or b"")
        self._shared.copies.took(hosted, size, part.high_watermark)
        self._shared.throttles.copied(hosted, self._configs.node_id, size)
        if hosted.state.is_copied_to(self._configs.node_id):
            hosted.counts.reassigned_in += size
        self._partitions.taken(followed)

    def _committed_cuts(self, response: Any) -> Iterator[tuple[HostedPartition, int, int]]:
        for topic in response.responses:
            for part in topic.partitions:
                if not diverges(part):
                    continue
                followed = self._partitions.asked(TopicPartition(topic.topic, part.partition_index))
                lost = None if followed is None else committed_cut(followed.hosted, part)
                if followed is not None and lost is not None:
                    yield followed.hosted, *lost

    def _pause_partition(self, followed: Followed, why: str, now_ms: int) -> None:
        times = followed.failures + 1
        pause_ms = int(self._backoff.pause_ms(times - 1))
        self._partitions.rest(followed, now_ms + pause_ms)
        self._pauses.add(followed.hosted.key, why, times)
