"""Soft state: what the controller knows of brokers beside the store, and every change of it.

Owns the changes of ``suspected``, ``shutting_down``, ``presumed``, ``broken``, ``diskless`` and
``shortages``, and of what a broker reports when it registers. None of it is in the store: the next
controller learns it again. Which elections follow: see ``registration``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from tidelog.controller.decisions.autoscaling_settings import settings_of
from tidelog.controller.decisions.cluster import (
    NO_ID,
    BrokerShortages,
    ByteRate,
    ClusterState,
    FenceReport,
    LogEnd,
    Retained,
)
from tidelog.controller.decisions.reassignments import Answered
from tidelog.controller.decisions.registration import Registration
from tidelog.controller.decisions.uncertain_replicas import unread_states
from tidelog.metadata import layout
from tidelog.model.topics import TopicPartition

Noted = TypeVar("Noted")

MOST_CLIENTS, LONGEST_CLIENT_ID = 10, 100
"""Client ids of one topic and broker, and their characters, that the controller keeps."""

KEPT_NAMES = 1_000
"""Names of reported topic ids that the controller keeps beyond those that the topics need."""


def presume_all(cluster: ClusterState) -> None:
    """Presume every broker that registered with an earlier controller alive."""
    cluster.presumed = set(cluster.brokers)


def note_session(cluster: ClusterState, broker: int) -> None:
    """Note that a broker has a session with this controller: it is no longer only presumed."""
    cluster.presumed.discard(broker)


def suspect(cluster: ClusterState, brokers: Collection[int]) -> None:
    """Note brokers as suspected: they lead nothing that another replica can lead."""
    cluster.suspected |= set(brokers)


def end_suspicion(cluster: ClusterState, broker: int) -> bool:
    """Note a sign of life of a broker; return whether it was suspected."""
    was_suspected = broker in cluster.suspected
    cluster.suspected.discard(broker)
    return was_suspected


def note_leaving(cluster: ClusterState, broker: int) -> bool:
    """Note that a broker wants to shut down; return whether that is new."""
    if broker in cluster.shutting_down:
        return False
    cluster.shutting_down.add(broker)
    return True


def take_report(cluster: ClusterState, report: Registration) -> None:
    """Take up what a broker says of itself in an accepted registration.

    It replaces what the broker reported earlier, and ends its controlled shutdown. What the same
    process has reported as damaged stays so while its state cannot be read: see ``note_damaged``.
    """
    broker = report.broker
    cluster.inventories[broker] = report.inventory
    cluster.nameless[broker] = report.nameless
    _take_held(cluster, report.held)
    take_configs(cluster, report.seen, report.kept_configs)
    cluster.seen[broker] = report.seen
    if cluster.went_back is not None:
        # For the acceptance alone: they have the size of all reports.
        cluster.kept.commands[broker] = report.commands
    for key, command in report.commands.items():
        # Beside these it judges the states that other programs have written.
        if cluster.went_back is not None or key[1] in cluster.loaded.by_hand:
            former = cluster.kept.newest.get(key)
            if former is None or former.order < command.order:
                cluster.kept.newest[key] = command
    cluster.shutting_down.discard(broker)
    node = cluster.brokers.get(broker)
    is_same = node is not None and node.incarnation_id == layout.id_text(report.incarnation)
    kept = set(unread_states(cluster)) if is_same and cluster.broken else set()
    cluster.broken = {(x, tp) for x, tp in cluster.broken if x != broker or tp in kept}
    note_damaged(cluster, broker, report.damaged)


def take_configs(
    cluster: ClusterState, seen: tuple[int, int], kept: Mapping[UUID, dict[str, str]]
) -> None:
    """Remember which configurations a broker keeps for topics that the store does not have.

    Of several brokers the one counts that has seen the newest controller epoch and revision.
    """
    for topic_id, configs in kept.items():
        former = cluster.kept.configs.get(topic_id)
        if topic_id not in cluster.names and (former is None or former[0] <= seen):
            cluster.kept.configs[topic_id] = seen, configs


def forget_replicas(
    cluster: ClusterState,
    broker: int,
    gone: Callable[[UUID, int, LogEnd], bool],
    among: Set[tuple[UUID, int]] | None = None,
) -> None:
    """Forget the replicas that a broker reported and has removed since, all or ``among`` these.

    O(those that are asked for): each deletion that a broker confirms comes here. What reads a
    report in steps reads a list of it.
    """
    inventory = cluster.inventories.get(broker, {})
    asked = list(inventory) if among is None else [key for key in among if key in inventory]
    for key in asked:
        if gone(*key, inventory[key]):
            del inventory[key]


def _take_held(cluster: ClusterState, held: Mapping[UUID, str]) -> None:
    """Remember the names of topic ids that a broker reported; forget those of no broker."""
    cluster.held.update(held)
    for topic_id in cluster.kept.configs.keys() & cluster.names.keys():
        del cluster.kept.configs[topic_id]
    if len(cluster.held) > 2 * len(cluster.topics) + KEPT_NAMES:
        there = {
            topic_id for inventory in cluster.inventories.values() for topic_id, _ in inventory
        }
        cluster.held = {
            topic_id: name for topic_id, name in cluster.held.items() if topic_id in there
        }


def note_damaged(
    cluster: ClusterState, broker: int, damaged: Iterable[tuple[UUID, TopicPartition]]
) -> tuple[list[TopicPartition], list[TopicPartition]]:
    """Take up all replicas that a broker reports as damaged; return the new ones and the healed.

    A replica that was in sync when it was damaged stays damaged until another leads without it: a
    replica that was built again has none of the records that it had. One whose state cannot be read
    may have been in sync.
    """
    reported = {tp for topic_id, tp in damaged if _can_be_of(cluster, topic_id, tp)}
    broken = {tp for x, tp in cluster.broken if x == broker}
    healed = {tp for tp in broken - reported if not _counts_on(cluster, broker, tp)}
    cluster.broken.update((broker, tp) for tp in reported)
    cluster.broken.difference_update((broker, tp) for tp in healed)
    return sorted(reported - broken), sorted(healed)


def note_failed_directories(cluster: ClusterState, broker: int, failed: int) -> bool:
    """Note how many log directories of a broker have failed; return whether it has just lost all.

    A broker that did not say how many it has (older code) counts as one that has some left.
    """
    node = cluster.brokers.get(broker)
    if node is None or not 0 < len(node.log_dirs) <= failed:
        cluster.diskless.discard(broker)
        return False
    is_new = broker not in cluster.diskless
    cluster.diskless.add(broker)
    return is_new


@dataclass(frozen=True, slots=True)
class ReportedShortage:
    """A log directory without room, and topic ids with partitions in it, as a broker reports it."""

    log_dir: str
    reason: str
    replicas: tuple[tuple[UUID, int], ...]


def note_shortages(
    cluster: ClusterState, broker: int, shortages: Collection[ReportedShortage]
) -> Mapping[str, str] | None:
    """Take up the log directories without room that a broker reports, all of them.

    Return their reasons if they are other ones than before, otherwise None.
    """
    before = cluster.shortages.pop(broker, None)
    reasons = {shortage.log_dir: _printable(shortage.reason) for shortage in shortages}
    if shortages:
        replicas = {
            TopicPartition(cluster.names[topic_id], index): shortage.log_dir
            for shortage in shortages
            for topic_id, index in shortage.replicas
            if topic_id in cluster.names
        }
        cluster.shortages[broker] = BrokerShortages(reasons, replicas)
    return None if reasons == ({} if before is None else before.reasons) else reasons


def _can_be_of(cluster: ClusterState, topic_id: UUID, tp: TopicPartition) -> bool:
    """Return whether a partition can have a replica of this id, though nodes of it are damaged."""
    ids = {NO_ID, cluster.topic_id(tp.topic)}
    history = cluster.topic_histories.get(tp.topic)
    if history is not None and layout.topic(tp.topic) in cluster.damaged:
        ids.add(layout.parse_id(history.topic_id) or NO_ID)
    return topic_id in ids and (tp in cluster.states or layout.state(*tp) in cluster.damaged)


def _counts_on(cluster: ClusterState, broker: int, tp: TopicPartition) -> bool:
    state = cluster.states.get(tp)
    if state is None:
        return layout.state(*tp) in cluster.damaged
    return broker in (*state.isr, *state.eligible_replicas)


def forget(cluster: ClusterState, broker: int) -> None:
    """Forget what is known beside the store of a broker whose registration expired.

    Not its commands: what it may have acknowledged is not to be given up unless it is named.
    """
    for kept in (cluster.suspected, cluster.presumed, cluster.shutting_down, cluster.diskless):
        kept.discard(broker)
    cluster.shortages.pop(broker, None)
    cluster.inventories.pop(broker, None)
    cluster.nameless.pop(broker, None)
    cluster.broken = {(x, tp) for x, tp in cluster.broken if x != broker}


@dataclass(frozen=True, slots=True)
class ReportedFence:
    """One partition of a ReportFences request."""

    topic_id: UUID
    partition: int
    report: FenceReport


def note_fences(cluster: ClusterState, fences: Iterable[ReportedFence]) -> int:
    """Take up reports of fences and seals; return how many a resize waits for.

    The others are too late: their topic has no plan of that resize epoch, or their partition has
    another incarnation, or no such leader epoch. Of several reports the newest leader's counts.
    """
    count = 0
    for fence in fences:
        name = cluster.names.get(fence.topic_id)
        history = cluster.topic_histories.get(name or "")
        if name is None or history is None or history.resize is None:
            continue
        tp, report = TopicPartition(name, fence.partition), fence.report
        node, state = cluster.partition_nodes.get(tp), cluster.states.get(tp)
        if (
            node is None
            or state is None
            or report.partition_epoch != node.partition_epoch
            or report.leader_epoch > state.leader_epoch
            or report.resize_epoch != history.resize.resize_epoch
        ):
            continue
        reports = cluster.fences.setdefault(name, {})
        earlier = reports.get(fence.partition)
        is_newer = earlier is None or earlier.resize_epoch < report.resize_epoch
        if is_newer or earlier is None or earlier.leader_epoch < report.leader_epoch:
            reports[fence.partition] = report
            count += 1
    return count


def forget_fences(cluster: ClusterState) -> None:
    """Forget the reports of topics that are no longer resized."""
    for name in cluster.fences.keys() - cluster.resizing:
        del cluster.fences[name]


def note_clients(
    cluster: ClusterState, broker: int, client_ids: Iterable[tuple[UUID, Collection[str]]]
) -> None:
    """Note the client ids of writers without a partition count, by topic: those that a broker saw
    in the hour before its last one. At most ``MOST_CLIENTS`` of a broker, each cut: a client
    chooses its id, which is shown on terminals."""
    for topic_id, named in client_ids:
        if topic_id in cluster.names and named:
            kept = tuple(_printable(client_id) for client_id in sorted(named)[:MOST_CLIENTS])
            cluster.unaware_clients.setdefault(topic_id, {})[broker] = kept
    forget_topics(cluster, cluster.unaware_clients)


def _printable(text: str) -> str:
    cut = text[:LONGEST_CLIENT_ID]
    return "".join(character if character.isprintable() else "?" for character in cut)


def note_misplaced(cluster: ClusterState, broker: int, counts: Iterable[tuple[UUID, int]]) -> None:
    """Note how many misplaced records a broker has counted since its start, by topic.

    A broker that restarted counts from 0: the highest number is a lower bound still.
    """
    for topic_id, count in counts:
        if topic_id in cluster.names and count > 0:
            by_broker = cluster.misplaced.setdefault(topic_id, {})
            by_broker[broker] = max(count, by_broker.get(broker, 0))
    forget_topics(cluster, cluster.misplaced)


def forget_topics(cluster: ClusterState, by_topic: dict[UUID, dict[int, Noted]]) -> None:
    """Forget the topics that are gone, now and then."""
    if len(by_topic) > 2 * len(cluster.topics) + KEPT_NAMES:
        for topic_id in by_topic.keys() - cluster.names.keys():
            del by_topic[topic_id]


def note_rates(
    cluster: ClusterState,
    broker: int,
    topic_id: UUID,
    rates: Iterable[tuple[int, int]],
    now_ms: int,
) -> None:
    """Note the bytes per second of the partitions of a topic that a broker leads.

    What it does not lead, or the topic does not have, counts for nothing, and so does a topic that
    is not resized by its load, or is being resized: then leaders may not have begun their new
    epochs. The numbers are judged where they are used (``autoscaling``).
    """
    name = cluster.names.get(topic_id)
    if name is None or name in cluster.resizing or settings_of(cluster, name) is None:
        return
    resize_epoch = cluster.topic_histories[name].resize_epoch
    by_partition = cluster.byte_rates.setdefault(topic_id, {})
    for index, rate in rates:
        state = cluster.states.get(TopicPartition(name, index))
        if state is not None and state.leader == broker:
            by_partition[index] = ByteRate(broker, rate, now_ms, resize_epoch)


def forget_rates(cluster: ClusterState, kept: Collection[UUID]) -> None:
    """Forget the rates of all topics but these."""
    for topic_id in cluster.byte_rates.keys() - set(kept):
        del cluster.byte_rates[topic_id]


def note_retained(cluster: ClusterState, name: str, retained: Mapping[int, Retained]) -> None:
    """Note what the retired partitions of a topic hold, as they were just asked."""
    cluster.retained[cluster.topic_id(name)] = dict(retained)


def forget_retained(cluster: ClusterState, names: Collection[str]) -> None:
    """Forget what retired partitions held, of all topics but these."""
    kept = {cluster.topic_id(name) for name in names}
    for topic_id in cluster.retained.keys() - kept:
        del cluster.retained[topic_id]


def keep_topic(cluster: ClusterState, topic: str, why: str) -> None:
    """Note why the nodes of a topic cannot be removed now: its deletion waits."""
    cluster.undeletable[topic] = why


def free_topic(cluster: ClusterState, topic: str | None) -> None:
    """Forget why the nodes of a topic could not be removed: its deletion goes on."""
    cluster.undeletable.pop(topic or "", None)


def note_begun(cluster: ClusterState, answers: Iterable[Answered]) -> None:
    """Note the rows of ``/admin/reassign_partitions`` that were begun, or refused."""
    for tp, refusal in answers:
        cluster.plan.begin(tp)
        state = cluster.states.get(tp)
        if refusal is None and state is not None:
            cluster.plan.note(tp, cluster.replicas(tp), state.target_replicas)
