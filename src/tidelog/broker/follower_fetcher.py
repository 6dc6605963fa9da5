"""One source broker: the connection and the fetch session by which its partitions are followed.

Owns what is asked and when; what becomes of an answer is ``follower_log``'s. One request is under
way at a time. A partition that met an error rests, the others go on; a lost connection rests the
source. Answers are taken in only for questions that still stand: a partition that left, changed its
leader epoch or was set aside meanwhile is a new object here.

Each request walks over the partitions followed from this source. A partition that is added while a
request waits at the leader would wait with it: the connection is then given up and the session
begun again, so that a new leader hears of its followers at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tidelog.broker.follower_log import take_in
from tidelog.client.connection import Connection, connect
from tidelog.client.errors import ClientError, ConnectionLost, error_code
from tidelog.client.fetch_requests import SESSION_ERRORS
from tidelog.client.fetch_sessions import FetchSession, Question, Wanted
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.partition import HostedPartition

logger = logging.getLogger(__name__)

FETCH_VERSION = 12
"""The version whose tags carry broker epoch and topic ids (wire.md, "Our own on the wire")."""

FIRST_PAUSE_MS = 20
"""First pause after an error; it doubles up to ``replica.fetch.backoff.ms``."""

CONNECT_TIMEOUT_MS = 3_000
INTERRUPT_MS = 10
"""How long a request under way may hold up a partition that was added."""


class _Followed:
    """One partition of a source in one leader epoch."""

    __slots__ = ("asked", "failures", "hosted", "rests_until_ms")

    def __init__(self, hosted: HostedPartition) -> None:
        self.hosted = hosted
        self.asked: Wanted | None = None
        self.failures = 0
        self.rests_until_ms = 0

    def ask(self, max_bytes: int) -> Wanted:
        """Return the question for what comes next, at the log's end."""
        hosted = self.hosted
        log = hosted.log
        end = log.end_offset
        last_epoch = log.epochs.epoch_at(end - 1) if end > log.start_offset else -1
        self.asked = Wanted(
            end, max_bytes, hosted.leader_epoch, last_epoch, log.start_offset, hosted.topic_id
        )
        return self.asked


