"""AlterIsr v0 (AlterPartition v0): a leader changes the ISR of its partitions.

- Compare-and-set on leader epoch and ISR version; members by broker epoch (tag 10000), the topic by
  id (topic tag 10003), the data-loss handling as done (tag 10001, KIP-704).
- The response has the current state, also with INVALID_UPDATE_VERSION: so a leader that missed a
  response catches up.
- FENCED_LEADER_EPOCH, INELIGIBLE_REPLICA, INCONSISTENT_TOPIC_ID per partition; STALE_BROKER_EPOCH
  for all, also on another connection than that of the broker's session.
- A request with many partitions is decided in slices (docs/decisions/0036): each partition is
  compared and set by itself, as in two requests. If the session ends between two slices, the first
  ones are done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from tidelog.controller.controller import Controller
from tidelog.controller.decisions.cluster import NO_LEADER, ClusterState
from tidelog.controller.decisions.decision import Decision
from tidelog.controller.decisions.isr import Outcome, Proposal, alter_isr, joins_of
from tidelog.controller.decisions.losses import topics_with_room
from tidelog.controller.decisions.settlement import elect_put_off
from tidelog.controller.serving import served
from tidelog.controller.slices import perform_in_slices
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.model.work import Work
from tidelog.network.router import RequestContext, Scope
from tidelog.protocol import messages

Asked = tuple[messages.AlterIsrRequest.TopicData, messages.AlterIsrRequest.PartitionData]
Decided = tuple[list[Outcome], set[str]]

COST = 4
"""The cost of one partition in the writes of ``slices``: 20 us from its check to its application. A
turn of the loop has 125 of them, as many as one request of a broker, and takes less than 5 ms."""


async def handle(
    controller: Controller, request: messages.AlterIsrRequest, context: RequestContext
) -> Work[messages.AlterIsrResponse] | messages.AlterIsrResponse:
    def decide(
        cluster: ClusterState, part: Sequence[Sequence[Asked]]
    ) -> Decision[list[Decided | None]]:
        node = cluster.brokers.get(request.broker_id)
        is_session = controller.session_watch.is_session_of(request.broker_id, context.connection)
        if node is None or node.broker_epoch != request.broker_epoch or not is_session:
            return Decision([None])
        knows = controller.channels.reached(request.broker_id) >= cluster.configs_changed_at
        proposals = [_proposal(*asked) for element in part for asked in element]
        decision = alter_isr(cluster, request.broker_id, proposals, knows_configs=knows)
        answer = decision.answer, topics_with_room(cluster, decision.writes)
        return Decision([answer], decision.writes, decision.splits)

    elements = [
        element for topic in request.topics for element in _elements(controller.cluster, topic)
    ]
    decided, _ = await perform_in_slices(controller, elements, _cost, decide)
    outcomes: list[Outcome] = []
    topics_to_elect: set[str] = set()
    for outcome in decided:
        if outcome is None:
            return messages.AlterIsrResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
        outcomes += outcome[0]
        topics_to_elect |= outcome[1]
    for name in sorted(topics_to_elect):
        # One by one: other tasks run between the rounds of large topics.
        await controller.perform(partial(elect_put_off, topics={name}))
    return _response(request, iter(outcomes))


def _elements(
    cluster: ClusterState, topic: messages.AlterIsrRequest.TopicData
) -> Iterator[Sequence[Asked]]:
    """Yield the partitions of each decision: one, or all of a topic with handlings or joins.

    A decision about a finished data-loss handling writes the topic's record, which may be as large
    as a commit, and targets that join write its node: so such a topic has one decision.
    """
    if any(
        partition.unclean_handled
        or joins_of(
            cluster, TopicPartition(topic.topic_name, partition.partition_index), partition.new_isr
        )
        for partition in topic.partitions
    ):
        yield [(topic, partition) for partition in topic.partitions]
        return
    for partition in topic.partitions:
        yield ((topic, partition),)


def _cost(element: Sequence[Asked]) -> int:
    return COST * len(element)


def _proposal(
    topic: messages.AlterIsrRequest.TopicData, partition: messages.AlterIsrRequest.PartitionData
) -> Proposal:
    return Proposal(
        TopicPartition(topic.topic_name, partition.partition_index),
        topic.topic_id,
        partition.leader_epoch,
        tuple(partition.new_isr),
        partition.isr_version,
        tuple(partition.broker_epochs),
        partition.unclean_handled,
    )


def _response(
    request: messages.AlterIsrRequest, outcomes: Iterator[Outcome]
) -> Work[messages.AlterIsrResponse]:
    """Build the response in the order of the request; a large one in steps.

    A topic that is named twice is in it twice.
    """
    response = messages.AlterIsrResponse
    topics = []
    for asked in request.topics:
        topics.append(response.TopicData(topic_name=asked.topic_name))
        for place in asked.partitions:
            topics[-1].partitions.append(_answered(place.partition_index, next(outcomes)))
            yield None
    return response(topics=topics)


def _answered(index: int, outcome: Outcome) -> messages.AlterIsrResponse.PartitionData:
    state = outcome.state
    partition = messages.AlterIsrResponse.PartitionData(
        partition_index=index,
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
    return partition


# Pipelined: the controller serves later heartbeats while this waits for its turn.
HANDLER = served(ApiKey.ALTER_ISR, Scope.BROKER, handle, pipelined=True)
