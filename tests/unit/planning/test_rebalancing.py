"""The laws of a plan that evens out a cluster, and a few clusters whose plan is known."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.drawn_clusters import Drawn, clusters
from tidelog.model.topics import TopicPartition
from tidelog.planning.layout import Imbalance, ReplicaLayout
from tidelog.planning.plan import Assigned, Change, Plan, loads, span, widest
from tidelog.planning.rebalancing import rebalance


def planned(cluster: Drawn, partitions: list[Assigned] | None = None) -> Plan:
    now = cluster.partitions if partitions is None else partitions
    return rebalance(now, cluster.brokers, cluster.racks, cluster.fixed)


def imbalance(cluster: Drawn, partitions: list[Assigned]) -> Imbalance:
    return ReplicaLayout(partitions, cluster.brokers, cluster.racks).imbalance()


def placed(*replicas: str, sizes: tuple[int, ...] = ()) -> list[Assigned]:
    """Return the partitions t-0, t-1 …: "12" is on the brokers 1 and 2."""
    return [
        Assigned(TopicPartition("t", index), tuple(map(int, some)), (sizes or [10] * 99)[index])
        for index, some in enumerate(replicas)
    ]


@given(clusters())
def test_a_plan_keeps_topics_and_factors_and_gives_nothing_to_others(cluster: Drawn) -> None:
    plan = planned(cluster)
    now = {each.where: each for each in cluster.partitions}
    assert len({change.where for change in plan.changes}) == len(plan.changes)
    for change in plan.changes:
        assert change.before == now[change.where].replicas
        assert change.size == now[change.where].size
        assert len(change.after) == len(set(change.after)) == len(change.before)
        assert change.before != change.after
        assert cluster.brokers.issuperset(change.adding)
        assert change.where not in cluster.fixed
        if change.moves_leader:
            assert change.after[0] in cluster.brokers


@given(clusters())
def test_a_plan_respects_racks(cluster: Drawn) -> None:
    before = {each.where: each.replicas for each in cluster.partitions}
    for each in planned(cluster).applied(cluster.partitions):
        assert span(each.replicas, cluster.racks) >= span(before[each.where], cluster.racks)
        if cluster.brokers and each.where not in cluster.fixed:
            possible = widest(each.replicas, cluster.brokers, cluster.racks)
            assert span(each.replicas, cluster.racks) == possible


@given(clusters())
def test_no_change_worsens_and_none_is_needless(cluster: Drawn) -> None:
    plan = planned(cluster)
    if not plan.changes:
        return
    after = imbalance(cluster, plan.applied(cluster.partitions))
    assert after < imbalance(cluster, cluster.partitions)
    for left_out in plan.changes:
        others = Plan(tuple(change for change in plan.changes if change is not left_out))
        assert imbalance(cluster, others.applied(cluster.partitions)) > after


@given(clusters(), st.randoms(use_true_random=False))
def test_a_plan_depends_only_on_the_cluster(cluster: Drawn, chance: random.Random) -> None:
    shuffled = list(cluster.partitions)
    chance.shuffle(shuffled)
    racks = list(cluster.racks.items())
    chance.shuffle(racks)
    again = rebalance(shuffled, list(cluster.brokers), dict(racks), cluster.fixed)
    assert again == planned(cluster)


@given(clusters(), st.data())
def test_a_plan_that_stops_on_the_way_can_be_made_again(
    cluster: Drawn, data: st.DataObject
) -> None:
    plan = planned(cluster)
    assert not planned(cluster, plan.applied(cluster.partitions)).changes
    done = data.draw(st.sets(st.sampled_from(plan.changes))) if plan.changes else set()
    halfway = Plan(tuple(done)).applied(cluster.partitions)
    rest = planned(cluster, halfway)
    assert imbalance(cluster, rest.applied(halfway)) <= imbalance(cluster, halfway)
    assert not planned(cluster, rest.applied(halfway)).changes


@given(clusters(racks="", dead=False))
def test_without_racks_replicas_are_even(cluster: Drawn) -> None:
    after = planned(cluster).applied(cluster.partitions)
    load = loads(after, cluster.racks)
    counts = [each.replicas for each in load.values()]
    assert max(counts) - min(counts) <= 1
    for each in after:
        for broker in each.replicas:
            assert load[each.replicas[0]].leaders - load[broker].leaders < 2


@pytest.mark.parametrize(
    ("before", "sizes", "racks", "expected"),
    [
        # Even already.
        (["12", "23", "31"], (), {1: "a", 2: "b", 3: "c"}, {}),
        # Two new brokers get a replica each, and one of them leads.
        (["12", "12"], (), dict.fromkeys([1, 2, 3, 4]), {0: "34"}),
        # Leaders change places, nothing is copied.
        (["12", "12"], (), {1: None, 2: None}, {0: "21"}),
        # A chain: 1 leads three and 3 one, and none that 1 leads is on both.
        (
            ["12", "12", "12", "23", "23", "34", "41", "43", "43"],
            (),
            dict.fromkeys([1, 2, 3, 4]),
            {0: "21", 3: "32"},
        ),
        # Both replicas are in one rack.
        (["12"], (), {1: "a", 2: "a", 3: "b"}, {0: "13"}),
        # The bytes differ by more than a tenth, the counts do not.
        (["1", "1", "2", "2"], (90, 80, 10, 20), {1: None, 2: None}, {1: "2", 2: "1"}),
    ],
)
def test_known_plans(
    before: list[str],
    sizes: tuple[int, ...],
    racks: dict[int, str | None],
    expected: dict[int, str],
) -> None:
    partitions = placed(*before, sizes=sizes)
    plan = rebalance(partitions, racks, racks)
    assert {change.where.partition: "".join(map(str, change.after)) for change in plan.changes} == (
        expected
    )


def test_a_new_broker_gets_its_share_and_little_more_is_copied() -> None:
    chance = random.Random(5)
    partitions = [
        Assigned(
            TopicPartition("t", index),
            (index % 3, (index + 1) % 3),
            chance.randrange(1, 1_000_000),
        )
        for index in range(300)
    ]
    brokers = dict.fromkeys(range(4), None)
    plan = rebalance(partitions, brokers, brokers)
    load = loads(plan.applied(partitions), brokers)
    assert {each.replicas for each in load.values()} == {150}
    assert {each.leaders for each in load.values()} == {75}
    total = sum(each.size for each in load.values())
    assert max(each.size for each in load.values()) <= total / 4 * 1.1
    # No plan can copy less than what the new broker has afterwards.
    assert plan.copied_bytes <= total / 4 * 1.1


def test_a_cluster_without_a_broker_that_may_get_replicas_has_no_plan() -> None:
    assert rebalance(placed("12"), [], {1: None, 2: None}) == Plan()


def test_the_cost_of_a_plan() -> None:
    where = TopicPartition("t", 0)
    plan = Plan((Change(where, (1, 2), (3, 2), 7), Change(where, (1, 2), (2, 1), 9)))
    assert (plan.copied_replicas, plan.copied_bytes, plan.moved_leaders) == (1, 7, 2)
    assert (plan.changes[0].adding, plan.changes[0].removing) == ((3,), (1,))


def test_a_replica_leaves_a_machine_that_has_another_before_counts_are_evened() -> None:
    # Machine m has the brokers 1 and 2, n has 3 and 4: t-0 is on one machine alone.
    racks = {1: "m", 2: "m", 3: "n", 4: "n"}
    for in_rack in (racks, {broker: f"a/{machine}" for broker, machine in racks.items()}):
        plan = rebalance(placed("12", "34", "13", "24"), racks, in_rack)
        after = plan.applied(placed("12", "34", "13", "24"))
        assert all({racks[b] for b in each.replicas} == {"m", "n"} for each in after)
        assert plan.copied_replicas == 2


def test_a_rack_comes_before_a_machine() -> None:
    # Rack a has the machines of 1 and 2, rack b that of 3 and 4.
    racks = {1: "a/m", 2: "a/n", 3: "b/m", 4: "b/m"}
    plan = rebalance(placed("12"), racks, racks)
    assert [change.after for change in plan.changes] == [(1, 3)]
