"""A resize, step by step: what a topic's plan does next. Pure (KIP-253).

Owns the table of a resize. Which requests begin one: see ``resize_requests``; the sentences about
one: see ``resize_sentences``. Which count each
partition stands on meanwhile: see ``sides``; what clients see: ``shown_topics``. Every decision
here follows from the nodes and the reports of fences, so a new controller goes on from the plan.
Source: docs/design/elastic.md.

| step | not all written | all written, some not reported | the same, late or stuck | all reported |
|---|---|---|---|---|
| the first one, nothing written, | waits; late or stuck: undo | | | |
| a broker silent (``resize_beginnings``) | | | | |
| fence of a growth | writes more; late: undo | waits | undo | births, if each child can lead |
| birth of a growth | writes more; late: undo | waits | undo | published |
| seal of a shrink | writes more; late: undo | waits | undo | fences of the survivors |
| fence of a shrink | writes more; late: undo | waits | undo | published |
| fence of the same count | writes more; late: undo | waits | undo | published |
| reopen of an undo | writes more, then removes children; the last is published | | | |
| published | removes the plan when every live broker has been sent it; late: in any case | | | |

| event | what it changes in the table |
|---|---|
| a report | its partition counts as reported (``soft_state.note_fences``) |
| an answer of a broker | nothing, once a partition is closed: it waits for nothing |
| a leader dies | nothing: its successor has the fence, or appends and reports it; without a |
| | successor the plan is stuck |
| a leader or its disk cannot write, and that does not pass by itself | stuck (``obstacles``) |
| an unclean election | a report of an earlier leader epoch no longer counts |
| a controller dies | the next one knows no report, and its time begins |
| the time-out | the step is late: ``resize.timeout.ms`` after it was written |
| the topic is deleted, or marked | the plan ends, or rests |
| another request, an external write | refused (``resize_requests``) |

A step of many partitions is written in several commits, each with the plan's cursor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from tidelog.controller.decisions.cluster import NO_LEADER, ClusterState
from tidelog.controller.decisions.decision import Decision, Put, Write
from tidelog.controller.decisions.obstacles import Obstacle, obstacle_of, of_silent, of_unborn
from tidelog.controller.decisions.removal import AT_ONCE, unpublished_removed
from tidelog.controller.decisions.resize_beginnings import concerned, held_up, is_unbegun
from tidelog.controller.decisions.settlement import put_state
from tidelog.metadata import layout
from tidelog.metadata.records import (
    Counter,
    PartitionNode,
    PartitionState,
    ResizeKind,
    ResizePlan,
    ResizeStep,
    TopicHistory,
)
from tidelog.model.topics import TopicPartition
from tidelog.partitioning.lineage import nearest_ancestor

WRITES_AT_ONCE = 500
"""The most writes of partitions in one commit: it fits into a commit of every store beside the
topic's own record, and takes 10 to 20 ms of the event loop."""

UNDOABLE = {
    ResizeKind.GROW: (ResizeStep.FENCE, ResizeStep.BIRTH),
    ResizeKind.SHRINK: (ResizeStep.SEAL, ResizeStep.FENCE),
    ResizeKind.SAME: (ResizeStep.FENCE,),
    ResizeKind.UNDO: (),
}
"""The steps in which a resize can be undone: no client has seen anything of it before it is
published, and no leader takes a client's record for a partition that its metadata do not show."""


class Progress(StrEnum):
    """What a decision about a plan did."""

    NONE = "none"
    """There is no plan, or it cannot go on now: its topic is being deleted or cannot be read."""
    WROTE = "wrote"
    WAITS = "waits"
    UNDONE = "undone"
    """The undo has begun."""
    PUBLISHED = "published"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class Advanced:
    """The progress of a plan; ``missing`` are the partitions that it waits for, or waited for.

    Of an undo: ``obstacle`` says why the first of them that cannot commit its fence cannot, as far
    as is known, and ``brokers`` are those that it waited for.
    """

    progress: Progress
    missing: tuple[int, ...] = ()
    obstacle: Obstacle | None = None
    brokers: tuple[int, ...] = ()


