"""Writers that send no partition count: what brokers report of them, and what the store keeps.

Owns what is known of such writers by topic, and which brokers still have to report. Not the
refusal of a shrink: see ``resize_requests``. Pure (KIP-253).

Every broker reports each topic that it hosts, after each registration. The highest time of all
brokers counts, for leadership moves. What is reported of a topic that was resized is also written
into its record, at most every ``RECORDED_MS``: the next controller knows it although the broker
that saw the writer is gone by then. So it waits for no dead broker (docs/decisions/0083).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

import msgspec

from tidelog.controller.decisions.cluster import NO_LEADER, ClusterState
from tidelog.controller.decisions.decision import Decision, Put, Write
from tidelog.controller.decisions.soft_state import forget_topics
from tidelog.metadata import layout
from tidelog.model.topics import TopicPartition

NEVER = -1
"""What a broker reports that has seen no such writer."""

ON_RECORD = -1
"""Stands for a broker in what is known: a former controller wrote it down."""

RECORDED_MS = 300_000
"""How far ahead of a report a record goes: one write of the store in so long, while the writer goes
on."""


def note_unaware(
    cluster: ClusterState, broker: int, seen_ms: Iterable[tuple[UUID, int]], now_ms: int
) -> list[UUID]:
    """Note when a broker last saw such writers, by topic; return the topics of which the store is
    to know. ``NEVER``: it saw none; -2 (from a former version) says nothing.

    The latest time counts. A broker's clock may be wrong, or set back: no time is after its report,
    and when a broker says another time than before, a batch has come in between.
    """
    node = cluster.brokers.get(broker)
    epoch = NEVER if node is None else node.broker_epoch
    late = []
    for topic_id, at_ms in seen_ms:
        name = cluster.names.get(topic_id)
        if name is None or at_ms < NEVER:
            continue
        last_seen = cluster.unaware.get(topic_id)
        history = cluster.topic_histories.get(name)
        recorded = 0 if history is None else history.unaware_ms
        if last_seen is None:
            # No controller writes further ahead: then its clock was wrong.
            before = min(recorded, now_ms + RECORDED_MS)
            last_seen = cluster.unaware[topic_id] = {ON_RECORD: before} if recorded else {}
        by_broker = cluster.unaware_said.setdefault(topic_id, {})
        former_epoch, former_ms = by_broker.get(broker, (NEVER, at_ms))
        by_broker[broker] = epoch, at_ms
        is_new = former_epoch == epoch and at_ms != former_ms and at_ms != NEVER
        seen = now_ms if is_new else min(at_ms, now_ms)
        last_seen[broker] = max(seen, last_seen.get(broker, NEVER))
        if history is not None and history.resize_epoch > 0 and seen > recorded:
            late.append(topic_id)
    forget_topics(cluster, cluster.unaware)
    forget_topics(cluster, cluster.unaware_said)
    return late


def recorded(cluster: ClusterState, topic_ids: Iterable[UUID]) -> Decision[None]:
    """Write into the records of resized topics until when such writers may have written."""
    writes: list[Write] = []
    for topic_id in topic_ids:
        name = cluster.names.get(topic_id)
        history = None if name is None else cluster.topic_histories.get(name)
        seen = last_seen(cluster, topic_id)
        if name is None or history is None or layout.topic_history(name) in cluster.damaged:
            continue
        if history.resize_epoch > 0 and seen > history.unaware_ms:
            changed = msgspec.structs.replace(history, unaware_ms=seen + RECORDED_MS)
            writes.append(Put(layout.topic_history(name), changed))
    return Decision(None, tuple(writes))


def last_seen(cluster: ClusterState, topic_id: UUID) -> int:
    """Return when any broker last saw such a writer; ``NEVER`` if none did."""
    return max(cluster.unaware.get(topic_id, {}).values(), default=NEVER)


def unaware_writers(cluster: ClusterState, name: str) -> tuple[Mapping[int, int], list[int]]:
    """Return when each broker last saw such a writer (in ms of the time of day; -1: never), and the
    brokers that have yet to report: leaders, and live members of ISRs, which may have led before.

    ``ON_RECORD`` has what a former controller wrote down.
    """
    reported = cluster.unaware.get(cluster.topic_id(name), {})
    awaited: set[int] = set()
    for index in cluster.topics[name].partitions:
        state = cluster.states.get(TopicPartition(name, index))
        if state is not None:
            awaited.add(state.leader)
            awaited.update(cluster.brokers.keys() & state.isr)
    return reported, sorted(awaited - reported.keys() - {NO_LEADER})
