"""Brokers that return uncertain, and damaged replicas: which may still lead (promises 16, 26).

After a power cut only members of the last ISR and the eligible replicas count, and the highest
(leader epoch, end offset) among them leads, flagged (docs/design/who-may-lead.md).
"""

from __future__ import annotations

from itertools import count
from uuid import UUID

import msgspec
import pytest

from tests.support.controller_world import World
from tidelog.controller.audit_lines import audit_lines
from tidelog.controller.decisions.cluster import NO_ID, ClusterState, LogEnd
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.decision import Put, Remove
from tidelog.controller.decisions.deletion import PendingDelete, delete_topics
from tidelog.controller.decisions.external_changes import changed, take_up
from tidelog.controller.decisions.isr import Proposal, alter_isr
from tidelog.controller.decisions.nodes import load
from tidelog.controller.decisions.registration import (
    Address,
    Registration,
    expire,
    register,
    replace_unfit,
    take_out,
)
from tidelog.controller.decisions.requested_elections import elect_on_request
from tidelog.controller.decisions.settlement import elect_awaited, put_state
from tidelog.controller.decisions.soft_state import note_damaged, take_report
from tidelog.controller.decisions.uncertain_replicas import (
    MOST_NOTED,
    noted,
    settle_noted,
    written_once,
)
from tidelog.controller.requests import FULL, Sender, leader_and_isr
from tidelog.metadata import layout
from tidelog.metadata.layout import Damaged
from tidelog.metadata.records import Counter, PartitionState, UncertainReplicas
from tidelog.metadata.store import Node, Operation, Set
from tidelog.model.admin_requests import ElectionType
from tidelog.model.errors import ErrorCode
from tidelog.model.registration import FormerRegistration
from tidelog.model.topics import TopicPartition

T0 = TopicPartition("t", 0)
_incarnations = count(1)


def came(
    world: World,
    broker: int,
    ended: FormerRegistration = FormerRegistration.UNCLEAN,
    end: tuple[int, int] | None = (5, 100),
    *,
    damaged: bool = False,
    nameless: bool = False,
    presumed: set[int] | None = None,
    again: bool = False,
) -> PartitionState | None:
    """A new life of a broker registers, or the same ``again``; the state of t-0 afterwards."""
    cluster = world.cluster
    topic_id = cluster.topic_id("t")
    there = end is not None and not damaged
    log_end = LogEnd(1, *(end or (-1, -1)))
    asked = Registration(
        broker,
        "",
        _life(world, broker) if again else UUID(int=next(_incarnations)),
        UUID(int=broker),
        (Address("PLAINTEXT", "h", 1, "PLAINTEXT"),),
        None,
        ended,
        {(topic_id, 0): log_end} if there and not nameless else {},
        {T0: log_end} if there and nameless else {},
        frozenset({(topic_id, T0)}) if damaged else frozenset(),
    )
    cluster.presumed.discard(broker)
    cluster.inventories[broker] = asked.inventory
    cluster.nameless[broker] = asked.nameless
    note_damaged(cluster, broker, asked.damaged)
    assert isinstance(world.do(register(cluster, asked, 1)), int)
    return cluster.states.get(T0)


def _life(world: World, broker: int) -> UUID:
    incarnation = world.cluster.brokers[broker].incarnation_id
    assert incarnation is not None
    found = layout.parse_id(incarnation)
    assert found is not None
    return found


def world_with(state: PartitionState) -> World:
    world = World()
    for broker in (1, 2, 3):
        came(world, broker, FormerRegistration.CLEAN)
    (created,) = world.create(TopicToCreate("t", 1, 3))
    assert created.refusal is None
    world.commit((put_state(world.cluster, T0, state),))
    return world


def cut(world: World) -> None:
    """Power is lost everywhere: a new controller presumes all brokers."""
    cluster = world.cluster
    cluster.presumed = set(cluster.brokers)
    cluster.inventories.clear()


