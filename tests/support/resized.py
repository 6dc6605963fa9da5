"""Hosted partitions on one side of a resize, as LeaderAndIsr v6 and fences in the log put them.

Owns the state and the metadata of a test's broker. Not the fences in the log of a real resize.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.support.lone_broker import LoneBroker
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.protocol import messages
from tidelog.records.control_records import ChangeKind
from tidelog.replication.resize_rules import Named
from tidelog.storage.log.fences import FenceEntry, Fences

COUNT, EPOCH, LIFE = 8, 3, 0
"""C and E of the partitions after ``put``, and the partition epoch that tests create."""

OWN, OLDER = Named(COUNT, EPOCH, LIFE), Named(4, EPOCH - 1, LIFE)


def put(hosted: HostedPartition, **changes: Any) -> None:
    """Put a partition into resize epoch ``EPOCH``, without a fence; ``changes``: of its state."""
    hosted.state = replace(
        hosted.state, **{"undeleted_count": COUNT, "resize_epoch": EPOCH, **changes}
    )


def fence(hosted: HostedPartition, offset: int, kind: ChangeKind = ChangeKind.FENCE) -> None:
    """Let the log know its fence (or seal) of ``EPOCH``."""
    hosted.log.fences = Fences((FenceEntry(EPOCH, COUNT, kind, offset, offset),))


def show(
    lone: LoneBroker, epoch: int, topic: str = "t", partitions: int = 1, life: int = LIFE
) -> None:
    """Let the broker's metadata show a resize epoch."""
    update = messages.UpdateMetadataRequest
    states = [
        update.UpdateMetadataPartitionState(
            partition_index=index, leader=1, replicas=[1], partition_epoch=life
        )
        for index in range(partitions)
    ]
    shown = lone.broker.metadata.topic(topic)
    assert shown is not None
    whole = update.UpdateMetadataTopicState(
        topic_name=topic,
        topic_id=shown.topic_id,
        initial_partition_count=1,
        undeleted_partition_count=COUNT,
        resize_epoch=epoch,
        partition_states=states,
    )
    lone.broker.metadata.apply(update(controller_id=1, topic_states=[whole]), complete=False)


def count_in(request: Any, named: Named) -> Any:
    """Return a Produce, Fetch or ListOffsets request with these numbers for all its partitions."""
    topics = request.topic_data if hasattr(request, "topic_data") else request.topics
    for topic in topics:
        topic.undeleted_partition_count, topic.resize_epoch, life = named
        parts = topic.partition_data if hasattr(topic, "partition_data") else topic.partitions
        for part in parts:
            part.partition_epoch = life
    return request
