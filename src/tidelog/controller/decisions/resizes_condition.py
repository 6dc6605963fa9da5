"""What holds up resizes: for the condition of the cluster (KIP-253).

Owns the finding about the plans of topics. Not its form: see ``problems``. What a plan does next:
see ``resizing``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.problems import NAMES_SHOWN, NOTICE, problem
from tidelog.controller.decisions.resizing import items_of, missing_of, why_waiting
from tidelog.controller.decisions.shown_topics import shown_topic
from tidelog.metadata.records import ResizePlan
from tidelog.model.topics import TopicPartition


def of_resizes(cluster: ClusterState) -> Iterator[dict[str, Any]]:
    """Yield a note about the topics that are being resized, with what the first of them wait for.

    The partitions of the note are those whose fence or seal has not been reported.
    """
    said: list[str] = []
    waiting: list[str] = []
    names = sorted(cluster.resizing & cluster.topics.keys() - cluster.marked)
    for name in names[:NAMES_SHOWN]:
        plan = cluster.topic_histories[name].resize
        if plan is not None:
            clause, missing = _of_plan(cluster, name, plan)
            said.append(clause)
            waiting += [str(TopicPartition(name, index)) for index in missing]
    if not said:
        return
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    advice = (
        "Nothing: a resize ends by itself, or is undone after resize.timeout.ms. If it stays, see "
        "that the leaders of these partitions have their replicas in sync and room on disk."
    )
    yield problem(
        "resizes_running",
        f"Topics that are being resized: {'; '.join(said)}{more}.",
        advice,
        NOTICE,
        partitions=waiting,
    )


def _of_plan(cluster: ClusterState, name: str, plan: ResizePlan) -> tuple[str, list[int]]:
    clause = f"{name} from {plan.from_count} to {plan.to_count} partitions ({plan.kind})"
    if plan.published or plan.cursor < items_of(plan):
        return clause, []
    missing = list(missing_of(cluster, name, plan))
    return (f"{clause}: {why_waiting(plan, missing)}" if missing else clause), missing


def is_unborn(cluster: ClusterState, where: TopicPartition) -> bool:
    """Whether a partition without a state is one that a growth has yet to make."""
    node, history = cluster.topics[where.topic], cluster.topic_histories.get(where.topic)
    return not shown_topic(node, history).shows(where.partition)