@pytest.mark.parametrize("order", [(1, 2, 3), (2, 1, 3), (3, 2, 1), (2, 3, 1)])
def test_after_a_power_cut_the_longest_member_leads_in_whatever_order_they_return(
    order: tuple[int, ...],
) -> None:
    world = world_with(PartitionState(1, 5, 1, [1, 2, 3]))
    cut(world)
    ends = {1: (5, 90), 2: (5, 120), 3: (4, 500)}
    for broker in order[:-1]:
        now = came(world, broker, end=ends[broker])
        assert now is not None and not now.is_unclean_leader
    now = came(world, order[-1], end=ends[order[-1]])
    assert now is not None
    assert (now.leader, now.isr, now.is_unclean_leader) == (2, [2], True)
    assert now.unclean_members == [] and now.leader_epoch > 5
    assert world.cluster.topic_histories["t"].unclean[0].leader == 2


def test_a_replica_outside_the_last_union_is_not_considered() -> None:
    world = world_with(PartitionState(1, 5, 1, [1], eligible_replicas=[2]))
    cut(world)
    came(world, 3, end=(9, 900))
    came(world, 1, end=(5, 10))
    now = came(world, 2, end=(5, 20))
    assert now is not None and (now.leader, now.isr) == (2, [2])


def test_a_replica_that_returned_before_a_leader_changed_the_isr_no_longer_counts() -> None:
    world = world_with(PartitionState(2, 5, 1, [1, 2, 3]))
    now = came(world, 1, end=(5, 1000))
    assert now is not None and (now.leader, now.isr, now.unclean_members) == (2, [2, 3], [1])
    cluster = world.cluster
    asked = Proposal(T0, cluster.topic_id("t"), 5, (2,), cluster.isr_version(T0))
    (outcome,) = world.do(alter_isr(cluster, 2, [asked]))
    assert outcome.error is ErrorCode.NONE
    assert cluster.states[T0].unclean_members == []
    now = came(world, 2, end=(5, 70))
    assert now is not None and (now.leader, now.is_unclean_leader) == (2, True)


def test_a_damaged_replica_leaves_and_is_never_elected() -> None:
    world = world_with(PartitionState(1, 5, 1, [1, 2]))
    now = came(world, 1, FormerRegistration.CLEAN, damaged=True)
    assert now is not None and (now.leader, now.isr, now.eligible_replicas) == (2, [2], [])
    assert (1, T0) in world.cluster.broken
    # Rebuilt, it is an ordinary follower: no longer damaged, and in no ISR.
    assert note_damaged(world.cluster, 1, []) == ([], [T0])
    assert world.cluster.broken == set()


def test_a_damaged_only_replica_does_not_lead_while_an_empty_one_does() -> None:
    for damaged, leader in ((True, -1), (False, 1)):
        world = world_with(PartitionState(1, 5, 1, [1]))
        now = came(world, 1, FormerRegistration.CLEAN, None, damaged=damaged)
        assert now is not None and (now.leader, now.isr) == (leader, [1])
        # The last one that had the data stays damaged, whatever its broker makes of it.
        assert note_damaged(world.cluster, 1, []) == ([], [])
        assert ((1, T0) in world.cluster.broken) is damaged


def test_damage_that_is_found_later_takes_the_replica_out_and_keeps_it_from_the_eligible() -> None:
    world = world_with(PartitionState(1, 5, 1, [1, 2]))
    cluster = world.cluster
    cluster.topic_configs["t"] = {"min.insync.replicas": "2"}
    damaged = [(cluster.topic_id("t"), T0)]
    assert note_damaged(cluster, 1, damaged) == ([T0], [])
    assert note_damaged(cluster, 1, damaged) == ([], [])
    assert note_damaged(cluster, 1, [(UUID(int=99), T0)]) == ([], [])
    world.commit_only(take_out(cluster, [T0]).writes)
    now = cluster.states[T0]
    assert (now.leader, now.isr, now.eligible_replicas) == (2, [2], [])
    assert now.leader_epoch == 6
    world.commit_only(expire(cluster, [2]).writes)
    assert cluster.states[T0].leader == -1


