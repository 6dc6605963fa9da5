"""Audit lines of commits: one log line per change that an operator may look up (promise 32).

Owns the sentences and their fields: for each topic that is created, grows or is deleted, each
changed configuration, each unclean election, each report of its losses and each finished handling
of a loss, each start, change, completion and cancellation of a reassignment, and each start, undo
and end of a resize. Pure, except ``say``.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.decision import Put, Remove, Write
from tidelog.controller.decisions.elections import is_unclean_election
from tidelog.controller.decisions.losses import handled_lines, loss_lines
from tidelog.controller.decisions.ordered_delivery import ORDERED, is_ordered
from tidelog.controller.decisions.uncertain_replicas import is_full
from tidelog.metadata import layout
from tidelog.metadata.records import (
    ConfigNode,
    DeletionMark,
    DeletionNode,
    FormerPartition,
    PartitionState,
    ResizeKind,
    ResizePlan,
    TopicHistory,
    TopicNode,
    UncertainReplicas,
)
from tidelog.model.topics import TopicPartition

audit = logging.getLogger("tidelog.audit")


@dataclass(frozen=True, slots=True)
class AuditLine:
    """A sentence with the names of its ``fields``; creations are not warnings."""

    sentence: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    level: int = logging.WARNING

    def __str__(self) -> str:
        return self.sentence % self.fields if self.fields else self.sentence


def say(lines: Iterable[AuditLine]) -> None:
    """Write lines to the audit log."""
    for line in lines:
        if line.fields:
            audit.log(line.level, line.sentence, line.fields)
        else:
            audit.log(line.level, "%s", line.sentence)


def audit_lines(before: ClusterState, writes: Iterable[Write]) -> list[AuditLine]:
    """Return the lines of writes; ``before`` is the state without them."""
    writes = list(writes)
    gone = {write.path for write in writes if isinstance(write, Remove)}
    lines = [line for write in writes for line in _of(before, write, gone)]
    return [*lines, *_of_elections(before, writes), *_of_moves(before, writes)]


def _of(before: ClusterState, write: Write, gone: Collection[str]) -> Iterator[AuditLine]:
    above, _, name = write.path.rpartition("/")
    if above in (layout.TOPIC_CONFIGS, layout.BROKER_CONFIGS) and layout.topic(name) not in gone:
        yield from _of_configs(before, write, name, of_topic=above == layout.TOPIC_CONFIGS)
    if not isinstance(write, Put):
        return
    record = write.record
    if isinstance(record, TopicNode):
        # At level 1.5 the plan of a resize says it.
        former = None if before.level.resizes else before.topics.get(name)
        if former is not None or name not in before.topics:
            yield from _of_topic(former, record, name)
    elif isinstance(record, DeletionNode) and write.path not in before.versions:
        fields = {"topic": record.name, "topic_id": name, "partitions": len(record.partitions)}
        sentence = "topic %(topic)s deleted, id %(topic_id)s, %(partitions)d partitions"
        yield AuditLine(sentence, fields)
    elif isinstance(record, DeletionMark) and write.path not in before.versions:
        count = len(before.topics[name].partitions) if name in before.topics else 0
        sentence = "topic %(topic)s marked for deletion, %(partitions)d partitions"
        yield AuditLine(sentence, {"topic": name, "partitions": count})
    elif isinstance(record, UncertainReplicas) and is_full(record):
        sentence = (
            f"{write.path} has no room for more replicas: while the states of their partitions "
            "cannot be read, a power loss of others is forgotten. Put the states back first"
        )
        yield AuditLine(sentence)
    elif isinstance(record, TopicHistory):
        earlier = before.topic_histories.get(name)
        yield from map(AuditLine, loss_lines(name, earlier, record))
        for sentence in handled_lines(name, earlier, record):
            yield AuditLine(sentence, level=logging.INFO)
        yield from _of_plan(None if earlier is None else earlier.resize, record.resize, name)
        yield from _of_removal({} if earlier is None else earlier.former, record, name)


def _of_topic(former: TopicNode | None, node: TopicNode, name: str) -> Iterator[AuditLine]:
    count = len(node.partitions)
    fields: dict[str, Any] = {"topic": name, "partitions": count, "topic_id": node.topic_id}
    if former is None:
        fields["replicas"] = len(next(iter(node.partitions.values()), ()))
        sentence = "topic %(topic)s created: %(partitions)d partitions, %(replicas)d replicas each"
        yield AuditLine(sentence, fields, logging.INFO)
    elif count > len(former.partitions):
        fields["former_partitions"] = len(former.partitions)
        sentence = "topic %(topic)s has %(partitions)d partitions now, after %(former_partitions)d"
        yield AuditLine(sentence, fields, logging.INFO)


def _of_plan(former: ResizePlan | None, plan: ResizePlan | None, name: str) -> Iterator[AuditLine]:
    if plan is None:
        return
    fields: dict[str, Any] = {
        "topic": name,
        "partitions": plan.to_count,
        "former_partitions": plan.from_count,
        "resize_epoch": plan.resize_epoch,
    }
    level = logging.WARNING if plan.kind is ResizeKind.UNDO else logging.INFO
    if former is None or former.resize_epoch != plan.resize_epoch:
        what = "undo of the resize" if plan.kind is ResizeKind.UNDO else "resize"
        yield AuditLine(
            f"{what} of topic %(topic)s started: from %(former_partitions)d to %(partitions)d "
            "partitions, resize epoch %(resize_epoch)d",
            fields,
            level,
        )
    if plan.published and (former is None or not former.published):
        what = "undone" if plan.kind is ResizeKind.UNDO else "done"
        yield AuditLine(
            f"resize of topic %(topic)s {what}: it has %(partitions)d partitions, after "
            "%(former_partitions)d, resize epoch %(resize_epoch)d",
            fields,
            level,
        )


def _of_removal(
    earlier: Mapping[int, FormerPartition], history: TopicHistory, name: str
) -> Iterator[AuditLine]:
    new = [
        index for index, former in sorted(history.former.items()) if earlier.get(index) != former
    ]
    if new:
        ends = ", ".join(f"{index} at {history.former[index].end_offset}" for index in new)
        # Those of an undo never took a record.
        is_undo = history.resize is not None and history.resize.kind is ResizeKind.UNDO
        which = "unpublished" if is_undo else "retired"
        sentence = f"{which} partitions of topic %(topic)s removed, they end: %(ends)s"
        yield AuditLine(sentence, {"topic": name, "ends": ends}, logging.INFO)


def _of_configs(
    before: ClusterState, write: Write, name: str, *, of_topic: bool
) -> Iterator[AuditLine]:
    former = (before.topic_configs if of_topic else before.broker_configs).get(name, {})
    now: Mapping[str, str] = {}
    if isinstance(write, Put):
        if not isinstance(write.record, ConfigNode):
            return
        now = write.record.config
    if of_topic and _ends_order(before, name, former, now):
        sentence = "topic %(topic)s no longer keeps the order of its keys when it is resized"
        yield AuditLine(sentence, {"topic": name})
    changed = {key: value for key, value in sorted(now.items()) if former.get(key) != value}
    removed = sorted(former.keys() - now.keys())
    if not changed and not removed:
        return
    changes = [f"{key}={value}" for key, value in changed.items()]
    changes += [f"{key} unset" for key in removed]
    kind = "topic" if of_topic else "broker"
    # Defaults of all brokers: <default> in the store, as in Kafka.
    fields = {kind: "all" if name == layout.ALL_BROKERS else name, "changes": ", ".join(changes)}
    yield AuditLine(f"configuration of {kind} %({kind})s: %(changes)s", fields, logging.INFO)


def _ends_order(
    before: ClusterState, name: str, former: Mapping[str, str], now: Mapping[str, str]
) -> bool:
    if former.get(ORDERED) == now.get(ORDERED) or name not in before.topics:
        return False
    return is_ordered(before, name, former) and not is_ordered(before, name, now)


def _of_elections(before: ClusterState, writes: Iterable[Write]) -> Iterator[AuditLine]:
    unclean: dict[TopicPartition, PartitionState] = {}
    for write in writes:
        place = layout.partition_of(write.path)
        if (
            isinstance(write, Put)
            and isinstance(write.record, PartitionState)
            and place is not None
        ):
            tp = TopicPartition(*place)
            if is_unclean_election(before.states.get(tp), write.record):
                unclean[tp] = write.record
    if before.went_back is not None and unclean:
        # An acceptance elects the leader of every partition: one line instead of thousands.
        by_topic: dict[str, list[int]] = {}
        for tp in unclean:
            by_topic.setdefault(tp.topic, []).append(tp.partition)
        yield AuditLine(
            "restored store: the newest replica leads each of %(count)d partitions, as after an "
            "unclean election: partitions of %(topics)s; `tidelog doctor unclean` lists losses",
            {"count": len(unclean), "topics": "; ".join(map(_numbered, by_topic.items()))},
        )
        return
    for tp, state in unclean.items():
        yield AuditLine(
            "unclean election of %(partition)s: broker %(leader)d leads in epoch "
            "%(leader_epoch)d; committed records may be lost",
            {"partition": tp, "leader": state.leader, "leader_epoch": state.leader_epoch},
        )


def _numbered(topic_partitions: tuple[str, list[int]]) -> str:
    """Return a topic with its partitions, such as ``t 0-3,7``."""
    topic, partitions = topic_partitions
    runs: list[list[int]] = []
    for partition in sorted(partitions):
        if runs and partition == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], partition]
        else:
            runs.append([partition])
    return f"{topic} {','.join('-'.join(map(str, run)) for run in runs)}"


def _of_moves(before: ClusterState, writes: Iterable[Write]) -> Iterator[AuditLine]:
    states: dict[TopicPartition, PartitionState] = {}
    assigned: dict[str, Mapping[int, list[int]]] = {}
    for write in writes:
        if not isinstance(write, Put):
            continue
        if isinstance(write.record, TopicNode):
            assigned[write.path.rpartition("/")[2]] = write.record.partitions
        elif isinstance(write.record, PartitionState):
            place = layout.partition_of(write.path)
            if place is not None and (write.record.target_replicas or before.moves):
                states[TopicPartition(*place)] = write.record
    for tp, state in states.items():
        replicas = assigned.get(tp.topic, {}).get(tp.partition, before.replicas(tp))
        yield from _of_move(before, tp, state, replicas)


def _of_move(
    before: ClusterState, tp: TopicPartition, state: PartitionState, replicas: list[int]
) -> Iterator[AuditLine]:
    former, targets = before.moves.get(tp), state.target_replicas
    if former == targets:
        return
    fields: dict[str, Any] = {
        "partition": tp,
        "replicas": list(before.replicas(tp)),
        "targets": former if targets is None else targets,
        "leader_epoch": state.leader_epoch,
    }
    what = "reassignment of %(partition)s "
    if targets is not None and former is None:
        what += "started: from %(replicas)s to %(targets)s"
    elif targets is not None:
        fields["former_targets"] = former
        what += "changed: to %(targets)s instead of %(former_targets)s"
    elif replicas == former:
        what += "completed: from %(replicas)s to %(targets)s"
    else:
        what += "cancelled: to %(targets)s; it stays on %(replicas)s"
    yield AuditLine(what + ", leader epoch %(leader_epoch)d", fields, logging.INFO)
