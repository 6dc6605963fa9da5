"""Records of unclean elections: the debts that they left, and which records were lost (KIP-704).

Owns the debt records in ``/tidelog/topics/T`` and their history: how a debt begins, what reports
add to it, how a finished handling ends it, and what an operator sees. Not the elections: see
``elections``; nothing here changes a state node.

| event | the records of the partition |
|---|---|
| an unclean election | a debt; an earlier one joins the history, unfinished |
| the unclean leader reports where its log ended | the record of its election has it |
| a replica reports what it had to cut | the first unclean election after those epochs has it |
| the handling is finished | the debt joins the history; later reports still add to it |

A range may be reported more than once, by one replica or by several: what was lost is the union.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

from tidelog.controller.decisions.cluster import NO_LEADER, ClusterState
from tidelog.controller.decisions.decision import Decision, Put, Write
from tidelog.metadata import layout
from tidelog.metadata.records import LostRange, TopicHistory, TopicNode, UncleanDebt
from tidelog.model.topics import TopicPartition

KEPT_ELECTIONS = 8
"""Handled unclean elections that a partition keeps; those without a loss are removed first."""

KEPT_WITHOUT_LOSS = 1_000
"""Handled elections without a known loss that a topic keeps: its node must fit into ZooKeeper
(1 MiB)."""

KEPT_BYTES = 500_000
"""A larger node of a topic drops handled elections, those without a known loss first, the oldest
first: a commit of an election together with a node of 1 MiB never succeeds. The audit log has their
losses. Debts stay: ``most_debts`` bounds them."""

DEBT_BYTES = 130
RANGE_BYTES = 90
"""The size of a debt in its node, and of each range that it lost, with numbers of 12 digits."""

KEPT_RANGES = 32
"""Ranges of one replica in one record; more are joined, with the offsets between them."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """Committed offsets [first, end) that a replica had to cut, and their leader epochs.

    An empty range is where the log of an unclean leader ended, with its last epoch.
    """

    topic_id: UUID
    partition: int
    first: int
    end: int
    epochs: tuple[int, ...]


# Debts -------------------------------------------------------------------------------------------


def most_debts(replicas: int) -> int:
    """Return how many debts a topic may have, so that its node has room for all reports on them.

    The record is one node, and the store bounds nodes: further unclean elections wait until half of
    the debts are handled (docs/decisions/0014).
    """
    return KEPT_BYTES // (DEBT_BYTES + RANGE_BYTES * replicas)


def has_full_record(cluster: ClusterState, topic: str) -> bool:
    """Return whether a topic has as many debts as it may have."""
    history, node = cluster.topic_histories.get(topic), cluster.topics.get(topic)
    if history is None or node is None:
        return False
    return len(history.unclean) >= most_debts(_replication(node))


def topics_with_room(cluster: ClusterState, writes: Iterable[Write]) -> set[str]:
    """Return the topics that writes leave with less than half of the debts that they may have.

    Only topics that had more before: their elections may have been put off.
    """
    with_room = set()
    for write in writes:
        if not (isinstance(write, Put) and isinstance(write.record, TopicHistory)):
            continue
        name = write.path.rpartition("/")[2]
        before, node = cluster.topic_histories.get(name), cluster.topics.get(name)
        if before is None or node is None:
            continue
        half = most_debts(_replication(node)) // 2
        if len(before.unclean) >= half > len(write.record.unclean):
            with_room.add(name)
    return with_room


def _replication(node: TopicNode) -> int:
    return max(map(len, node.partitions.values()), default=1)


def with_debts(history: TopicHistory, new: Mapping[int, UncleanDebt]) -> TopicHistory:
    """Return the history after unclean elections. The new leader's handling covers both."""
    past = dict(history.unclean_past)
    for partition in new:
        standing = history.unclean.get(partition)
        if standing is not None:
            past[partition] = _shortened([*past.get(partition, []), standing])
    return in_bytes(
        msgspec.structs.replace(
            history, unclean={**history.unclean, **new}, unclean_past=_bounded(past)
        )
    )


