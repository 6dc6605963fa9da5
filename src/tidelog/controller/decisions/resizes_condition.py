"""What holds up resizes: for the condition of the cluster, and for commands (KIP-253).

Owns the finding about the plans of topics, the rows for tools of these plans and of writers that
send no partition count, and what one topic's resize waits for. Not the form of a finding: see
``problems``. What a plan does next: see ``resizing``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from datetime import UTC, datetime
from typing import Any

from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.problems import (
    NAMES_LISTED,
    NAMES_SHOWN,
    NOTICE,
    names_of_brokers,
    problem,
)
from tidelog.controller.decisions.resize_beginnings import held_up
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


def of_resizes(cluster: ClusterState) -> Iterator[dict[str, Any]]:
    """Yield a note about the topics that are being resized, with what the first of them wait for.

    The partitions of the note are those whose fence or seal has not been reported.
    """
    said: list[str] = []
    waiting: list[str] = []
    brokers: set[int] = set()
    names = sorted(cluster.resizing & cluster.topics.keys() - cluster.marked)
    for name in names[:NAMES_SHOWN]:
        plan = cluster.topic_histories[name].resize
        if plan is not None:
            clause, missing = _of_plan(cluster, name, plan)
            said.append(clause)
            waiting += [str(TopicPartition(name, index)) for index in missing]
            brokers |= awaited_brokers(cluster, name, missing)
    if not said:
        return
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    advice = (
        "Nothing: a resize ends by itself, or is undone: after resize.timeout.ms, or at once when "
        "a partition cannot commit its fence."
    )
    yield problem(
        "resizes_running",
        f"Topics that are being resized: {'; '.join(said)}{more}.",
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
        if (found := cluster.topic_histories.get(row["topic"])) and found.resize_epoch > 0
    ]
    if not rows:
        return
    said = [
        f"{row['topic']}{named_clients(row['client_ids'])}{_last_seen(row)}"
        + (f", {row['misplaced_records']} records misplaced" if row["misplaced_records"] else "")
        for row in rows[:NAMES_SHOWN]
    ]
    more = f" and {len(rows) - NAMES_SHOWN} more" if len(rows) > NAMES_SHOWN else ""
    yield problem(
        "writers_without_count",
        f"Resized topics with writers that send no partition count: {'; '.join(said)}{more}.",
        "Move them to tidelog's producer: otherwise their keys may be out of order, and the topic "
        "does not shrink. unaware.producers=refuse keeps such writers out.",
        NOTICE,
    )


def _last_seen(row: Mapping[str, Any]) -> str:
    if row["last_write_ms"] < 0:
        return ""
    at = datetime.fromtimestamp(row["last_write_ms"] / 1000, UTC).strftime("%FT%TZ")
    if row["broker"] is None:
        # What is on record is ahead of what was reported (``RECORDED_MS``).
        return f", last seen before {at}, by a former controller"
    return f", last seen by broker {row['broker']} at {at}"


def _of_silent_brokers(cluster: ClusterState) -> Iterator[dict[str, Any]]:
    said: list[str] = []
    brokers: set[int] = set()
    for name, history in sorted(cluster.topic_histories.items()):
        node = cluster.topics.get(name)
        is_grown = node is not None and count_of(node) > history.initial_partition_count
        if not is_grown or history.resize is not None:
            continue  # it could not shrink now
        silent = unaware_writers(cluster, name)[1]
        if silent:
            brokers.update(silent)
            said.append(f"{name} ({names_of_brokers(silent)})")
    if said:
        more = f" and {len(said) - NAMES_SHOWN} more" if len(said) > NAMES_SHOWN else ""
        yield problem(
            "writers_unknown",
            "Brokers have not said whether writers without a partition count write to topics that "
            f"grew, so these do not shrink: {'; '.join(said[:NAMES_SHOWN])}{more}.",
            "Wait a few seconds: a broker says it after it has registered. If it stays, inspect "
            "the logs of these brokers.",
            NOTICE,
            brokers=sorted(brokers),
        )


def plans_on_record(
    cluster: ClusterState, waited_ms: Mapping[str, int], silent: Callable[[str], Set[int]]
) -> list[dict[str, Any]]:
    """Return a row for each topic that is being resized, as plain data for JSON.

    ``unpublished`` are the partitions that no client has been shown: brokers may host them.
    ``waited_ms``: how long a plan has waited in its step, by topic; ``silent`` returns the
    brokers that have not responded since a topic's plan was written (``resize_beginnings``).
    """
    rows = []
    for name in sorted(cluster.resizing & cluster.topics.keys()):
        plan = cluster.topic_histories[name].resize
        if plan is None:
            continue
        _, missing = _of_plan(cluster, name, plan)
        brokers = awaited_brokers(cluster, name, missing)
        held = held_up(cluster, name, plan, silent(name))
        if held:
            missing, brokers = sorted(held), set().union(*held.values())
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
                "waits_for_partitions": missing[:NAMES_LISTED],
                "waits_for_brokers": sorted(brokers),
                "waited_ms": waited_ms.get(name, 0) if missing else 0,
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


def _of_plan(cluster: ClusterState, name: str, plan: ResizePlan) -> tuple[str, list[int]]:
    clause = f"{name} from {plan.from_count} to {plan.to_count} partitions ({plan.kind})"
    if plan.published or plan.cursor < items_of(plan):
        return clause, []
    missing = list(missing_of(cluster, name, plan))
    if not missing:
        return clause, missing
    return f"{clause}: {_why(cluster, name, plan, missing)}", missing


def _why(cluster: ClusterState, name: str, plan: ResizePlan, missing: list[int]) -> str:
    found = obstacle_among(cluster, name, plan, missing)
    at = names_of_brokers(awaited_brokers(cluster, name, missing))
    said = f"{why_waiting(plan, missing)} ({at})"
    return said if found is None else f"{said}; {found.what}"


def resize_of(cluster: ClusterState, name: str, now_ms: int) -> dict[str, Any] | None:
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
        "plan": None if plan is None else _plan_shown(cluster, name, plan),
        "unaware": [
            {"broker": broker, "ago_ms": max(0, now_ms - at_ms) if at_ms >= 0 else None}
            for broker, at_ms in sorted(seen.items())
        ],
        "unaware_clients": unaware_clients(cluster, name),
        "unknown": unknown,
    }


def _plan_shown(cluster: ClusterState, name: str, plan: ResizePlan) -> dict[str, Any]:
    is_written = plan.cursor >= items_of(plan)
    missing = [] if plan.published or not is_written else list(missing_of(cluster, name, plan))
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
        "why": _why(cluster, name, plan, missing) if missing else None,
    }


def is_unborn(cluster: ClusterState, where: TopicPartition) -> bool:
    """Whether a partition without a state is one that a growth has yet to make."""
    node, history = cluster.topics[where.topic], cluster.topic_histories.get(where.topic)
    return not shown_topic(node, history).shows(where.partition)
