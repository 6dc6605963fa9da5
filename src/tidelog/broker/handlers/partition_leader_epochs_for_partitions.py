"""PartitionLeaderEpochsForPartitions v0: epochs around births and retirements (KIP-253; 10002).

- For each partition a list of another partition and two leader epochs of that one: of the blocking
  parent, the epoch before this partition was created; of the survivor, the epoch before it took the
  keys of this one. -1 for the one that does not apply; an empty list for a partition that its topic
  was created with and that takes records.
- UNKNOWN_TOPIC_OR_PARTITION for a partition that this broker does not know.
- The document's response cannot carry its map, so the list is ours. For tools: our clients find
  fences by resize epoch, because an election in between makes these epochs ambiguous.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidelog.broker.metadata.cache import Lineage, TopicMetadata
from tidelog.broker.metadata.first_metadata import after_first_metadata
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.work import Work
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

TOPIC_BYTES, PARTITION_BYTES = 150, 200
"""Memory of a topic and of a partition in a response under construction."""

_Response = messages.PartitionLeaderEpochsForPartitionsResponse
_Topic = messages.PartitionLeaderEpochsForPartitionsResponse.Topic
_Partition = messages.PartitionLeaderEpochsForPartitionsResponse.Partition
_Epochs = messages.PartitionLeaderEpochsForPartitionsResponse.LeaderEpochs


def handle(
    broker: Broker,
    request: messages.PartitionLeaderEpochsForPartitionsRequest,
    _context: RequestContext,
) -> Work[Any]:
    """Return the epochs from the metadata cache, in steps."""
    response = _Response()
    for topic in request.topics:
        listed = broker.metadata.topic(topic.topic)
        answer = _Topic(topic.topic)
        response.topics.append(answer)
        yield TOPIC_BYTES
        for index in topic.partitions:
            answer.partitions.append(_partition(listed, index))
            yield PARTITION_BYTES
    return response


def _partition(topic: TopicMetadata | None, index: int) -> Any:
    if topic is None or index not in topic.partitions:
        return _Partition(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    lineage = topic.lineage.get(index)
    return _Partition(index, 0, [] if lineage is None else list(_epochs(lineage)))


def _epochs(line: Lineage) -> Iterator[Any]:
    if line.parent == line.survivor:
        yield _Epochs(
            line.parent, line.leader_epoch_after_creation, line.leader_epoch_before_deletion
        )
        return
    if line.parent >= 0:
        yield _Epochs(line.parent, line.leader_epoch_after_creation)
    if line.survivor >= 0:
        yield _Epochs(line.survivor, -1, line.leader_epoch_before_deletion)


HANDLER = Handler(
    ApiKey.PARTITION_LEADER_EPOCHS_FOR_PARTITIONS,
    Scope.CLIENT,
    after_first_metadata(handle),
    most_elements=20_000,
)