@pytest.mark.parametrize("isr", [[1, 2], [1]])
def test_damage_begins_a_new_epoch_of_the_same_leader(isr: list[int]) -> None:
    """What the damaged replica had fetched would let the empty one in its place join the ISR."""
    world = world_with(PartitionState(1, 5, 1, isr))
    cluster = world.cluster
    new, _ = note_damaged(cluster, 2, [(cluster.topic_id("t"), T0)])
    world.commit_only(take_out(cluster, new).writes)
    now = cluster.states[T0]
    assert (now.leader, now.leader_epoch, now.isr) == (1, 6, [1])
    assert take_out(cluster, []).writes == (), "once"


def test_a_new_epoch_of_an_unclean_leader_has_its_record_and_keeps_the_former_one() -> None:
    world = world_with(PartitionState(1, 5, 1, [1], is_unclean_leader=True))
    cluster = world.cluster
    for broker, epoch in ((2, 6), (3, 7)):
        new, _ = note_damaged(cluster, broker, [(cluster.topic_id("t"), T0)])
        world.commit_only(take_out(cluster, new).writes)
        now, history = cluster.states[T0], cluster.topic_histories["t"]
        assert (now.leader, now.leader_epoch, now.is_unclean_leader) == (1, epoch, True)
        assert history.unclean[0].leader_epoch == epoch
    assert [debt.leader_epoch for debt in cluster.topic_histories["t"].unclean_past[0]] == [6]


@pytest.mark.parametrize(("again", "epoch"), [(False, 5), (True, 6)])
def test_damage_named_at_a_registration_begins_a_new_epoch_in_the_same_life(
    again: bool, epoch: int
) -> None:
    """Of another life a leader does not count what the former one had fetched."""
    world = world_with(PartitionState(1, 5, 1, [1]))
    now = came(world, 2, FormerRegistration.CLEAN, None, damaged=True, again=again)
    assert now is not None and (now.leader, now.leader_epoch) == (1, epoch)


def test_a_replica_without_a_topic_id_counts_where_the_topic_takes_it() -> None:
    world = world_with(PartitionState(1, 5, 1, [1]))
    cluster = world.cluster
    assert not cluster.takes_nameless("t"), "it was born with its id"
    now = came(world, 1, FormerRegistration.CLEAN, (5, 7), nameless=True)
    assert now is not None and now.is_unclean_leader, "a replica of a former life is none"

    world = world_with(PartitionState(1, 5, 1, [1]))
    history = world.cluster.topic_histories["t"]
    world.cluster.topic_histories["t"] = type(history)(history.topic_id, 1, migrated=True)
    world.cluster.nameless[1] = {T0: LogEnd(-1, 5, 7)}
    assert world.cluster.log_end(1, T0) == LogEnd(-1, 5, 7)
    assert world.cluster.log_end(2, T0) == world.cluster.inventories[2].get(
        (world.cluster.topic_id("t"), 0)
    )
    assert NO_ID not in world.cluster.held


def returned_under_the_former_controller() -> World:
    """Broker 1 came back with 200 records; then another controller took over, and 2 is away."""
    world = world_with(PartitionState(2, 5, 1, [1, 2]))
    now = came(world, 1, end=(5, 200))
    assert now is not None and (now.isr, now.unclean_members) == ([2], [1])
    cut(world)
    return world


def same_incarnation(world: World, broker: int, end: int) -> PartitionState:
    """A broker that is registered in the store registers with this controller too."""
    cluster = world.cluster
    known = cluster.brokers[broker]
    assert known.incarnation_id is not None
    incarnation = layout.parse_id(known.incarnation_id)
    assert incarnation is not None
    inventory = {(cluster.topic_id("t"), 0): LogEnd(1, 5, end)}
    cluster.inventories[broker] = inventory
    addresses = (Address("PLAINTEXT", "h", 1, "PLAINTEXT"),)
    asked = Registration(
        broker,
        "",
        incarnation,
        UUID(int=broker),
        addresses,
        None,
        FormerRegistration.SAME,
        inventory,
    )
    assert world.do(register(cluster, asked, 1)) == known.broker_epoch
    cluster.presumed.discard(broker)
    return cluster.states[T0]