def without_debt(history: TopicHistory, *partitions: int) -> TopicHistory:
    """Return the history after a finished handling of some partitions."""
    unclean = dict(history.unclean)
    past = dict(history.unclean_past)
    for partition in partitions:
        debt = unclean.pop(partition, None)
        if debt is not None:
            past[partition] = _shortened([*past.get(partition, []), debt])
    return msgspec.structs.replace(history, unclean=unclean, unclean_past=_bounded(past))


def _shortened(elections: Sequence[UncleanDebt]) -> list[UncleanDebt]:
    kept = list(elections)
    while len(kept) > KEPT_ELECTIONS:
        lossless = (position for position, election in enumerate(kept) if not election.lost)
        del kept[next(lossless, 0)]
    return kept


def _bounded(past: dict[int, list[UncleanDebt]]) -> dict[int, list[UncleanDebt]]:
    surplus = sum(not debt.lost for debts in past.values() for debt in debts) - KEPT_WITHOUT_LOSS
    if surplus <= 0:
        return past
    bounded = {}
    for partition, elections in past.items():
        kept = []
        for election in elections:
            if surplus > 0 and not election.lost:
                surplus -= 1
            else:
                kept.append(election)
        if kept:
            bounded[partition] = kept
    return bounded


def in_bytes(history: TopicHistory, most: int = KEPT_BYTES) -> TopicHistory:
    """Return the history with only so many handled elections as its node has room for.

    If debts alone are too large, each keeps only the first and last offset of a replica's losses.
    """
    surplus = len(layout.encode(history)) - most
    if surplus <= 0:
        return history
    elections = sorted(
        (bool(election.lost), position - len(ended), partition, position)
        for partition, ended in history.unclean_past.items()
        for position, election in enumerate(ended)
    )
    gone: dict[int, set[int]] = {}
    for _, _, partition, position in elections:
        if surplus <= 0:
            break
        surplus -= len(msgspec.json.encode(history.unclean_past[partition][position]))
        gone.setdefault(partition, set()).add(position)
    past = {}
    for partition, ended in history.unclean_past.items():
        out = gone.get(partition, ())
        kept = [election for position, election in enumerate(ended) if position not in out]
        if kept:
            past[partition] = kept
    unclean = history.unclean
    if surplus > 0:
        unclean = {
            partition: msgspec.structs.replace(debt, lost=_joined(debt.lost, most=1))
            for partition, debt in unclean.items()
        }
    return msgspec.structs.replace(history, unclean=unclean, unclean_past=past)


# Reports -----------------------------------------------------------------------------------------


def report(cluster: ClusterState, broker: int, truncations: Iterable[Truncation]) -> Decision[int]:
    """Decide ReportTruncation of a broker; the answer is the number of reports without a topic.

    Losses of a deleted topic are dropped. A repeated report counts once.
    """
    changed: dict[str, TopicHistory] = {}
    unknown = 0
    for truncation in truncations:
        name = cluster.names.get(truncation.topic_id)
        tp = None if name is None else TopicPartition(name, truncation.partition)
        if name is None or tp is None or tp not in cluster.states:
            unknown += 1
            continue
        history = changed.get(name, cluster.topic_histories.get(name))
        if history is None:
            count = len(cluster.topics[name].partitions)
            history = TopicHistory(layout.id_text(truncation.topic_id), count)
        if truncation.first < truncation.end:
            changed[name] = _with_loss(cluster, history, tp, broker, truncation)
        else:
            changed[name] = _with_end(history, tp.partition, broker, truncation)
    writes: list[Write] = []
    for name, history in changed.items():
        stored = cluster.topic_histories.get(name)
        if history != stored and (bounded := in_bytes(history)) != stored:
            writes.append(Put(layout.topic_history(name), bounded))
    return Decision(unknown, tuple(writes), splits=True)


