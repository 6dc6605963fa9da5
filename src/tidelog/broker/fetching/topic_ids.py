"""Topic ids in Fetch requests (v13+, KIP-516): their names here, and their partitions.

Owns when an id has a partition here. A name is looked up again whenever the partition of the name
that was known has another id, so that no id is served with the records of another incarnation of
its topic. Not the key of a partition in a session: see ``client_sessions``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidelog.broker.fetching.client_sessions import Wanted
from tidelog.broker.metadata.leader_hints import LeaderHints
from tidelog.broker.metadata.topic_names import TopicNames
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.partitions.partition import HostedPartition

BY_ID_SINCE = 13
"""First version of Fetch with ids instead of names."""

REPLICA_STATE_SINCE = 15
"""First version with the replica in a tag (KIP-903)."""

ByTopic = Mapping[str, Mapping[int, "HostedPartition"]]


def add_names(request: messages.FetchRequest, names: TopicNames) -> None:
    """Set the names of the topics in a request that has ids, "" for those without a name here."""
    for topic in request.topics:
        topic.topic = names.get(topic.topic_id)


def find_by_id(
    wanted: Wanted, by_topic: ByTopic, names: TopicNames, hints: LeaderHints
) -> HostedPartition | ErrorCode:
    """Return the partition here that has the id of ``wanted``, or why there is none."""
    hosted = by_topic.get(wanted.topic)
    partition = None if hosted is None else hosted.get(wanted.index)
    if partition is not None and wanted.is_of(partition):
        return partition
    wanted.topic = names.get(wanted.topic_id)
    if not wanted.topic:
        return ErrorCode.UNKNOWN_TOPIC_ID
    hosted = by_topic.get(wanted.topic)
    partition = None if hosted is None else hosted.get(wanted.index)
    if partition is None:
        return hints.why_not_here(wanted.topic, wanted.index)
    return partition if wanted.is_of(partition) else ErrorCode.UNKNOWN_TOPIC_ID
