"""The laws of a plan that empties a broker, and its refusals."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.drawn_clusters import Drawn, clusters
from tidelog.model.topics import TopicPartition
from tidelog.planning.decommission import empty, why_not_copied, why_not_emptied
from tidelog.planning.plan import Assigned, span, widest


@given(clusters(), st.data())
def test_every_replica_leaves_and_nothing_worsens(cluster: Drawn, data: st.DataObject) -> None:
    leaving = data.draw(st.sampled_from([*sorted(cluster.racks), 90]))
    brokers = cluster.brokers - {leaving}
    concerned = [each for each in cluster.partitions if leaving in each.replicas]
    refusal = why_not_emptied(cluster.partitions, leaving, cluster.brokers)
    assert (refusal is not None) == any(brokers <= set(each.replicas) for each in concerned)
    if refusal is not None:
        return
    plan = empty(cluster.partitions, leaving, cluster.brokers, cluster.racks)
    assert plan == empty(cluster.partitions[::-1], leaving, sorted(brokers), cluster.racks)
    assert {change.where for change in plan.changes} == {each.where for each in concerned}
    for change in plan.changes:
        assert change.removing == (leaving,)
        assert len(change.after) == len(set(change.after)) == len(change.before)
        assert brokers.issuperset(change.adding)
        others = [broker for broker in change.before if broker != leaving]
        assert [broker for broker in change.after if broker not in change.adding] == others
        possible = widest(change.after, brokers, cluster.racks)
        before = span(change.before, cluster.racks)
        assert span(change.after, cluster.racks) >= min(before, possible)
    led = [change.before[0] == leaving for change in plan.changes]
    assert led == sorted(led, reverse=True)


def test_a_refusal_names_some_partitions_and_the_brokers_left() -> None:
    partitions = [Assigned(TopicPartition("t", index), (1, 2, 3)) for index in range(5)]
    said = why_not_emptied(partitions, 2, [1, 2, 3])
    assert said == (
        "broker 2 cannot be emptied: t-0, t-1, t-2 and 2 more would have fewer replicas, as no "
        "other broker may take one; brokers that may: 1, 3; start another broker, or give these "
        "partitions fewer replicas first"
    )
    assert why_not_emptied(partitions, 2, [1, 3, 4]) is None
    assert why_not_emptied(partitions, 9, []) is None


def test_a_partition_without_a_live_replica_in_sync_is_refused_by_its_name() -> None:
    in_sync = {TopicPartition("t", 0): (5,), TopicPartition("t", 1): (5, 2)}
    assert why_not_copied(in_sync, 5, [1, 2, 5]) is None
    assert why_not_copied(in_sync, 5, [1, 2]) == (
        "broker 5 cannot be emptied: of t-0 no replica in sync is on a live broker, so there is "
        "nothing to copy; start broker 5 first"
    )
    assert why_not_copied({}, 5, []) is None


def test_the_load_spreads_over_the_brokers_left() -> None:
    partitions = [Assigned(TopicPartition("t", index), (1, 2), 10) for index in range(6)]
    plan = empty(partitions, 1, [1, 2, 3, 4, 5], dict.fromkeys(range(1, 6)))
    assert [change.after for change in plan.changes] == [(3, 2), (4, 2), (5, 2)] * 2


def test_the_replicas_of_a_broker_spread_evenly_over_the_others() -> None:
    partitions = [Assigned(TopicPartition("t", at), (1,), 0) for at in range(6)]
    plan = empty(partitions, 1, [1, 2, 3, 4], dict.fromkeys((1, 2, 3, 4)))
    assert sorted(change.after for change in plan.changes) == [(x,) for x in (2, 2, 3, 3, 4, 4)]


def test_a_worker_that_leaves_gives_its_replicas_to_its_machine_or_one_without_them() -> None:
    racks = {1: "m", 2: "m", 3: "n", 4: "n", 5: "o"}
    partitions = [Assigned(TopicPartition("t", index), (1, 3)) for index in range(4)]
    for in_rack in (racks, {broker: f"a/{machine}" for broker, machine in racks.items()}):
        plan = empty(partitions, 1, racks, in_rack)
        assert {change.after[0] for change in plan.changes} == {2, 5}
