"""The one control channel to a broker: what changed is told in order, one request at a time.

Owns the channel's life. It opens with OpenControlChannel; then the broker is told everything
(configurations, a FULL LeaderAndIsr, all metadata); then only what changed. Each request is built
from the committed state when it is sent, so nothing on the way is ever older than what was sent
before. When the channel breaks, the outcome of the last request is unknown: a new one begins with
everything again, with a larger number.

``reached`` is the store's revision up to which the broker has been told everything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Any, Protocol
from uuid import UUID

from tidelog.client.connection import Connection, connect
from tidelog.client.errors import ClientError
from tidelog.controller import requests
from tidelog.controller.decisions import deletion
from tidelog.controller.decisions.cluster import Cluster
from tidelog.controller.pending import Changes
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages

logger = logging.getLogger(__name__)

RETRY_MS = 50
"""First pause before a broken channel is opened again; it doubles up to ``RETRY_MAX_MS``."""

RETRY_MAX_MS = 1_000
CANCEL_AGAIN_S = 0.05


class ChannelRefused(Exception):
    """The broker answered a control request with an error: the channel begins again."""


class Office(Protocol):
    """What an outbox needs of its controller."""

    cluster: Cluster
    sender: requests.Sender

    def next_channel_number(self) -> int:
        """Return a number larger than every one before, in this controller epoch."""

    def told(self) -> None:
        """A broker has been told of a newer revision."""

    async def deleted(self, broker: int, gone: dict[UUID, Collection[int] | None]) -> None:
        """A broker confirmed that partitions of deleted topics are gone."""


class Outbox:
    """The channel to one life of one broker; closed when it dies or comes back anew."""

    def __init__(self, office: Office, broker: int, timeout_ms: int, delete_retry_ms: int) -> None:
        self.broker = broker
        self.reached = -1
        self._office = office
        self._timeout_ms = timeout_ms
        self._delete_retry_ms = delete_retry_ms
        self._changes = Changes()
        self._awake = asyncio.Event()
        self._new = False
        self._retry: asyncio.TimerHandle | None = None
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

    def look_again(self) -> None:
        """Try what was held back: a damaged node may have been healed."""
        self._awake.set()

    async def close(self) -> None:
        """End the channel."""
        if self._retry is not None:
            self._retry.cancel()
        while not self._task.done():
            # Again until it ended: wait_for of Python 3.11 can swallow a cancellation.
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=CANCEL_AGAIN_S)

    async def _run(self) -> None:
        pause_ms = RETRY_MS
        while True:
            try:
                connection = await self._connect()
                try:
                    await self._open(connection)
                    pause_ms = RETRY_MS
                    while True:
                        await self._tell_changes(connection)
                finally:
                    connection.close("the controller ends this control channel")
            except (ClientError, ChannelRefused) as error:
                logger.info("the control channel to broker %s broke: %s", self.broker, error)
            except Exception:
                # A bug must not leave a broker without orders: the channel begins again.
                logger.exception("the control channel to broker %s failed", self.broker)
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(pause_ms * 2, RETRY_MAX_MS)

    async def _connect(self) -> Connection:
        office = self._office
        listener = office.sender.inter_broker_listener
        address = requests.inter_broker_address(office.cluster, self.broker, listener)
        if address is None:
            raise ChannelRefused("it is not registered with a listener")
        return await connect(
            address.host, address.port, client_id="controller", negotiate=False, max_in_flight=1
        )

    async def _open(self, connection: Connection) -> None:
        office = self._office
        number = office.next_channel_number()
        opening = requests.open_control_channel(office.cluster, office.sender, self.broker, number)
        await self._send(connection, opening, 0)
        await self._wait_for_readable_topics()
        revision = office.cluster.revision
        self._new = False
        self._changes = Changes()
        everything = requests.update_configs(office.cluster, office.sender, self.broker, None)
        await self._send(connection, everything, 0)
        await self._send_full(connection)
        places = self._all_partitions()
        metadata = requests.update_metadata(office.cluster, office.sender, self.broker, places)
        await self._send(connection, metadata, requests.UPDATE_METADATA_VERSION)
        self._reached(revision)

    async def _wait_for_readable_topics(self) -> None:
        said = None
        while (why := requests.why_no_full(self._office.cluster)) is not None:
            if why != said:
                logger.error("broker %s is told nothing until this is healed: %s", self.broker, why)
                said = why
            self._awake.clear()
            await self._awake.wait()

    async def _send_full(self, connection: Connection) -> None:
        await self._tell_configs(connection)
        cluster = self._office.cluster
        doomed = deletion.held_by(cluster, self.broker)
        full = requests.leader_and_isr(
            cluster, self._office.sender, self.broker, self._all_partitions(), requests.FULL
        )
        answer = await self._send(connection, full, requests.LEADER_AND_ISR_VERSION)
        self._log_refused(answer)
        if doomed:
            # What is not in a FULL is stale at the broker: it serves no more and is removed there.
            await self._office.deleted(self.broker, dict.fromkeys(doomed))

    def _all_partitions(self) -> list[TopicPartition]:
        topics = self._office.cluster.topics
        return [
            TopicPartition(name, index)
            for name in sorted(topics)
            for index in topics[name].partitions
        ]

    async def _tell_changes(self, connection: Connection) -> None:
        await self._something_new(connection)
        office = self._office
        revision = office.cluster.revision
        changes, self._changes = self._changes, Changes()
        self._new = False
        self._changes.configs |= changes.configs
        await self._tell_configs(connection)
        if changes.deletions:
            await self._delete(connection)
            await self._tell_configs(connection)
        if changes.partitions:
            orders = requests.leader_and_isr(
                office.cluster,
                office.sender,
                self.broker,
                changes.partitions,
                requests.INCREMENTAL,
            )
            if orders.topic_states:
                answer = await self._send(connection, orders, requests.LEADER_AND_ISR_VERSION)
                self._log_refused(answer)
        if changes.partitions or changes.gone or changes.brokers:
            metadata = requests.update_metadata(
                office.cluster,
                office.sender,
                self.broker,
                changes.partitions,
                changes.gone.values(),
            )
            await self._send(connection, metadata, requests.UPDATE_METADATA_VERSION)
        self._reached(revision)

    async def _tell_configs(self, connection: Connection) -> None:
        """Tell changed configurations until none is left: a topic's go before its partitions."""
        office = self._office
        while self._changes.configs:
            configs, self._changes.configs = self._changes.configs, set()
            request = requests.update_configs(office.cluster, office.sender, self.broker, configs)
            await self._send(connection, request, 0)

    async def _something_new(self, connection: Connection) -> None:
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

    async def _delete(self, connection: Connection) -> None:
        cluster = self._office.cluster
        doomed = deletion.held_by(cluster, self.broker)
        if not doomed or cluster.went_back is not None:
            return
        order = requests.stop_replica(cluster, self._office.sender, self.broker, doomed)
        answer = await self._send(connection, order, requests.STOP_REPLICA_VERSION)
        refused = {
            (error.topic_id, error.partition_index): error.error_code
            for error in answer.partition_errors
            if error.error_code != ErrorCode.NONE
        }
        gone: dict[UUID, Collection[int] | None] = {}
        for topic_id, indexes in doomed.items():
            done = [index for index in indexes if (topic_id, index) not in refused]
            if done:
                gone[topic_id] = done
        for (topic_id, index), code in refused.items():
            name = ErrorCode(code).name
            logger.warning("broker %s: %s-%s not deleted: %s", self.broker, topic_id, index, name)
        if gone:
            await self._office.deleted(self.broker, gone)
        if refused and self._retry is None:
            loop = asyncio.get_running_loop()
            self._retry = loop.call_later(self._delete_retry_ms / 1000, self._delete_again)

    def _delete_again(self) -> None:
        self._retry = None
        self.notice(Changes(deletions=True))

    async def _send(self, connection: Connection, request: Any, version: int) -> Any:
        answer = await connection.send(request, version, self._timeout_ms)
        if answer.error_code != ErrorCode.NONE:
            name = ErrorCode(answer.error_code).name
            raise ChannelRefused(f"it answered {type(request).__name__} with {name}")
        return answer

    def _log_refused(self, answer: messages.LeaderAndIsrResponse) -> None:
        for topic in answer.topics:
            for error in topic.partition_errors:
                if error.error_code != ErrorCode.NONE:
                    logger.warning(
                        "broker %s refused %s-%s: %s",
                        self.broker,
                        topic.topic_id,
                        error.partition_index,
                        ErrorCode(error.error_code).name,
                    )

    def _reached(self, revision: int) -> None:
        self.reached = revision
        self._office.told()