class FollowerFetcher:
    """Follows the partitions that one broker leads. Runs from the first ``follow`` to ``close``."""

    def __init__(self, broker: Broker, source: int) -> None:
        self._broker = broker
        self._source = source
        self._followed: dict[TopicPartition, _Followed] = {}
        self._session = FetchSession()
        self._connection: Connection | None = None
        self._added = asyncio.Event()
        self._interrupted = False
        self._requests = 0
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name=f"follower-of-{source}"
        )

    def follow(self, hosted: HostedPartition) -> None:
        """Fetch a partition from now on, in its present leader epoch."""
        hosted.log.forget_empty_epoch()
        self._followed[hosted.key] = _Followed(hosted)
        if not self._added.is_set():
            # Once for all partitions that are added while one request is under way.
            self._added.set()
            loop = asyncio.get_running_loop()
            loop.call_later(INTERRUPT_MS / 1000, self._interrupt, self._requests)

    def leave(self, key: TopicPartition) -> None:
        """Fetch a partition no more; what is under way for it is dropped."""
        self._followed.pop(key, None)

    async def close(self) -> None:
        """End at once."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._disconnect("this broker stops following")

    def _interrupt(self, request: int) -> None:
        if self._requests == request and self._connection is not None:
            self._interrupted = True
            self._disconnect("a partition was added")

    def _disconnect(self, why: str) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close(why)
        self._session.begin_again()

    async def _run(self) -> None:
        pause_ms = FIRST_PAUSE_MS
        while True:
            try:
                await self._fetch()
                pause_ms = FIRST_PAUSE_MS
                continue
            except ClientError as error:
                interrupted, self._interrupted = self._interrupted, False
                self._disconnect("its session is begun again")
                if interrupted:
                    continue
                logger.info("following broker %d: %s", self._source, error)
            except Exception:
                # A bug in one answer must not end the replication of everything else.
                logger.exception("following broker %d failed", self._source)
                self._disconnect("an answer could not be taken in")
            await self._rest(pause_ms)
            pause_ms = min(pause_ms * 2, self._longest_pause_ms)

    @property
    def _longest_pause_ms(self) -> int:
        return max(FIRST_PAUSE_MS, self._broker.configs.replica_fetch_backoff_ms)

    async def _rest(self, pause_ms: float) -> None:
        """Wait, or until a partition is added."""
        self._added.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_ms / 1000):
                await self._added.wait()

    async def _fetch(self) -> None:
        """Ask once for all that is not resting and take in the answer. Raises ClientError."""
        if not self._followed:
            self._disconnect("nothing is followed")
            self._added.clear()
            await self._added.wait()
        await self._until_stored()
        connection = await self._connected()
        self._added.clear()
        self._interrupted = False
        configs = self._broker.configs
        now_ms = self._broker.clock.monotonic_ms()
        wait_ms = configs.replica_fetch_wait_max_ms
        wanted: dict[TopicPartition, Wanted] = {}
        for key, followed in self._followed.items():
            if followed.rests_until_ms > now_ms:
                wait_ms = min(wait_ms, followed.rests_until_ms - now_ms)
            else:
                wanted[key] = followed.ask(configs.replica_fetch_max_bytes)
        if not wanted:
            await self._rest(max(1, wait_ms))
            return
        request = self._request(self._session.ask(wanted), wait_ms)
        self._requests += 1
        timeout_ms = configs.replica_socket_timeout_ms + wait_ms
        answer = await connection.send(request, FETCH_VERSION, timeout_ms)
        self._requests += 1
        if answer.error_code in SESSION_ERRORS:
            self._session.reset()
            return
        if answer.error_code:
            error = error_code(answer.error_code).name
            raise ConnectionLost(f"{connection.peer} answered a follower's fetch with {error}")
        self._session.answered(answer.session_id)
        self._take_in(answer, wanted)

    async def _until_stored(self) -> None:
        """With ``log.durability=sync`` no offset is claimed before it is synced."""
        unsynced = [
            followed.hosted
            for followed in self._followed.values()
            if followed.hosted.stored_end < followed.hosted.log.end_offset
        ]
        if unsynced:
            await asyncio.gather(*(hosted.until_stored() for hosted in unsynced))

    async def _connected(self) -> Connection:
        if self._connection is not None and not self._connection.closed:
            return self._connection
        broker = self._broker.metadata.brokers.get(self._source)
        name = self._broker.configs.inter_broker_listener_name
        endpoint = None if broker is None else broker.endpoints.get(name)
        if endpoint is None:
            raise ConnectionLost(f"no address of broker {self._source} on {name} is known")
        self._session.begin_again()
        self._connection = await connect(
            *endpoint,
            client_id=f"follower-{self._broker.node_id}",
            negotiate=False,
            max_in_flight=1,
            connect_timeout_ms=CONNECT_TIMEOUT_MS,
        )
        return self._connection

    def _request(self, question: Question, wait_ms: int) -> messages.FetchRequest:
        request = messages.FetchRequest
        configs = self._broker.configs
        topics: dict[tuple[str, UUID], Any] = {}
        for key, item in question.wanted.items():
            topic = topics.get((key.topic, item.topic_id))
            if topic is None:
                topic = request.FetchTopic(key.topic, [], topic_id=item.topic_id)
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
        for key in question.forgotten:
            forgotten.setdefault(key.topic, []).append(key.partition)
        return request(
            replica_id=self._broker.node_id,
            max_wait_ms=wait_ms,
            min_bytes=configs.replica_fetch_min_bytes,
            max_bytes=configs.replica_fetch_response_max_bytes,
            session_id=question.session_id,
            session_epoch=question.epoch,
            topics=list(topics.values()),
            forgotten_topics_data=[
                request.ForgottenTopic(name, indexes) for name, indexes in forgotten.items()
            ],
            replica_broker_epoch=self._broker.session.broker_epoch,
        )

    def _take_in(self, answer: Any, wanted: dict[TopicPartition, Wanted]) -> None:
        now_ms = self._broker.clock.monotonic_ms()
        wall_ms = self._broker.clock.wall_ms()
        for topic in answer.responses:
            for part in topic.partitions:
                key = TopicPartition(topic.topic, part.partition_index)
                followed = self._followed.get(key)
                if followed is None or followed.asked is None:
                    continue
                if followed.asked is not wanted.get(key):
                    continue
                try:
                    setback = take_in(followed.hosted, part, wall_ms)
                except Exception:
                    logger.exception("the answer for %s could not be taken in", key)
                    setback = "its answer could not be taken in"
                if setback is None:
                    followed.failures = 0
                    continue
                longest_ms = self._longest_pause_ms
                pause_ms = min(FIRST_PAUSE_MS << min(followed.failures, 16), longest_ms)
                followed.failures += 1
                followed.rests_until_ms = now_ms + pause_ms
                if not followed.failures & (followed.failures - 1):
                    # The 1st, 2nd, 4th … time: what lasts must not fill the log.
                    times = followed.failures
                    logger.info("%s from broker %d: %s (%d)", key, self._source, setback, times)
