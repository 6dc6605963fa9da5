"""LeaderAndIsr v6 in the middle of a resize: partitions of one topic on both sides of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tests.support.controller_commands import INCREMENTAL, A
from tidelog.protocol import messages


@dataclass(frozen=True)
class Side:
    """Some partitions of t, with the count and the resize epoch that they are to have."""

    count: int
    epoch: int
    partitions: Sequence[int] = (0,)
    leader_epoch: int = 0
    sealed: bool = False
    birth: int = 0
    start: int = -1
    leader: int = 1
    isr: Sequence[int] = (1,)
    replicas: Sequence[int] = (1,)
    isr_version: int = 0
    life: int = 3


def resizing(*sides: Side, kind: int = INCREMENTAL, topic_id: UUID = A) -> Any:
    """Return the request: an entry of the topic for each side."""
    request = messages.LeaderAndIsrRequest
    return request(
        controller_id=1,
        controller_epoch=1,
        broker_epoch=7,
        type=kind,
        topic_states=[
            request.LeaderAndIsrTopicState(
                topic_name="t",
                topic_id=topic_id,
                undeleted_partition_count=side.count,
                resize_epoch=side.epoch,
                partition_states=[
                    request.LeaderAndIsrPartitionState(
                        partition_index=index,
                        controller_epoch=1,
                        leader=side.leader,
                        leader_epoch=side.leader_epoch,
                        isr=list(side.isr),
                        isr_version=side.isr_version,
                        replicas=list(side.replicas),
                        partition_epoch=side.life + index,
                        birth_epoch=side.birth,
                        sealed=side.sealed,
                        start_offset=side.start,
                    )
                    for index in side.partitions
                ],
            )
            for side in sides
        ],
    )
