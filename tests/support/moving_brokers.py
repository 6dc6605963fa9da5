"""Brokers that host partitions as the rules say, without logs: for moves under a real controller.

Each applies LeaderAndIsr and StopReplica by ``replication.command_rules``, and notes what it
deleted. The test plays the leader: it proposes ISRs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from tests.support.controller_process import RecordedBroker
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages
from tidelog.replication.command_rules import (
    Action,
    Apply,
    Incarnation,
    LeaderAndIsrCommand,
    LeaderAndIsrType,
    LocalReplica,
    StopAction,
    StopReplicaCommand,
    decide_leader_and_isr,
    decide_stop_replica,
    stale_in_full,
)


class HostingBroker(RecordedBroker):
    """A broker that keeps the state of each replica from the last command that it applied."""

    def __init__(self, node_id: int) -> None:
        super().__init__(node_id)
        self.replicas: dict[TopicPartition, LocalReplica] = {}
        self.states: dict[TopicPartition, Any] = {}
        self.stopped: list[TopicPartition] = []
        """Replicas that a StopReplica deleted."""
        self.stale: list[TopicPartition] = []
        """Replicas that a FULL left out."""

    async def _handle(self, context: Any, request: Any, more: Any) -> Any:
        response = await super()._handle(context, request, more)
        if isinstance(request, messages.LeaderAndIsrRequest):
            self._take(request)
        if isinstance(request, messages.StopReplicaRequest):
            self._stop(request, response)
        self.more.set()
        return response

    def _take(self, request: messages.LeaderAndIsrRequest) -> None:
        if request.type == LeaderAndIsrType.FULL:
            named = {
                (topic.topic_name, state.partition_index): Incarnation(topic.topic_id)
                for topic in request.topic_states
                for state in topic.partition_states
            }
            local = {tuple(where): kept.incarnation for where, kept in self.replicas.items()}
            for key in stale_in_full(local, named):  # type: ignore[arg-type]
                self.stale.append(TopicPartition(*key))
                self._forget(TopicPartition(*key))
        for topic in request.topic_states:
            for state in topic.partition_states:
                where = TopicPartition(topic.topic_name, state.partition_index)
                self._apply(where, topic.topic_id, state, LeaderAndIsrType(request.type))

    def _apply(
        self, where: TopicPartition, topic_id: UUID, state: Any, kind: LeaderAndIsrType
    ) -> None:
        command = LeaderAndIsrCommand(
            state.leader, state.leader_epoch, state.isr_version, topic_id, kind=kind
        )
        decided = decide_leader_and_isr(self.replicas.get(where), command)
        assert isinstance(decided, Apply), decided
        if decided.action is not Action.IGNORE:
            self.replicas[where] = LocalReplica(
                topic_id, leader_epoch=state.leader_epoch, isr_version=state.isr_version
            )
            self.states[where] = state

    def _stop(self, request: messages.StopReplicaRequest, response: Any) -> None:
        errors = iter(response.partition_errors)
        for topic in request.topic_states:
            for state in topic.partition_states:
                where = TopicPartition(topic.topic_name, state.partition_index)
                command = StopReplicaCommand(
                    state.leader_epoch, state.delete_partition, True, topic.topic_id
                )
                decided = decide_stop_replica(self.replicas.get(where), command)
                assert isinstance(decided, StopAction), decided
                assert next(errors).error_code == ErrorCode.NONE
                if decided is StopAction.DELETE:
                    self.stopped.append(where)
                    self._forget(where)

    def _forget(self, where: TopicPartition) -> None:
        self.replicas.pop(where, None)
        self.states.pop(where, None)

    def leads(self, where: TopicPartition) -> bool:
        """Return whether the last command that this broker applied made it the leader."""
        return where in self.states and self.states[where].leader == self.node_id

    def hold(self) -> None:
        """Have the next registration report all replicas."""
        entry = messages.BrokerRegistrationRequest
        topics: dict[str, Any] = {}
        for where, kept in self.replicas.items():
            topic = topics.setdefault(
                where.topic, entry.InventoryTopic(where.topic, kept.topic_id, [])
            )
            end = entry.InventoryPartition(where.partition, -1, kept.leader_epoch, 10)
            topic.partitions.append(end)
        self.inventory = list(topics.values())

    async def propose(
        self, where: TopicPartition, isr: Sequence[int], epochs: Sequence[int]
    ) -> ErrorCode:
        """Send AlterIsr as the leader of the state that this broker knows."""
        state, kept = self.states[where], self.replicas[where]
        request = messages.AlterIsrRequest
        partition = request.PartitionData(
            where.partition,
            state.leader_epoch,
            list(isr),
            state.isr_version,
            broker_epochs=list(epochs),
        )
        topic = request.TopicData(where.topic, [partition], topic_id=kept.topic_id)
        assert self.session is not None
        answer = await self.session.send(request(self.node_id, self.epoch, [topic]), 0)
        if answer.error_code:
            return ErrorCode(answer.error_code)
        found = answer.topics[0].partitions[0]
        if found.error_code == ErrorCode.NONE and found.isr_version > state.isr_version:
            state.isr, state.isr_version = found.isr, found.isr_version
        return ErrorCode(found.error_code)