def advance(
    cluster: ClusterState,
    name: str,
    *,
    is_late: bool = False,
    is_known: bool = False,
    silent: Set[int] = frozenset(),
) -> Decision[Advanced]:
    """Decide what the plan of a topic does next: one commit at most.

    ``is_late``: the plan has waited in its step for ``resize.timeout.ms``. ``is_known``: the plan
    may go, because every live broker has been sent the publication, or its time is over.
    ``silent``: the live brokers that have responded to nothing since the plan was written.
    """
    plan = _plan(cluster, name)
    if plan is None:
        return Decision(Advanced(Progress.NONE))
    if plan.published:
        # As long as the plan is there, no other resize of the topic begins: before that, all
        # brokers show this count (promises 11, 13).
        if not is_known:
            return Decision(Advanced(Progress.WAITS))
        return Decision(Advanced(Progress.REMOVED), (_put_plan(cluster, name, None),))
    may_undo = plan.step in UNDOABLE[plan.kind]
    if plan.cursor < items_of(plan):
        held = held_up(cluster, name, plan, silent)
        if is_late and may_undo:
            missing = tuple(held) or (_index(plan, plan.cursor),)
            return _undo(cluster, name, plan, missing, set().union(*held.values()))
        if is_unbegun(plan) and is_stuck(cluster, name):
            # What the request would have been refused for has come since.
            return _undo(cluster, name, plan, tuple(concerned(plan)))
        if held:
            return Decision(Advanced(Progress.WAITS, tuple(held)))
        return _unless_stuck(cluster, name, plan, _write(cluster, name, plan))
    missing = tuple(missing_of(cluster, name, plan))
    following = None if missing else _following(plan)
    if following is not None and following.step is ResizeStep.BIRTH:
        # An undo is cheap before the first birth: each child must be able to get a leader.
        missing = tuple(_unable(cluster, name, plan))
    if missing:
        if is_late and may_undo:
            return _undo(cluster, name, plan, missing)
        return _unless_stuck(cluster, name, plan, Decision(Advanced(Progress.WAITS, missing)))
    if following is not None:
        return _write(cluster, name, following)
    return _published(cluster, name, plan)


def items_of(plan: ResizePlan) -> int:
    """Return how many partitions the step of a plan writes, one after another."""
    first, end = min(plan.from_count, plan.to_count), max(plan.from_count, plan.to_count)
    match plan.step:
        case ResizeStep.FENCE:
            return plan.from_count
        case ResizeStep.REOPEN:
            return plan.to_count + born_of(plan)
        case _:
            return end - first


def born_of(plan: ResizePlan) -> int:
    """Return how many children an undo has to remove."""
    return plan.undone_cursor if plan.undone_step is ResizeStep.BIRTH else 0


def awaited(plan: ResizePlan) -> range:
    """Return the partitions whose fence or seal the step of a plan waits for."""
    match plan.step:
        case ResizeStep.BIRTH:
            return range(plan.from_count, plan.to_count)
        case ResizeStep.SEAL:
            return range(plan.to_count, plan.from_count)
        case ResizeStep.REOPEN:
            return range(0)
        case _:
            return range(min(plan.from_count, plan.to_count))


def missing_of(cluster: ClusterState, name: str, plan: ResizePlan) -> Iterator[int]:
    """Yield the partitions whose fence or seal has not been reported."""
    reports = cluster.fences.get(name, {})
    for index in awaited(plan):
        tp = TopicPartition(name, index)
        report, state = reports.get(index), cluster.states.get(tp)
        node = cluster.partition_nodes.get(tp)
        is_reported = (
            report is not None
            and state is not None
            and node is not None
            and report.resize_epoch == plan.resize_epoch
            and report.partition_epoch == node.partition_epoch
            # What an earlier leader than an unclean one committed may be lost: that one appends
            # it again, and reports it.
            and (report.leader_epoch == state.leader_epoch or not state.is_unclean_leader)
        )
        if not is_reported:
            yield index


def reported_of(cluster: ClusterState, name: str, plan: ResizePlan) -> set[int]:
    """Return the partitions whose fence or seal the step of a plan has waited for, and has."""
    return set(awaited(plan)).difference(missing_of(cluster, name, plan))


