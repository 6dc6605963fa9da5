"""What holds up resizes: for the condition of the cluster, and for commands (KIP-253).

Owns the finding about the plans of topics, the rows for tools of these plans and of writers that
send no partition count, and what one topic's resize waits for. Not the form of a finding: see
``problems``. What a plan does next: see ``resizing``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.obstacles import of_silent
from tidelog.controller.decisions.problems import (
    NAMES_LISTED,
    NOTICE,
    names_of_brokers,
    problem,
)
from tidelog.controller.decisions.resize_beginnings import held_up, is_unbegun
from tidelog.controller.decisions.resize_requests import (
    count_of,
    named_clients,
    unaware_clients,
)
from tidelog.controller.decisions.resize_sentences import why_waiting
from tidelog.controller.decisions.resizing import (
    UNDOABLE,
    awaited_brokers,
    born_of,
    items_of,
    missing_of,
    obstacle_among,
)
from tidelog.controller.decisions.shown_topics import shown_topic
from tidelog.controller.decisions.unaware_writers import ON_RECORD, unaware_writers
from tidelog.metadata.records import ResizeKind, ResizePlan
from tidelog.model.topics import TopicPartition
from tidelog.model.wording import NAMES_SHOWN, moment_text, named

Silent = Callable[[str], Set[int]]
"""Returns the live brokers that have not responded since the plan of a topic was written; none once
it has closed a partition (``resize_beginnings``)."""


def of_resizes(cluster: ClusterState, silent: Silent) -> Iterator[dict[str, Any]]:
    """Yield a note about the topics that are being resized, with what the first of them wait for.

    The partitions of the note are those whose fence or seal has not been reported, and those that
    are not closed before a ``silent`` broker has responded.
    """
    clauses: list[str] = []
    waiting: list[str] = []
    brokers: set[int] = set()
    names = sorted(cluster.resizing & cluster.topics.keys() - cluster.marked)
    for name in names[:NAMES_SHOWN]:
        plan = cluster.topic_histories[name].resize
        if plan is not None:
            waits = _waits_of(cluster, name, plan, silent(name))
            clause = f"{name} from {plan.from_count} to {plan.to_count} partitions ({plan.kind})"
            clauses.append(f"{clause}: {waits.why}" if waits.why else clause)
            waiting += [str(TopicPartition(name, index)) for index in waits.partitions]
            brokers |= waits.brokers
    if not clauses:
        return
    advice = (
        "Nothing: a resize ends by itself, or is undone: after resize.timeout.ms, or at once when "
        "a partition cannot commit its fence."
    )
    yield problem(
        "resizes_running",
        f"Topics that are being resized: {named(clauses, len(names), between='; ')}.",
        advice,
        NOTICE,
        partitions=waiting,
        brokers=sorted(brokers),
    )


def of_unaware_writers(cluster: ClusterState) -> Iterator[dict[str, Any]]:
    """Yield notes about resized topics with writers that send no partition count: their keys may
    be out of order, and they prevent a shrink; and about brokers that have not said whether there
    are any, which prevents one too."""
    yield from _of_silent_brokers(cluster)
    rows = [
        row
        for row in unaware_on_record(cluster)
        if (history := cluster.topic_histories.get(row["topic"])) and history.resize_epoch > 0
    ]
    if not rows:
        return
    clauses = [
        f"{row['topic']}{named_clients(row['client_ids'])}{_last_seen(row)}"
        + (f", {row['misplaced_records']} records misplaced" if row["misplaced_records"] else "")
        for row in rows[:NAMES_SHOWN]
    ]
    listed = named(clauses, len(rows), between="; ")
    yield problem(
        "writers_without_count",
        f"Resized topics with writers that send no partition count: {listed}.",
        "Move them to tidelog's producer: otherwise their keys may be out of order, and the topic "
        "does not shrink. unaware.producers=refuse keeps such writers out.",
        NOTICE,
    )


def _last_seen(row: Mapping[str, Any]) -> str:
    if row["last_write_ms"] < 0:
        return ""
    moment = moment_text(row["last_write_ms"])
    if row["broker"] is None:
        # What is on record is ahead of what was reported (``RECORDED_MS``).
        return f", last seen before {moment}, by a former controller"
    return f", last seen by broker {row['broker']} at {moment}"


def _of_silent_brokers(cluster: ClusterState) -> Iterator[dict[str, Any]]:
    clauses: list[str] = []
    brokers: set[int] = set()
    for name, history in sorted(cluster.topic_histories.items()):
        node = cluster.topics.get(name)
        is_grown = node is not None and count_of(node) > history.initial_partition_count
        if not is_grown or history.resize is not None:
            continue  # it could not shrink now
        silent = unaware_writers(cluster, name)[1]
        if silent:
            brokers.update(silent)
            clauses.append(f"{name} ({names_of_brokers(silent)})")
    if clauses:
        yield problem(
            "writers_unknown",
            "Brokers have not said whether writers without a partition count write to topics that "
            f"grew, so these do not shrink: {named(clauses, between='; ')}.",
            "Wait a few seconds: a broker says it after it has registered. If it stays, inspect "
            "the logs of these brokers.",
            NOTICE,
            brokers=sorted(brokers),
        )


def plans_on_record(
    cluster: ClusterState, waited_ms: Mapping[str, int], silent: Silent
) -> list[dict[str, Any]]:
    """Return a row for each topic that is being resized, as plain data for JSON.

    ``unpublished`` are the partitions that no client has been shown: brokers may host them.
    ``waited_ms``: how long a plan has waited in its step, by topic.
    """
    rows = []
    for name in sorted(cluster.resizing & cluster.topics.keys()):
        plan = cluster.topic_histories[name].resize
        if plan is None:
            continue
        waits = _waits_of(cluster, name, plan, silent(name))
        rows.append(
            {
                "topic": name,
                "kind": plan.kind,
                "step": plan.step,
                "from_count": plan.from_count,
                "to_count": plan.to_count,
                "resize_epoch": plan.resize_epoch,
                "published": plan.published,
                "unpublished": _unpublished(plan),
                "waits_for_partitions": waits.partitions[:NAMES_LISTED],
                "waits_for_brokers": sorted(waits.brokers),
                "waited_ms": waited_ms.get(name, 0) if waits.partitions else 0,
            }
        )
    return rows


def unaware_on_record(cluster: ClusterState) -> list[dict[str, Any]]:
    """Return a row for each topic with writers that send no partition count, as far as brokers
    have reported them: when the last one wrote and which broker saw it (null: a former controller
    wrote it down), the misplaced records, and some of the client ids."""
    rows = []
    for topic_id in cluster.unaware.keys() | cluster.misplaced.keys():
        name = cluster.names.get(topic_id)
        seen = cluster.unaware.get(topic_id, {})
        broker = max(seen, key=seen.__getitem__, default=ON_RECORD)
        seen_ms = seen.get(broker, -1)
        misplaced = sum(cluster.misplaced.get(topic_id, {}).values())
        if name is not None and (seen_ms >= 0 or misplaced):
            rows.append(
                {
                    "topic": name,
                    "last_write_ms": seen_ms,
                    "broker": None if broker == ON_RECORD else broker,
                    "misplaced_records": misplaced,
                    "client_ids": unaware_clients(cluster, name),
                }
            )
    return sorted(rows, key=lambda row: str(row["topic"]))


def _unpublished(plan: ResizePlan) -> list[int]:
    """Return the partitions [first, end) that a growth, or the undo of one, hides from clients."""
    if plan.published:
        return [0, 0]
    if plan.kind is ResizeKind.UNDO:
        return [plan.to_count, plan.to_count + born_of(plan)]
    return [plan.from_count, max(plan.from_count, plan.to_count)]


@dataclass(frozen=True, slots=True)
class _Waits:
    """What a plan waits for; all of it is empty while the plan writes, or is published."""

    partitions: list[int] = field(default_factory=list)
    brokers: Set[int] = frozenset()
    why: str = ""


def _waits_of(cluster: ClusterState, name: str, plan: ResizePlan, silent: Set[int]) -> _Waits:
    if held := held_up(cluster, name, plan, silent):
        brokers: set[int] = set().union(*held.values())
        return _Waits(sorted(held), brokers, of_silent(brokers).what)
    if plan.published or plan.cursor < items_of(plan):
        return _Waits()
    missing = list(missing_of(cluster, name, plan))
    if not missing:
        return _Waits()
    awaited = awaited_brokers(cluster, name, missing)
    why = f"{why_waiting(plan, missing)} ({names_of_brokers(awaited)})"
    obstacle = obstacle_among(cluster, name, plan, missing)
    return _Waits(missing, awaited, why if obstacle is None else f"{why}; {obstacle.what}")


def resize_of(
    cluster: ClusterState, name: str, now_ms: int, silent: Silent
) -> dict[str, Any] | None:
    """Return what the resize of a topic waits for, or what one would meet; None: no such topic.

    ``plan`` is null when none is under way, ``unaware`` says when each broker last saw a writer
    without a count (``ago_ms``, null: never; broker -1: a former controller wrote it down), and
    ``unknown`` names the brokers that have not said
    it. ``now_ms`` is the time of day.
    """
    node, history = cluster.topics.get(name), cluster.topic_histories.get(name)
    if node is None or history is None or name in cluster.marked:
        return None
    plan = history.resize
    seen, unknown = unaware_writers(cluster, name)
    return {
        "partition_count": count_of(node),
        "initial_partition_count": history.initial_partition_count,
        "resize_epoch": history.resize_epoch,
        "plan": None if plan is None else _plan_shown(cluster, name, plan, silent(name)),
        "unaware": [
            {"broker": broker, "ago_ms": max(0, now_ms - at_ms) if at_ms >= 0 else None}
            for broker, at_ms in sorted(seen.items())
        ],
        "unaware_clients": unaware_clients(cluster, name),
        "unknown": unknown,
    }


def _plan_shown(
    cluster: ClusterState, name: str, plan: ResizePlan, silent: Set[int]
) -> dict[str, Any]:
    waits = _waits_of(cluster, name, plan, silent)
    # A fence is missing when it was ordered: an unbegun plan has ordered none.
    missing = [] if is_unbegun(plan) else waits.partitions
    return {
        "kind": plan.kind,
        "from_count": plan.from_count,
        "to_count": plan.to_count,
        "resize_epoch": plan.resize_epoch,
        "step": plan.step,
        "published": plan.published,
        "may_undo": plan.step in UNDOABLE[plan.kind] and not plan.published,
        "missing": missing[:NAMES_SHOWN],
        "missing_count": len(missing),
        "why": waits.why or None,
    }


def is_unborn(cluster: ClusterState, tp: TopicPartition) -> bool:
    """Whether a partition without a state is one that a growth has yet to make."""
    node, history = cluster.topics[tp.topic], cluster.topic_histories.get(tp.topic)
    return not shown_topic(node, history).shows(tp.partition)
