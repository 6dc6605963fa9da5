"""The leader after an acceptance, by the newest command that brokers have (promises 1, 14, 17)."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from tests.support.controller_world import World
from tidelog.controller.decisions import losses, soft_state
from tidelog.controller.decisions.cluster import ClusterState, LogEnd
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.decision import Put, RequestRefusal
from tidelog.controller.decisions.elections import Standing
from tidelog.controller.decisions.isr import Outcome, Proposal, alter_isr
from tidelog.controller.decisions.newest_commands import named_brokers
from tidelog.controller.decisions.registration import (
    Address,
    Registration,
    expire,
    leads_what_others_could,
    register,
    why_gone_back,
)
from tidelog.controller.decisions.reported_command import ReportedCommand
from tidelog.controller.decisions.restoration import JUMP, accept
from tidelog.controller.decisions.restoration_report import missing_brokers
from tidelog.controller.decisions.settlement import elect_awaited, put_state, settle_all
from tidelog.controller.decisions.uncertain_replicas import settle_noted
from tidelog.metadata import layout
from tidelog.metadata.records import ConfigNode, PartitionState, WentBack
from tidelog.model.errors import ErrorCode
from tidelog.model.registration import FormerRegistration
from tidelog.model.topics import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
LOST, L0 = UUID(int=99), TopicPartition("lost", 0)


def request(broker: int, incarnation: int = 0, **changes: object) -> Registration:
    made = Registration(
        broker,
        "",
        UUID(int=incarnation or broker),
        UUID(int=broker),
        (Address("PLAINTEXT", "h", 1, "PLAINTEXT"),),
        None,
        FormerRegistration.CRASHED,
        {},
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def waiting() -> World:
    """An older copy of a store with t-0 on brokers 1, 2 and 3, which have registered."""
    world = World()
    for broker in (1, 2, 3):
        world.do(register(world.cluster, request(broker), 1))
        world.cluster.inventories[broker] = {}
    world.create(TopicToCreate("t", 2, 3))
    both = ((T0, PartitionState(1, 5, 1, [1, 2, 3])), (T1, PartitionState(2, 5, 1, [1, 2, 3])))
    world.commit(
        (
            *(put_state(world.cluster, tp, state) for tp, state in both),
            Put(layout.WENT_BACK, WentBack("why")),
        )
    )
    return world


def holds(
    world: World,
    broker: int,
    end: int,
    command: tuple[int, int, int, tuple[int, ...]] | None = None,
    epoch: int = 7,
    tp: TopicPartition = T0,
) -> None:
    """A broker reports a log, and the command that it has: epoch, ISR version, leader and ISR."""
    cluster = world.cluster
    topic_id = cluster.topic_id(tp.topic) if tp.topic in cluster.topics else LOST
    cluster.held[topic_id] = tp.topic
    cluster.inventories[broker][topic_id, tp.partition] = LogEnd(1, epoch, end)
    commands = cluster.kept.commands.setdefault(broker, {})
    if command is not None:
        commands[topic_id, tp] = ReportedCommand(1, *command)


def after(world: World, *without: int) -> PartitionState:
    answer = world.do(accept(world.cluster, without, (), world.chance))
    assert isinstance(answer, dict), answer
    return world.cluster.states[T0]


def test_the_leader_of_the_newest_command_leads_again_with_its_isr() -> None:
    """Its log was no longer than that of others when it registered; it is longer by now."""
    world = waiting()
    holds(world, 1, 100)
    holds(world, 2, 100, (7, 4, 3, (3, 2)))
    holds(world, 3, 100, (7, 4, 3, (3, 2)))
    state = after(world)
    assert (state.leader, state.isr, state.leader_epoch) == (3, [3, 2], 7 + JUMP)
    assert state.is_unclean_leader, "what a late replica is compared with goes on record"
    assert world.cluster.topic_histories["t"].unclean[0].leader == 3


def test_the_newest_of_several_commands_counts() -> None:
    world = waiting()
    # Of an earlier epoch, deposed without a message; and of before the ISR shrank.
    holds(world, 1, 300, (6, 9, 1, (1, 2, 3)))
    holds(world, 2, 100, (7, 4, 3, (3, 2)))
    holds(world, 3, 100, (7, 5, 3, (3,)))
    state = after(world)
    assert (state.leader, state.isr) == (3, [3])


def test_a_member_that_restarted_is_not_in_the_isr() -> None:
    """It may have lost power, and has no command: it joins by what it fetches."""
    world = waiting()
    holds(world, 1, 100)
    holds(world, 2, 100, (7, 4, 2, (2, 1, 3)))
    holds(world, 3, 100, (7, 4, 2, (2, 1, 3)))
    state = after(world)
    assert (state.leader, state.isr) == (2, [2, 3])


def test_a_damaged_leader_does_not_lead() -> None:
    world = waiting()
    holds(world, 1, 100, (7, 4, 3, (3, 1)))
    holds(world, 2, 900)
    holds(world, 3, 100, (7, 4, 3, (3, 1)))
    del world.cluster.inventories[3][world.cluster.topic_id("t"), 0]
    world.cluster.broken.add((3, T0))
    state = after(world)
    assert (state.leader, state.isr) == (1, [1])


def test_without_its_leader_a_member_that_runs_on_leads() -> None:
    """It has all that was acknowledged, though the end of its registration is older than that: the
    leader wrote on, lost power, and reports a part of it."""
    world = waiting()
    holds(world, 1, 120, (7, 4, 3, (3, 1, 2)))
    holds(world, 2, 130, (7, 4, 3, (3, 1, 2)))
    holds(world, 3, 190)
    state = after(world)
    assert (state.leader, state.isr, state.is_unclean_leader) == (2, [2], True)


def test_where_all_members_have_restarted_the_longest_log_of_them_leads() -> None:
    world = waiting()
    # None leads meanwhile: the log ends are final.
    holds(world, 1, 900, (7, 4, 3, (3, 2)))
    holds(world, 2, 120)
    holds(world, 3, 130)
    state = after(world)
    assert (state.leader, state.isr, state.is_unclean_leader) == (3, [3], True)


def comes(
    world: World, broker: int, incarnation: int, end: int | None, ended: FormerRegistration
) -> None:
    """A broker registers, with a replica of t-0 that ends there, or without one."""
    cluster = world.cluster
    epoch = cluster.partition_nodes[T0].partition_epoch
    held = {} if end is None else {(cluster.topic_id("t"), 0): LogEnd(epoch, 7, end)}
    came = request(broker, incarnation, ended=ended, inventory=held)
    soft_state.take_report(cluster, came)
    world.do(register(cluster, came, 1))
    soft_state.note_session(cluster, broker)
    world.do(elect_awaited(cluster, broker))


def loaded_again(world: World) -> None:
    """The controller knows what the store has, and nothing that a broker has reported."""
    cluster = world.cluster
    cluster.inventories.clear()
    cluster.kept.commands.clear()
    cluster.kept.newest.clear()
    soft_state.presume_all(cluster)
    world.do(settle_noted(cluster))


def test_a_member_that_came_back_without_its_replica_is_not_waited_for() -> None:
    """It would be elected as one that has everything when it registers the next time."""
    world = waiting()
    comes(world, 1, 11, None, FormerRegistration.CLEAN)
    holds(world, 2, 190, (7, 6, 1, (1,)))
    holds(world, 3, 180, (7, 6, 1, (1,)))
    state = after(world)
    assert (state.leader, state.isr, state.is_unclean_leader) == (2, [2], True)
    assert world.cluster.topic_histories["t"].unclean[0].leader == 2
    loaded_again(world)
    for broker, incarnation, end in ((1, 11, None), (2, 0, 190), (3, 0, 180)):
        comes(world, broker, incarnation, end, FormerRegistration.SAME)
    assert world.cluster.states[T0].leader == 2


def test_of_several_members_the_one_without_its_replica_is_left_out() -> None:
    world = waiting()
    comes(world, 1, 11, None, FormerRegistration.CLEAN)
    holds(world, 3, 180, (7, 6, 1, (1, 2)))
    del world.cluster.inventories[2]
    state = after(world, 2)
    assert (state.leader, state.isr) == (-1, [2])


def test_a_damaged_replica_of_the_last_member_is_waited_for() -> None:
    """An operator may repair its disk."""
    world = waiting()
    holds(world, 2, 190, (7, 6, 1, (1,)))
    world.cluster.broken.add((1, T0))
    state = after(world)
    assert (state.leader, state.isr, state.is_unclean_leader) == (-1, [1], False)


def test_it_is_waited_for_too_in_a_topic_that_a_lost_store_does_not_know() -> None:
    """Its broker has the command, and names no end of its log."""
    world = waiting()
    holds(world, 1, 190, (7, 6, 1, (1,)), tp=L0)
    world.cluster.inventories[1].clear()
    holds(world, 2, 190, (7, 6, 1, (1,)), tp=L0)
    after(world)
    state = world.cluster.states[L0]
    assert (state.leader, state.isr, state.is_unclean_leader) == (-1, [1], False)


@pytest.mark.parametrize(
    ("end", "ended"), [(150, FormerRegistration.UNCLEAN), (None, FormerRegistration.CLEAN)]
)
def test_what_a_member_lost_while_the_store_waits_is_noted(
    end: int | None, ended: FormerRegistration
) -> None:
    """It came back without its records once, and is away at the acceptance. When it comes again,
    no disk says so: it leads, for no other member is there, and the loss goes on record."""
    world = waiting()
    cluster = world.cluster
    holds(world, 3, 50, (7, 6, 1, (1,)))
    comes(world, 1, 11, end, ended)
    world.do(expire(cluster, [1]))
    soft_state.forget(cluster, 1)
    state = after(world, 1)
    assert (state.leader, state.isr) == (-1, [1])
    loaded_again(world)
    comes(world, 1, 12, end or 0, FormerRegistration.CRASHED)
    assert (cluster.states[T0].leader, cluster.states[T0].is_unclean_leader) == (1, True)
    assert cluster.topic_histories["t"].unclean[0].leader == 1
    assert cluster.past.uncertain.topics == {}


def test_it_is_noted_of_a_topic_that_a_lost_store_does_not_know() -> None:
    world = waiting()
    cluster = world.cluster
    held = {(LOST, 0): LogEnd(1, 7, 150)}
    came = request(1, 11, ended=FormerRegistration.UNCLEAN, inventory=held, held={LOST: "lost"})
    soft_state.take_report(cluster, came)
    world.do(register(cluster, came, 1))
    world.do(expire(cluster, [1]))
    soft_state.forget(cluster, 1)
    holds(world, 3, 50, (7, 6, 1, (1,)), tp=L0)
    after(world, 1)
    assert (cluster.states[L0].leader, cluster.states[L0].isr) == (-1, [1])
    assert cluster.past.uncertain.topics["lost"] == {0: [1]}


def test_notes_of_partitions_that_are_led_end_with_the_acceptance() -> None:
    world = waiting()
    comes(world, 1, 11, 90, FormerRegistration.UNCLEAN)
    assert world.cluster.past.uncertain.topics == {"t": {0: [1], 1: [1]}}
    for broker in (1, 2, 3):
        holds(world, broker, 100, tp=T1)
    holds(world, 2, 100, (7, 6, 2, (1, 2)))
    after(world)
    assert world.cluster.past.uncertain.topics == {}


def with_minimum(world: World, minimum: int) -> World:
    configs = ConfigNode({"min.insync.replicas": str(minimum)})
    world.commit((Put(layout.topic_configs("t"), configs),))
    return world


def test_below_the_minimum_the_longest_log_of_all_leads() -> None:
    """Broker 1 went on alone, acknowledged nothing with acks=all, and lost power. Broker 2 left the
    ISR with all that was acknowledged before."""
    for end in (150, None):
        world = with_minimum(waiting(), 2)
        if end is not None:
            holds(world, 1, end)
        holds(world, 2, 200)
        holds(world, 3, 120, (7, 6, 1, (1,)))
        state = after(world)
        assert (state.leader, state.isr, state.is_unclean_leader) == (2, [2], True)
        assert world.cluster.topic_histories["t"].unclean[0].leader == 2


def test_below_the_minimum_a_leader_that_runs_on_leads() -> None:
    world = with_minimum(waiting(), 2)
    holds(world, 1, 100, (7, 6, 1, (1,)))
    holds(world, 2, 200)
    holds(world, 3, 120)
    assert after(world).leader == 1


def test_below_the_minimum_a_member_is_waited_for_while_others_are_away_too() -> None:
    """Broker 2 may have all that was acknowledged, or 1: as many as the minimum are away."""
    world = with_minimum(waiting(), 2)
    holds(world, 3, 120, (7, 6, 1, (1,)))
    for broker in (1, 2):
        del world.cluster.inventories[broker]
    state = after(world, 1, 2)
    assert (state.leader, state.isr) == (-1, [1])


def test_the_minimum_of_a_topic_that_comes_back_counts() -> None:
    world = waiting()
    kept = {LOST: {"min.insync.replicas": "2"}}
    soft_state.take_configs(world.cluster, (1, 1), kept)
    holds(world, 1, 150, tp=L0)
    holds(world, 2, 200, tp=L0)
    holds(world, 3, 120, (7, 6, 1, (1,)), tp=L0)
    after(world)
    assert world.cluster.states[L0].leader == 2


def test_an_empty_isr_is_below_every_minimum() -> None:
    world = waiting()
    holds(world, 1, 90, (7, 4, -1, ()))
    holds(world, 2, 200)
    holds(world, 3, 50, (7, 4, -1, ()))
    state = after(world)
    assert (state.leader, state.isr, state.is_unclean_leader) == (2, [2], True)


def test_the_isr_of_a_leader_that_runs_on_is_the_one_that_it_counts() -> None:
    """It has not learnt that broker 3 joined: it acknowledges without it."""
    world = waiting()
    holds(world, 1, 100, (7, 5, 1, (1, 2)))
    holds(world, 2, 100, (7, 5, 1, (1, 2)))
    holds(world, 3, 50, (7, 6, 1, (1, 2, 3)))
    state = after(world)
    assert (state.leader, state.isr) == (1, [1, 2])


def test_the_newest_command_outlives_a_restart_of_the_one_broker_that_had_it() -> None:
    world = waiting()
    cluster = world.cluster
    key = cluster.topic_id("t"), T0
    came = request(3, commands={key: ReportedCommand(1, 7, 5, 3, (3,))})
    soft_state.take_report(cluster, came)
    soft_state.take_report(cluster, request(3, 33))
    holds(world, 1, 900, (7, 4, 3, (3, 1)))
    holds(world, 2, 800)
    holds(world, 3, 130)
    state = after(world)
    assert (state.leader, state.isr, state.is_unclean_leader) == (3, [3], True)


def test_no_replica_outside_the_newest_isr_leads_unless_it_is_asked_for() -> None:
    world = waiting()
    cluster = world.cluster
    holds(world, 1, 900)
    holds(world, 2, 900, (7, 4, 3, (3,)))
    cluster.kept.commands[3] = {}
    del cluster.inventories[3]
    refusal = accept(cluster, (), (), world.chance).answer
    assert isinstance(refusal, RequestRefusal) and "--without 3" in refusal.sentence
    state = after(world, 3)
    assert (state.leader, state.isr, state.is_unclean_leader) == (-1, [3], False)
    assert 0 not in cluster.topic_histories["t"].unclean
    world.do(expire(cluster, [3]))
    world.commit(tuple(settle_all(cluster, [T0], Standing.of(cluster))))
    assert cluster.states[T0].leader == -1
    # When it comes, it leads.
    end = LogEnd(cluster.partition_nodes[T0].partition_epoch, 7, 100)
    comes = request(3, 33, inventory={(cluster.topic_id("t"), 0): end})
    soft_state.take_report(cluster, comes)
    world.do(register(cluster, comes, 1))
    world.do(elect_awaited(cluster, 3))
    assert (cluster.states[T0].leader, cluster.states[T0].is_unclean_leader) == (3, False)


def test_what_the_members_do_not_have_is_given_up_by_request() -> None:
    world = waiting()
    cluster = world.cluster
    holds(world, 1, 900)
    holds(world, 2, 800, (7, 4, 3, (3,)))
    del cluster.inventories[3]
    after(world, 3)
    world.do(expire(cluster, [3]))
    world.commit(tuple(settle_all(cluster, [T0], Standing.of(cluster), allow_unclean=True)))
    assert (cluster.states[T0].leader, cluster.states[T0].is_unclean_leader) == (1, True)


def test_a_log_of_a_later_leader_epoch_shows_that_no_known_command_is_the_newest() -> None:
    """All members of that epoch have restarted; a leader that was deposed by it has not."""
    world = waiting()
    holds(world, 1, 900, (7, 4, 1, (1, 2, 3)))
    holds(world, 2, 100, epoch=8)
    holds(world, 3, 90, epoch=8)
    state = after(world)
    assert (state.leader, state.isr, state.leader_epoch) == (2, [2], 8 + JUMP)


def test_a_command_of_another_incarnation_does_not_count() -> None:
    world = waiting()
    cluster = world.cluster
    holds(world, 1, 10, (90, 4, 1, (1,)))
    holds(world, 2, 20, epoch=3)
    key = cluster.topic_id("t"), T0
    cluster.kept.commands[1][key] = cluster.kept.commands[1][key]._replace(partition_epoch=0)
    cluster.inventories[1].clear()
    state = after(world)
    assert (state.leader, state.leader_epoch) == (2, 5 + JUMP)


def test_leader_epochs_go_on_above_commands_in_which_nothing_was_written() -> None:
    world = waiting()
    holds(world, 1, 0, (40, 0, 1, (1, 2)), epoch=-1)
    assert after(world).leader_epoch == 40 + JUMP


def test_a_topic_that_the_store_does_not_know_goes_by_commands_too() -> None:
    world = waiting()
    holds(world, 1, 100, tp=L0)
    holds(world, 2, 90, (7, 4, 2, (2, 3)), tp=L0)
    holds(world, 3, 90, (7, 4, 2, (2, 3)), tp=L0)
    after(world)
    state = world.cluster.states[L0]
    assert (state.leader, state.isr) == (2, [2, 3])
    assert set(world.cluster.topics["lost"].partitions[0]) == {1, 2, 3}


def test_a_leader_that_goes_on_needs_no_room_for_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    world = waiting()
    for tp in (T0, T1):
        holds(world, 1, 100, tp=tp)
        holds(world, 2, 90, (7, 4, 2, (2, 3)), tp=tp)
        holds(world, 3, 90, (7, 4, 2, (2, 3)), tp=tp)
    monkeypatch.setattr(losses, "KEPT_BYTES", 450)
    after(world)
    first, second = world.cluster.states[T0], world.cluster.states[T1]
    assert (first.leader, first.is_unclean_leader) == (2, True)
    assert (second.leader, second.isr, second.is_unclean_leader) == (2, [2, 3], False)
    assert set(world.cluster.topic_histories["t"].unclean) == {0}


def test_what_waits_for_room_is_compared_within_the_newest_isr(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = waiting()
    for tp in (T0, T1):
        holds(world, 1, 900, (7, 4, 3, (3, 2)), tp=tp)
        holds(world, 2, 90, tp=tp)
        holds(world, 3, 80, tp=tp)
    monkeypatch.setattr(losses, "KEPT_BYTES", 450)
    after(world)
    second = world.cluster.states[T1]
    assert (second.leader, second.isr, second.unclean_members) == (-1, [2], [2, 3])


def test_the_command_of_a_damaged_state_marks_no_whole_store() -> None:
    """An operator wrote it by hand, below a command in which nothing was written."""
    cluster = waiting().cluster
    topic_id = cluster.topic_id("t")
    asked = request(
        1,
        inventory={(topic_id, 0): LogEnd(1, 4, 1)},
        commands={(topic_id, T0): ReportedCommand(1, 9, 0, 1, (1,))},
    )
    assert why_gone_back(cluster, asked) is not None
    cluster.damaged[layout.state(*T0)] = layout.Damaged(layout.state(*T0), "why")
    assert why_gone_back(cluster, asked) is None


def test_a_broker_of_the_newest_isr_is_waited_for_and_one_that_expired_since() -> None:
    """An empty store knows no broker: commands name those that it waits for."""
    world = waiting()
    cluster = world.cluster
    holds(world, 1, 10, (7, 4, 1, (1, 9)), tp=L0)
    # Older than that one: what it names no longer counts.
    holds(world, 2, 10, (6, 4, 8, (8, 1)), tp=L0)
    assert named_brokers(cluster) == {1, 2, 9}
    assert missing_brokers(cluster) == {9}
    world.do(expire(cluster, [1]))
    soft_state.forget(cluster, 1)
    assert missing_brokers(cluster) == {1, 9}
    refusal = accept(cluster, (), (), world.chance).answer
    assert isinstance(refusal, RequestRefusal) and "--without 1, 9" in refusal.sentence


def test_commands_are_kept_while_a_store_waits_and_count_no_longer_after_that() -> None:
    world = waiting()
    cluster = world.cluster
    commands = {(LOST, L0): ReportedCommand(1, 7, 4, 9, (9,))}
    soft_state.take_report(cluster, request(1, commands=commands))
    assert cluster.kept.commands[1] == commands and named_brokers(cluster) == {1, 9}
    cluster.went_back = None
    soft_state.take_report(cluster, request(2, commands=commands))
    assert 2 not in cluster.kept.commands and named_brokers(cluster) == set()


def test_a_command_of_a_later_leader_epoch_shows_that_the_store_has_gone_back() -> None:
    """Nothing was written in it, and the broker has not kept the revision yet."""
    cluster = waiting().cluster
    topic_id = cluster.topic_id("t")
    for epoch, partition_epoch, gone_back in ((5, 1, False), (6, 1, True), (6, 2, False)):
        command = ReportedCommand(partition_epoch, epoch, 0, 1, (1,))
        asked = request(
            1,
            inventory={(topic_id, 0): LogEnd(partition_epoch, 4, 1)},
            commands={(topic_id, T0): command},
        )
        assert (why_gone_back(cluster, asked) is not None) is gone_back


def test_an_isr_of_a_later_version_shows_it_too() -> None:
    """The copy may be of a moment before: no broker has kept the revision of that change yet."""
    cluster = waiting().cluster
    topic_id, version = cluster.topic_id("t"), cluster.isr_version(T0)
    for isr, later, gone_back in (
        ((1, 2), 1, True),
        ((1, 2), 0, False),
        # A node that was removed and made again begins at version 0.
        ((3, 2, 1), 1, False),
    ):
        command = ReportedCommand(1, 5, version + later, 1, isr)
        held = {(topic_id, 0): LogEnd(1, 4, 1)}
        asked = request(1, inventory=held, commands={(topic_id, T0): command})
        assert (why_gone_back(cluster, asked) is not None) is gone_back, (isr, later)


def proposal(cluster: ClusterState, isr: tuple[int, ...]) -> Proposal:
    return Proposal(T0, cluster.topic_id("t"), 5, isr, cluster.isr_version(T0))


def test_no_isr_changes_by_a_store_that_waits() -> None:
    """The leader would acknowledge without a member that the acceptance may elect."""
    cluster = waiting().cluster
    decision = alter_isr(cluster, 1, [proposal(cluster, (1, 2))])
    # Without a state: the leader keeps its change in flight, and counts the former ISR.
    assert decision.answer == [Outcome(ErrorCode.OPERATION_NOT_ATTEMPTED)]
    assert decision.writes == ()
    cluster.went_back = None
    assert alter_isr(cluster, 1, [proposal(cluster, (1, 2))]).answer[0].error is ErrorCode.NONE


def test_no_leader_is_elected_by_a_store_that_waits() -> None:
    world = waiting()
    cluster = world.cluster
    before = dict(cluster.states)
    cluster.shutting_down.add(1)
    assert not leads_what_others_could(cluster, 1), "it would wait for an election in vain"
    world.do(expire(cluster, [1]))
    world.do(register(cluster, request(2, incarnation=77), 1))
    assert cluster.states == before
    cluster.went_back = None
    assert settle_all(cluster, [T0], Standing.of(cluster)) != []


def test_a_running_broker_gets_no_lower_broker_epoch_than_it_has() -> None:
    """Leaders count no fetch of a lower one: acks=all would wait until the acceptance."""
    world = World()
    cluster = world.cluster
    assert world.do(register(cluster, request(1, broker_epoch=40), 1)) == 40
    assert world.do(register(cluster, request(2, broker_epoch=7), 1)) == 41
    assert world.do(register(cluster, request(3), 1)) == 42
    assert world.do(register(cluster, request(2, broker_epoch=41), 1)) == 41
    # The copy of a store has the same process in an earlier session.
    assert world.do(register(cluster, request(2, broker_epoch=50), 1)) == 50
    assert cluster.counters[layout.BROKER_EPOCH] == 50