def test_the_comparison_waits_for_brokers_not_registered_with_a_new_controller() -> None:
    world = returned_under_the_former_controller()
    for _ in range(2):
        now = came(world, 2, end=(5, 100))
        assert now is not None and (now.leader, now.isr, now.unclean_members) == (-1, [2], [1, 2])
    world.commit(replace_unfit(world.cluster).writes)
    for kind in ElectionType:
        (refused,) = world.do(elect_on_request(world.cluster, kind, [T0])).values()
        assert refused is not None
    now = same_incarnation(world, 1, 200)
    assert (now.leader, now.isr, now.unclean_members, now.is_unclean_leader) == (1, [1], [], True)
    assert world.cluster.topic_histories["t"].unclean[0].leader == 1


def test_a_broker_that_dies_before_the_comparison_does_not_count() -> None:
    world = returned_under_the_former_controller()
    came(world, 2, end=(5, 100))
    world.commit(expire(world.cluster, [1]).writes)
    now = world.cluster.states[T0]
    assert (now.leader, now.isr, now.unclean_members, now.is_unclean_leader) == (2, [2], [], True)


def test_a_comparison_that_was_put_off_outlives_the_next_controller() -> None:
    world = returned_under_the_former_controller()
    came(world, 2, end=(5, 100))
    cut(world)
    now = same_incarnation(world, 1, 200)
    assert (now.leader, now.isr, now.unclean_members) == (-1, [2], [1, 2])
    # The last member had the data: if it dies, there is no replica to compare.
    again = dict(world.cluster.brokers)
    world.commit(expire(world.cluster, [2]).writes)
    assert world.cluster.states[T0].leader == -1
    assert world.cluster.brokers.keys() == again.keys() - {2}
    now_or_none = came(world, 2, FormerRegistration.CLEAN, end=(5, 300))
    assert now_or_none is not None and (now_or_none.leader, now_or_none.isr) == (2, [2])


def test_a_suspected_one_is_waited_for_too() -> None:
    world = world_with(PartitionState(2, 5, 1, [1, 2]))
    came(world, 1, end=(5, 200))
    world.cluster.suspected.add(1)
    now = came(world, 2, end=(5, 100))
    assert now is not None and now.leader == -1
    now = same_incarnation(world, 1, 200)
    assert (now.leader, now.isr) == (1, [1])


@pytest.mark.parametrize("mark", ["suspected", "presumed"])
def test_one_whose_session_begins_after_the_last_registration_ends_the_wait(mark: str) -> None:
    world = world_with(PartitionState(2, 5, 1, [1, 2]))
    came(world, 1, end=(5, 200))
    # Written, but the session of 1 has not begun when 2 is decided.
    marked: set[int] = getattr(world.cluster, mark)
    marked.add(1)
    now = came(world, 2, end=(5, 100))
    assert now is not None and (now.leader, now.unclean_members) == (-1, [1, 2])
    marked.discard(1)
    world.do(elect_awaited(world.cluster, 1))
    now = world.cluster.states[T0]
    assert (now.leader, now.isr, now.is_unclean_leader) == (1, [1], True)
    assert world.cluster.topic_histories["t"].unclean[0].leader == 1
    assert elect_awaited(world.cluster, 2).writes == ()


def test_an_operator_has_another_lead_where_the_last_in_sync_one_is_damaged() -> None:
    world = world_with(PartitionState(3, 5, 1, [3]))
    note_damaged(world.cluster, 3, [(world.cluster.topic_id("t"), T0)])
    world.do(take_out(world.cluster, [T0]))
    assert (world.cluster.states[T0].leader, world.cluster.states[T0].isr) == (-1, [3])
    (refused,) = world.do(elect_on_request(world.cluster, ElectionType.UNCLEAN, [T0])).values()
    assert refused is None
    now = world.cluster.states[T0]
    assert (now.leader, now.isr, now.is_unclean_leader) == (1, [1], True)


