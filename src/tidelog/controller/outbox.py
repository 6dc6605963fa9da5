"""The one control channel to a broker: what changed is told in order, one request at a time.

Owns the channel's life. It opens with OpenControlChannel; then the broker is told everything
(configurations, a FULL LeaderAndIsr, all metadata); then only what changed. Below level 1.4 a
LeaderAndIsr cannot be FULL: what the broker must not keep is told by StopReplica before it. Each
request is built from the committed state when it is sent, so nothing on the way is ever older than
what was sent before. When the channel breaks, the outcome of the last request is unknown: a new one
begins with everything again, with a larger number.

``reached`` is the store's revision up to which the broker has been told everything. The broker
keeps the revisions of UpdateConfigs on disk: by them a store that has gone back in time is known.
So one without entities follows where states changed and no configurations did, most of all an ISR:
that changes within a leader epoch, and no log would tell.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from itertools import islice
from typing import Any, Protocol
from uuid import UUID

from tidelog.client.connecting.connection import CONNECT_TIMEOUT_MS, ClientConnection, connect
from tidelog.client.connecting.patience import GrowingTimeout
from tidelog.client.errors import ClientError
from tidelog.controller import requests
from tidelog.controller.announcements import Announcements
from tidelog.controller.decisions.cluster import NO_ID, Cluster
from tidelog.controller.decisions.stops import Stop, stops_of
from tidelog.controller.pending import Changes
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.protocol.codec import EncodedRequest
from tidelog.runtime.backoff import steady
from tidelog.runtime.cluster_secret import ClusterSecret

logger = logging.getLogger(__name__)

RETRY_MS = 50
"""First pause before a broken channel is opened again; it doubles up to ``RETRY_MAX_MS``."""

RETRY_MAX_MS = 1_000
CANCEL_AGAIN_S = 0.05

TOLD_AT_ONCE = 1_000
"""Partitions, and configurations, that one request tells of when many have changed: it takes some
20 ms to make, and as much to read."""

REVISION_EVERY_S = 1.0
"""How often a broker is told a revision alone, at most: it syncs a file for it."""


class ChannelRefused(Exception):
    """The broker answered a control request with an error: the channel begins again."""


class ChannelOwner(Protocol):
    """A controller, as its control channels see it."""

    cluster: Cluster
    sender: requests.Sender
    announcements: Announcements
    secret: ClusterSecret | None

    def channel_key(self, broker: int) -> UUID:
        """Return the key that a broker got in its registration response."""

    def next_channel_number(self) -> int:
        """Return a number larger than every earlier one of this controller epoch."""

    def when_sent(self) -> None:
        """Note that a broker has been sent a newer revision."""

    async def stopped(self, broker: int, stops: Collection[Stop]) -> None:
        """Note that a broker confirmed these replicas as stopped, or deleted."""


class Outbox:
    """The channel to one life of one broker; closed when it dies or comes back anew."""

    def __init__(
        self, owner: ChannelOwner, broker: int, timeout_ms: int, delete_retry_ms: int
    ) -> None:
        self._said = ""
        self.broker = broker
        self.reached = -1
        self._owner = owner
        self._timeout_ms = timeout_ms
        self._greeting = GrowingTimeout(CONNECT_TIMEOUT_MS)
        self._delete_retry_ms = delete_retry_ms
        self._changes = Changes()
        self._awake = asyncio.Event()
        self._new = False
        self._retry: asyncio.TimerHandle | None = None
        self._telling: asyncio.TimerHandle | None = None
        self._keeping: asyncio.TimerHandle | None = None
        self._kept = self._to_be_kept = -1
        """The revision that the broker has on disk, and the one that it should have there."""
        self._kept_at = 0.0
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name=f"control-channel-{broker}"
        )

    def notice(self, changes: Changes) -> None:
        """Remember what a commit changed, and tell the broker soon.

        Every commit is noticed, also one that concerns no broker: it moves ``reached``.
        """
        self._changes.add(changes)
        self._new = True
        self._awake.set()

    async def close(self) -> None:
        """End the channel."""
        for timer in (self._retry, self._telling, self._keeping):
            if timer is not None:
                timer.cancel()
        while not self._task.done():
            # Again until it ended: wait_for of Python 3.11 can swallow a cancellation.
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=CANCEL_AGAIN_S)

    async def _run(self) -> None:
        backoff = steady(RETRY_MS, RETRY_MAX_MS)
        failures = 0
        while True:
            try:
                connection = await self._connect()
                try:
                    await self._open(connection)
                    failures, self._said = 0, ""
                    while True:
                        await self._tell_changes(connection)
                finally:
                    connection.close("the controller ends this control channel")
            except (ClientError, ChannelRefused, requests.NotRegistered) as error:
                if str(error) != self._said:
                    # Once, and not for each attempt that ends alike.
                    self._said = str(error)
                    logger.info(
                        "the control channel to broker %(broker)s broke: %(error)s",
                        {"broker": self.broker, "error": error},
                    )
            except Exception:
                # A bug must not leave a broker without orders: the channel begins again.
                logger.exception(
                    "the control channel to broker %(broker)s failed", {"broker": self.broker}
                )
            await asyncio.sleep(backoff.pause_s(failures))
            failures += 1

    async def _connect(self) -> ClientConnection:
        owner = self._owner
        listener = owner.sender.inter_broker_listener
        address = requests.inter_broker_address(owner.cluster, self.broker, listener)
        if address is None:
            raise ChannelRefused("it is not registered with a listener")
        with self._greeting.counted():
            connection = await connect(
                address.host,
                address.port,
                client_id="controller",
                negotiate=False,
                max_in_flight=1,
                connect_timeout_ms=self._greeting.least_ms,
                greeting_timeout_ms=self._greeting.now_ms,
                secret=owner.secret,
            )
        self._greeting.answered()
        return connection

    async def _open(self, connection: ClientConnection) -> None:
        owner = self._owner
        number = owner.next_channel_number()
        opening = requests.open_control_channel(owner.cluster, owner.sender, self.broker, number)
        opening.channel_key = owner.channel_key(self.broker)
        await self._send(connection, opening, 0)
        await self._wait_for_readable_topics()
        revision = owner.cluster.revision
        self._new = False
        self._changes = Changes()
        await self._send_configs(connection, None)
        if owner.cluster.level.topic_ids:
            await self._send_full(connection)
        else:
            await self._stop(connection)
            await self._send_all(connection, requests.UNSPECIFIED)
        metadata = owner.announcements.everything(owner.cluster, owner.sender, self.broker)
        await self._send(connection, metadata, metadata.version)
        self._reached(revision)

    async def _wait_for_readable_topics(self) -> None:
        said = None
        while (why := requests.why_no_full(self._owner.cluster)) is not None:
            if why != said:
                logger.error(
                    "broker %(broker)s is told nothing until this is healed: %(why)s",
                    {"broker": self.broker, "why": why},
                )
                said = why
            self._awake.clear()
            await self._awake.wait()

    async def _send_full(self, connection: ClientConnection) -> None:
        doomed, answer = await self._send_all(connection, requests.FULL)
        # What is not in a FULL is stale at the broker: it serves no more and is removed there, but
        # for what the answer names because a disk failed.
        kept = {
            (topic.topic_id, error.partition_index)
            for topic in answer.topics
            for error in topic.partition_errors
            if error.error_code
        }
        done = [
            stop
            for stop in doomed
            if kept.isdisjoint(((stop.topic_id, stop.partition), (NO_ID, stop.partition)))
        ]
        if done:
            await self._owner.stopped(self.broker, done)
        if len(done) < len(doomed):
            self._stop_later()

    async def _send_all(
        self, connection: ClientConnection, kind: int
    ) -> tuple[list[Stop], messages.LeaderAndIsrResponse]:
        """Tell of every partition; return what the broker had to stop when that was built, and its
        answer."""
        await self._tell_configs(connection)
        cluster = self._owner.cluster
        if kind == requests.FULL and (why := requests.why_no_full(cluster)) is not None:
            # Asked again: others had their turn since. What a FULL does not name is removed.
            raise ChannelRefused(why)
        doomed = stops_of(cluster, self.broker)
        orders = requests.leader_and_isr(
            cluster, self._owner.sender, self.broker, cluster.partitions_of(self.broker), kind
        )
        answer = await self._send(connection, orders, cluster.level.leader_and_isr)
        self._log_refused(answer)
        return doomed, answer

    async def _tell_changes(self, connection: ClientConnection) -> None:
        await self._something_new(connection)
        revision = self._owner.cluster.revision
        changes, self._changes = self._changes, Changes()
        self._new = False
        self._changes.configs |= changes.configs
        self._look_back()
        await self._tell_configs(connection)
        if changes.stops:
            await self._stop(connection)
        for part in changes.slices(TOLD_AT_ONCE):
            await self._tell_part(connection, part, revision)
        self._reached(revision)
        await self._tell_revision(connection)

    def _look_back(self) -> None:
        if self._owner.cluster.went_back is not None:
            # What an older store says may repeat a leader epoch: no order of it is given.
            raise ChannelRefused("the metadata store has gone back in time")

    async def _tell_part(self, connection: ClientConnection, part: Changes, revision: int) -> None:
        owner = self._owner
        self._look_back()
        await self._tell_configs(connection)
        if part.partitions:
            orders = owner.announcements.orders(owner.cluster, owner.sender, self.broker, part)
            if orders.topic_states:
                self._to_be_kept = revision
                answer = await self._send(connection, orders, owner.cluster.level.leader_and_isr)
                self._log_refused(answer)
        if part.partitions or part.gone or part.brokers:
            metadata = owner.announcements.of_changes(
                owner.cluster, owner.sender, self.broker, part
            )
            await self._send(connection, metadata, metadata.version)

    async def _tell_configs(self, connection: ClientConnection) -> None:
        """Tell changed configurations until none is left: a topic's go before its partitions."""
        while self._changes.configs:
            configs = set(islice(self._changes.configs, TOLD_AT_ONCE))
            self._changes.configs -= configs
            await self._send_configs(connection, configs)

    async def _send_configs(
        self, connection: ClientConnection, configs: Collection[tuple[int, str]] | None
    ) -> None:
        owner = self._owner
        request = requests.update_configs(owner.cluster, owner.sender, self.broker, configs)
        await self._send(connection, request, 0)
        self._kept, self._kept_at = request.store_revision, asyncio.get_running_loop().time()

    async def _tell_revision(self, connection: ClientConnection) -> None:
        """Have the broker keep the revision of the states that it was told last, now or soon."""
        if self._kept >= self._to_be_kept:
            return
        loop = asyncio.get_running_loop()
        wait_s = self._kept_at + REVISION_EVERY_S - loop.time()
        if wait_s <= 0:
            await self._send_configs(connection, ())
        elif self._keeping is None:
            self._keeping = loop.call_later(wait_s, self._keep_now)

    def _keep_now(self) -> None:
        self._keeping = None
        self.notice(Changes())

    async def _something_new(self, connection: ClientConnection) -> None:
        while not self._new:
            self._awake.clear()
            waking = asyncio.ensure_future(self._awake.wait())
            closing = asyncio.ensure_future(connection.wait_closed())
            try:
                await asyncio.wait({waking, closing}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waking.cancel()
                closing.cancel()
            if connection.closed:
                raise ChannelRefused("the connection ended")

    async def _stop(self, connection: ClientConnection) -> None:
        """Tell what is to be stopped, note what was confirmed, and come back to the rest."""
        cluster = self._owner.cluster
        stops = stops_of(cluster, self.broker)
        if not stops or cluster.went_back is not None:
            return
        version = cluster.level.stop_replica
        refused: dict[tuple[str | UUID, int], int] = {}
        for order in requests.stop_replica(cluster, self._owner.sender, self.broker, stops):
            answer = await self._send(connection, order, version)
            for error in answer.partition_errors:
                if error.error_code != ErrorCode.NONE:
                    topic = error.topic_id if cluster.level.topic_ids else error.topic_name
                    refused[topic, error.partition_index] = error.error_code
        done = []
        for stop in stops:
            topic = stop.topic_id if cluster.level.topic_ids else stop.name
            code = refused.get((topic, stop.partition))
            if code is None:
                done.append(stop)
            else:
                name, where = ErrorCode(code).name, f"{stop.name}-{stop.partition}"
                logger.warning(
                    "broker %(broker)s: %(partition)s not stopped: %(error)s",
                    {"broker": self.broker, "partition": where, "error": name},
                )
        if done:
            await self._owner.stopped(self.broker, done)
        if refused:
            self._stop_later()

    def _stop_later(self) -> None:
        """Tell what is not confirmed once more, later."""
        if self._retry is None:
            loop = asyncio.get_running_loop()
            self._retry = loop.call_later(self._delete_retry_ms / 1000, self._stop_again)

    def _stop_again(self) -> None:
        self._retry = None
        self.notice(Changes(stops=True))

    async def _send(self, connection: ClientConnection, request: Any, version: int) -> Any:
        answer = await connection.send(request, version, self._timeout_ms)
        if answer.error_code != ErrorCode.NONE:
            name = ErrorCode(answer.error_code).name
            key = request.api_key if isinstance(request, EncodedRequest) else None
            asked = type(request).__name__ if key is None else ApiKey(key).name
            raise ChannelRefused(f"it answered {asked} with {name}")
        return answer

    def _log_refused(self, answer: messages.LeaderAndIsrResponse) -> None:
        # By name below v5, by topic id from then on. Most answers have no error at all.
        found = [(error.topic_name, error) for error in answer.partition_errors if error.error_code]
        for topic in answer.topics:
            refused = [error for error in topic.partition_errors if error.error_code]
            found += [(str(topic.topic_id), error) for error in refused]
        for name, error in found:
            code, where = ErrorCode(error.error_code).name, f"{name}-{error.partition_index}"
            logger.warning(
                "broker %(broker)s refused %(partition)s: %(error)s",
                {"broker": self.broker, "partition": where, "error": code},
            )
        if any(error.error_code == ErrorCode.KAFKA_STORAGE_ERROR for _, error in found):
            self._tell_again_later()

    def _tell_again_later(self) -> None:
        """Tell all partitions again: a disk that was full may have room by then (promise 28)."""
        if self._telling is None:
            loop = asyncio.get_running_loop()
            self._telling = loop.call_later(self._delete_retry_ms / 1000, self._tell_again)

    def _tell_again(self) -> None:
        self._telling = None
        self.notice(Changes(partitions=set(self._owner.cluster.all_partitions())))

    def _reached(self, revision: int) -> None:
        self.reached = revision
        self._owner.when_sent()
