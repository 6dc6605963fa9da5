"""Leader elections: one table for the rule, then registrations, deaths and requests through it."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any
from uuid import UUID

import msgspec
import pytest

from tests.support.controller_world import World
from tidelog.controller.decisions import registration
from tidelog.controller.decisions.cluster import LogEnd
from tidelog.controller.decisions.configuration import Resource, replace_configs
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.decision import RequestRefusal
from tidelog.controller.decisions.elections import Standing, settle, with_isr
from tidelog.controller.decisions.registration import (
    Address,
    Registration,
    expire,
    register,
    replace_unfit,
)
from tidelog.controller.decisions.requested_elections import elect_on_request
from tidelog.controller.decisions.settlement import put_state
from tidelog.metadata import layout
from tidelog.metadata.records import PartitionState, UncleanDebt
from tidelog.model.admin_requests import ElectionType
from tidelog.model.errors import ErrorCode as E
from tidelog.model.registration import FormerRegistration
from tidelog.model.topics import TopicPartition

T0 = TopicPartition("t", 0)


def state(leader: int, isr: list[int], *, eligible: list[int] | None = None, epoch: int = 5) -> Any:
    return PartitionState(leader, epoch, 1, isr, eligible_replicas=eligible or [])


def standing(
    fit: str, registered: str = "", new_incarnation: int | None = None, presumed: str = ""
) -> Standing:
    def brokers(text: str) -> frozenset[int]:
        return frozenset(map(int, text))

    return Standing(
        brokers(fit), brokers(fit) | brokers(registered), new_incarnation, brokers(presumed)
    )


REPLICAS = [1, 2, 3]

RULE = [
    # what happened, before, brokers that are there, min, unclean allowed, after
    ("nothing", state(1, [1, 2, 3]), standing("123"), 2, False, state(1, [1, 2, 3])),
    ("a follower died", state(1, [1, 2, 3]), standing("12"), 2, False, state(1, [1, 2])),
    (
        "two followers died: one ISR member below the minimum, they stay eligible",
        state(1, [1, 2, 3]),
        standing("1"),
        2,
        False,
        state(1, [1], eligible=[2, 3]),
    ),
    (
        "the leader died: the next of the assignment in the ISR",
        state(1, [3, 1, 2]),
        standing("23"),
        2,
        False,
        state(2, [3, 2], epoch=6),
    ),
    (
        "the leader is suspected and has a successor",
        state(1, [1, 2]),
        standing("2", "1"),
        1,
        False,
        state(2, [2], epoch=6),
    ),
    (
        "the leader is suspected, no other broker is there",
        state(1, [1]),
        standing("2", "1"),
        1,
        True,
        state(1, [1]),
    ),
    ("the last member died", state(1, [1]), standing("23"), 1, False, state(-1, [1], epoch=6)),
    ("no leader, still none", state(-1, [1]), standing("23"), 1, False, state(-1, [1])),
    (
        "the last member died, unclean allowed",
        state(1, [1]),
        standing("32"),
        1,
        True,
        msgspec.structs.replace(state(2, [2], epoch=6), is_unclean_leader=True),
    ),
    (
        "the leader died, a suspected member is left: it is waited for",
        state(1, [1, 2]),
        standing("3", "2"),
        1,
        True,
        state(-1, [1, 2], epoch=6),
    ),
    (
        "the ISR died, an eligible replica lives",
        state(1, [1], eligible=[3]),
        standing("23"),
        2,
        False,
        state(3, [3], eligible=[1], epoch=6),
    ),
    (
        "the last member of the ISR came back",
        state(-1, [1]),
        standing("123"),
        1,
        False,
        state(1, [1], epoch=6),
    ),
    (
        "the leader has a new life: it leads in a new epoch only",
        state(1, [1, 2]),
        standing("12", new_incarnation=1),
        1,
        False,
        state(1, [1, 2], epoch=6),
    ),
    (
        "a presumed broker keeps what it leads",
        state(1, [1, 2]),
        standing("12", presumed="1"),
        1,
        False,
        state(1, [1, 2]),
    ),
    (
        "a presumed broker is not elected",
        state(3, [3, 1]),
        standing("12", presumed="1"),
        1,
        False,
        state(-1, [3, 1], epoch=6),
    ),
]


@pytest.mark.parametrize(
    ("before", "there", "minimum", "allowed", "after"),
    [row[1:] for row in RULE],
    ids=[row[0] for row in RULE],
)
def test_the_rule(
    before: PartitionState, there: Standing, minimum: int, allowed: bool, after: PartitionState
) -> None:
    assert settle(before, REPLICAS, there, minimum, allowed) == after


def test_an_in_sync_election_clears_the_flag() -> None:
    flagged = msgspec.structs.replace(state(1, [1, 2]), is_unclean_leader=True)
    assert settle(flagged, REPLICAS, standing("12"), 1, False).is_unclean_leader
    assert not settle(flagged, REPLICAS, standing("2"), 1, False).is_unclean_leader


def test_the_election_of_an_eligible_replica_clears_the_flag() -> None:
    before = state(1, [1], eligible=[2])
    flagged = msgspec.structs.replace(before, is_unclean_leader=True)
    after = settle(flagged, REPLICAS, standing("2"), 2, False)
    assert (after.leader, after.isr, after.is_unclean_leader) == (2, [2], False)


def test_a_preferred_election_clears_the_flag() -> None:
    flagged = msgspec.structs.replace(state(2, [1, 2]), is_unclean_leader=True)
    world = world_with(flagged, 1, 2, 3)
    assert world.cluster.states[T0].is_unclean_leader
    world.do(elect_on_request(world.cluster, ElectionType.PREFERRED, [T0]))
    after = world.cluster.states[T0]
    assert (after.leader, after.is_unclean_leader) == (1, False)


@pytest.mark.parametrize(
    ("before", "isr", "minimum", "eligible"),
    [
        (state(1, [1, 2, 3]), [1, 2], 2, []),
        (state(1, [1, 2]), [1], 2, [2]),
        (state(1, [1], eligible=[2]), [1, 3], 2, []),
        (state(1, [1, 3], eligible=[2]), [1], 3, [2, 3]),
        (state(1, [1], eligible=[2]), [1, 2], 3, []),
    ],
)
def test_eligible_replicas(
    before: PartitionState, isr: list[int], minimum: int, eligible: list[int]
) -> None:
    after = with_isr(before, isr, minimum)
    assert (after.isr, after.eligible_replicas) == (isr, eligible)


def request(
    broker: int,
    incarnation: int = 1,
    directory: int = 1,
    ended: FormerRegistration = FormerRegistration.CLEAN,
    inventory: dict[tuple[UUID, int], LogEnd] | None = None,
    cluster_id: str = "",
) -> Registration:
    return Registration(
        broker,
        cluster_id,
        UUID(int=incarnation),
        UUID(int=directory),
        (Address("PLAINTEXT", "::1", 9092, "PLAINTEXT"),),
        "r1",
        ended,
        inventory or {},
    )


def registered(*brokers: int) -> World:
    world = World()
    for broker in brokers:
        assert world.do(register(world.cluster, request(broker), 7)) == broker
    return world


def test_a_registration_writes_kafkas_node_and_counts_lives() -> None:
    world = registered(1)
    node = world.cluster.brokers[1]
    assert node.endpoints == ["PLAINTEXT://[::1]:9092"]
    assert registration.addresses_of(node) == [Address("PLAINTEXT", "::1", 9092, "PLAINTEXT")]
    assert (node.host, node.port, node.rack, node.timestamp) == ("::1", 9092, "r1", "7")
    cluster = world.cluster
    # The same life again, for instance with another controller: the same epoch, nothing to write.
    decision = register(cluster, request(1), 7)
    assert (decision.answer, decision.writes) == (1, ())
    assert world.do(register(cluster, request(1, incarnation=2), 8)) == 2
    assert world.do(register(cluster, request(2), 8)) == 3


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (request(1, incarnation=2, directory=2), E.DUPLICATE_BROKER_REGISTRATION),
        (request(1, directory=2), E.DUPLICATE_BROKER_REGISTRATION),
        (request(2, directory=2), None),
        (request(2, cluster_id="other"), E.INCONSISTENT_CLUSTER_ID),
        (request(2, cluster_id="mine"), None),
        (replace(request(2), addresses=()), E.INVALID_REGISTRATION),
    ],
)
def test_registrations_that_are_refused(asked: Registration, error: E | None) -> None:
    world = registered(1)
    world.cluster.cluster_id = "mine"
    decision = register(world.cluster, asked, 7)
    if error is None:
        assert isinstance(decision.answer, int)
    else:
        assert isinstance(decision.answer, RequestRefusal)
        assert decision.answer.error is error
        assert decision.writes == ()


def test_a_dead_brokers_id_can_be_taken_by_another_directory() -> None:
    world = registered(1)
    world.do(expire(world.cluster, [1, 99]))
    assert world.cluster.brokers == {}
    assert world.do(register(world.cluster, request(1, directory=2), 7)) == 2


def world_with(leader_isr: PartitionState, *brokers: int, configs: Any = ()) -> World:
    """A topic t with one partition on brokers 1, 2 and 3, in a given state."""
    world = registered(1, 2, 3)
    (created,) = world.create(TopicToCreate("t", 1, 3, configs=tuple(configs)))
    assert created.refusal is None
    world.commit((put_state(world.cluster, T0, leader_isr),))
    gone = [broker for broker in (1, 2, 3) if broker not in brokers]
    world.commit(tuple(expire(world.cluster, gone).writes))
    return world


IN_FULL = LogEnd(1, 5, 100)
incarnations = count(1000)


def came_back(
    world: World, broker: int, ended: FormerRegistration, end: LogEnd | None = IN_FULL
) -> None:
    """A new life of a broker registers, with or without the replica."""
    topic_id = world.cluster.topic_id("t")
    inventory = {} if end is None else {(topic_id, 0): end}
    asked = request(broker, incarnation=next(incarnations), ended=ended, inventory=inventory)
    world.cluster.inventories[broker] = asked.inventory
    answer = world.do(register(world.cluster, asked, 9))
    assert isinstance(answer, int)


def test_a_crashed_broker_stays_in_the_isr_and_leads_in_a_new_epoch() -> None:
    world = world_with(state(1, [1, 2, 3]), 1, 2, 3)
    came_back(world, 1, FormerRegistration.CRASHED)
    now = world.cluster.states[T0]
    assert (now.leader, now.leader_epoch, now.isr) == (1, 6, [1, 2, 3])
    came_back(world, 2, FormerRegistration.CLEAN)
    assert world.cluster.states[T0] == now


@pytest.mark.parametrize("missing", [False, True], ids=["unclean", "missing from the inventory"])
def test_a_broker_that_may_have_lost_data_leaves_the_isr(missing: bool) -> None:
    world = world_with(state(1, [1, 2, 3]), 1, 2, 3)
    if missing:
        came_back(world, 1, FormerRegistration.CLEAN, None)
    else:
        came_back(world, 1, FormerRegistration.UNCLEAN)
    now = world.cluster.states[T0]
    assert (now.leader, now.isr, now.is_unclean_leader) == (2, [2, 3], False)
    assert now.leader_epoch > 5
    assert "t" in world.cluster.topic_histories
    assert world.cluster.topic_histories["t"].unclean == {}


def test_the_only_replica_that_lost_power_leads_at_once_flagged() -> None:
    world = registered(1)
    world.create(TopicToCreate("t", 1, 1))
    came_back(world, 1, FormerRegistration.UNCLEAN, LogEnd(1, 0, 10))
    now = world.cluster.states[T0]
    assert (now.leader, now.leader_epoch, now.isr) == (1, 1, [1])
    assert now.is_unclean_leader
    assert world.cluster.topic_histories["t"].unclean == {0: UncleanDebt(1, 1)}
    # An in-sync election clears the flag, not the debt.
    came_back(world, 1, FormerRegistration.CLEAN, LogEnd(1, 1, 10))
    assert not world.cluster.states[T0].is_unclean_leader
    assert world.cluster.topic_histories["t"].unclean == {0: UncleanDebt(1, 1)}


def test_after_a_power_cut_over_all_the_longest_log_leads() -> None:
    """docs/design/who-may-lead.md: highest (leader epoch, end offset), whatever the config says."""
    world = world_with(state(1, [1, 2, 3]), 1, 2, 3)
    came_back(world, 1, FormerRegistration.UNCLEAN, LogEnd(1, 5, 90))
    came_back(world, 2, FormerRegistration.UNCLEAN, LogEnd(1, 4, 200))
    now = world.cluster.states[T0]
    assert (now.leader, now.isr, now.is_unclean_leader) == (3, [3], False)
    came_back(world, 3, FormerRegistration.UNCLEAN, LogEnd(1, 5, 80))
    now = world.cluster.states[T0]
    assert (now.leader, now.isr, now.is_unclean_leader) == (1, [1], True)
    assert set(world.cluster.topic_histories["t"].unclean) == {0}


def test_a_leader_that_dies_is_replaced_and_comes_back_as_a_follower() -> None:
    world = world_with(state(1, [1, 2]), 1, 2, 3)
    world.do(expire(world.cluster, [1]))
    assert world.cluster.states[T0].isr == [2]
    came_back(world, 1, FormerRegistration.CRASHED)
    now = world.cluster.states[T0]
    assert (now.leader, now.isr) == (2, [2])


def test_an_unclean_election_needs_leave_and_leaves_a_debt() -> None:
    world = world_with(state(1, [1]), 1, 2, 3)
    world.do(expire(world.cluster, [1]))
    assert world.cluster.states[T0].leader == -1
    world = world_with(state(1, [1]), 1, 2, 3, configs=[("unclean.leader.election.enable", "true")])
    world.do(expire(world.cluster, [1]))
    now = world.cluster.states[T0]
    assert (now.leader, now.isr, now.is_unclean_leader) == (2, [2], True)
    assert world.cluster.topic_histories["t"].unclean[0].leader_epoch == now.leader_epoch


def test_a_suspected_leader_is_replaced_only_where_that_is_safe() -> None:
    world = world_with(state(1, [1, 2]), 1, 2, 3)
    world.cluster.suspected.add(1)
    world.do(replace_unfit(world.cluster))
    now = world.cluster.states[T0]
    assert (now.leader, now.isr) == (2, [2])
    world = world_with(state(1, [1]), 1, 2, 3, configs=[("unclean.leader.election.enable", "true")])
    world.cluster.suspected.add(1)
    before = world.cluster.states[T0]
    world.do(replace_unfit(world.cluster))
    assert world.cluster.states[T0] == before


def test_a_leaving_broker_gives_away_what_others_could_lead() -> None:
    world = world_with(state(1, [1, 2]), 1, 2, 3)
    cluster = world.cluster
    assert registration.leads_what_others_could(cluster, 1)
    cluster.shutting_down.add(1)
    world.do(replace_unfit(cluster))
    assert cluster.states[T0].leader == 2
    assert not registration.leads_what_others_could(cluster, 1)
    cluster.shutting_down.add(2)
    world.do(replace_unfit(cluster))
    # 3 is not in sync: 2 keeps it until it is gone.
    assert cluster.states[T0].leader == 2


def test_a_damaged_replica_is_taken_out() -> None:
    world = world_with(state(1, [1, 2]), 1, 2, 3)
    world.cluster.broken.add((1, T0))
    world.do(registration.take_out(world.cluster, [T0]))
    assert (world.cluster.states[T0].leader, world.cluster.states[T0].isr) == (2, [2])
    world.cluster.broken.add((2, T0))
    world.do(registration.take_out(world.cluster, [T0]))
    assert (world.cluster.states[T0].leader, world.cluster.states[T0].isr) == (-1, [2])


def test_a_damaged_state_node_is_left_alone() -> None:
    world = world_with(state(1, [1, 2]), 1, 2, 3)
    world.cluster.damaged[layout.state("t", 0)] = layout.Damaged("x", "y")
    assert len(expire(world.cluster, [1]).writes) == 1


def test_elections_on_request() -> None:
    world = world_with(state(2, [1, 2]), 1, 2, 3)
    world.create(TopicToCreate("u"))
    cluster = world.cluster
    u0, none = TopicPartition("u", 0), TopicPartition("none", 0)
    answer = world.do(elect_on_request(cluster, ElectionType.PREFERRED, [T0, u0, none]))
    errors = {k: None if v is None else v.error for k, v in answer.items()}
    assert errors == {
        T0: None,
        u0: E.ELECTION_NOT_NEEDED,
        none: E.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert (cluster.states[T0].leader, cluster.states[T0].leader_epoch) == (1, 6)
    assert world.do(elect_on_request(cluster, ElectionType.PREFERRED, None)) == {}
    answer = world.do(elect_on_request(cluster, ElectionType.UNCLEAN, [T0]))
    assert answer[T0].error is E.ELECTION_NOT_NEEDED

    world = world_with(state(2, [2, 3]), 1, 2, 3)
    answer = world.do(elect_on_request(world.cluster, ElectionType.PREFERRED, [T0]))
    assert answer[T0].error is E.PREFERRED_LEADER_NOT_AVAILABLE

    world = world_with(state(1, [1]), 2)
    assert world.cluster.states[T0].leader == -1
    assert world.do(elect_on_request(world.cluster, ElectionType.UNCLEAN, None)) == {T0: None}
    now = world.cluster.states[T0]
    assert (now.leader, now.is_unclean_leader) == (2, True)
    world = world_with(state(1, [1]))
    answer = world.do(elect_on_request(world.cluster, ElectionType.UNCLEAN, [T0]))
    assert answer[T0].error is E.ELIGIBLE_LEADERS_NOT_AVAILABLE


def test_a_lowered_minimum_clears_eligible_replicas_in_the_same_write() -> None:
    world = world_with(state(1, [1], eligible=[2]), 1, 2, 3, configs=[("min.insync.replicas", "2")])
    assert world.cluster.states[T0].eligible_replicas == [2]
    world.do(replace_configs(world.cluster, [(Resource(2, "t"), [])]))
    assert world.cluster.states[T0].eligible_replicas == []