@pytest.mark.parametrize("ended", list(FormerRegistration))
def test_a_loss_while_the_topic_cannot_be_read_is_known_when_it_can_be(
    ended: FormerRegistration,
) -> None:
    """A power loss was forgotten when a broker came back from it beside a torn topic node."""
    world = World(1, 2)
    world.create(TopicToCreate("t", 1, 2))
    cluster, path = world.cluster, layout.topic("t")
    topic_id, whole = cluster.topic_id("t"), world.nodes()[path].data
    outside(world, Set(path, b"torn"))
    assert cluster.unreadable_topics == ["t"]
    asked = Registration(
        *(1, "", UUID(int=next(_incarnations)), UUID(int=1)),
        (Address("PLAINTEXT", "h", 1, "PLAINTEXT"),),
        *(None, ended, {(topic_id, 0): LogEnd(1, 0, 5)}),
        held={topic_id: "t"},
    )
    cluster.inventories[1] = asked.inventory
    assert isinstance(world.do(register(cluster, asked, 1)), int)
    is_lost = ended is FormerRegistration.UNCLEAN
    now = cluster.states[T0]
    assert (now.leader, now.isr) == ((-1, [2]) if is_lost else (1, [1, 2]))
    outside(world, Set(path, whole))
    now = cluster.states[T0]
    assert (now.leader, now.isr) == ((2, [2]) if is_lost else (1, [1, 2]))


def test_a_leader_that_died_while_the_topic_could_not_be_read_is_replaced_after_it() -> None:
    world = World(1, 2)
    world.create(TopicToCreate("t", 1, 2))
    path = layout.topic("t")
    whole = world.nodes()[path].data
    outside(world, Set(path, b"torn"))
    world.cluster.suspected.add(1)
    world.commit(replace_unfit(world.cluster).writes)
    assert world.cluster.states[T0].leader == 1, "which replicas it has is not known"
    outside(world, Set(path, whole))
    assert world.cluster.states[T0].leader == 2


def test_a_leader_that_died_while_the_state_could_not_be_read_is_replaced_after_it() -> None:
    world = World(1, 2)
    world.create(TopicToCreate("t", 1, 2))
    path = layout.state("t", 0)
    whole = world.nodes()[path].data
    outside(world, Set(path, b"torn"))
    world.cluster.suspected.add(1)
    world.commit(replace_unfit(world.cluster).writes)
    outside(world, Set(path, whole))
    assert world.cluster.states[T0].leader == 2


@pytest.mark.parametrize("controllers", ["one", "two", "repaired between them"])
@pytest.mark.parametrize("what", ["lost", "killed", "empty"])
def test_a_loss_while_the_state_cannot_be_read_is_known_when_it_can_be(
    what: str, controllers: str
) -> None:
    """Broker 1 could be elected as if it had everything, once the node was repaired."""
    world = World(1, 2)
    world.create(TopicToCreate("t", 1, 2))
    cluster, path = world.cluster, layout.state("t", 0)
    topic_id, whole = cluster.topic_id("t"), world.nodes()[path].data
    outside(world, Set(path, b"torn"))
    ended = FormerRegistration.CRASHED if what == "killed" else FormerRegistration.UNCLEAN
    asked = Registration(
        *(1, "", UUID(int=next(_incarnations)), UUID(int=1)),
        (Address("PLAINTEXT", "h", 1, "PLAINTEXT"),),
        *(None, ended, {} if what == "empty" else {(topic_id, 0): LogEnd(1, 0, 5)}),
        held={topic_id: "t"},
    )
    cluster.inventories[1] = asked.inventory
    assert isinstance(world.do(register(cluster, asked, 1)), int)
    if controllers != "one":
        if controllers != "two":
            repaired = [Set(path, whole)]
            assert world.tree.apply(world.session, repaired) is None
        cluster = world.cluster = loaded(world)
        world.do(settle_noted(cluster))
    if controllers != "repaired between them":
        outside(world, Set(path, whole))
    now = cluster.states[T0]
    assert (now.leader, now.isr) == ((1, [1, 2]) if what == "killed" else (2, [2]))
    # A restarted leader leads in an epoch of its own.
    is_untouched = what == "killed" and controllers == "repaired between them"
    assert now.leader_epoch == 0 if is_untouched else now.leader_epoch > 0
    assert layout.UNCERTAIN_REPLICAS not in world.nodes()


