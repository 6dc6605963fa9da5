"""What is wrong with the cluster, as the controller sees it: counts, and problems in words.

Owns the judgement for ``tidelog doctor`` and for metrics; changes nothing. Each look walks over all
partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidelog.controller.decisions.cluster import NO_LEADER, Cluster
from tidelog.model.topics import TopicPartition

NAMES_SHOWN = 10
"""Partitions that a problem names; the rest is counted."""


@dataclass
class _Looked:
    offline: list[TopicPartition] = field(default_factory=list)
    under_replicated: list[TopicPartition] = field(default_factory=list)
    below_minimum: list[TopicPartition] = field(default_factory=list)
    unclean: list[TopicPartition] = field(default_factory=list)


def condition(cluster: Cluster) -> dict[str, Any]:
    """Return the condition as plain data for JSON; ``problems`` is empty when nothing is wrong."""
    looked = _look(cluster)
    return {
        "role": "controller",
        "controller_epoch": cluster.controller_epoch,
        "revision": cluster.revision,
        "brokers": {
            str(broker): {
                "epoch": node.broker_epoch,
                "rack": node.rack,
                "condition": _condition_of(cluster, broker),
            }
            for broker, node in sorted(cluster.brokers.items())
        },
        "counts": _counts(cluster, looked),
        "problems": list(_problems(cluster, looked)),
    }


def counts(cluster: Cluster) -> Mapping[str, int]:
    """Return what metrics show of the cluster."""
    return _counts(cluster, _look(cluster))


def _look(cluster: Cluster) -> _Looked:
    looked = _Looked()
    minimums: dict[str, int] = {}
    for where, state in cluster.states.items():
        replicas = cluster.replicas(where)
        if where.topic not in minimums:
            minimums[where.topic] = cluster.resolve(where.topic).configs.min_insync_replicas
        if state.leader == NO_LEADER:
            looked.offline.append(where)
        if len(state.isr) < len(replicas):
            looked.under_replicated.append(where)
        if len(state.isr) < min(minimums[where.topic], len(replicas)):
            looked.below_minimum.append(where)
    for name, memory in cluster.memories.items():
        looked.unclean.extend(TopicPartition(name, index) for index in memory.unclean)
    return looked


def _counts(cluster: Cluster, looked: _Looked) -> dict[str, int]:
    return {
        "brokers": len(cluster.brokers),
        "brokers_suspected": len(cluster.suspected),
        "topics": len(cluster.topics),
        "partitions": len(cluster.states),
        "partitions_offline": len(looked.offline),
        "partitions_under_replicated": len(looked.under_replicated),
        "partitions_below_min_insync": len(looked.below_minimum),
        "partitions_with_unclean_debt": len(looked.unclean),
        "deletions_pending": len(cluster.deletions),
        "nodes_damaged": len(cluster.damaged),
    }


def _condition_of(cluster: Cluster, broker: int) -> str:
    for name in ("suspected", "shutting_down", "presumed"):
        if broker in getattr(cluster, name):
            return name
    return "alive"


def _problems(cluster: Cluster, looked: _Looked) -> Iterable[dict[str, str]]:
    if cluster.went_back is not None:
        yield _problem(cluster.went_back, "Nothing is deleted until this is settled.")
    for damaged in cluster.damaged.values():
        yield _problem(str(damaged), "Repair the node, or restore the metadata store.")
    if cluster.suspected:
        brokers = ", ".join(map(str, sorted(cluster.suspected)))
        advice = "See their logs; they are dead when their session times out."
        yield _problem(f"Not heard of, and suspected: brokers {brokers}.", advice)
    rows = (
        (
            looked.offline,
            "without a leader",
            "Start the brokers of their last ISR; with data loss: tidelog elect-leaders.",
        ),
        (
            looked.below_minimum,
            "below min.insync.replicas: acks=all is refused",
            "Bring back the brokers that are missing from their ISR.",
        ),
        (
            looked.unclean,
            "led by a replica that may lack committed records",
            "See tidelog doctor unclean.",
        ),
        (
            sorted({where for _, where in cluster.broken}),
            "with a damaged replica",
            "See the broker's log: the replica is out of service.",
        ),
    )
    for places, what, advice in rows:
        if places:
            plural = "" if len(places) == 1 else "s"
            yield _problem(f"{len(places)} partition{plural} {what}: {_named(places)}.", advice)


def _problem(what: str, advice: str) -> dict[str, str]:
    return {"what": what, "advice": advice}


def _named(places: list[TopicPartition]) -> str:
    shown = ", ".join(map(str, sorted(places)[:NAMES_SHOWN]))
    more = len(places) - NAMES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