def _with_loss(
    cluster: ClusterState,
    history: TopicHistory,
    tp: TopicPartition,
    broker: int,
    truncation: Truncation,
) -> TopicHistory:
    newest = max(truncation.epochs, default=-1)
    lost = LostRange(broker, truncation.first, truncation.end, sorted(set(truncation.epochs)))
    elections = [
        election for election in _elections(history, tp.partition) if election.leader_epoch > newest
    ]
    if elections:
        first = min(elections, key=lambda election: election.leader_epoch)
        grown = msgspec.structs.replace(first, lost=_joined([*first.lost, lost]))
        return _exchanged(history, tp.partition, first, grown)
    # No recorded unclean election explains this loss: record it as an entry of its own.
    state = cluster.states[tp]
    made = UncleanDebt(NO_LEADER, state.leader_epoch, lost=[lost])
    past = dict(history.unclean_past)
    past[tp.partition] = _shortened([*past.get(tp.partition, []), made])
    return msgspec.structs.replace(history, unclean_past=past)


def _with_end(
    history: TopicHistory, partition: int, broker: int, truncation: Truncation
) -> TopicHistory:
    epoch = max(truncation.epochs, default=-1)
    for election in reversed(_elections(history, partition)):
        if election.leader == broker and election.leader_epoch > epoch:
            if election.end_offset >= 0:
                return history
            reported = msgspec.structs.replace(election, end_offset=truncation.end, end_epoch=epoch)
            return _exchanged(history, partition, election, reported)
    return history


def _elections(history: TopicHistory, partition: int) -> list[UncleanDebt]:
    """Return the unclean elections of a partition on record, the oldest first."""
    debt = history.unclean.get(partition)
    return [*history.unclean_past.get(partition, []), *([] if debt is None else [debt])]


def _exchanged(
    history: TopicHistory, partition: int, old: UncleanDebt, new: UncleanDebt
) -> TopicHistory:
    if history.unclean.get(partition) is old:
        return msgspec.structs.replace(history, unclean={**history.unclean, partition: new})
    past = [new if election is old else election for election in history.unclean_past[partition]]
    return msgspec.structs.replace(history, unclean_past={**history.unclean_past, partition: past})


def _joined(ranges: Sequence[LostRange], most: int = KEPT_RANGES) -> list[LostRange]:
    """Return ranges, those of one replica joined where they touch, and ``most`` of them before."""
    joined: list[LostRange] = []
    for lost_range in sorted(ranges, key=lambda lost: (lost.broker, lost.first, lost.end)):
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.broker == lost_range.broker
            and (lost_range.first <= last.end or len(joined) >= most)
        ):
            epochs = sorted({*last.epochs, *lost_range.epochs})
            joined[-1] = LostRange(
                lost_range.broker, last.first, max(last.end, lost_range.end), epochs
            )
        else:
            joined.append(lost_range)
    return joined


# Showing -----------------------------------------------------------------------------------------


def lost_ranges(election: UncleanDebt) -> list[tuple[int, int]]:
    """Return the offsets [first, end) that an election lost on any replica, in order."""
    union: list[tuple[int, int]] = []
    for lost_range in sorted(election.lost, key=lambda lost: (lost.first, lost.end)):
        if union and lost_range.first <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], lost_range.end))
        else:
            union.append((lost_range.first, lost_range.end))
    return union


def lost_count(election: UncleanDebt) -> int:
    """Return how many committed offsets an election is known to have lost."""
    return sum(end - first for first, end in lost_ranges(election))


def totals(cluster: ClusterState) -> dict[str, int]:
    """Return what metrics show: unclean elections on record, and committed offsets lost."""
    elections = lost = 0
    for history in cluster.topic_histories.values():
        for partition in {**history.unclean_past, **history.unclean}:
            of_partition = _elections(history, partition)
            elections += sum(election.leader != NO_LEADER for election in of_partition)
            lost += sum(map(lost_count, of_partition))
    return {"unclean_elections_on_record": elections, "committed_offsets_lost": lost}


