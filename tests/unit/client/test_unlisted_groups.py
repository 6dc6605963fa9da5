"""What is said of groups that no broker lists."""

from __future__ import annotations

from uuid import UUID

from tidelog.client.admin.groups import _unlisted
from tidelog.client.metadata import NO_LEADER, ClusterMetadata, Partition, Topic
from tidelog.model.topics import OFFSETS_TOPIC


def of(*leaders: int) -> ClusterMetadata:
    partitions = {
        number: Partition(number, leader, 1, (), (), ()) for number, leader in enumerate(leaders)
    }
    topic = Topic(OFFSETS_TOPIC, UUID(int=1), True, partitions)
    return ClusterMetadata(topics={OFFSETS_TOPIC: topic})


def test_each_reason_is_one_line_with_the_share_of_the_groups() -> None:
    assert _unlisted(ClusterMetadata(), [1]) == []
    assert _unlisted(of(1, 2, 3), []) == []
    # Broker 9 leads nothing by now: others have its groups.
    assert _unlisted(of(1, 2, 2, NO_LEADER), [2, 9]) == [
        "1 of 4 partitions of __consumer_offsets have no leader: their groups are not listed",
        "2 of 4 partitions of __consumer_offsets are led by broker 2, which did not respond:"
        " their groups are not listed",
    ]