def obstacle_among(
    cluster: ClusterState, name: str, plan: ResizePlan, missing: Iterable[int]
) -> Obstacle | None:
    """Return why partitions that a plan waits for cannot commit: the first obstacle that ends the
    resize, otherwise the first one. O(missing)."""
    first = None
    for index in missing:
        tp = TopicPartition(name, index)
        is_child = plan.kind is ResizeKind.GROW and index >= plan.from_count
        if is_child and tp not in cluster.states:
            obstacle = of_unborn(cluster, tp)
        else:
            obstacle = obstacle_of(cluster, tp, is_child=is_child)
        if obstacle is not None and obstacle.ends_resize:
            return obstacle
        first = first or obstacle
    return first


def is_stuck(cluster: ClusterState, name: str) -> bool:
    """Return whether a plan that waits for reports waits for one that cannot come. O(missing)."""
    plan = _plan(cluster, name)
    if plan is None or plan.published or plan.step not in UNDOABLE[plan.kind]:
        return False
    needed = concerned(plan) if is_unbegun(plan) else missing_of(cluster, name, plan)
    obstacle = obstacle_among(cluster, name, plan, needed)
    return obstacle is not None and obstacle.ends_resize


def waits(
    cluster: ClusterState,
    name: str,
    *,
    is_late: bool,
    is_known: bool,
    silent: Set[int] = frozenset(),
) -> bool:
    """Return whether a plan certainly only waits, unless it is stuck: a cheap answer for most
    events of its topic."""
    plan = _plan(cluster, name)
    if plan is None:
        return True
    if plan.published:
        return not is_known
    if is_late:
        return False
    if plan.cursor < items_of(plan):
        return bool(held_up(cluster, name, plan, silent))
    return len(cluster.fences.get(name, ())) < len(awaited(plan))


def awaited_brokers(cluster: ClusterState, name: str, missing: Iterable[int]) -> set[int]:
    """Return the leaders of partitions, or the brokers of which one has to lead."""
    brokers: set[int] = set()
    for index in missing:
        tp = TopicPartition(name, index)
        state = cluster.states.get(tp)
        if state is not None and state.leader != NO_LEADER:
            brokers.add(state.leader)
        else:
            brokers.update(cluster.replicas(tp) if state is None else state.isr)
    return brokers


def _plan(cluster: ClusterState, name: str) -> ResizePlan | None:
    history = cluster.topic_histories.get(name)
    if history is None or history.resize is None or name in cluster.marked:
        return None
    is_damaged = cluster.went_back is not None or name not in cluster.topics
    is_damaged |= layout.topic_history(name) in cluster.damaged
    return None if is_damaged else history.resize


def _put_plan(
    cluster: ClusterState, name: str, plan: ResizePlan | None, resize_epoch: int | None = None
) -> Put:
    history = cluster.topic_histories[name]
    epoch = history.resize_epoch if resize_epoch is None else resize_epoch
    changed: TopicHistory = msgspec.structs.replace(history, resize=plan, resize_epoch=epoch)
    return Put(layout.topic_history(name), changed)


def _following(plan: ResizePlan) -> ResizePlan | None:
    """Return the plan in its next step, of which nothing is written; None after the last one."""
    match plan.kind, plan.step:
        case ResizeKind.GROW, ResizeStep.FENCE:
            return msgspec.structs.replace(plan, step=ResizeStep.BIRTH, cursor=0)
        case ResizeKind.SHRINK, ResizeStep.SEAL:
            return msgspec.structs.replace(plan, step=ResizeStep.FENCE, cursor=0)
        case _:
            return None


def _published(cluster: ClusterState, name: str, plan: ResizePlan) -> Decision[Advanced]:
    done = msgspec.structs.replace(plan, published=True)
    return Decision(Advanced(Progress.PUBLISHED), (_put_plan(cluster, name, done),))


def _unless_stuck(
    cluster: ClusterState, name: str, plan: ResizePlan, decision: Decision[Advanced]
) -> Decision[Advanced]:
    """Return a decision; the undo instead of one that waits for what cannot come."""
    progress, missing = decision.answer.progress, decision.answer.missing
    if progress is not Progress.WAITS or plan.step not in UNDOABLE[plan.kind]:
        return decision
    obstacle = obstacle_among(cluster, name, plan, missing)
    if obstacle is None or not obstacle.ends_resize:
        return decision
    return _undo(cluster, name, plan, missing)