@pytest.mark.parametrize(
    "state",
    [
        PartitionState(1, 0, 1, [1, 2]),
        PartitionState(-1, 0, 1, [], eligible_replicas=[1]),
        PartitionState(-1, 0, 1, [4], unclean_members=[1, 4]),
        PartitionState(4, 0, 1, [4], target_replicas=[4, 1]),
    ],
    ids=["in sync", "eligible", "uncertain", "a target"],
)
@pytest.mark.parametrize("is_former", [True, False], ids=["known", "stored"])
def test_an_empty_member_that_a_wrong_topic_node_leaves_out_is_noted(
    state: PartitionState, is_former: bool
) -> None:
    """It led once the node was repaired: no assignment named it, and no state could be read."""
    world = World(1, 2, 3)
    world.create(TopicToCreate("t", assignment=((0, (1, 2)),)))
    path, nodes = layout.state("t", 0), world.nodes()
    wrong = msgspec.structs.replace(world.cluster.topics["t"], partitions={0: [3, 2]})
    nodes[layout.topic("t")] = Node(layout.encode(wrong), 9)
    nodes[path] = Node(layout.encode(state), 9)
    cluster = ClusterState()
    load(cluster, nodes)
    assert list(cluster.damaged) == [path]
    if is_former:
        cluster.damaged[path] = Damaged(path, "it is torn", former=state)
    asked = Registration(
        *(1, "", UUID(int=next(_incarnations)), UUID(int=1)),
        (Address("PLAINTEXT", "h", 1, "PLAINTEXT"),),
        *(None, FormerRegistration.CRASHED, {}),
    )
    cluster.inventories[1] = asked.inventory
    writes = register(cluster, asked, 1).writes
    notes = [x.record for x in writes if isinstance(x, Put) and x.path == layout.UNCERTAIN_REPLICAS]
    assert notes == [UncertainReplicas({"t": {0: [1]}})]


@pytest.mark.parametrize("is_of_state", [True, False], ids=["state", "topic"])
@pytest.mark.parametrize("broker", [1, 2])
def test_damage_that_is_found_beside_a_torn_node_is_known_when_it_can_be_read(
    broker: int, is_of_state: bool
) -> None:
    """The report was dropped: a replica that was built again, empty, stayed in the ISR."""
    world = World(1, 2)
    world.create(TopicToCreate("t", 1, 2))
    cluster, path = world.cluster, layout.state("t", 0) if is_of_state else layout.topic("t")
    topic_id, whole = cluster.topic_id("t"), world.nodes()[path].data
    outside(world, Set(path, b"torn"))
    assert note_damaged(cluster, broker, [(UUID(int=99), T0)]) == ([], [])
    assert note_damaged(cluster, broker, [(topic_id, T0)]) == ([T0], [])
    world.commit_only(take_out(cluster, [T0]).writes)
    # It was fetched again, from the leader that its broker knows.
    assert note_damaged(cluster, broker, []) == ([], [])
    outside(world, Set(path, whole))
    now, other = cluster.states[T0], 3 - broker
    assert (now.leader, now.isr) == (other, [other])
    assert note_damaged(cluster, broker, []) == ([], [T0])


