"""Removal of retired partitions that are empty, and what it leaves: ``former``. Pure.

Owns which retired partitions go, and the one multi-write of their removal (KIP-253). Not when
their leaders are asked: see ``controller.retired``; not the stops that follow: see ``stops``.

A retired partition goes when all of this holds:

| condition | known from |
|---|---|
| its log start is at or after the end of the data before its seal | its leader |
| its last stable offset is the log's end: no transaction is open | its leader |
| nothing comes after that end: its leader has closed it for markers | its leader |
| that leader still leads it, in the same leader epoch | the store |
| every partition above it is gone or goes too: ids stay contiguous | the store |
| its topic has no plan, is not reassigned or deleted; no unclean election of it is unhandled | |
| no producer can have a request for it open any more: see ``open_requests`` | the store |
| ``retired.purge=drained``: each live group, one at least, has committed past it, and no group | |
| that reads the topic without a commit has data left to read | coordinators |

After the first stop no process could tell where the log ended. So ``former`` is written in the same
multi-write that removes the nodes and notes the stops: where the log ended, its last leader epoch,
the end of the data, the partition epoch, and the resize epoch of the topic. A later partition of
this index goes on there (promise 3).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from tidelog.controller.decisions.cluster import ClusterState, HoldingGroup, Retained
from tidelog.controller.decisions.decision import Decision, Put, Remove, Write
from tidelog.controller.decisions.moves import why_damaged
from tidelog.controller.decisions.reassignments import moves_of
from tidelog.controller.decisions.stops import ANY_PARTITION_EPOCH
from tidelog.metadata import layout
from tidelog.metadata.records import FormerPartition, PartitionState, TopicHistory
from tidelog.model.topics import OFFSETS_TOPIC, TopicPartition

UNKNOWN = -1

AT_ONCE = 200
"""The most partitions of one removal: some 60 kB beside the topic's node."""

BIRTH_FENCE = 1
"""The records before the first data of a partition that a growth made: retired ones all are."""

MOST_GROUPS = 20
"""The groups that hold a retired partition, of which names are kept."""

DRAINED = "drained"
"""The value of ``retired.purge`` that has retired data purged once every live group is past it."""


@dataclass(frozen=True, slots=True)
class Held:
    """What the leader of a retired partition says that its log still holds.

    ``data_end`` is the end of the data before the seal, UNKNOWN while no committed seal of its
    retirement epoch is found.
    """

    leader: int
    leader_epoch: int
    log_start: int
    stable_end: int
    log_end: int
    data_end: int = UNKNOWN
    is_closed: bool = False
    """Whether the leader takes nothing more, so that the log ends at ``log_end`` for good."""

    @property
    def has_no_data(self) -> bool:
        """Whether nothing but control records is left."""
        return 0 <= self.data_end <= self.log_start

    @property
    def is_empty(self) -> bool:
        """Whether it may go: no data, and no transaction that is open."""
        return self.has_no_data and self.stable_end == self.log_end


class _End(NamedTuple):
    """Where the log of a removed partition ends, and the data in it."""

    log_end: int
    data_end: int


Answers = Mapping[int, Held]
"""What leaders say of the retired partitions of one topic."""

Commits = Mapping[str, Mapping[int, int]]
"""The committed offsets of one topic's partitions, by group: its live groups. One without any has
members that read the topic, and has not committed yet."""


def topics_with_retired(cluster: ClusterState) -> list[str]:
    """Return the topics that list retired partitions, sorted. O(topics)."""
    return sorted(
        name
        for name, node in cluster.topics.items()
        if node.undeleted_partition_count is not None
        and len(node.partitions) > node.undeleted_partition_count
    )


def retired_from_the_top(cluster: ClusterState, name: str) -> Iterator[int]:
    """Yield the listed partitions that are retired, from the highest one down to the first gap."""
    node = cluster.topics[name]
    least = node.undeleted_partition_count
    for index in sorted(node.partitions, reverse=True):
        stored = cluster.partition_nodes.get(TopicPartition(name, index))
        if stored is None or stored.retirement_epoch < 0 or least is None or index < least:
            return
        yield index


def why_none_goes(cluster: ClusterState, name: str) -> str | None:
    """Return why no partition of a topic may be removed now, or None. O(its partitions)."""
    if not cluster.level.resizes:
        return "the level is below 1.5"
    if cluster.went_back is not None:
        return cluster.went_back
    if name in cluster.marked or name not in cluster.topics:
        return "the topic is being deleted"
    history = cluster.topic_histories.get(name)
    if history is None or layout.topic_history(name) in cluster.damaged:
        return f"{layout.topic_history(name)} cannot be read"
    if history.resize is not None:
        return f"the topic is being resized to {history.resize.to_count} partitions"
    moving = moves_of(cluster, name)
    if moving:
        return f"{len(moving)} of its partitions are being reassigned"
    return None