def _undo(
    cluster: ClusterState,
    name: str,
    plan: ResizePlan,
    missing: tuple[int, ...],
    silent: Set[int] = frozenset(),
) -> Decision[Advanced]:
    """Return the write that begins an undo: the former count, and a resize epoch of its own.

    The children of a growth that have no nodes yet leave the assignment at once. ``silent``: the
    brokers that did not respond in time, if that is why.
    """
    # An epoch of its own: logs have fences of the one that is undone (promise 11).
    epoch = plan.resize_epoch + 1
    undo = ResizePlan(
        ResizeKind.UNDO,
        from_count=plan.to_count,
        to_count=plan.from_count,
        resize_epoch=epoch,
        step=ResizeStep.REOPEN,
        undone_step=plan.step,
        undone_cursor=plan.cursor,
    )
    node = cluster.topics[name]
    kept = node.partitions
    if plan.kind is ResizeKind.GROW:
        end = plan.from_count + born_of(undo)
        kept = {index: replicas for index, replicas in kept.items() if index < end}
    former = msgspec.structs.replace(
        node, partitions=kept, undeleted_partition_count=plan.from_count
    )
    writes = (Put(layout.topic(name), former), _put_plan(cluster, name, undo, epoch))
    brokers = tuple(sorted(silent or awaited_brokers(cluster, name, missing)))
    obstacle = obstacle_among(cluster, name, plan, missing)
    if obstacle is None and silent:
        obstacle = of_silent(silent)
    return Decision(Advanced(Progress.UNDONE, missing, obstacle, brokers), writes)


def _write(cluster: ClusterState, name: str, plan: ResizePlan) -> Decision[Advanced]:
    """Return the next commit of a step, with the plan as it stands after it."""
    if plan.kind is ResizeKind.UNDO and plan.cursor >= plan.to_count < items_of(plan):
        return _removed_children(cluster, name, plan)
    writes: list[Write] = []
    epochs = list(plan.leader_epochs)
    counter = cluster.counters.get(layout.PARTITION_EPOCH, 0)
    cursor = plan.cursor
    last = items_of(plan)
    end = plan.to_count if plan.kind is ResizeKind.UNDO else last
    while cursor < end and len(writes) < WRITES_AT_ONCE:
        made: list[Write] | None
        if plan.step is ResizeStep.BIRTH:
            made = _born(cluster, name, plan, cursor, counter + 1)
            counter += made is not None
        else:
            made = _changed(cluster, name, plan, cursor, epochs)
        if made is None:
            break
        writes += made
        cursor += 1
    if cursor == plan.cursor:
        # A node cannot be read, or the child has no broker now.
        return Decision(Advanced(Progress.WAITS, (_index(plan, cursor),)))
    if plan.step is ResizeStep.BIRTH:
        writes.insert(0, Put(layout.PARTITION_EPOCH, Counter(counter)))
    is_done = plan.kind is ResizeKind.UNDO and cursor == last
    changed = msgspec.structs.replace(plan, cursor=cursor, leader_epochs=epochs, published=is_done)
    progress = Progress.PUBLISHED if is_done else Progress.WROTE
    return Decision(Advanced(progress), (_put_plan(cluster, name, changed), *writes))


def _removed_children(cluster: ClusterState, name: str, plan: ResizePlan) -> Decision[Advanced]:
    """Return the commit of an undo that removes the highest children that are left."""
    end = plan.to_count + items_of(plan) - plan.cursor
    # The highest first: stock clients see contiguous ids at every moment (promise 13).
    gone = range(max(plan.to_count, end - min(AT_ONCE, WRITES_AT_ONCE)), end)[::-1]
    for index in gone:
        tp = TopicPartition(name, index)
        if tp not in cluster.partition_nodes or tp not in cluster.states:
            return Decision(Advanced(Progress.WAITS, (index,)))
    cursor = plan.cursor + len(gone)
    is_done = cursor == items_of(plan)
    changed = msgspec.structs.replace(plan, cursor=cursor, published=is_done)
    history, writes = unpublished_removed(cluster, name, gone)
    record = msgspec.structs.replace(history, resize=changed)
    progress = Progress.PUBLISHED if is_done else Progress.WROTE
    return Decision(Advanced(progress), (Put(layout.topic_history(name), record), *writes))