@pytest.mark.parametrize("then", ["the same process", "the next controller"])
@pytest.mark.parametrize("how", ["a heartbeat", "a registration", "another life"])
def test_damage_that_is_found_beside_a_torn_state_outlives_registrations_and_controllers(
    how: str, then: str
) -> None:
    """It was in memory only: a replica that was fetched again stayed in the ISR, and led."""
    world = World()
    for broker in (1, 2):
        came(world, broker, FormerRegistration.CLEAN)
    world.create(TopicToCreate("t", 1, 2))
    cluster, path = world.cluster, layout.state("t", 0)
    topic_id, whole = cluster.topic_id("t"), world.nodes()[path].data
    outside(world, Set(path, b"torn"))

    def register_again(incarnation: UUID, *, is_damaged: bool) -> None:
        asked = Registration(
            *(1, "", incarnation, UUID(int=1), (Address("PLAINTEXT", "h", 1, "PLAINTEXT"),)),
            *(None, FormerRegistration.CRASHED),
            {} if is_damaged else {(topic_id, 0): LogEnd(1, 0, 5)},
            damaged=frozenset({(topic_id, T0)} if is_damaged else ()),
        )
        take_report(cluster, asked)
        world.commit_only(register(cluster, asked, 1).writes)

    if how == "a heartbeat":
        assert note_damaged(cluster, 1, [(topic_id, T0)]) == ([T0], [])
        world.commit_only(take_out(cluster, [T0]).writes)
    else:
        life = UUID(int=next(_incarnations)) if how == "another life" else _life(world, 1)
        register_again(life, is_damaged=True)
    assert cluster.past.uncertain.topics == {"t": {0: [1]}}
    # It was fetched again: the same process has a sound replica now.
    register_again(_life(world, 1), is_damaged=False)
    assert (1, T0) in cluster.broken
    if then == "the next controller":
        cluster = world.cluster = loaded(world)
        world.commit_only(settle_noted(cluster).writes)
    outside(world, Set(path, whole))
    now = cluster.states[T0]
    assert (now.leader, now.isr) == (2, [2])
    assert layout.UNCERTAIN_REPLICAS not in world.nodes()


def test_a_new_process_without_damage_has_none_beside_a_torn_state_but_its_note_stays() -> None:
    world = World(1, 2)
    world.create(TopicToCreate("t", 1, 2))
    cluster, path = world.cluster, layout.state("t", 0)
    outside(world, Set(path, b"torn"))
    note_damaged(cluster, 1, [(cluster.topic_id("t"), T0)])
    world.commit_only(take_out(cluster, [T0]).writes)
    asked = Registration(
        *(
            1,
            "",
            UUID(int=next(_incarnations)),
            UUID(int=1),
            (Address("PLAINTEXT", "h", 1, "PLAINTEXT"),),
        ),
        *(None, FormerRegistration.CRASHED, {(cluster.topic_id("t"), 0): LogEnd(1, 0, 5)}),
    )
    take_report(cluster, asked)
    assert not cluster.broken
    world.commit_only(register(cluster, asked, 1).writes)
    assert cluster.past.uncertain.topics == {"t": {0: [1]}}


def test_a_damaged_replica_of_a_state_that_cannot_be_read_does_not_become_stale() -> None:
    """No report named it, and the topic's node does not assign it: a FULL left it out."""
    world = World(1, 2, 3)
    world.create(TopicToCreate("t", assignment=((0, (1, 2)),)))
    cluster, path = world.cluster, layout.state("t", 0)
    outside(world, Set(path, b"torn"))
    assert list(cluster.hosts(T0)) == [1, 2]
    note_damaged(cluster, 3, [(cluster.topic_id("t"), T0)])
    assert list(cluster.hosts(T0)) == [1, 2, 3]
    places = list(cluster.all_partitions())
    full = leader_and_isr(cluster, Sender(101, "PLAINTEXT"), 3, places, FULL)
    (topic,) = full.topic_states
    assert [x.partition_index for x in topic.partition_states] == [0]


def test_the_last_replica_that_lost_power_beside_a_torn_state_leads_flagged() -> None:
    world = World(1, 2)
    world.create(TopicToCreate("t", 1, 2))
    cluster, path = world.cluster, layout.state("t", 0)
    whole = world.nodes()[path].data
    outside(world, Set(path, b"torn"))
    for broker, end in ((1, 7), (2, 5)):
        asked = Registration(
            *(broker, "", UUID(int=next(_incarnations)), UUID(int=broker)),
            (Address("PLAINTEXT", "h", 1, "PLAINTEXT"),),
            *(None, FormerRegistration.UNCLEAN, {(cluster.topic_id("t"), 0): LogEnd(1, 0, end)}),
        )
        cluster.inventories[broker] = asked.inventory
        world.do(register(cluster, asked, 1))
    outside(world, Set(path, whole))
    now = cluster.states[T0]
    assert (now.leader, now.isr, now.is_unclean_leader) == (1, [1], True)
    assert layout.UNCERTAIN_REPLICAS not in world.nodes()


