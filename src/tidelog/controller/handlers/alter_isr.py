"""AlterIsr v0 (AlterPartition v0): a leader changes the ISR of its partitions.

- Compare-and-set on leader epoch and ISR version; members by broker epoch (tag 10000), the topic by
  id (topic tag 10003), the data-loss handling as done (tag 10001, KIP-704).
- The answer has the state that holds, also beside INVALID_UPDATE_VERSION: so a leader that missed
  an answer catches up.
- FENCED_LEADER_EPOCH, INELIGIBLE_REPLICA, INCONSISTENT_TOPIC_ID per partition; STALE_BROKER_EPOCH
  for all, also when it comes on another connection than that of the broker's session.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tidelog.controller.decisions.cluster import NO_LEADER, Cluster, Decision
from tidelog.controller.decisions.elections import elect_put_off
from tidelog.controller.decisions.isr import Outcome, Proposal, alter_isr
from tidelog.controller.decisions.losses import topics_with_room
from tidelog.controller.serving import served
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.network.router import RequestContext, Scope
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.controller.process import Controller


async def serve(
    controller: Controller, request: messages.AlterIsrRequest, context: RequestContext
) -> messages.AlterIsrResponse:
    proposals = [
        Proposal(
            TopicPartition(topic.topic_name, partition.partition_index),
            topic.topic_id,
            partition.leader_epoch,
            tuple(partition.new_isr),
            partition.isr_version,
            tuple(partition.broker_epochs),
            partition.unclean_handled,
        )
        for topic in request.topics
        for partition in topic.partitions
    ]

    def decide(cluster: Cluster) -> Decision[tuple[list[Outcome], set[str]] | None]:
        node = cluster.brokers.get(request.broker_id)
        is_session = controller.session_watch.is_session_of(request.broker_id, context.connection)
        if node is None or node.broker_epoch != request.broker_epoch or not is_session:
            return Decision(None)
        outbox = controller.outboxes.get(request.broker_id)
        knows = outbox is not None and outbox.reached >= cluster.configs_changed_at
        decision = alter_isr(cluster, request.broker_id, proposals, knows_configs=knows)
        answer = decision.answer, topics_with_room(cluster, decision.writes)
        return Decision(answer, decision.writes, decision.splits)

    answer, _ = await controller.perform(decide)
    if answer is None:
        return messages.AlterIsrResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    outcomes, topics_to_elect = answer
    for name in sorted(topics_to_elect):
        # One by one: others have their turn between the rounds of large topics.
        await controller.perform(partial(elect_put_off, topics={name}))
    response = messages.AlterIsrResponse
    topics: dict[str, messages.AlterIsrResponse.TopicData] = {}
    for proposal, outcome in zip(proposals, outcomes, strict=True):
        where, state = proposal.where, outcome.state
        topic = topics.setdefault(where.topic, response.TopicData(topic_name=where.topic))
        partition = response.PartitionData(
            partition_index=where.partition,
            error_code=outcome.error,
            leader_id=NO_LEADER,
            leader_epoch=-1,
            isr_version=-1,
        )
        if state is not None:
            partition.leader_id = state.leader
            partition.leader_epoch = state.leader_epoch
            partition.isr = state.isr
            partition.isr_version = outcome.isr_version
        topic.partitions.append(partition)
    return response(topics=list(topics.values()))


def refuse_all(_request: object, error: ErrorCode, _sentence: str) -> messages.AlterIsrResponse:
    """Answer with one error."""
    return messages.AlterIsrResponse(error_code=error)


# Pipelined: the heartbeats behind it are heard while it waits for its turn.
HANDLER = served(ApiKey.ALTER_ISR, range(1), Scope.BROKER, serve, refuse_all, pipelined=True)
