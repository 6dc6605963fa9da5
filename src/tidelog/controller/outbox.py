"""The control channel to one broker: it sends changes in order, one request at a time.

Owns the channel from OpenControlChannel to its end. First it sends everything (configurations, a
FULL LeaderAndIsr, all metadata), then only changes. Below level 1.4 a LeaderAndIsr cannot be FULL:
a StopReplica before it names the replicas that the broker must not keep. Each request is built from
the committed state when it is sent, so no request is older than the one before it. When the channel
breaks, the outcome of the last request is unknown: a new channel, with a larger number, sends
everything again.

``reached`` is the store's revision up to which the broker has been sent everything. The broker
keeps the revision of each UpdateConfigs on disk: it shows later whether the store has gone back in
time. So an UpdateConfigs without entities follows a change of states without a change of
configurations, most often of an ISR: that changes within a leader epoch, and no log records it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import Any, Protocol
from uuid import UUID

from tidelog.client.connecting.connection import CONNECT_TIMEOUT_MS, ClientConnection, connect
from tidelog.client.connecting.patience import GrowingTimeout
from tidelog.client.errors import ClientError
from tidelog.controller import late_commands, requests
from tidelog.controller.announcements import Announcements
from tidelog.controller.consequences import ControllerEvent, Kind
from tidelog.controller.decisions.cluster import NO_ID, ClusterState
from tidelog.controller.decisions.late_replicas import (
    LateReplica,
    forget_stale,
    late_replicas,
    stops_of_late,
)
from tidelog.controller.decisions.stops import Stop, stops_of
from tidelog.controller.pending import Changes
from tidelog.model.api_keys import spoken
from tidelog.model.errors import ErrorCode
from tidelog.observe.gathered_lines import GatheredLines
from tidelog.protocol import messages
from tidelog.protocol.codec import EncodedRequest
from tidelog.runtime.backoff import Backoff
from tidelog.runtime.cluster_secret import ClusterSecret
from tidelog.runtime.tls_files import TlsFiles

logger = logging.getLogger(__name__)

RETRY_MS = 50
"""First pause before a new attempt to open the channel; it doubles up to ``RETRY_MAX_MS``."""

RETRY_MAX_MS = 1_000
CANCEL_AGAIN_S = 0.05

SENT_AT_ONCE = 1_000
"""The most partitions, or configurations, of one request: it takes some 20 ms to build, and as long
to read."""

REVISION_EVERY_S = 1.0
"""The shortest time between two requests with a revision alone: the broker syncs a file for it."""


class ChannelRefused(Exception):
    """The broker responded to a control request with an error: the channel opens again."""


class ChannelOwner(Protocol):
    """What one control channel needs of those that it is one of."""

    sender: requests.Sender
    announcements: Announcements
    secret: ClusterSecret | None
    tls: TlsFiles | None

    @property
    def cluster(self) -> ClusterState:
        """The state of the controller."""

    def channel_key(self, broker: int) -> UUID:
        """Return the key that a broker got in its registration response."""

    def next_channel_number(self) -> int:
        """Return a number larger than every earlier one of this controller epoch."""

    def changed(self, *kinds: Kind) -> None:
        """Have the parts checked soon that a change concerns: ``consequences`` has the table."""

    async def stopped(self, broker: int, stops: Collection[Stop]) -> None:
        """Note that a broker confirmed these replicas as stopped, or deleted."""


class Outbox:
    """The channel to one incarnation of a broker; closed when it expires or registers again."""

    def __init__(
        self,
        owner: ChannelOwner,
        broker: int,
        timeout_ms: int,
        delete_retry_ms: int,
        entropy: random.Random,
    ) -> None:
        self._last_reason = ""
        self.broker = broker
        self.reached = -1
        self.proved_s = -math.inf
        """When the last request was sent that the broker has responded to, by the loop's clock."""
        self._owner = owner
        self._backoff = Backoff(RETRY_MS, RETRY_MAX_MS, entropy)
        self._timeout_ms = timeout_ms
        self._connect_timeout = GrowingTimeout(CONNECT_TIMEOUT_MS)
        self._delete_retry_ms = delete_retry_ms
        self._changes = Changes()
        self._awake = asyncio.Event()
        self._dirty = False
        self._retries: dict[Callable[[], None], asyncio.TimerHandle] = {}
        self._revision_timer: asyncio.TimerHandle | None = None
        self._kept = (-1, 0.0)
        """The revision that the broker has on disk, and when it got it."""
        self._revision_to_keep = -1
        """The one that it should have there."""
        self._late: Sequence[LateReplica] = ()
        """What the broker has to keep by the last FULL, beside what is assigned to it."""
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name=f"control-channel-{broker}"
        )

    def notice(self, changes: Changes) -> None:
        """Note the changes of a commit, to be sent soon.

        Every commit is noted, also one that concerns no broker: it raises ``reached``.
        """
        self._changes.add(changes)
        self._dirty = True
        self._awake.set()

    async def close(self) -> None:
        """End the channel."""
        for timer in (*self._retries.values(), self._revision_timer):
            if timer is not None:
                timer.cancel()
        while not self._task.done():
            # Again until it has ended: wait_for of Python 3.11 can swallow a cancellation.
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=CANCEL_AGAIN_S)

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                connection = await self._connect()
                try:
                    await self._open(connection)
                    failures, self._last_reason = 0, ""
                    while True:
                        await self._send_changes(connection)
                finally:
                    connection.close("the controller ends this control channel")
            except (ClientError, ChannelRefused, requests.NotRegistered) as error:
                if str(error) != self._last_reason:
                    # One line, not one for each attempt with the same end.
                    self._last_reason = str(error)
                    logger.info(
                        "the control channel to broker %(broker)s broke: %(error)s",
                        {"broker": self.broker, "error": error},
                    )
            except Exception:
                # A bug must not leave a broker without commands: the channel opens again.
                logger.exception(
                    "the control channel to broker %(broker)s failed", {"broker": self.broker}
                )
            await asyncio.sleep(self._backoff.pause_s(failures))
            failures += 1

    async def _connect(self) -> ClientConnection:
        owner = self._owner
        listener = owner.sender.inter_broker_listener
        address = requests.inter_broker_address(owner.cluster, self.broker, listener)
        if address is None:
            raise ChannelRefused("it is not registered with a listener")
        with self._connect_timeout.counted():
            connection = await connect(
                address.host,
                address.port,
                client_id="controller",
                negotiate=False,
                max_in_flight=1,
                connect_timeout_ms=self._connect_timeout.least_ms,
                greeting_timeout_ms=self._connect_timeout.now_ms,
                secret=owner.secret,
                tls=requests.tls_for(address, owner.tls),
            )
        self._connect_timeout.answered()
        return connection

    async def _open(self, connection: ClientConnection) -> None:
        owner = self._owner
        number = owner.next_channel_number()
        opening = requests.open_control_channel(owner.cluster, owner.sender, self.broker, number)
        opening.channel_key = owner.channel_key(self.broker)
        opened: messages.OpenControlChannelResponse = await self._send(connection, opening, 0)
        leaves_unreadable = opened.leaves_unreadable
        await self._wait_for_readable_topics(leaves_unreadable)
        await self._stop_late(connection)
        # Read before anything is sent: what is committed meanwhile is noted, and sent after this.
        revision = owner.cluster.revision
        self._dirty = False
        self._changes = Changes()
        await self._send_configs(connection, None)
        if owner.cluster.level.topic_ids:
            await self._send_full(connection, leaves_unreadable)
        else:
            await self._stop(connection, None)
            await self._send_all(connection, requests.UNSPECIFIED)
        metadata = owner.announcements.everything(owner.cluster, owner.sender, self.broker)
        await self._send(connection, metadata, metadata.version)
        self._reached(revision)

    async def _stop_late(self, connection: ClientConnection) -> None:
        """Have the broker serve none of its late replicas, and keep them (docs/decisions/0103).

        Before the configurations: of their topics the broker would take them to have none.
        """
        cluster = self._owner.cluster
        late = late_replicas(cluster, self.broker)
        if not late:
            return
        for order in requests.stop_replica(
            cluster, self._owner.sender, self.broker, stops_of_late(late)
        ):
            response = await self._send(connection, order, cluster.level.stop_replica)
            failed = [
                x
                for x in response.partition_errors
                if x.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            ]
            if failed:
                raise ChannelRefused(
                    f"{len(failed)} replicas that are not known are not stopped yet"
                )

    async def _wait_for_readable_topics(self, leaves_unreadable: bool) -> None:
        owner, last_why = self._owner, None
        while why := requests.why_no_full(owner.cluster, leaves_unreadable=leaves_unreadable):
            if why != last_why:
                logger.error(
                    "broker %(broker)s is sent nothing until this is repaired: %(why)s",
                    {"broker": self.broker, "why": why},
                )
                last_why = why
            self._awake.clear()
            await self._awake.wait()

    async def _send_full(self, connection: ClientConnection, leaves_unreadable: bool) -> None:
        pending_deletes, commands, response = await self._send_all(
            connection, requests.FULL, leaves_unreadable=leaves_unreadable
        )
        # A replica that a FULL leaves out is stale: the broker stops and deletes it, except those
        # that the response names because a disk failed, and those of unreadable topics.
        kept = {
            (topic.topic_id, error.partition_index)
            for topic in response.topics
            for error in topic.partition_errors
            if error.error_code
        }
        left = frozenset(commands.unreadable_topics)
        done = [
            stop
            for stop in pending_deletes
            if stop.name not in left
            and kept.isdisjoint(((stop.topic_id, stop.partition), (NO_ID, stop.partition)))
        ]
        named = late_commands.named_in(commands)
        forget_stale(self._owner.cluster, self.broker, named, kept, left)
        if done:
            await self._owner.stopped(self.broker, done)
        if len(done) < len(pending_deletes):
            self._retry_later(self._stop_again)

    async def _send_all(
        self, connection: ClientConnection, kind: int, *, leaves_unreadable: bool = False
    ) -> tuple[list[Stop], messages.LeaderAndIsrRequest, messages.LeaderAndIsrResponse]:
        """Send every partition; return the replicas that the broker had to stop at that time, the
        request and its response."""
        await self._send_changed_configs(connection)
        cluster = self._owner.cluster
        why = requests.why_no_full(cluster, leaves_unreadable=leaves_unreadable)
        if kind == requests.FULL and why is not None:
            # Checked again after other tasks ran: the broker deletes what a FULL leaves out.
            raise ChannelRefused(why)
        pending_deletes = stops_of(cluster, self.broker)
        self._late = late_replicas(cluster, self.broker) if kind == requests.FULL else ()
        commands = requests.leader_and_isr(
            cluster, self._owner.sender, self.broker, cluster.partitions_of(self.broker), kind
        )
        if self._late:
            commands = late_commands.with_late(commands, self._late)
        response = await self._send(connection, commands, cluster.level.leader_and_isr)
        self._log_refused(response)
        return pending_deletes, commands, response

    async def _send_changes(self, connection: ClientConnection) -> None:
        await self._until_dirty(connection)
        # Read first: what is committed while this is sent has a round of its own.
        revision = self._owner.cluster.revision
        changes, self._changes = self._changes, Changes()
        self._dirty = False
        # Put back: those that change while this is sent go out with them, before partitions.
        self._changes.configs |= changes.configs
        self._check_store()
        await self._send_changed_configs(connection)
        if changes.stops or changes.all_stops:
            await self._stop(connection, None if changes.all_stops else changes.stops)
        for part in changes.slices(SENT_AT_ONCE):
            await self._send_part(connection, part, revision)
        while changes.ended:
            ended = set(islice(changes.ended, SENT_AT_ONCE))
            changes.ended -= ended
            await self._send_configs(connection, ended)
        # Before the revision alone: requests wait for the change, not for that note on a disk.
        self._reached(revision)
        await self._send_revision(connection)

    def _check_store(self) -> None:
        if self._owner.cluster.went_back is not None:
            # An older store may repeat a leader epoch: its state is not sent.
            raise ChannelRefused("the metadata store has gone back in time")

    async def _send_part(self, connection: ClientConnection, part: Changes, revision: int) -> None:
        owner = self._owner
        self._check_store()
        await self._send_changed_configs(connection)
        if part.partitions:
            commands = owner.announcements.commands(owner.cluster, owner.sender, self.broker, part)
            commands = late_commands.without_places(commands, self._late)
            if commands.topic_states:
                self._revision_to_keep = revision
                response = await self._send(
                    connection, commands, owner.cluster.level.leader_and_isr
                )
                self._log_refused(response)
        if part.partitions or part.shown or part.gone or part.brokers:
            metadata = owner.announcements.of_changes(
                owner.cluster, owner.sender, self.broker, part
            )
            await self._send(connection, metadata, metadata.version)

    async def _send_changed_configs(self, connection: ClientConnection) -> None:
        """Send all changed configurations: those of a topic go before its partitions."""
        while self._changes.configs:
            configs = set(islice(self._changes.configs, SENT_AT_ONCE))
            self._changes.configs -= configs
            await self._send_configs(connection, configs)

    async def _send_configs(
        self, connection: ClientConnection, configs: Collection[tuple[int, str]] | None
    ) -> None:
        owner = self._owner
        request = requests.update_configs(owner.cluster, owner.sender, self.broker, configs)
        await self._send(connection, request, 0)
        self._kept = (request.store_revision, asyncio.get_running_loop().time())

    async def _send_revision(self, connection: ClientConnection) -> None:
        """Have the broker keep the revision of the last states that it was sent, now or soon."""
        kept_revision, kept_at = self._kept
        if kept_revision >= self._revision_to_keep:
            return
        loop = asyncio.get_running_loop()
        wait_s = kept_at + REVISION_EVERY_S - loop.time()
        if wait_s <= 0:
            await self._send_configs(connection, ())
        elif self._revision_timer is None:
            self._revision_timer = loop.call_later(wait_s, self._note_revision)

    def _note_revision(self) -> None:
        self._revision_timer = None
        self.notice(Changes())

    async def _until_dirty(self, connection: ClientConnection) -> None:
        while not self._dirty:
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

    async def _stop(self, connection: ClientConnection, topics: Collection[str] | None) -> None:
        """Send the replicas to stop, of these topics or (None) all, note those confirmed, and send
        the others again later."""
        cluster = self._owner.cluster
        stops = stops_of(cluster, self.broker, topics)
        if not stops or cluster.went_back is not None:
            return
        version = cluster.level.stop_replica
        refused: dict[tuple[str | UUID, int], int] = {}
        for order in requests.stop_replica(cluster, self._owner.sender, self.broker, stops):
            response = await self._send(connection, order, version)
            for error in response.partition_errors:
                if error.error_code != ErrorCode.NONE:
                    topic = error.topic_id if cluster.level.topic_ids else error.topic_name
                    refused[topic, error.partition_index] = error.error_code
        done = []
        lines = GatheredLines(logger)
        for stop in stops:
            topic = stop.topic_id if cluster.level.topic_ids else stop.name
            code = refused.get((topic, stop.partition))
            is_older = code == ErrorCode.FENCED_LEADER_EPOCH and stop.leader_epoch >= 0
            if code is None or is_older:
                # Fenced: the replica was assigned again since, and its stop is owed no longer.
                done.append(stop._replace(delete=False) if is_older else stop)
                refused.pop((topic, stop.partition), None)
            else:
                what = f"not stopped on broker {self.broker}: {ErrorCode(code).name}"
                lines.add(f"{stop.name}-{stop.partition}", what, logging.WARNING)
        lines.say()
        if done:
            await self._owner.stopped(self.broker, done)
        if refused:
            self._retry_later(self._stop_again)

    def _retry_later(self, work: Callable[[], None]) -> None:
        """Do this after the pause between two attempts, once."""
        if work not in self._retries:
            loop = asyncio.get_running_loop()
            self._retries[work] = loop.call_later(self._delete_retry_ms / 1000, self._retry, work)

    def _retry(self, work: Callable[[], None]) -> None:
        del self._retries[work]
        work()

    def _stop_again(self) -> None:
        self.notice(Changes(all_stops=True))

    async def _send(self, connection: ClientConnection, request: Any, version: int) -> Any:
        sent_s = asyncio.get_running_loop().time()
        response = await connection.send(request, version, self._timeout_ms)
        self.proved_s = sent_s
        if response.error_code != ErrorCode.NONE:
            name = ErrorCode(response.error_code).name
            key = request.api_key if isinstance(request, EncodedRequest) else None
            asked = type(request).__name__.removesuffix("Request") if key is None else spoken(key)
            raise ChannelRefused(f"it responded to {asked} with {name}")
        return response

    def _log_refused(self, response: messages.LeaderAndIsrResponse) -> None:
        # By name below v5, by topic id from v5. Most answers have no error at all.
        errors = [
            (error.topic_name, error) for error in response.partition_errors if error.error_code
        ]
        for topic in response.topics:
            refused = [error for error in topic.partition_errors if error.error_code]
            errors += [(str(topic.topic_id), error) for error in refused]
        lines = GatheredLines(logger)
        for name, error in errors:
            what = f"refused by broker {self.broker}: {ErrorCode(error.error_code).name}"
            lines.add(f"{name}-{error.partition_index}", what, logging.WARNING)
        lines.say()
        if any(error.error_code == ErrorCode.KAFKA_STORAGE_ERROR for _, error in errors):
            self._retry_later(self._resend)

    def _resend(self) -> None:
        """Send all partitions again: a full disk may have room now (promise 28)."""
        self.notice(Changes(partitions=set(self._owner.cluster.all_partitions())))

    def _reached(self, revision: int) -> None:
        self.reached = revision
        self._owner.changed(ControllerEvent.SENT)