def test_a_note_of_a_former_topic_concerns_no_new_one_of_its_name_and_notes_have_a_limit() -> None:
    world = World(1, 2)
    world.create(TopicToCreate("t", 1, 2))
    world.commit(tuple(noted(world.cluster, 1, [T0])))
    assert world.cluster.past.uncertain.topics == {"t": {0: [1]}}
    assert noted(world.cluster, 1, [T0]) == []
    world.do(delete_topics(world.cluster, [PendingDelete("t")]))
    world.create(TopicToCreate("t", 1, 2))
    assert world.cluster.past.uncertain.topics == {}
    many = [TopicPartition("t", x) for x in range(MOST_NOTED + 1)]
    (write,) = noted(world.cluster, 1, many)
    assert isinstance(write, Put)
    assert len(layout.encode(write.record)) < 900_000
    assert isinstance(write.record, UncertainReplicas)
    assert len(write.record.topics["t"]) == MOST_NOTED


def test_the_notes_of_several_former_topics_go_in_one_write() -> None:
    """The store has no node to remove a second time: the controller stepped down."""
    world = World(1, 2)
    for kept in (True, False):
        names = ("t", "u", "stays") if kept else ("t", "u")
        world.create(*(TopicToCreate(x, 1, 2) for x in names if x not in world.cluster.topics))
        world.commit(tuple(noted(world.cluster, 1, [TopicPartition(x, 0) for x in names])))
        world.do(delete_topics(world.cluster, [PendingDelete("t"), PendingDelete("u")]))
        if not kept:
            world.commit((Put(layout.UNCERTAIN_REPLICAS, UncertainReplicas({"t": {0: [1]}})),))
        world.create(TopicToCreate("t", 1, 2), TopicToCreate("u", 1, 2))
        left = {"stays": {0: [1]}} if kept else {}
        assert world.cluster.past.uncertain.topics == left
        assert (layout.UNCERTAIN_REPLICAS in world.nodes()) is kept
    # What one write drops is dropped, whatever the others keep.
    world.commit(tuple(noted(world.cluster, 1, [T0, TopicPartition("u", 0)])))
    keep_u, keep_t = (
        Put(layout.UNCERTAIN_REPLICAS, UncertainReplicas({x: {0: [1]}})) for x in ("u", "t")
    )
    other = Put(layout.BROKER_EPOCH, Counter(9))
    assert written_once(world.cluster, [keep_u, other]) == [keep_u, other]
    removed = Remove(layout.UNCERTAIN_REPLICAS)
    assert written_once(world.cluster, [keep_u, other, keep_t]) == [other, removed]
    assert written_once(world.cluster, [keep_u, other, keep_u]) == [other, keep_u]


def test_the_notes_say_once_that_they_are_full() -> None:
    world = World(1, 2)
    world.create(TopicToCreate("t", 1, 2))
    for replicas, lines in ((MOST_NOTED - 1, 0), (MOST_NOTED, 1)):
        writes = noted(world.cluster, 1, [TopicPartition("t", x) for x in range(replicas)])
        said = audit_lines(world.cluster, writes)
        assert len(said) == lines and all(layout.UNCERTAIN_REPLICAS in str(x) for x in said)


def loaded(world: World) -> ClusterState:
    """The state of the next controller, before any broker has registered with it."""
    again = ClusterState()
    load(again, world.nodes())
    again.brokers = {**world.cluster.brokers}
    return again


def outside(world: World, *operations: Operation) -> None:
    """Another program writes; the controller notices and acts."""
    assert world.tree.apply(world.session, operations) is None
    nodes = world.nodes()
    found = changed(world.cluster, {x.path: nodes.get(x.path) for x in operations})
    world.do(take_up(world.cluster, found, world.chance, deletes=True))