def undrained(
    cluster: ClusterState, name: str, answers: Answers, commits: Commits | None
) -> set[int]:
    """Return the partitions whose data some live group has not committed past.

    ``commits`` None: a coordinator could not be asked, so all of them. Where no group has
    committed, retention decides (promise 20). A group that reads the topic and has not committed
    holds up what is left to read, and nothing else: some groups never commit. A partition that
    never had data waits for no group: no stock member commits past control records.
    """
    if commits is None:
        return set(answers)
    has_none = not any(commits.values())
    return {
        index
        for index, held in answers.items()
        if not _never_had_data(cluster, name, index, held)
        and (
            held.data_end < 0
            or (has_none and held.log_start < held.data_end)
            or _groups_before(index, held, commits)
        )
    }


def _never_had_data(cluster: ClusterState, name: str, index: int, held: Held) -> bool:
    node = cluster.partition_nodes.get(TopicPartition(name, index))
    first_data = UNKNOWN if node is None else node.birth_offset + BIRTH_FENCE
    return 0 <= held.data_end <= first_data


def _groups_before(index: int, held: Held, commits: Commits) -> list[str]:
    """Return the groups that have not committed past the data of a retired partition."""
    return [
        group
        for group, offsets in commits.items()
        if (offsets and offsets.get(index, UNKNOWN) < held.data_end)
        or (not offsets and held.log_start < held.data_end)
    ]


def retained(
    cluster: ClusterState,
    name: str,
    answers: Answers,
    commits: Commits | None,
    expiries: Mapping[str, int],
    open_until: Mapping[int, int],
) -> dict[int, Retained]:
    """Return what retired partitions hold, and the groups that hold them up, for operators.

    ``expiries``: when all offsets of a group in the topic have expired. ``commits`` is None when
    not all coordinators could be asked, and empty where groups have no say. ``open_until``: those
    that stay in any case for a time (see ``open_requests``).
    """
    held_back = {}
    for index, held in answers.items():
        until_ms = open_until.get(index, 0)
        count = max(0, held.data_end - held.log_start) if held.data_end >= 0 else 0
        if _never_had_data(cluster, name, index, held):
            held_back[index] = Retained(0, until_ms=until_ms)
            continue
        if commits is None:
            held_back[index] = Retained(count, group_count=UNKNOWN, until_ms=until_ms)
            continue
        groups = sorted(_groups_before(index, held, commits))
        named = tuple(
            HoldingGroup(x, commits[x].get(index, UNKNOWN), expiries.get(x, UNKNOWN))
            for x in groups[:MOST_GROUPS]
        )
        is_read = any(offsets and group not in groups for group, offsets in commits.items())
        held_back[index] = Retained(count, named, len(groups), is_read, until_ms)
    return held_back


def is_drained_first(cluster: ClusterState, name: str) -> bool:
    """Return whether the data of a topic's retired partitions is purged once groups are past it.

    Never on a compacted topic: its retired partitions have the latest values of their keys.
    """
    configs = cluster.resolve(name).configs
    return configs.retired_purge == DRAINED and not configs.compacted


def to_purge(
    cluster: ClusterState,
    name: str,
    answers: Answers,
    waited: Collection[int],
    open_until: Mapping[int, int],
) -> Answers:
    """Return the retired partitions whose data is to be purged now.

    ``waited``: those that are not drained. ``open_until``: those for which a producer may have a
    request open.
    """
    if why_none_goes(cluster, name) is not None or not is_drained_first(cluster, name):
        return {}
    return {
        index: held
        for index in retired_from_the_top(cluster, name)
        if (held := answers.get(index)) is not None
        and held.data_end >= 0
        and not held.has_no_data
        and index not in waited
        and index not in open_until
    }


def to_close(
    cluster: ClusterState,
    name: str,
    answers: Answers,
    waited: Collection[int],
    open_until: Mapping[int, int],
) -> list[int]:
    """Return the highest partitions of a topic that may go, at most ``AT_ONCE``, the highest first:
    their leaders close them first.

    ``waited``: those whose data a live group has not committed past, which stay where
    ``retired.purge`` is ``drained``. ``open_until``: those for which a producer may have a request
    open, which stay in any case.
    """
    if why_none_goes(cluster, name) is not None:
        return []
    waited = waited if is_drained_first(cluster, name) else ()
    gone: list[int] = []
    for index in retired_from_the_top(cluster, name):
        held = answers.get(index)
        if (
            held is None
            or index in waited
            or index in open_until
            or not _may_go(cluster, TopicPartition(name, index), held)
        ):
            break
        gone.append(index)
        if len(gone) == AT_ONCE:
            break
    return gone


def remove_retired(
    cluster: ClusterState,
    name: str,
    answers: Answers,
    waited: Collection[int],
    open_until: Mapping[int, int],
) -> Decision[list[int]]:
    """Remove what ``to_close`` returns, of what its leaders have closed. The answer has the removed
    ones, the highest first."""
    closed = {index: held for index, held in answers.items() if held.is_closed}
    gone = to_close(cluster, name, closed, waited, open_until)
    if not gone:
        return Decision(gone)
    ends = {x: _End(answers[x].log_end, answers[x].data_end) for x in gone}
    return Decision(gone, tuple(_written(cluster, name, ends)))