def places_with_loss(cluster: ClusterState) -> list[TopicPartition]:
    """Return the partitions that are known to have lost committed records, in order."""
    return sorted(
        TopicPartition(name, partition)
        for name, history in cluster.topic_histories.items()
        for partition in {**history.unclean_past, **history.unclean}
        if any(election.lost for election in _elections(history, partition))
    )


def unclean_elections(cluster: ClusterState) -> list[dict[str, Any]]:
    """Return all records of unclean elections, as plain data for JSON.

    One entry for each election, by topic and partition, the oldest first. ``lost`` has ranges of
    offsets [from_offset, to_offset) with their leader epochs and the replicas that had them;
    ``missing_replicas`` have not come back, so records that only they have are not counted.
    """
    rows: list[dict[str, Any]] = []
    for name in sorted(cluster.topic_histories):
        history = cluster.topic_histories[name]
        for partition in sorted({**history.unclean_past, **history.unclean}):
            tp = TopicPartition(name, partition)
            debt = history.unclean.get(partition)
            if tp in cluster.states:
                elections = _elections(history, partition)
                rows.extend(_shown(cluster, tp, election, debt) for election in elections)
    return rows


def _shown(
    cluster: ClusterState, tp: TopicPartition, election: UncleanDebt, debt: UncleanDebt | None
) -> dict[str, Any]:
    state = cluster.states[tp]
    by_range: dict[tuple[int, int, tuple[int, ...]], list[int]] = {}
    for lost in election.lost:
        by_range.setdefault((lost.first, lost.end, tuple(lost.epochs)), []).append(lost.broker)
    return {
        "topic": tp.topic,
        "topic_id": layout.id_text(cluster.topic_id(tp.topic)),
        "partition": tp.partition,
        "leader": None if election.leader == NO_LEADER else election.leader,
        "leader_epoch": election.leader_epoch,
        "log_end_offset": None if election.end_offset < 0 else election.end_offset,
        "log_end_epoch": None if election.end_offset < 0 else election.end_epoch,
        "handled": election is not debt,
        "flagged": state.is_unclean_leader and election is debt,
        "lost_offsets": lost_count(election),
        "lost": [
            {"from_offset": first, "to_offset": end, "epochs": list(epochs), "replicas": brokers}
            for (first, end, epochs), brokers in sorted(by_range.items())
        ],
        "missing_replicas": sorted(set(cluster.replicas(tp)) - cluster.brokers.keys()),
    }


def loss_lines(topic: str, before: TopicHistory | None, after: TopicHistory) -> list[str]:
    """Return audit lines for the losses that a write of a topic's history adds."""
    lines = []
    former = TopicHistory("", 0) if before is None else before
    if former.unclean == after.unclean and former.unclean_past == after.unclean_past:
        return []
    for partition in sorted({**after.unclean_past, **after.unclean}):
        tp = TopicPartition(topic, partition)
        reported = {debt.leader_epoch: debt for debt in _elections(former, partition)}
        for election in _elections(after, partition):
            earlier = reported.get(election.leader_epoch)
            ranges = [] if earlier is None else earlier.lost
            for lost in election.lost:
                if lost not in ranges:
                    epochs = ", ".join(map(str, lost.epochs))
                    lines.append(
                        f"committed records of {tp} lost: offsets {lost.first} to "
                        f"{lost.end - 1} of leader epochs {epochs}, which broker {lost.broker} had "
                        f"to cut after the election of epoch {election.leader_epoch}"
                    )
    return lines


def handled_lines(topic: str, before: TopicHistory | None, after: TopicHistory) -> list[str]:
    """Return audit lines for the debts that a write of a topic's history moves to the past."""
    return [
        f"data-loss handling of {TopicPartition(topic, partition)} finished, "
        f"epoch {debt.leader_epoch}"
        for partition, debt in ({} if before is None else before.unclean).items()
        if partition not in after.unclean
    ]
