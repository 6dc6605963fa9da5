"""OffsetFetch v1-10: a group's committed offsets.

- Offset -1 without an error if there is none, or only one of a deleted topic of the same name.
- v2+: null topics means all offsets of the group, without those of removed partitions of a resized
  topic: Kafka's tools ask until their time-out for the ends of all that the response has.
- An error of the group is in every partition (v1), at the top level (v2-7), or in each requested
  group (v8+, KIP-709).
- v5+: leader epochs (KIP-320).
- v7+ with ``require_stable``: UNSTABLE_OFFSET_COMMIT for a partition that has an offset of an open
  transaction, also of one that the log has not committed (KIP-447). Without it, what is committed.
- v9+, tag 10000 ``include_expiry``: when each offset expires (time of day), -1 while members keep
  it.
- v10: topics by id (KIP-848); UNKNOWN_TOPIC_ID for each partition of an id without a topic here.
- v9+: member id and epoch are of the newer group protocol; a classic group ignores them.
- A partition that was born after the group's first sight of its topic has its birth offset until
  the group commits there, or its log start (KIP-253, ``groups.births``). For the log start the
  leader is asked, and the controller whether a partition exists that this broker does not know;
  without their responses the group gets COORDINATOR_LOAD_IN_PROGRESS. It gets that as well when the
  leader of a retired partition has another one of that number, newer than this broker's metadata.
- Plain requests have a fast path: ``coordinator.committed_fast_path``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidelog.broker.coordinator import committed_fast_path
from tidelog.groups import births, retention
from tidelog.groups.records import NO_LEADER_EPOCH, CommittedOffset
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.model.work import Work
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages
from tidelog.protocol.primitives import NO_UUID
from tidelog.protocol.refusals import refused_in_steps
from tidelog.runtime import pace

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.groups.group import Group
    from tidelog.groups.table import GroupTable

Found = Sequence[tuple[int, CommittedOffset | None]]

BATCHED_SINCE, BY_ID_SINCE = 8, 10
TOP_ERROR_SINCE = 2
NO_OFFSET = -1

TOPIC_BYTES, PARTITION_BYTES = 150, 100
"""Memory of a topic and of a partition in a response under construction, without metadata."""

_Response = messages.OffsetFetchResponse
_Topic = messages.OffsetFetchResponse.OffsetFetchResponseTopic
_Partition = messages.OffsetFetchResponse.OffsetFetchResponsePartition
_Group = messages.OffsetFetchResponse.OffsetFetchResponseGroup
_GroupTopic = messages.OffsetFetchResponse.OffsetFetchResponseTopics
_GroupPartition = messages.OffsetFetchResponse.OffsetFetchResponsePartitions


@dataclass(slots=True)
class _Open:
    """What the response for one group does not know yet."""

    group_id: str
    is_named: bool
    """Whether the request names the partitions: all offsets of a group may be of removed ones."""
    begun: dict[TopicPartition, Any] = field(default_factory=dict)
    """Partitions of the response that have their birth offset: the log may start above it."""
    unknown: set[TopicPartition] = field(default_factory=set)
    """Partitions that are not known here."""
    retired: set[TopicPartition] = field(default_factory=set)
    """Partitions that are retired here: there may be others of their numbers by now."""

    def judge(self, broker: Broker, table: GroupTable, name: str, offsets: Found) -> Found:
        """Return the offsets with birth offsets in them; ``built`` must follow."""
        topic = broker.metadata.topic(name)
        if topic is None or topic.undeleted_partition_count < 0 or not offsets:
            return offsets
        listed = topic.partitions
        if self.is_named and (unknown := [index for index, _ in offsets if index not in listed]):
            self.unknown.update(TopicPartition(name, index) for index in unknown if index >= 0)
        if self.is_named and topic.undeleted_partition_count < len(listed):
            self.retired.update(
                TopicPartition(name, index)
                for index, offset in offsets
                if offset is not None and index in listed and listed[index].retirement_epoch >= 0
            )
        if not self.is_named and topic.resize_epoch > 0:
            # A group that has no others still is one of the topic: its retired partitions wait.
            offsets = [pair for pair in offsets if pair[0] in listed] or offsets
        sight = births.sight_of(table.get(self.group_id), name, topic.topic_id)
        greatest = len(listed) - 1  # of those that are known
        if sight is None or not births.may_have_births(sight, topic.resize_epoch, greatest):
            return offsets
        judged: list[tuple[int, CommittedOffset | None]] = []
        for index, offset in offsets:
            born = listed.get(index)
            if born is not None and births.begins_at_birth(
                sight, index, born.birth_epoch, born.birth_offset, offset
            ):
                self.begun[TopicPartition(name, index)] = None
                judged.append((index, CommittedOffset(born.birth_offset)))
            else:
                judged.append((index, offset))
        return judged

    def set_unstable(self, broker: Broker, table: GroupTable, name: str, parts: list[Any]) -> None:
        """Refuse the partitions of the response that have offsets of open transactions."""
        asked = (part.partition_index for part in parts)
        unstable = table.unstable(self.group_id, name, broker.metadata.id_of, asked)
        if not unstable:
            return
        for row, part in enumerate(parts):
            index = part.partition_index
            if index in unstable:
                self.begun.pop(TopicPartition(name, index), None)
                error = ErrorCode.UNSTABLE_OFFSET_COMMIT
                parts[row] = type(part)(index, *_fields(None), error)

    def built(self, name: str, parts: list[Any]) -> None:
        """Take the partitions of the response that ``judge`` has begun at their birth."""
        if self.begun:
            for part in parts:
                tp = TopicPartition(name, part.partition_index)
                if tp in self.begun:
                    self.begun[tp] = part

    @property
    def is_closed(self) -> bool:
        """Whether nothing has to be asked."""
        return not (self.begun or self.unknown or self.retired)

    async def close(self, broker: Broker) -> ErrorCode:
        """Ask, and fill in the log starts; the error of the group is NONE, or retriable."""
        # What begins at its birth is asked for anyway, in the same leader epoch.
        if await broker.first_offsets.replaced(self.retired.difference(self.begun)):
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        starts, exists = await broker.first_offsets.ask(self.begun, self.unknown)
        table = broker.coordinator.table_of(self.group_id)
        if isinstance(table, ErrorCode):
            return table
        for tp, part in self.begun.items():
            if tp not in starts:
                return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            part.committed_offset = max(part.committed_offset, starts[tp])
        if any(exists.get(tp, True) for tp in self.unknown):
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ErrorCode.NONE


def handle(broker: Broker, request: messages.OffsetFetchRequest, context: RequestContext) -> Any:
    """Return offsets from memory, which has only committed ones.

    If a group is named several times, its last entry counts.
    """
    if context.version >= BATCHED_SINCE:
        return _groups(broker, request, context.version >= BY_ID_SINCE)
    return _one_group(broker, request, context)


def _groups(broker: Broker, request: messages.OffsetFetchRequest, by_id: bool) -> Work[Any]:
    groups = []
    undecided: list[tuple[_Open, Any]] = []
    for group in {one.group_id: one for one in request.groups}.values():
        table = broker.coordinator.table_of(group.group_id)
        if isinstance(table, ErrorCode):
            groups.append(_Group(group.group_id, [], table))
            yield TOPIC_BYTES
            continue
        topics: list[Any] = []
        groups.append(_Group(group.group_id, topics))
        yield TOPIC_BYTES
        rest = _Open(group.group_id, group.topics is not None)
        wanted = group.topics
        if by_id and wanted is not None:
            wanted = yield from _with_names(broker, wanted, topics)
        for name, committed in _found(broker, table, group.group_id, wanted):
            topic_id = broker.metadata.id_of(name)
            if by_id and topic_id == NO_UUID:
                continue  # deleted, or deleted meanwhile
            offsets = rest.judge(broker, table, name, committed)
            parts = [_GroupPartition(index, *_fields(offset)) for index, offset in offsets]
            if request.include_expiry:
                _add_expiry(table.get(group.group_id), name, parts, committed)
            if request.require_stable:
                rest.set_unstable(broker, table, name, parts)
            rest.built(name, parts)
            if topics and topics[-1].name == name:
                topics[-1].partitions += parts
            else:
                topics.append(_GroupTopic(name, topic_id, parts))
            yield _size(offsets)
        if not rest.is_closed:
            undecided.append((rest, groups[-1]))
    response = _Response(groups=groups)
    return _close_groups(broker, undecided, response) if undecided else response


def _with_names(broker: Broker, asked: list[Any], topics: list[Any]) -> Work[list[Any]]:
    """Set the names of topics that a request names by id, and return those that have one.

    The others are added to the topics of the response. In steps: there may be very many partitions.
    """
    named = []
    for topic in asked:
        topic.name = broker.metadata.names.get(topic.topic_id)
        if topic.name:
            named.append(topic)
            continue
        parts: list[Any] = []
        topics.append(_GroupTopic("", topic.topic_id, parts))
        yield TOPIC_BYTES
        for index in dict.fromkeys(topic.partition_indexes):
            parts.append(_GroupPartition(index, *_fields(None), ErrorCode.UNKNOWN_TOPIC_ID))
            yield PARTITION_BYTES
    return named


async def _close_groups(broker: Broker, undecided: list[tuple[_Open, Any]], response: Any) -> Any:
    for rest, group in undecided:
        error = await rest.close(broker)
        if error is not ErrorCode.NONE:
            group.topics, group.error_code = [], error
    return response


def _one_group(
    broker: Broker, request: messages.OffsetFetchRequest, context: RequestContext
) -> Work[Any]:
    table = broker.coordinator.table_of(request.group_id)
    if isinstance(table, ErrorCode):
        return (yield from refused_in_steps(ApiKey.OFFSET_FETCH, context.version, request, table))
    topics: list[Any] = []
    rest = _Open(request.group_id, request.topics is not None)
    for name, committed in _found(broker, table, request.group_id, request.topics):
        offsets = rest.judge(broker, table, name, committed)
        parts = [_Partition(index, *_fields(offset)) for index, offset in offsets]
        if request.require_stable:
            rest.set_unstable(broker, table, name, parts)
        rest.built(name, parts)
        if topics and topics[-1].name == name:
            topics[-1].partitions += parts
        else:
            topics.append(_Topic(name, parts))
        yield _size(offsets)
    response = _Response(topics=topics)
    if rest.is_closed:
        return response
    return _close_one(broker, rest, request, response, context.version)


async def _close_one(
    broker: Broker,
    rest: _Open,
    request: messages.OffsetFetchRequest,
    response: Any,
    version: int,
) -> Any:
    error = await rest.close(broker)
    if error is not ErrorCode.NONE:
        return refused_in_steps(ApiKey.OFFSET_FETCH, version, request, error)
    return response


def _found(
    broker: Broker, table: GroupTable, group_id: str, topics: list[Any] | None
) -> Iterator[tuple[str, Found]]:
    """Yield committed offsets, some at a time, each partition once however often named."""
    topic_id_of = broker.metadata.id_of
    if topics is None:
        for name, partitions in table.offsets(group_id, None, topic_id_of):
            for part in pace.parts(partitions):
                yield name, part
        return
    wanted: dict[str, dict[int, None]] = {}
    for topic in topics:
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    for name, asked in wanted.items():
        for indexes in pace.parts(list(asked)) or ([],):
            yield from table.offsets(group_id, [(name, indexes)], topic_id_of)


def _size(partitions: Found) -> int:
    kept = sum(len(offset.metadata) for _, offset in partitions if offset is not None)
    return TOPIC_BYTES + PARTITION_BYTES * len(partitions) + kept


def _fields(offset: CommittedOffset | None) -> tuple[int, int, str]:
    if offset is None:
        return NO_OFFSET, NO_LEADER_EPOCH, ""
    return offset.offset, offset.leader_epoch, offset.metadata


def _add_expiry(group: Group | None, name: str, parts: list[Any], committed: Found) -> None:
    """Say when each offset of a group expires, as far as it has committed it."""
    offsets = dict(committed)
    for part in parts:
        offset = offsets.get(part.partition_index)
        if group is not None and offset is not None:
            part.expires_ms = retention.expiry_of(group, name, offset)


HANDLER = Handler(ApiKey.OFFSET_FETCH, Scope.CLIENT, handle, direct=committed_fast_path.answer)
