"""What a control channel says of late replicas, which an accepted store does not know.

Owns the additions to LeaderAndIsr. Which replicas are late: see ``decisions.late_replicas``; the
other content: see ``requests``. Pure: messages in, messages out.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import groupby
from uuid import UUID

from tidelog.controller.decisions.cluster import NO_LEADER
from tidelog.controller.decisions.late_replicas import LateReplica
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages


def with_late(
    made: messages.LeaderAndIsrRequest, late: Collection[LateReplica]
) -> messages.LeaderAndIsrRequest:
    """Have a FULL name late replicas as well, so that none of them becomes stale.

    Leader -1 and epoch -1 change nothing. Where the broker should have another topic's replica in
    the place, or another incarnation's, it gets none until the late one is settled.
    """
    made = without_places(made, late)
    request = messages.LeaderAndIsrRequest
    for (name, topic_id), places in groupby(late, lambda x: (x.topic, x.topic_id)):
        states = [
            request.LeaderAndIsrPartitionState(
                partition_index=one.partition,
                leader=NO_LEADER,
                leader_epoch=-1,
                partition_epoch=one.end.partition_epoch,
            )
            for one in places
        ]
        made.topic_states.append(
            request.LeaderAndIsrTopicState(
                topic_name=name, topic_id=topic_id, partition_states=states
            )
        )
    return made


def without_places(
    made: messages.LeaderAndIsrRequest, late: Collection[LateReplica]
) -> messages.LeaderAndIsrRequest:
    """Leave out commands for places in which the broker has late replicas of something else."""
    held = {one.where: one for one in late}
    for topic in made.topic_states if held else ():
        topic.partition_states = [
            state
            for state in topic.partition_states
            if (one := held.get(TopicPartition(topic.topic_name, state.partition_index))) is None
            or (one.topic_id == topic.topic_id and _may_be_same(one, state.partition_epoch))
        ]
    return made


def named_in(full: messages.LeaderAndIsrRequest) -> dict[tuple[UUID, int], int]:
    """Return the partitions that a FULL names, with their partition epochs."""
    return {
        (topic.topic_id, state.partition_index): state.partition_epoch
        for topic in full.topic_states
        for state in topic.partition_states
    }


def _may_be_same(one: LateReplica, partition_epoch: int) -> bool:
    held_epoch = one.end.partition_epoch
    return held_epoch == partition_epoch or -1 in (held_epoch, partition_epoch)
