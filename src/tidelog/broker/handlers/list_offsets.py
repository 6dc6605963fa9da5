"""ListOffsets v1-11: offsets by timestamp, and the special timestamps.

- -1: the end that the client may read (the high watermark; for a follower the log end offset).
- v2+: with isolation level read_committed the last stable offset takes the place of the watermark,
  for -1, -3 and by timestamp (KIP-98).
- v6+, with the tags of counts (KIP-253): the table of ``replication.resize_rules``; for a consumer
  of an older resize epoch the first newer fence is the end.
- -2: the log start offset.
- -3 (v7): the record with the largest timestamp (KIP-734).
- -4 (v8): the start of the local log (KIP-405), which is the log start offset.
- -5 (v9): the end of tiered storage (KIP-1005); -6 (v11): what is to be tiered next (KIP-1023).
  There is none: offset -1. The time-out of v10 is for tiered storage alone (KIP-1075).
- UNSUPPORTED_VERSION for other negative ones, and for -4, -5 and -6 in older versions.
- By timestamp: the first committed record that is not older; offset -1 if there is none. The search
  runs in pieces between other requests, one partition after another. A request may decompress only
  so much (``storage.log.time_lookup``); beyond that the offset may be a little too low.
- INVALID_REQUEST for the second entry of a partition, as in Kafka.
- v4+: the leader epoch is checked and returned (KIP-320).
- A new leader that does not yet know the high watermark returns OFFSET_NOT_AVAILABLE (v5+, in older
  versions LEADER_NOT_AVAILABLE): the end never decreases (KIP-207), at both isolation levels. Where
  the watermark is that of the former leader, or above it, the last stable offset is, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.broker.partitions.read_limit import limit_at
from tidelog.broker.partitions.resize_checks import named_by, why_not_read
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.work import Work
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages
from tidelog.protocol.refusals import refused_in_steps
from tidelog.records.batch import Rejected
from tidelog.replication.resize_rules import NOT_NAMED, Named
from tidelog.runtime import pace
from tidelog.storage.log.time_lookup import Allowance, TimeFound

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.partitions.partition import HostedPartition

LATEST, EARLIEST, GREATEST_TIMESTAMP, EARLIEST_LOCAL = -1, -2, -3, -4
LATEST_TIERED, EARLIEST_PENDING_UPLOAD = TIERED = -5, -6
FIRST_VERSION_OF = {EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
"""Special timestamps that older versions refuse. Every version accepts -3, for compatibility."""
NEVER = 1 << 15

AT_START = (EARLIEST, EARLIEST_LOCAL, *TIERED)
"""Special timestamps that do not depend on the high watermark."""

UNKNOWN_OFFSET = -1
FIRST_VERSION_WITH_NOT_AVAILABLE = 5


class _Searched(NamedTuple):
    partition: HostedPartition
    asked: messages.ListOffsetsRequest.ListOffsetsPartition
    named: Named
    isolation_level: int
    answer: Any
    """Its part of the response."""

    @property
    def limit(self) -> int:
        """The offset below which the client may read now."""
        return limit_at(self.partition, self.named, self.isolation_level)


_Response = messages.ListOffsetsResponse
_Topic = messages.ListOffsetsResponse.ListOffsetsTopicResponse
_Partition = messages.ListOffsetsResponse.ListOffsetsPartitionResponse


def handle(broker: Broker, request: messages.ListOffsetsRequest, context: RequestContext) -> Any:
    """Look up each partition: at once, or by timestamp in pieces."""
    follower = request.replica_id >= 0
    if follower and not context.may_name_replica(request.replica_id, ApiKey.LIST_OFFSETS):
        return refused_in_steps(
            ApiKey.LIST_OFFSETS, context.version, request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        )
    uncertain = (
        ErrorCode.OFFSET_NOT_AVAILABLE
        if context.version >= FIRST_VERSION_WITH_NOT_AVAILABLE
        else ErrorCode.LEADER_NOT_AVAILABLE
    )
    searched: list[_Searched] = []
    topics = []
    seen: set[tuple[str, int]] = set()
    for topic in request.topics:
        answers: list[Any] = []
        topics.append(_Topic(topic.name, answers))
        for asked in topic.partitions:
            index = asked.partition_index
            if (topic.name, index) in seen:
                answers.append(_Partition(index, ErrorCode.INVALID_REQUEST))
                continue
            seen.add((topic.name, index))
            named = NOT_NAMED
            if not follower:
                count, epoch = topic.undeleted_partition_count, topic.resize_epoch
                named = named_by(count, epoch, asked.partition_epoch)
            partition = _partition(broker, topic.name, asked, context.version, follower, uncertain)
            if not isinstance(partition, ErrorCode):
                partition = why_not_read(partition, named, broker.reader.shown) or partition
            if isinstance(partition, ErrorCode):
                answers.append(_Partition(index, partition))
                continue
            one = _Searched(partition, asked, named, request.isolation_level, _Partition(index))
            if asked.timestamp == LATEST or asked.timestamp in AT_START:
                answers.append(_look_up(one, follower))
            else:
                answers.append(one.answer)
                searched.append(one)
    response = _Response(topics=topics)
    if not searched:
        return response
    if len(searched) > 1 or not broker.background.has_place:
        return _search_all(broker, response, searched)
    return _search_one(broker, response, searched[0])


def _partition(
    broker: Broker,
    topic: str,
    asked: messages.ListOffsetsRequest.ListOffsetsPartition,
    version: int,
    follower: bool,
    uncertain: ErrorCode,
) -> HostedPartition | ErrorCode:
    index = asked.partition_index
    partition = broker.partitions.get(topic, index)
    if partition is None:
        return broker.leader_hints.why_not_here(topic, index)
    error = partition.why_not_serving(asked.current_leader_epoch)
    if error is not ErrorCode.NONE:
        return error
    timestamp = asked.timestamp
    if timestamp < GREATEST_TIMESTAMP and version < FIRST_VERSION_OF.get(timestamp, NEVER):
        return ErrorCode.UNSUPPORTED_VERSION
    if not (follower or timestamp in AT_START or partition.watermark_is_certain):
        return uncertain
    return partition


def _look_up(one: _Searched, follower: bool) -> Any:
    partition, index, timestamp = one.partition, one.asked.partition_index, one.asked.timestamp
    log = partition.log
    if timestamp == LATEST:
        offset = log.end_offset if follower else one.limit
        return _Partition(index, 0, -1, offset, partition.leader_epoch)
    if timestamp in TIERED:
        return _Partition(index, 0, -1, UNKNOWN_OFFSET, -1)
    epoch = log.epochs.epoch_at(log.start_offset)
    return _Partition(index, 0, -1, log.start_offset, epoch)


def _search(one: _Searched, allowance: Allowance) -> Work[TimeFound]:
    log, timestamp = one.partition.log, one.asked.timestamp
    if timestamp == GREATEST_TIMESTAMP:
        return log.search_newest(one.limit, allowance)
    return log.search_time(timestamp, allowance)


def _search_one(broker: Broker, response: Any, one: _Searched) -> Any:
    """Search one partition: its first piece now, which is nearly always the only one. A task for it
    would cost as much as the search."""
    log = one.partition.log
    pieces = _search(one, Allowance())
    try:
        said = next(pieces)
    except StopIteration as end:
        _fill_in(one, end.value)
        return response

    async def rest() -> Any:
        offsets = await broker.background.go_on(pieces, said)
        if log is not one.partition.log:  # it has moved to another directory meanwhile
            return await _search_all(broker, response, [one])
        _fill_in(one, offsets)
        return response

    return rest()


async def _search_all(broker: Broker, response: Any, searched: list[_Searched]) -> Any:
    allowance, turn = Allowance(), pace.Turn(broker.clock)
    for one in searched:
        log = None
        while log is not one.partition.log:  # it may move to another directory meanwhile
            log = one.partition.log
            offsets = await broker.background.run(_search(one, allowance))
        _fill_in(one, offsets)
        await turn.pause()  # a search of one piece has not yielded
    return response


def _fill_in(one: _Searched, offset: TimeFound) -> None:
    partition, answer = one.partition, one.answer
    error = partition.why_not_serving(one.asked.current_leader_epoch)
    if error is not ErrorCode.NONE:
        answer.error_code = int(error)  # it moved away meanwhile
    elif isinstance(offset, Rejected):
        partition.check_disk()
        answer.error_code = int(offset.error)
    elif offset is None or offset.offset >= one.limit:
        answer.offset = UNKNOWN_OFFSET
    else:
        answer.timestamp, answer.offset = offset.timestamp, offset.offset
        answer.leader_epoch = offset.leader_epoch


HANDLER = Handler(ApiKey.LIST_OFFSETS, Scope.CLIENT, handle, most_elements=20_000)