def _may_go(cluster: ClusterState, tp: TopicPartition, held: Held) -> bool:
    if why_damaged(cluster, tp) is not None or layout.partition(*tp) in cluster.damaged:
        return False
    state = cluster.states[tp]
    if tp.partition in cluster.topic_histories[tp.topic].unclean or state.is_unclean_leader:
        return False
    # A deposed leader does not know what the present one holds (promise 20).
    return held.is_empty and (held.leader, held.leader_epoch) == (state.leader, state.leader_epoch)


def unpublished_removed(
    cluster: ClusterState, name: str, gone: Collection[int]
) -> tuple[TopicHistory, list[Write]]:
    """Return the history of a topic and the other writes that remove children of a growth.

    No client saw them: a leader takes no client's record before its own metadata show the
    partition, so its log holds its birth fence at most, and nothing is asked from it. The next
    incarnation begins after that fence, and what counted as lost data before counts still.
    """
    former = cluster.topic_histories[name].former
    ends = {}
    for index in gone:
        born = cluster.partition_nodes[TopicPartition(name, index)].birth_offset
        removed = former.get(index)
        ends[index] = _End(born + BIRTH_FENCE, born if removed is None else removed.data_end)
    node, record, *removes = _written(cluster, name, ends)
    assert isinstance(record, Put)
    assert isinstance(record.record, TopicHistory)
    return record.record, [node, *removes]


def _written(cluster: ClusterState, name: str, gone: Mapping[int, _End]) -> Iterator[Write]:
    node, history = cluster.topics[name], cluster.topic_histories[name]
    left = {index: x for index, x in node.partitions.items() if index not in gone}
    yield Put(layout.topic(name), msgspec.structs.replace(node, partitions=left))
    yield Put(layout.topic_history(name), _with_former(cluster, name, history, gone))
    for index in gone:
        yield Remove(layout.state(name, index))
        yield Remove(layout.partition(name, index))


def _with_former(
    cluster: ClusterState, name: str, history: TopicHistory, gone: Mapping[int, _End]
) -> TopicHistory:
    former, stops = dict(history.former), dict(history.pending_stops)
    epochs = dict(history.stop_partition_epochs)
    original = {x: y for x, y in history.original_replicas.items() if x not in gone}
    for index, (log_end, data_end) in gone.items():
        tp = TopicPartition(name, index)
        state, partition_epoch = cluster.states[tp], _epoch_of(cluster, tp)
        former[index] = FormerPartition(
            log_end, state.leader_epoch, data_end, partition_epoch, history.resize_epoch
        )
        stops[index], epochs[index] = _owed(cluster, tp, state, history)
    changed: TopicHistory = msgspec.structs.replace(
        history,
        former=former,
        pending_stops=stops,
        stop_partition_epochs=epochs,
        original_replicas=original,
    )
    return changed


def _owed(
    cluster: ClusterState, tp: TopicPartition, state: PartitionState, history: TopicHistory
) -> tuple[dict[int, int], dict[int, int]]:
    """Return the stops that brokers owe for the partition: leader epochs and partition epochs.

    Brokers that owed a stop of this incarnation owe this one; of a former incarnation, that one.
    """
    partition_epoch = _epoch_of(cluster, tp)
    noted = history.pending_stops.get(tp.partition, {})
    stop_epochs = history.stop_partition_epochs.get(tp.partition, {})
    stops, epochs = {}, {}
    for broker in dict.fromkeys((*cluster.hosts(tp), *state.isr, *noted)):
        stops[broker], epochs[broker] = state.leader_epoch, partition_epoch
        is_host = broker in cluster.hosts(tp) or broker in state.isr
        if not is_host and ANY_PARTITION_EPOCH < stop_epochs.get(broker, -1) < partition_epoch:
            stops[broker], epochs[broker] = noted[broker], stop_epochs[broker]
    return stops, epochs


def _epoch_of(cluster: ClusterState, tp: TopicPartition) -> int:
    return cluster.partition_nodes[tp].partition_epoch


def former_partitions(cluster: ClusterState, name: str) -> Mapping[int, FormerPartition]:
    """Return what a topic's removed partitions left; of each index the newest incarnation."""
    history = cluster.topic_histories.get(name)
    return {} if history is None or name not in cluster.topics else history.former


def offsets_leaders(cluster: ClusterState) -> dict[int, tuple[int, int]] | None:
    """Return leader and leader epoch of each partition of ``__consumer_offsets``; all coordinators.

    Empty without that topic: there are no groups. None while a partition has no leader that lives:
    the groups in it cannot be asked.
    """
    node = cluster.topics.get(OFFSETS_TOPIC)
    leaders: dict[int, tuple[int, int]] = {}
    if node is None:
        return None if layout.topic(OFFSETS_TOPIC) in cluster.damaged else leaders
    for index in node.partitions:
        state = cluster.states.get(TopicPartition(OFFSETS_TOPIC, index))
        if state is None or state.leader not in cluster.brokers:
            return None
        leaders[index] = state.leader, state.leader_epoch
    return leaders