def _index(plan: ResizePlan, item: int) -> int:
    """Return the partition that an item of the plan's step is about."""
    match plan.step:
        case ResizeStep.BIRTH:
            return plan.from_count + item
        case ResizeStep.SEAL:
            return plan.to_count + item
        case _:
            return item


def _changed(
    cluster: ClusterState, name: str, plan: ResizePlan, item: int, epochs: list[int]
) -> list[Write] | None:
    """Return the writes of one existing partition; None if a node of it cannot be read.

    ``epochs`` gets its leader epoch before the raise, where children or retirees need it.
    """
    tp = TopicPartition(name, _index(plan, item))
    state, node = cluster.states.get(tp), cluster.partition_nodes.get(tp)
    if state is None or node is None:
        return None
    shrinks = plan.kind is ResizeKind.SHRINK
    if plan.step is ResizeStep.FENCE and shrinks and tp.partition >= plan.to_count:
        # All survivors are raised: the retirees' nodes get the epochs from before.
        initial = cluster.topic_histories[name].initial_partition_count
        survivor = nearest_ancestor(tp.partition, initial, plan.to_count)
        before = {survivor: epochs[survivor]}
        noted = msgspec.structs.replace(node, leader_epoch_before_deletion=before)
        return [Put(layout.partition(*tp), noted)]
    writes: list[Write] = []
    if plan.step is ResizeStep.SEAL:
        sealed = msgspec.structs.replace(node, retirement_epoch=plan.resize_epoch)
        writes.append(Put(layout.partition(*tp), sealed))
    elif plan.step is ResizeStep.REOPEN and node.retirement_epoch == plan.resize_epoch - 1:
        reopened = msgspec.structs.replace(
            node, retirement_epoch=-1, leader_epoch_before_deletion={}
        )
        writes.append(Put(layout.partition(*tp), reopened))
    elif plan.step is ResizeStep.FENCE and plan.kind is not ResizeKind.SAME:
        epochs.append(state.leader_epoch)
    # A leader that misses the resize can commit nothing more: its followers are in this epoch
    # (promise 8).
    raised = msgspec.structs.replace(state, leader_epoch=state.leader_epoch + 1)
    return [*writes, put_state(cluster, tp, raised)]


def _born(
    cluster: ClusterState, name: str, plan: ResizePlan, item: int, partition_epoch: int
) -> list[Write] | None:
    """Return the nodes of a new partition; None while none of its brokers can lead.

    It begins where a former partition of its index ended, in a later leader epoch.
    """
    tp = TopicPartition(name, _index(plan, item))
    isr = _able(cluster, tp)
    if not isr:
        return None
    history = cluster.topic_histories[name]
    former = history.former.get(tp.partition)
    deleted = cluster.deletions_by_name.get(name, {}).values()
    epochs = [gone.leader_epochs.get(tp.partition, -1) for gone in deleted]
    epochs.append(-1 if former is None else former.leader_epoch)
    parent = nearest_ancestor(tp.partition, history.initial_partition_count, plan.from_count)
    node = PartitionNode(
        partition_epoch,
        leader_epoch_after_creation={parent: plan.leader_epochs[parent]},
        birth_epoch=plan.resize_epoch,
        birth_offset=0 if former is None else former.end_offset,
    )
    # Above all that the former incarnations had, also in deleted topics of the name (0016).
    state = PartitionState(isr[0], max(epochs) + 1, cluster.controller_epoch, isr)
    return [Put(layout.partition(*tp), node), Put(layout.state(*tp), state)]


def _able(cluster: ClusterState, tp: TopicPartition) -> list[int]:
    """Return the replicas of a partition without nodes that can be in its first ISR."""
    return cluster.first_isr(cluster.replicas(tp), cluster.electable)


def _unable(cluster: ClusterState, name: str, plan: ResizePlan) -> Iterator[int]:
    """Yield the children of a growth that no broker could lead now."""
    if plan.kind is not ResizeKind.GROW:
        return
    electable = cluster.electable
    replicas = cluster.topics[name].partitions
    for index in range(plan.from_count, plan.to_count):
        if electable.isdisjoint(replicas.get(index, ())):
            yield index
