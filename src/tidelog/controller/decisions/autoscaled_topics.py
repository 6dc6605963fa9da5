"""Topics that are resized by their load: what is known of each, and the resize that follows. Pure.

Owns the observation of a topic from the cluster's state, and the write of a decision. Not the rule:
see ``autoscaling``; not the resize: see ``resize_requests``.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.controller.decisions.autoscaling import Observation, State, Verdict, decide
from tidelog.controller.decisions.autoscaling_settings import AUTO, settings_of
from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.decision import Decision, RequestRefusal
from tidelog.controller.decisions.entropy import Entropy
from tidelog.controller.decisions.growth import Growth
from tidelog.controller.decisions.resize_requests import begun, count_of, why_not_aware
from tidelog.model.topics import INTERNAL_TOPICS, TopicPartition

FRESH_MS = 15_000
"""How long a reported rate counts: leaders report every two seconds."""


class Times(NamedTuple):
    """The clocks of one decision, in ms: the time of day, and the monotonic clock."""

    wall_ms: int
    monotonic_ms: int


class Autoscaled(NamedTuple):
    """The result for one topic: what was seen, the verdict, and why its resize is refused."""

    seen: Observation
    verdict: Verdict
    refusal: RequestRefusal | None


def autoscaled_names(cluster: ClusterState) -> list[str]:
    """Return the topics that may be resized now, sorted. O(topics with configurations)."""
    return sorted(
        name
        for name, own in cluster.topic_configs.items()
        if AUTO in own and is_able(cluster, name)
    )


def is_able(cluster: ClusterState, name: str) -> bool:
    """Return whether a topic may be resized by its load now: that is wanted, it is whole, and it is
    neither resized nor deleted."""
    node, history = cluster.topics.get(name), cluster.topic_histories.get(name)
    return (
        node is not None
        and history is not None
        and history.resize is None
        and name not in cluster.marked
        and name not in INTERNAL_TOPICS
        and settings_of(cluster, name) is not None
        and count_of(node) >= history.initial_partition_count
        and all(TopicPartition(name, x) in cluster.states for x in range(count_of(node)))
    )


def observed(cluster: ClusterState, name: str, times: Times) -> Observation:
    """Return what is known of a topic now. A rate counts if the present leader reported it lately
    and since the last resize: before that the partition had the keys of its children too."""
    node, epoch = cluster.topics[name], cluster.topic_histories[name].resize_epoch
    by_partition = cluster.byte_rates.get(cluster.topic_id(name), {})
    rates: list[int | None] = []
    for index in range(count_of(node)):
        rate = by_partition.get(index)
        leader = cluster.states[TopicPartition(name, index)].leader
        counts = (
            rate is not None
            and (rate.broker, rate.resize_epoch) == (leader, epoch)
            and times.monotonic_ms - rate.at_ms <= FRESH_MS
        )
        rates.append(rate.bytes_per_second if rate is not None and counts else None)
    refusal = why_not_aware(cluster, name, times.wall_ms)
    unaware = "" if refusal is None else refusal.sentence
    return Observation(times.wall_ms, count_of(node), tuple(rates), len(node.partitions), unaware)


def judged(
    cluster: ClusterState, name: str, times: Times, low_since_ms: int | None
) -> tuple[Observation, Verdict]:
    """Return what is known of a topic of ``autoscaled_names``, and what follows."""
    settings, history = settings_of(cluster, name), cluster.topic_histories[name]
    assert settings is not None
    seen = observed(cluster, name, times)
    state = State(history.grow_after_ms, history.shrink_after_ms, low_since_ms)
    return seen, decide(settings, seen, state)


def autoscale(
    cluster: ClusterState, name: str, times: Times, low_since_ms: int | None, entropy: Entropy
) -> Decision[Autoscaled | None]:
    """Decide about a topic; its resize begins with the write. None: it cannot be resized now."""
    if not is_able(cluster, name):
        return Decision(None)
    seen, verdict = judged(cluster, name, times, low_since_ms)
    if verdict.count == seen.count:
        return Decision(Autoscaled(seen, verdict, None))
    made = begun(cluster, Growth(name, verdict.count), entropy, times.wall_ms)
    if isinstance(made, RequestRefusal):
        return Decision(Autoscaled(seen, verdict, made))
    return Decision(Autoscaled(seen, verdict, None), tuple(made))
