"""What the controller commands: the one control channel, and LeaderAndIsr, StopReplica applied.

Owns which channel is obeyed, the highest controller epoch and store revision ever seen (kept on
disk), and the application of the rules in ``replication.control`` to the hosted partitions. A
request is answered as soon as it is applied; nothing here waits for replication. A request of many
partitions lets others have their turn after each ``ORDERS_PER_TURN``, and goes on only if its
channel, controller epoch and broker epoch are still the present ones; each partition's own epochs
are looked at when its turn comes.

The checks of a control request, in this order (the design, "Order on the control channel"):

| check | answer |
|---|---|
| it came on the open channel, with its controller epoch | else STALE_CONTROLLER_EPOCH |
| its broker epoch is that of this life | else STALE_BROKER_EPOCH |
| per partition: topic id, partition epoch, leader epoch | see ``replication.control`` |
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tidelog.broker.partition import PartitionState, StorageFailed
from tidelog.broker.seen import Seen, SeenFile
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

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.network.connection import Connection

logger = logging.getLogger(__name__)

SEEN_FILE = "controller-seen"
UNKNOWN_EPOCH = -1
ORDERS_PER_TURN = 16
"""Partitions created, changed or removed before others have their turn: 5 to 10 ms."""

Obeyed = list[tuple[str, UUID, int, ErrorCode]]
"""(topic, id, partition, error) for each partition of a request."""

STOP_BY_TOPIC_ID = 4
"""From this version of StopReplica on the topic id must match (KIP-516)."""


@dataclass(slots=True)
class Channel:
    """The open control channel and what has come on it."""

    connection: Connection
    controller_epoch: int
    number: int
    had_configs: bool = False
    had_metadata: bool = False


class Control:
    """Obeys the newest control channel of the newest controller epoch (promise 23)."""

    def __init__(self, broker: Broker, folder: str) -> None:
        """``folder`` is where what was seen is kept: the first log directory.

        Raises DamagedFile when that cannot be read.
        """
        self._broker = broker
        self._file = SeenFile(broker.seams.disk, f"{folder}/{SEEN_FILE}")
        self.channel: Channel | None = None
        self.seen = self._file.read()
        self._undeleted: dict[TopicPartition, set[UUID]] = {}
        """What a failing disk kept, with the topic ids that it knew: not confirmed as gone until a
        restart has looked again."""

    def open(self, request: Any, connection: Connection) -> ErrorCode:
        """Begin a channel and close every older one, or say why not."""
        if request.broker_epoch != self._broker.session.broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        present = self.channel
        if request.controller_epoch < self.seen.controller_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if present is not None:
            newest = (present.controller_epoch, present.number)
            if (request.controller_epoch, request.channel_number) <= newest:
                return ErrorCode.STALE_CONTROLLER_EPOCH
            if present.connection is not connection:
                present.connection.close("a newer control channel was opened")
        self.note(request.controller_epoch, request.store_revision)
        self.channel = Channel(connection, request.controller_epoch, request.channel_number)
        return ErrorCode.NONE

    def check(self, request: Any, connection: Connection) -> ErrorCode:
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

    def note(self, controller_epoch: int, store_revision: int) -> None:
        """Keep the highest epoch and revision, durably, before anything of them is obeyed.

        Where the disk has failed a revision alone is not kept: other disks are to be commanded on.
        """
        newest = Seen(
            max(self.seen.controller_epoch, controller_epoch),
            max(self.seen.store_revision, store_revision),
        )
        is_same_epoch = newest.controller_epoch == self.seen.controller_epoch
        if newest == self.seen or (is_same_epoch and self._broker.directories[0].failed):
            return
        try:
            self._write(newest)
        except OSError as error:
            if not is_same_epoch:
                raise
            logger.error("revision %s is not kept: %s", newest.store_revision, error)
            return
        self.seen = newest

    def _write(self, seen: Seen) -> None:
        try:
            self._file.write(seen)
        except OSError as error:
            resources = self._broker.directories[0].resources
            if not resources.is_full(error):
                # Promise 25: a failed write is final for its directory, whatever was written.
                resources.fail(f"writing {self._file.path} failed: {error}")
            raise

    # -- LeaderAndIsr

    async def obey_leader_and_isr(self, request: Any, connection: Connection) -> Obeyed | ErrorCode:
        """Apply a request of any version, or say why it is not, or no more, to be obeyed."""
        error = self.check(request, connection)
        topics = list(_topics(request))
        obeyed: Obeyed = []
        if request.type == LeaderAndIsrType.FULL and not error:
            error = await self._drop_stale(topics, request, connection)
        for name, topic_id, migrated, states in topics:
            for state in states:
                if error:
                    return error
                found = self._lead_or_follow(name, _order(state, topic_id, migrated), state)
                obeyed.append((name, topic_id, state.partition_index, found))
                if not len(obeyed) % ORDERS_PER_TURN:
                    error = await self._others_turn(request, connection)
        if request.type == LeaderAndIsrType.FULL:
            # The answer confirms that what a FULL does not name is gone: not these.
            obeyed += self._kept()
        return error or obeyed

    def _kept(self) -> Obeyed:
        failed = ErrorCode.KAFKA_STORAGE_ERROR
        return [
            (key.topic, topic_id, key.partition, failed)
            for key, topic_ids in self._undeleted.items()
            for topic_id in topic_ids
        ]

    def _not_deleted(self, key: TopicPartition, topic_id: UUID) -> None:
        self._undeleted.setdefault(key, set()).add(topic_id)

    async def _others_turn(self, request: Any, connection: Connection) -> ErrorCode:
        """Let others have their turn; return why the request must not be obeyed any more."""
        await asyncio.sleep(0)
        return self.check(request, connection)

    async def _drop_stale(
        self,
        topics: Iterable[tuple[str, UUID, bool, list[Any]]],
        request: Any,
        connection: Connection,
    ) -> ErrorCode:
        """Set aside what a FULL does not name. What was named is applied only if all of it was."""
        full = {
            (name, state.partition_index): topic_id
            for name, topic_id, _, states in topics
            for state in states
        }
        partitions = self._broker.partitions
        local = {(p.topic, p.partition): p.topic_id for p in partitions.all()}
        stale = stale_in_full(local, full)
        error = ErrorCode.NONE
        for count, ((topic, partition), reason) in enumerate(stale.items(), 1):
            if not count % ORDERS_PER_TURN:
                error = await self._others_turn(request, connection)
                if error:
                    break
            logger.warning("%s-%s is stale: %s", topic, partition, reason)
            try:
                partitions.make_stale(topic, partition, reason, durable=False)
            except StorageFailed as failure:
                # It serves no more in any case, and the others' orders are to be obeyed.
                logger.error("%s-%s: %s", topic, partition, failure)
                key = TopicPartition(topic, partition)
                self._not_deleted(key, local[topic, partition])
        try:
            partitions.sync_names()
        except StorageFailed as failure:
            logger.error("%s", failure)
            for place in stale:
                self._not_deleted(TopicPartition(*place), local[place])
        return error

    def _lead_or_follow(self, topic: str, order: LeaderAndIsrOrder, state: Any) -> ErrorCode:
        partitions = self._broker.partitions
        key = TopicPartition(topic, state.partition_index)
        decision = decide_leader_and_isr(partitions.local(*key), order)
        if isinstance(decision, Rejected):
            logger.warning("LeaderAndIsr for %s refused: %s", key, decision.why)
            return decision.error
        if decision.action is Action.IGNORE and not decision.adopt_topic_id:
            return ErrorCode.NONE
        try:
            self._carry_out(key, decision, _state(state, order))
        except StorageFailed as error:
            logger.error("%s cannot be hosted: %s", key, error)
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE

    def _carry_out(self, key: TopicPartition, decision: Obey, state: PartitionState) -> None:
        partitions = self._broker.partitions
        if decision.action is Action.REPLACE:
            logger.warning("%s is stale: %s", key, decision.why)
            self._replace_stale(key, decision.why)
        if decision.adopt_topic_id:
            partitions.adopt_topic_id(*key, state.topic_id, state.partition_epoch)
        if decision.action in (Action.CREATE, Action.REPLACE):
            partitions.apply(partitions.create(*key, state), state)
        elif decision.action in (Action.BECOME, Action.UPDATE):
            hosted = partitions.get(*key)
            assert hosted is not None
            partitions.apply(self._broker.repairs.for_order(hosted, state), state)

    def _replace_stale(self, key: TopicPartition, why: str) -> None:
        local = self._broker.partitions.local(*key)
        try:
            self._broker.partitions.make_stale(*key, why)
        except StorageFailed:
            if local is not None:
                self._not_deleted(key, local.topic_id)
            raise

    # -- StopReplica

    async def obey_stop_replica(
        self, request: Any, version: int, connection: Connection
    ) -> Obeyed | ErrorCode:
        """Apply a request of any version, or say why it is not, or no more, to be obeyed."""
        error = self.check(request, connection)
        stopped: Obeyed = []
        for topic, partition, order in _stops(request, version):
            if error:
                return error
            found = self._stop(TopicPartition(topic, partition), order)
            stopped.append((topic, order.topic_id, partition, found))
            if not len(stopped) % ORDERS_PER_TURN:
                error = await self._others_turn(request, connection)
        if error:
            return error
        try:
            self._broker.partitions.sync_names()
        except StorageFailed as error:
            logger.error("%s", error)
            for topic, topic_id, at, _ in stopped:
                self._not_deleted(TopicPartition(topic, at), topic_id)
            failed = ErrorCode.KAFKA_STORAGE_ERROR
            return [(topic, id_, at, why or failed) for topic, id_, at, why in stopped]
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


def _topics(request: Any) -> Iterable[tuple[str, UUID, bool, list[Any]]]:
    """Yield (name, id, migrated, states) whatever the version's shape."""
    for state in request.ungrouped_partition_states:
        yield state.topic_name, NO_UUID, False, [state]
    for topic in request.topic_states:
        yield topic.topic_name, topic.topic_id, topic.migrated, topic.partition_states


