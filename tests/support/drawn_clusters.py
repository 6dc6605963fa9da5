"""Clusters drawn by Hypothesis: brokers in racks, and partitions of every size on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from tidelog.model.topics import TopicPartition
from tidelog.planning.plan import Assigned

RACKS = ("a", "b", "c", "a/m", "a/n", "b/m")
"""Racks, and machines within them."""


@dataclass(frozen=True)
class Drawn:
    """Live brokers with racks, those that may get replicas, and partitions; some may not change."""

    racks: dict[int, str | None]
    brokers: frozenset[int]
    partitions: list[Assigned]
    fixed: frozenset[TopicPartition]


@st.composite
def clusters(draw: st.DrawFn, racks: Sequence[str] = RACKS, dead: bool = True) -> Drawn:
    """Draw a cluster of one to eight live brokers; with ``dead`` some replicas are on others."""
    live = draw(st.sets(st.integers(0, 12), min_size=1, max_size=8))
    known = {b: draw(st.sampled_from([*racks, None]) if racks else st.none()) for b in sorted(live)}
    everywhere = sorted(live | ({90, 91} if dead else set()))
    replicas = st.lists(
        st.sampled_from(everywhere), unique=True, min_size=1, max_size=min(4, len(everywhere))
    )
    size = st.one_of(st.just(0), st.integers(0, 50), st.integers(0, 10_000_000))
    drawn = draw(st.lists(st.tuples(st.sampled_from("tu"), replicas, size), max_size=25))
    partitions = [
        Assigned(TopicPartition(topic, index), tuple(some), size)
        for index, (topic, some, size) in enumerate(drawn)
    ]
    closed = draw(st.sets(st.sampled_from(sorted(live)), max_size=2)) if dead else set()
    fixed = (
        draw(st.sets(st.sampled_from([each.where for each in partitions]), max_size=2))
        if (partitions and dead)
        else set()
    )
    return Drawn(known, frozenset(live - closed), partitions, frozenset(fixed))
