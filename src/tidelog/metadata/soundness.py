"""The rules of a single record: what no controller writes, and no controller acts on.

Owns why the content of one node is impossible, in one clause. Not the ids in it: see ``layout``;
nor what two nodes say of each other: see ``controller.decisions.agreement``. A stored record passes
the rules of a request with the same content (promise 20): other programs write nodes, and disks and
backups damage them.

| record | rules |
|---|---|
| any list of brokers | each is a broker id, none is named twice |
| a topic | partitions from 0 on without a gap, each with a replica; its counts are a request |
| a partition | epochs and offsets are none or not negative; it retires after its birth |
| a state | the leader is -1 or in the ISR; targets are null or at least one broker |
| a topic's record | a plan changes the counts as its kind says, in the record's resize epoch |
| a deletion | it names a topic; each partition names its brokers |
| uncertain replicas | each partition names its brokers |
| a block of producer ids | it begins at or before its end |
| a counter | not negative, and low enough to count on |

A rule is true of every record that any version of tidelog or Kafka has written: a stricter one
would take a sound partition out of service.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from tidelog.metadata import records
from tidelog.metadata.records import ResizeKind, ResizeStep
from tidelog.model.topics import why_invalid

HIGHEST_ID = 2**31 - 1
"""Broker ids, partitions and counts are 32-bit integers on the wire."""

HIGHEST_EPOCH = 2**31 - 1 - 1_000_000
"""An epoch is raised by each change, and by a million when a restored store is accepted."""

HIGHEST_OFFSET = 2**63 - 1

HIGHEST_COUNT = 2**63 - 1 - 10**12
"""Counters of 64 bits are raised too."""

HIGHEST_PORT = 2**16 - 1

RecordT = TypeVar("RecordT")


def why_impossible(record: records.Record) -> str | None:
    """Return one clause that says why no node can have this content, or None."""
    rule = _RULES.get(type(record))
    return None if rule is None else rule(record)


def why_no_counter(value: int, highest: int) -> str | None:
    """Return the same of a counter."""
    if value < 0:
        return f"{value} is negative"
    return f"{value} is too high to count on" if value > highest else None


def _why_no_state(state: records.PartitionState) -> str | None:
    isr, targets = state.isr, state.target_replicas
    # One comparison chain for the good case: an activation checks every state of the store.
    if not (
        0 <= state.leader_epoch <= HIGHEST_EPOCH and 0 <= state.controller_epoch <= HIGHEST_EPOCH
    ):
        return _why_no_epoch("leader_epoch", state.leader_epoch) or _why_no_epoch(
            "controller_epoch", state.controller_epoch
        )
    why = _why_no_brokers("its ISR", isr)
    if why is None and state.leader not in isr and state.leader != -1:
        why = f"its leader {state.leader} is not in its ISR {isr}"
    if why is None and targets is not None:
        why = _why_no_brokers("targetReplicas", targets)
        if not targets:
            why = "targetReplicas is empty; null means that no reassignment runs"
    if why is None and state.eligible_replicas:
        why = _why_no_brokers("eligible_replicas", state.eligible_replicas)
    if why is None and state.unclean_members:
        why = _why_no_brokers("unclean_members", state.unclean_members)
    return why


def _why_no_partition(node: records.PartitionNode) -> str | None:
    for name, value, lowest in (
        ("partition_epoch", node.partition_epoch, 0),
        ("birthEpoch", node.birth_epoch, 0),
        ("retirementEpoch", node.retirement_epoch, -1),
    ):
        if not lowest <= value <= HIGHEST_EPOCH:
            return _why_no_epoch(name, value)
    if not 0 <= node.birth_offset <= HIGHEST_OFFSET:
        return f"birthOffset {node.birth_offset} is no offset"
    # A child of a growth that was not published is born retired, in a store that was restored.
    if -1 < node.retirement_epoch < node.birth_epoch:
        return f"it retired in resize epoch {node.retirement_epoch}, before its birth"
    for name, found in (
        ("leaderEpochAfterCreation", node.leader_epoch_after_creation),
        ("leaderEpochBeforeDeletion", node.leader_epoch_before_deletion),
    ):
        if len(found) > 1:
            return f"{name} has {len(found)} partitions, and one is possible"
        why = _why_no_partitions(name, found) or _first(
            _why_no_epoch(name, x) for x in found.values()
        )
        if why is not None:
            return why
    return None


def _why_no_topic(node: records.TopicNode) -> str | None:
    partitions = node.partitions
    if not partitions:
        return "it has no partitions"
    why = _why_no_partitions("it", partitions)
    if why is not None:
        return why
    if max(partitions) != len(partitions) - 1:
        gap = next(x for x in range(len(partitions)) if x not in partitions)
        return f"it has the partition {max(partitions)} and not {gap}"
    for index, replicas in partitions.items():
        if not replicas:
            return f"it has a partition without replicas: {index}"
        why = _why_no_brokers("the partition", replicas)
        if why is not None:
            return f"{why}: {index}"
    return None


def _why_no_history(history: records.TopicHistory) -> str | None:
    if not 1 <= history.initial_partition_count <= HIGHEST_ID:
        return f"initial_partition_count is {history.initial_partition_count}"
    why = _why_no_epoch("resize_epoch", history.resize_epoch)
    if why is None and history.resize is not None:
        why = _why_no_plan(history.resize, history)
    if min(history.grow_after_ms, history.shrink_after_ms) < 0:
        why = why or "a cool-down ends before any time"
    if max(history.grow_after_ms, history.shrink_after_ms) > HIGHEST_OFFSET:
        why = why or "a cool-down ends after all time"
    if not 0 <= history.unaware_ms <= HIGHEST_OFFSET:
        why = why or f"unaware_ms is {history.unaware_ms}"
    for epoch, at_ms in history.retired_ms.items():
        if not (0 <= epoch <= HIGHEST_EPOCH and 0 <= at_ms <= HIGHEST_OFFSET):
            why = why or f"retired_ms of the resize epoch {epoch} is {at_ms}"
    return (
        why
        or _why_no_assignments("original_replicas", history.original_replicas)
        or _why_no_notes("pending_stops", history.pending_stops)
        or _why_no_notes("stop_partition_epochs", history.stop_partition_epochs)
        or _why_no_former(history.former)
        or _why_no_debts(history)
    )


def _why_no_plan(plan: records.ResizePlan, history: records.TopicHistory) -> str | None:
    before, after = plan.from_count, plan.to_count
    if not (1 <= before <= HIGHEST_ID and 1 <= after <= HIGHEST_ID):
        return f"its resize goes from {before} to {after} partitions"
    fits = {
        ResizeKind.GROW: after > before,
        ResizeKind.SHRINK: after < before,
        ResizeKind.SAME: after == before,
        ResizeKind.UNDO: True,
    }
    if not fits[plan.kind] or plan.step not in _STEPS[plan.kind]:
        return (
            f"its resize from {before} to {after} partitions is no {plan.kind} in the step "
            f"{plan.step}"
        )
    if min(before, after) < history.initial_partition_count:
        return (
            f"its resize goes from {before} to {after} partitions, below the initial count "
            f"{history.initial_partition_count}"
        )
    if plan.resize_epoch != history.resize_epoch or plan.resize_epoch < 1:
        return (
            f"its resize is of resize epoch {plan.resize_epoch}, and the topic in "
            f"{history.resize_epoch}"
        )
    most = _most_written(plan)
    if not (0 <= plan.cursor <= most and 0 <= plan.undone_cursor <= before + after):
        return f"its resize has written {plan.cursor} of {most} partitions in the step {plan.step}"
    if len(plan.leader_epochs) != _epochs_of(plan):
        return (
            f"its resize has {len(plan.leader_epochs)} leader epochs, and {plan.cursor} partitions "
            f"are written in the step {plan.step}"
        )
    return _first(_why_no_epoch("leader_epochs", x) for x in plan.leader_epochs)


def _most_written(plan: records.ResizePlan) -> int:
    match plan.step:
        case ResizeStep.FENCE:
            return plan.from_count
        case ResizeStep.REOPEN:
            # An undo also removes the children that were born.
            born = plan.undone_cursor if plan.undone_step is ResizeStep.BIRTH else 0
            return plan.to_count + born
        case _:
            return abs(plan.to_count - plan.from_count)


def _epochs_of(plan: records.ResizePlan) -> int:
    """Return how many leader epochs a plan has: of the parents, or of the survivors."""
    match plan.kind, plan.step:
        case ResizeKind.GROW, ResizeStep.BIRTH:
            return plan.from_count
        case ResizeKind.GROW, ResizeStep.FENCE:
            return plan.cursor
        case ResizeKind.SHRINK, ResizeStep.FENCE:
            return min(plan.cursor, plan.to_count)
        case _:
            return 0


_STEPS: dict[ResizeKind, Collection[ResizeStep]] = {
    ResizeKind.GROW: (ResizeStep.FENCE, ResizeStep.BIRTH),
    ResizeKind.SHRINK: (ResizeStep.SEAL, ResizeStep.FENCE),
    ResizeKind.SAME: (ResizeStep.FENCE,),
    ResizeKind.UNDO: (ResizeStep.REOPEN,),
}


def _why_no_former(former: Mapping[int, records.FormerPartition]) -> str | None:
    why = _why_no_partitions("former", former)
    if why is not None:
        return why
    for index, one in former.items():
        epochs = (one.leader_epoch, one.partition_epoch, one.resize_epoch)
        if not (
            0 <= one.end_offset <= HIGHEST_OFFSET
            and -1 <= one.data_end <= one.end_offset
            and min(epochs) >= -1
            and max(epochs) <= HIGHEST_EPOCH
        ):
            return f"where the removed partition {index} ended is impossible"
    return None


def _why_no_debts(history: records.TopicHistory) -> str | None:
    debts = [*history.unclean.items()]
    debts += [(index, debt) for index, found in history.unclean_past.items() for debt in found]
    why = _why_no_partitions("unclean", [index for index, _ in debts])
    for index, debt in debts:
        if why is not None:
            break
        numbers = (debt.leader_epoch, debt.end_epoch, *(x for r in debt.lost for x in r.epochs))
        if not (
            # A loss that no election explains has no leader.
            -1 <= debt.leader <= HIGHEST_ID
            and -1 <= min(numbers) <= max(numbers) <= HIGHEST_EPOCH
            and -1 <= debt.end_offset <= HIGHEST_OFFSET
            and all(
                0 <= x.broker <= HIGHEST_ID and 0 <= x.first <= x.end <= HIGHEST_OFFSET
                for x in debt.lost
            )
        ):
            why = f"an unclean election of the partition {index} is impossible"
    return why


def _why_no_deletion(node: records.DeletionNode) -> str | None:
    clause = why_invalid(node.name)
    if clause is not None:
        return f"{node.name!r} is no topic: {clause}"
    return (
        _why_no_assignments("it", node.partitions)
        or _why_no_partitions("leader_epochs", node.leader_epochs)
        or _first(
            f"leader_epochs has {x}, which is no epoch"
            for x in node.leader_epochs.values()
            if not -1 <= x <= HIGHEST_EPOCH
        )
    )


def _why_no_uncertain(node: records.UncertainReplicas) -> str | None:
    for name, partitions in node.topics.items():
        clause = why_invalid(name)
        why = f"{name!r} is no topic: {clause}" if clause is not None else None
        why = why or _why_no_assignments(name, partitions)
        if why is not None:
            return why
    return None


def _why_no_broker(node: records.BrokerNode) -> str | None:
    if not -1 <= node.broker_epoch <= HIGHEST_COUNT:
        return f"{node.broker_epoch} is no broker epoch"
    for endpoint in node.endpoints:
        name, mark, address = endpoint.partition("://")
        port = address.rpartition(":")[2]
        if not (name and mark and port.isascii() and port.isdigit() and len(port) <= 5):
            return f"{endpoint!r} is no endpoint"
        if int(port) > HIGHEST_PORT:
            return f"{endpoint!r} has no port"
    return None


def _why_no_block(block: records.ProducerIdBlock) -> str | None:
    for text in (block.block_start, block.block_end):
        if not (text.isascii() and text.isdigit()) or int(text[:20]) > HIGHEST_OFFSET:
            return f"{text} is no producer id"
    if int(block.block_start) > int(block.block_end):
        return f"it begins at {block.block_start}, after its end {block.block_end}"
    return None


def _why_no_plan_of_moves(node: records.ReassignPartitionsNode) -> str | None:
    return None if node.version == 1 else f"its version is {node.version}, and 1 is known"


def _why_no_cluster(node: records.ClusterId) -> str | None:
    # Kafka's own ids are such texts, and a process compares them as texts.
    return None if node.id.strip() else "it is empty"


_RULES: dict[type[Any], Callable[[Any], str | None]] = {
    records.PartitionState: _why_no_state,
    records.PartitionNode: _why_no_partition,
    records.TopicNode: _why_no_topic,
    records.TopicHistory: _why_no_history,
    records.DeletionNode: _why_no_deletion,
    records.BrokerNode: _why_no_broker,
    records.UncertainReplicas: _why_no_uncertain,
    records.ProducerIdBlock: _why_no_block,
    records.ReassignPartitionsNode: _why_no_plan_of_moves,
    records.ClusterId: _why_no_cluster,
}


def _why_no_brokers(what: str, brokers: Sequence[int]) -> str | None:
    if not brokers:
        return None
    if min(brokers) < 0 or max(brokers) > HIGHEST_ID:
        wrong = next(x for x in brokers if not 0 <= x <= HIGHEST_ID)
        return f"{what} names {wrong}, which is no broker id"
    if len(set(brokers)) != len(brokers):
        twice = next(x for x in brokers if brokers.count(x) > 1)
        return f"{what} names broker {twice} twice"
    return None


def _why_no_partitions(what: str, indexes: Collection[int]) -> str | None:
    wrong = _first(x for x in indexes if not 0 <= x <= HIGHEST_ID)
    return None if wrong is None else f"{what} has the partition {wrong}"


def _why_no_assignments(what: str, found: Mapping[int, Sequence[int]]) -> str | None:
    return _why_no_partitions(what, found) or _first(
        why for brokers in found.values() if (why := _why_no_brokers(what, brokers)) is not None
    )


def _why_no_notes(what: str, found: Mapping[int, Mapping[int, int]]) -> str | None:
    return _why_no_partitions(what, found) or _first(
        f"{what} of the partition {index} has {broker}: {epoch}"
        for index, notes in found.items()
        for broker, epoch in notes.items()
        if not (0 <= broker <= HIGHEST_ID and -1 <= epoch <= HIGHEST_EPOCH)
    )


def _why_no_epoch(name: str, value: int) -> str | None:
    return None if 0 <= value <= HIGHEST_EPOCH else f"{name} {value} is no epoch"


def _first(found: Iterable[RecordT | None]) -> RecordT | None:
    return next((x for x in found if x is not None), None)