def _order(state: Any, topic_id: UUID, migrated: bool) -> LeaderAndIsrOrder:
    return LeaderAndIsrOrder(
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr_version=state.isr_version,
        topic_id=topic_id,
        partition_epoch=state.partition_epoch,
        migrated=migrated,
    )


def _state(state: Any, order: LeaderAndIsrOrder) -> PartitionState:
    return PartitionState(
        topic_id=order.topic_id,
        partition_epoch=order.partition_epoch,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=tuple(state.isr),
        isr_version=state.isr_version,
        replicas=tuple(state.replicas),
        targets=tuple(state.target_replicas or ()),
        controller_epoch=state.controller_epoch,
        is_unclean_leader=state.is_unclean_leader,
        has_debt=state.has_debt,
    )


def _stops(request: Any, version: int) -> Iterable[tuple[str, int, StopOrder]]:
    """Yield (topic, partition, order) whatever the version's shape."""
    delete = request.delete_partitions
    for single in request.ungrouped_partitions:
        yield single.topic_name, single.partition_index, StopOrder(UNKNOWN_EPOCH, delete)
    for listed in request.topics:
        for index in listed.partition_indexes:
            yield listed.name, index, StopOrder(UNKNOWN_EPOCH, delete)
    for topic in request.topic_states:
        for state in topic.partition_states:
            order = StopOrder(
                leader_epoch=state.leader_epoch,
                delete=state.delete_partition,
                checks_topic_id=version >= STOP_BY_TOPIC_ID,
                topic_id=topic.topic_id,
                partition_epoch=state.partition_epoch,
            )
            yield topic.topic_name, state.partition_index, order
