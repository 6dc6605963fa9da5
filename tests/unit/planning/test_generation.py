"""The laws of a proposal for whole topics, and its refusals."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tests.support.drawn_clusters import Drawn, clusters
from tidelog.model.topics import TopicPartition
from tidelog.planning.generation import generate, why_not_generated
from tidelog.planning.plan import Assigned, span, widest


@given(clusters(), st.data())
def test_a_proposal_is_even_and_in_all_racks(cluster: Drawn, data: st.DataObject) -> None:
    names = data.draw(st.sets(st.sampled_from(sorted(cluster.racks)), min_size=1))
    brokers = {broker: cluster.racks[broker] for broker in names}
    refusal = why_not_generated(cluster.partitions, brokers)
    factors = [len(each.replicas) for each in cluster.partitions]
    assert (refusal is not None) == (max(factors, default=0) > len(brokers))
    if refusal is not None:
        return
    plan = generate(cluster.partitions, brokers)
    assert plan == generate(cluster.partitions[::-1], dict(reversed(brokers.items())))
    assert [(c.where, c.before, c.size) for c in plan.changes] == sorted(
        (each.where, each.replicas, each.size) for each in cluster.partitions
    )
    for change in plan.changes:
        assert len(change.after) == len(set(change.after)) == len(change.before)
        assert brokers.keys() >= set(change.after)
        assert span(change.after, brokers) == widest(change.after, brokers, brokers)
    leaders = Counter(change.after[0] for change in plan.changes)
    counts = [leaders[broker] for broker in brokers]
    assert max(counts) - min(counts) <= 1


def test_a_refusal_names_the_partition() -> None:
    partitions = [Assigned(TopicPartition("t", 0), (1,)), Assigned(TopicPartition("t", 1), (1, 2))]
    said = why_not_generated(partitions, {7: None})
    assert said == "t-1 has 2 replicas, more than the 1 brokers of the list"
