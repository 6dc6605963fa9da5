"""What the controller commands: the one control channel, and LeaderAndIsr, StopReplica applied.

Owns which channel is obeyed, the highest controller epoch and store revision ever seen (kept on
disk), and the application of the rules in ``replication.control`` to the hosted partitions. A
request is answered as soon as it is applied; nothing here waits for replication. A request of many
partitions lets others have their turn after ``TURN_MS``, or ``COMMANDS_PER_TURN``, and goes on only
if its channel, controller epoch and broker epoch are still the present ones; each partition's own
epochs are looked at when its turn comes.

The checks of OpenControlChannel, in this order; nothing is recorded before all have passed:

| check | answer |
|---|---|
| this broker is registered, in this life | else STALE_BROKER_EPOCH |
| the channel key is the one that its registration brought | else CLUSTER_AUTHORIZATION_FAILED |
| controller epoch and store revision leave room above them | else INVALID_REQUEST |
| controller epoch and channel number are the newest | else STALE_CONTROLLER_EPOCH |

The checks of a control request, in this order (docs/design/control-channel.md):

| check | answer |
|---|---|
| it came on the open channel, with its controller epoch | else STALE_CONTROLLER_EPOCH |
| its broker epoch is that of this life | else STALE_BROKER_EPOCH |
| per partition: topic id, partition epoch, leader epoch | see ``replication.control`` |
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tidelog.broker.control_plane.commands import (
    UNKNOWN_EPOCH,
    command_of,
    kind_of,
    state_of,
    stops_of,
    topics_of,
)
from tidelog.broker.control_plane.seen_epochs import SeenEpochs, SeenEpochsStore
from tidelog.broker.partitions.partition import HostedPartition, LeaderAndIsrState, StorageFailed
from tidelog.broker.partitions.registry import NotSetAside, local_replica
from tidelog.model.api_keys import ApiKey
from tidelog.model.epochs import leaves_room
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol.primitives import NO_UUID
from tidelog.replication.control import (
    Action,
    LeaderAndIsrOrder,
    LeaderAndIsrType,
    Obey,
    Rejected,
    StopAction,
    StopOrder,
    decide_leader_and_isr,
    decide_stop_replica,
    stale_in_full,
)
from tidelog.runtime.turns import Turn
from tidelog.storage.names import why_no_directory

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.network.router import Peer

logger = logging.getLogger(__name__)

COMMANDS_PER_TURN = 16
"""Most partitions that are created, changed or removed before others have their turn."""

TURN_MS = 5
"""After so long they have it in any case: a busy disk makes a directory in milliseconds."""

Applied = list[tuple[str, UUID, int, ErrorCode]]
"""(topic, id, partition, error) for each partition of a request."""

LOGS_AT_REST_WITHIN_S = 5.0
"""How long a request waits in all for logs that a thread is changing: then its orders for them are
answered with KAFKA_STORAGE_ERROR, and come again."""


@dataclass(slots=True)
class Channel:
    """The open control channel and what has come on it."""

    connection: Peer
    controller_epoch: int
    number: int
    had_configs: bool = False
    had_metadata: bool = False


class Control:
    """Obeys the newest control channel of the newest controller epoch (promise 23)."""

    def __init__(self, broker: Broker, folders: Sequence[str]) -> None:
        """``folders`` are where what was seen is kept: the log directories that can be used.

        Raises DamagedFile when one cannot be read.
        """
        self._broker = broker
        self._seen_epochs = SeenEpochsStore(broker.seams.disk, folders, broker.directories)
        self.channel: Channel | None = None
        self._undeleted: dict[TopicPartition, set[UUID]] = {}
        """What a failing disk kept, with the topic ids that it knew: not confirmed as gone until a
        restart has looked again."""

    @property
    def seen_epochs(self) -> SeenEpochs:
        """The highest controller epoch and store revision of which a disk here knows."""
        return self._seen_epochs.highest

    async def open(self, request: Any, connection: Peer) -> ErrorCode:
        """Begin a channel and close every older one, or say why not."""
        error = self._why_not_open(request, connection)
        if error:
            return error
        await self.note(request.controller_epoch, request.store_revision)
        # While the disk was waited for, a newer one may have come, or this one may have gone.
        error = self._why_not_open(request, connection)
        if error:
            return error
        present = self.channel
        if present is not None and present.connection is not connection:
            present.connection.close("a newer control channel was opened")
        self.channel = Channel(connection, request.controller_epoch, request.channel_number)
        return ErrorCode.NONE

    def _why_not_open(self, request: Any, connection: Peer) -> ErrorCode:
        if connection.is_closing:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        session = self._broker.session
        if session.broker_epoch < 0 or request.broker_epoch != session.broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        why = self._why_wrong_key(request.channel_key)
        if why is not None:
            connection.refused(ApiKey.OPEN_CONTROL_CHANNEL, why)
            return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        if not leaves_room(request.controller_epoch, request.store_revision):
            logger.error(
                "OpenControlChannel of controller epoch %d, store revision %d refused: they leave "
                "no room above them",
                request.controller_epoch,
                request.store_revision,
            )
            return ErrorCode.INVALID_REQUEST
        present = self.channel
        if request.controller_epoch < self.seen_epochs.controller_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if present is not None:
            newest = (present.controller_epoch, present.number)
            if (request.controller_epoch, request.channel_number) <= newest:
                return ErrorCode.STALE_CONTROLLER_EPOCH
        return ErrorCode.NONE

    def _why_wrong_key(self, key: UUID) -> str | None:
        """Return why whoever sends this key is not the controller that this broker registered with.

        A controller of a version without keys gave none. It is obeyed without one where no proof of
        the cluster secret is asked for, and nowhere else (decision 0019).
        """
        expected = self._broker.session.channel_key
        if expected == NO_UUID:
            if self._broker.server.trusts_all and key == NO_UUID:
                return None
            return "this broker was given no channel key"
        if not hmac.compare_digest(expected.bytes, key.bytes):
            return "its channel key is not the one of this broker's registration"
        return None

    def check(self, request: Any, connection: Peer) -> ErrorCode:
        """Return why a control request must not be obeyed, or NONE."""
        channel = self.channel
        if (
            channel is None
            or channel.connection is not connection
            or request.controller_epoch != channel.controller_epoch
        ):
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if request.broker_epoch not in (UNKNOWN_EPOCH, self._broker.session.broker_epoch):
            return ErrorCode.STALE_BROKER_EPOCH
        return ErrorCode.NONE

    async def note(self, controller_epoch: int, store_revision: int) -> None:
        """Keep the highest epoch and revision, durably, before anything of them is obeyed.

        A thread waits for the disk: what was true before may not be any more. Where the disk has
        failed a revision alone is not kept: other disks are to be commanded on.
        """
        newest = self.seen_epochs.joined(SeenEpochs(controller_epoch, store_revision))
        is_same_epoch = newest.controller_epoch == self.seen_epochs.controller_epoch
        if newest == self.seen_epochs or (is_same_epoch and self._broker.directories[0].failed):
            return
        try:
            await self._broker.log_work.run(None, self._seen_epochs.noting(newest))
        except OSError as error:
            if not is_same_epoch:
                raise
            logger.error("revision %s is not kept: %s", newest.store_revision, error)

    # -- LeaderAndIsr

    async def apply_leader_and_isr(self, request: Any, connection: Peer) -> Obeyed | ErrorCode:
        """Apply a request of any version, or say why it is not, or no more, to be obeyed."""
        error = self.check(request, connection)
        topics = list(topics_of(request))
        kind = kind_of(request)
        obeyed: Applied = []
        deadline_s = asyncio.get_running_loop().time() + LOGS_AT_REST_WITHIN_S
        orders = [
            (
                TopicPartition(name, state.partition_index),
                command_of(state, topic_id, migrated, kind),
            )
            for name, topic_id, migrated, states in topics
            for state in states
        ]
        said = [state for _, _, _, states in topics for state in states]
        stuck: dict[TopicPartition, UUID] = {}
        stale: dict[TopicPartition, str | HostedPartition] = {}
        if not error:
            stale |= self._to_be_made_anew(zip(orders, said, strict=True))
            stale |= self._stale(orders, is_full=kind is LeaderAndIsrType.FULL)
        if stale:
            error = await self._drop_stale(stale, stuck, request, connection, deadline_s)
        if not error and self._uses_names_again(key for key, _ in orders):
            # In a thread, once for all: else the first one's creation would do it here.
            await self._broker.maintenance.checkpoint()
            error = self.check(request, connection)
        # Those whose logs are being changed come last: they hold up no other.
        turns = sorted(zip(orders, said, strict=True), key=lambda x: self._is_changing(x[0][0]))
        adopted: list[tuple[int, HostedPartition]] = []
        turn = self._turn()
        for (key, order), state in turns:
            is_at_rest = await self._at_rest(key, deadline_s)
            error = error or self.check(request, connection)
            if error:
                return error
            found = ErrorCode.KAFKA_STORAGE_ERROR
            if is_at_rest and key not in stuck:
                found, hosted = self._lead_or_follow(key, order, state)
                if hosted is not None:
                    adopted.append((len(obeyed), hosted))
            obeyed.append((key.topic, order.topic_id, key.partition, found))
            if turn.is_over():
                error = await self._others_turn(request, connection)
                turn = self._turn()
        for at, hosted in adopted:
            if not await self._keep_topic_id(hosted):
                obeyed[at] = (*obeyed[at][:3], ErrorCode.KAFKA_STORAGE_ERROR)
        if kind is LeaderAndIsrType.FULL:
            # The answer confirms that what a FULL does not name is gone: not these.
            obeyed += self._kept()
            told = {*self._undeleted, *(key for key, _ in orders)}
            obeyed += [
                (key.topic, topic_id, key.partition, ErrorCode.KAFKA_STORAGE_ERROR)
                for key, topic_id in stuck.items()
                if key not in told
            ]
        return error or obeyed

    def _is_changing(self, key: TopicPartition) -> bool:
        hosted = self._broker.partitions.get(*key)
        return hosted is not None and hosted.log.changing

    async def _at_rest(self, key: TopicPartition, deadline_s: float) -> bool:
        """Wait until a thread has no part in the log any more; False when the time is over."""
        hosted = self._broker.partitions.get(*key)
        if hosted is None or await self._broker.log_work.until_free(hosted.log, deadline_s):
            return True
        logger.error("%s: its log is being changed for too long: see its disk", key)
        return False

    def _uses_names_again(self, keys: Iterable[TopicPartition]) -> bool:
        """Whether checkpoints name former replicas of what the request will create."""
        directories = self._broker.directories
        sound = [each for each in directories if each.failed is None]
        return any(directory.is_noted(key) for key in keys for directory in sound)

    def _kept(self) -> Applied:
        failed = ErrorCode.KAFKA_STORAGE_ERROR
        return [
            (key.topic, topic_id, key.partition, failed)
            for key, topic_ids in self._undeleted.items()
            for topic_id in topic_ids
        ]

    def _not_deleted(self, key: TopicPartition, topic_id: UUID) -> None:
        self._undeleted.setdefault(key, set()).add(topic_id)

    def _turn(self) -> Turn:
        return Turn(self._broker.clock, COMMANDS_PER_TURN, TURN_MS)

    async def _others_turn(self, request: Any, connection: Peer) -> ErrorCode:
        """Let others have their turn; return why the request must not be obeyed any more."""
        await asyncio.sleep(0)
        return self.check(request, connection)

    def _stale(
        self, orders: Sequence[tuple[TopicPartition, LeaderAndIsrOrder]], *, is_full: bool
    ) -> dict[TopicPartition, str]:
        """Return what goes before the orders are obeyed, and why: what they replace, and what a
        FULL does not name. What was named is applied only if all of it went."""
        partitions = self._broker.partitions
        stale = {}
        for key, order in orders:
            decision = decide_leader_and_isr(partitions.local(*key), order)
            if isinstance(decision, Obey) and decision.action is Action.REPLACE:
                stale[key] = decision.why
        if is_full:
            full = {(key.topic, key.partition): order.topic_id for key, order in orders}
            local = {(p.topic, p.partition): p.topic_id for p in partitions.all()}
            for place, why in stale_in_full(local, full).items():
                stale.setdefault(TopicPartition(*place), why)
        return stale

    def _to_be_made_anew(
        self, orders: Iterable[tuple[tuple[TopicPartition, LeaderAndIsrOrder], Any]]
    ) -> dict[TopicPartition, HostedPartition]:
        """Return the damaged replicas that these orders let go of."""
        partitions = self._broker.partitions
        found = {}
        for (key, order), said in orders:
            hosted = partitions.get(*key)
            if hosted is None or hosted.log.damaged is None:
                continue
            decision = decide_leader_and_isr(local_replica(hosted), order)
            is_news = isinstance(decision, Obey) and decision.action in (
                Action.BECOME,
                Action.UPDATE,
            )
            if is_news and self._broker.repairs.is_due(hosted, state_of(said, order)):
                found[key] = hosted
        return found

    async def _drop_stale(
        self,
        stale: Mapping[TopicPartition, str | HostedPartition],
        stuck: dict[TopicPartition, UUID],
        request: Any,
        connection: Peer,
        deadline_s: float,
    ) -> ErrorCode:
        """Set aside what is stale (why), or damaged (the replica), with one sync for all; ``stuck``
        gets what does not go."""
        partitions = self._broker.partitions
        ids: dict[TopicPartition, UUID] = {}
        error = ErrorCode.NONE
        turn = self._turn()
        for key, reason in stale.items():
            is_at_rest = await self._at_rest(key, deadline_s)
            if turn.is_over():
                await asyncio.sleep(0)
                turn = self._turn()
            error = self.check(request, connection)
            if error:
                break
            local = partitions.local(*key)
            if local is None:
                continue
            if not is_at_rest:
                stuck[key] = local.topic_id
                continue
            ids[key] = local.topic_id
            try:
                if isinstance(reason, str):
                    partitions.make_stale(key.topic, key.partition, reason, durable=False)
                elif partitions.get(*key) is reason:
                    self._broker.repairs.set_aside(reason)
            except StorageFailed as failure:
                # It serves no more in any case, and the others' orders are to be obeyed.
                logger.error("%s: %s", key, failure)
                self._not_deleted(key, local.topic_id)
                stuck[key] = local.topic_id
        try:
            await self._sync_names()
        except NotSetAside as failure:
            logger.error("%s", failure)
            for key, topic_id in ids.items():
                if key in failure.keys:
                    stuck[key] = topic_id
                    self._not_deleted(key, topic_id)
        return error or self.check(request, connection)

    async def _sync_names(self) -> None:
        """Make durable what was set aside, in a thread. Raises NotSetAside."""
        log_work = self._broker.log_work
        await log_work.run(None, self._broker.partitions.syncing_names())
        await log_work.run(None, self._broker.loss_reports.forgetting())

    def _lead_or_follow(
        self, key: TopicPartition, order: LeaderAndIsrOrder, state: Any
    ) -> tuple[ErrorCode, HostedPartition | None]:
        """Obey one order; the partition is returned whose new topic id is to be kept durably."""
        partitions = self._broker.partitions
        unfit = why_no_directory(key)
        if unfit is not None:
            logger.error("LeaderAndIsr for %r refused: %s", key, unfit)
            return ErrorCode.INVALID_TOPIC_EXCEPTION, None
        decision = decide_leader_and_isr(partitions.local(*key), order)
        if isinstance(decision, Rejected):
            logger.warning("LeaderAndIsr for %s refused: %s", key, decision.why)
            return decision.error, None
        if decision.action is Action.IGNORE and not decision.adopt_topic_id:
            return ErrorCode.NONE, None
        try:
            self._carry_out(key, decision, state_of(state, order))
        except StorageFailed as error:
            logger.error("%s cannot be hosted: %s", key, error)
            return ErrorCode.KAFKA_STORAGE_ERROR, None
        return ErrorCode.NONE, partitions.get(*key) if decision.adopt_topic_id else None

    def _carry_out(self, key: TopicPartition, decision: Obey, state: LeaderAndIsrState) -> None:
        partitions = self._broker.partitions
        if decision.action is Action.REPLACE:
            # It became so while others had their turn. The order comes again, and finds it gone.
            raise StorageFailed(f"it is stale: {decision.why}")
        if decision.adopt_topic_id:
            partitions.adopt_topic_id(*key, state.topic_id, state.partition_epoch)
        if decision.action is Action.CREATE:
            if self._uses_names_again([key]):
                raise StorageFailed("the checkpoints still tell of a former replica of this name")
            partitions.apply(partitions.create(*key, state), state)
        elif decision.action in (Action.BECOME, Action.UPDATE):
            hosted = partitions.get(*key)
            assert hosted is not None
            if self._broker.repairs.is_due(hosted, state):
                raise StorageFailed(f"it was found damaged just now: {hosted.log.damaged}")
            partitions.apply(hosted, state)

    async def _keep_topic_id(self, hosted: HostedPartition) -> bool:
        """Have a replica's new topic id on its disk, durably."""
        work = self._broker.partitions.syncing_topic_id(hosted)
        try:
            await self._broker.log_work.run(hosted.log, work)
        except StorageFailed as error:
            logger.error("%s: %s", hosted.key, error)
            return False
        return True

    # -- StopReplica

    async def apply_stop_replica(
        self, request: Any, version: int, connection: Peer
    ) -> Obeyed | ErrorCode:
        """Apply a request of any version, or say why it is not, or no more, to be obeyed."""
        error = self.check(request, connection)
        stopped: Applied = []
        deadline_s = asyncio.get_running_loop().time() + LOGS_AT_REST_WITHIN_S
        turn = self._turn()
        for topic, partition, order in stops_of(request, version):
            key = TopicPartition(topic, partition)
            is_at_rest = await self._at_rest(key, deadline_s)
            error = error or self.check(request, connection)
            if error:
                return error
            found = self._stop(key, order) if is_at_rest else ErrorCode.KAFKA_STORAGE_ERROR
            stopped.append((topic, order.topic_id, partition, found))
            if turn.is_over():
                error = await self._others_turn(request, connection)
                turn = self._turn()
        if error:
            return error
        try:
            await self._sync_names()
        except NotSetAside as failure:
            logger.error("%s", failure)
            for place, (topic, topic_id, at, why) in enumerate(stopped):
                if TopicPartition(topic, at) in failure.keys:
                    self._not_deleted(TopicPartition(topic, at), topic_id)
                    failed = why or ErrorCode.KAFKA_STORAGE_ERROR
                    stopped[place] = (topic, topic_id, at, failed)
        return stopped

    def _stop(self, key: TopicPartition, order: StopOrder) -> ErrorCode:
        partitions = self._broker.partitions
        local = partitions.local(*key)
        decision = decide_stop_replica(local, order)
        if isinstance(decision, Rejected):
            logger.warning("StopReplica for %s refused: %s", key, decision.why)
            return decision.error
        if decision is StopAction.NOTHING:
            # Its directory may still be there: the name must not count as free (KIP-516).
            return ErrorCode.KAFKA_STORAGE_ERROR if key in self._undeleted else ErrorCode.NONE
        delete = decision is StopAction.DELETE
        why = f"the controller ordered it, leader epoch {order.leader_epoch}"
        try:
            partitions.stop(*key, delete=delete, reason=why)
        except StorageFailed as error:
            logger.error("%s cannot be stopped: %s", key, error)
            self._not_deleted(key, order.topic_id if local is None else local.topic_id)
            return ErrorCode.KAFKA_STORAGE_ERROR
        logger.info("%s %s: %s", "deleted" if delete else "stopped", key, why)
        return ErrorCode.NONE
