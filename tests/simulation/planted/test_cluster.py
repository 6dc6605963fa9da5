"""Planted bugs of a cluster: one rule at a time is replaced by a wrong one, and a seed finds it.

The product has no switch for this; the tests replace functions. Each bug has a directed course: the
faults that matter to it, for a shorter time, in the same scenario. If one of these tests fails, the
simulation has become blind, however green the others are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.simulation.planted.search import (
    KILLS,
    LOSSES,
    PROOF,
    SEEDS,
    Patch,
    Planted,
    directed,
    find,
)
from tests.simulation.scenarios.course import Course
from tidelog.broker.control_plane import control_channel, isr_changes
from tidelog.broker.control_plane.channel import ControlChannel
from tidelog.broker.control_plane.control_channel import Control
from tidelog.broker.fetching import fetch_fast_path, partition_reads, read_positions
from tidelog.broker.following import source_fetcher
from tidelog.broker.following.source_fetcher import FollowerFetcher
from tidelog.broker.partitions import partition
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.client.fetching.fetcher import Fetcher
from tidelog.client.groups import group_member
from tidelog.controller import controller as controllers
from tidelog.controller import requests
from tidelog.controller.decisions import config_effects, elections, isr, settlement
from tidelog.controller.decisions.cluster import ClusterState as ControllerCluster
from tidelog.controller.decisions.decision import Decision as ControllerDecision
from tidelog.controller.decisions.sessions import BrokerSession, Condition, Patience
from tidelog.groups import offsets as group_offsets
from tidelog.groups import table as group_table
from tidelog.groups.decision import GroupDecision, StoreAssignment
from tidelog.groups.records import GROUP_KEY_VERSION
from tidelog.metadata.store import CheckVersion, Delete, Set
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.model.work import finish
from tidelog.replication.command_rules import LeaderAndIsrType
from tidelog.replication.isr_change import IsrChange
from tidelog.storage.log import appending
from tidelog.storage.log.producers import ProducerState

pytestmark = [pytest.mark.long(100), pytest.mark.usefixtures("quiet")]


BOUNCES = {"bounce_broker": 1.0}
REPLAYS = {"replay": 4.0, "bounce_broker": 1.0}


# --- replication -------------------------------------------------------------------------------


def acknowledge_before_the_isr_has_it(patch: Patch) -> None:
    def at_once(self: Any, offset: int, committed: Any, **options: Any) -> None:
        committed(ErrorCode.NONE)

    patch.setattr(HostedPartition, "when_committed", at_once)


def read_what_is_not_committed(patch: Patch) -> None:
    patch.setattr(read_positions, "read_limit", lambda log, committed: log.end_offset)
    for module in (partition_reads, fetch_fast_path):
        patch.setattr(module, "limit_of_consumer", lambda hosted, named: hosted.log.end_offset)


def raise_the_watermark_before_truncation(patch: Patch) -> None:
    take_in = source_fetcher.take_in

    def early(hosted: Any, part: Any, *more: Any) -> Any:
        if not part.error_code:
            hosted.replicated(0, part.high_watermark)
        return take_in(hosted, part, *more)

    patch.setattr(source_fetcher, "take_in", early)


def truncate_to_the_high_watermark(patch: Patch) -> None:
    """What Kafka did before KIP-101: a new follower cuts to its own watermark."""
    follow = FollowerFetcher.follow

    def eager(self: Any, hosted: Any) -> None:
        if hosted.high_watermark < hosted.end_offset:
            finish(hosted.log.truncation(hosted.high_watermark, self._clock.wall_ms()))
        follow(self, hosted)

    patch.setattr(FollowerFetcher, "follow", eager)


def join_below_the_epoch_start(patch: Patch) -> None:
    patch.setattr(isr_changes, "may_join", lambda follower, watermark, start: True)


def count_the_small_isr(patch: Patch) -> None:
    patch.setattr(partition, "maximal", lambda committed, proposed: frozenset(committed))


def forget_producers_on_a_change_of_leader(patch: Patch) -> None:
    become = HostedPartition.become

    def forgetful(self: Any, state: Any) -> None:
        if state.leader_epoch != self.leader_epoch:
            self.log.producers = ProducerState()
        become(self, state)

    patch.setattr(HostedPartition, "become", forgetful)


def ask_no_more_after_an_error(patch: Patch) -> None:
    """The first version (B1): an error is taken for the word of a successor, which will follow."""

    def for_ever(self: Any, now_ms: int) -> None:
        self.due_ms = now_ms + 10**9

    patch.setattr(IsrChange, "left_open", for_ever)


def accept_a_bad_crc_from_a_leader(patch: Patch) -> None:
    patch.setattr(appending, "crc_is_right", lambda batch, crc: True)


def claim_what_is_not_synced(patch: Patch) -> None:
    patch.setattr(HostedPartition, "stored_end", property(lambda self: self.log.end_offset))


# --- control -----------------------------------------------------------------------------------


def skip_the_epoch_of_a_stop(patch: Patch) -> None:
    decide = control_channel.decide_stop_replica
    patch.setattr(
        control_channel, "decide_stop_replica", lambda local, order: decide(local, _with(order, -1))
    )


def _with(order: Any, leader_epoch: int) -> Any:
    return replace(order, leader_epoch=leader_epoch)


def skip_the_topic_id_of_a_stop(patch: Patch) -> None:
    decide = control_channel.decide_stop_replica
    patch.setattr(
        control_channel,
        "decide_stop_replica",
        lambda local, order: decide(local, replace(order, checks_topic_id=False)),
    )


def delete_on_partial_metadata(patch: Patch) -> None:
    """A broker takes every LeaderAndIsr for a full one."""
    obey = Control.apply_leader_and_isr

    async def greedy(self: Any, request: Any, connection: Any) -> Any:
        request.type = LeaderAndIsrType.FULL
        return await obey(self, request, connection)

    patch.setattr(Control, "apply_leader_and_isr", greedy)


def send_a_full_of_what_has_a_leader(patch: Patch) -> None:
    """A controller builds FULL from what it can lead at the moment, not from the assignments."""
    build = requests.leader_and_isr

    def partial(cluster: Any, sender: Any, broker: int, places: Any, kind: int) -> Any:
        if kind == requests.FULL:
            places = [x for x in places if cluster.states[x].leader in cluster.fit]
        return build(cluster, sender, broker, places, kind)

    patch.setattr(requests, "leader_and_isr", partial)


def accept_a_former_channel(patch: Patch) -> None:
    patch.setattr(ControlChannel, "check", lambda self, request, connection: ErrorCode.NONE)


# --- the controller ------------------------------------------------------------------------------


def use_a_stale_broker_epoch(patch: Patch) -> None:
    """Members of a proposed ISR are not asked in which life they fetched."""
    patch.setattr(isr, "_why_not_members", lambda cluster, state, proposal: ErrorCode.NONE)


def take_a_suspect_for_dead(patch: Patch) -> None:
    condition = BrokerSession.condition

    def hasty(self: Any, now_ms: int, patience: Patience) -> Condition:
        found = condition(self, now_ms, patience)
        return Condition.DEAD if found is Condition.SUSPECTED else found

    patch.setattr(BrokerSession, "condition", hasty)


def write_as_a_zombie(patch: Patch) -> None:
    operations = controllers.operations

    def unconditional(cluster: Any, writes: Any) -> Any:
        found = [each for each in operations(cluster, writes) if not isinstance(each, CheckVersion)]
        return [
            replace(each, version=-1) if isinstance(each, Set | Delete) else each for each in found
        ]

    patch.setattr(controllers, "operations", unconditional)


def clear_the_unclean_flag_by_default(patch: Patch) -> None:
    changed = isr._changed

    def careless(*arguments: Any, **options: Any) -> Any:
        new = changed(*arguments, **options)
        return msgspec.structs.replace(new, is_unclean_leader=False)

    patch.setattr(isr, "_changed", careless)


def elect_outside_of_the_isr(patch: Patch) -> None:
    settle = settlement.settle

    def any_fit(state: Any, replicas: Any, standing: Any, *more: Any) -> Any:
        new = settle(state, replicas, standing, *more)
        if new.leader_epoch == state.leader_epoch or new.leader < 0:
            return new
        other = next((x for x in replicas if x in standing.electable), new.leader)
        return msgspec.structs.replace(new, leader=other, isr=[other], is_unclean_leader=False)

    patch.setattr(settlement, "settle", any_fit)


def keep_replicas_eligible_for_ever(patch: Patch) -> None:
    with_isr = elections.with_isr

    def sticky(state: Any, members: Any, *arguments: Any, **options: Any) -> Any:
        new = with_isr(state, members, *arguments, **options)
        known = dict.fromkeys([*state.eligible_replicas, *state.isr])
        eligible = [member for member in known if member not in new.isr]
        return msgspec.structs.replace(new, eligible_replicas=eligible)

    patch.setattr(elections, "with_isr", sticky)
    patch.setattr(isr, "with_isr", sticky)


def keep_no_debt(patch: Patch) -> None:
    patch.setattr(settlement, "_put_debts", lambda cluster, debts: [])


# --- levels --------------------------------------------------------------------------------------


def forget_which_topics_are_older_than_ids(patch: Patch) -> None:
    """A controller at 1.4 does not say which topics had replicas before they had ids."""
    build = requests.leader_and_isr

    def unmarked(*arguments: Any) -> Any:
        request = build(*arguments)
        for topic in request.topic_states:
            topic.migrated = False
        return request

    patch.setattr(requests, "leader_and_isr", unmarked)


def drop_the_unclean_flag_below_1_3(patch: Patch) -> None:
    changed = isr._changed

    def careless(cluster: Any, *arguments: Any) -> Any:
        new = changed(cluster, *arguments)
        unclean = new.is_unclean_leader and cluster.level.unclean_flag
        return msgspec.structs.replace(new, is_unclean_leader=unclean)

    patch.setattr(isr, "_changed", careless)


# --- groups --------------------------------------------------------------------------------------


def accept_commits_of_any_generation(patch: Patch) -> None:
    patch.setattr(group_offsets, "_why_no_commit", lambda group, event: ErrorCode.NONE)


def forget_groups_when_the_coordinator_moves(patch: Patch) -> None:
    patch.setattr(group_table.GroupTable, "replay", lambda self, key, value, now_ms: None)


def forget_members_when_the_coordinator_moves(patch: Patch) -> None:
    """Positions are loaded, generations are not."""
    replay = group_table.GroupTable.replay

    def only_offsets(self: Any, key: Any, value: Any, now_ms: int) -> None:
        if key is None or int.from_bytes(key[:2], "big") != GROUP_KEY_VERSION:
            replay(self, key, value, now_ms)

    patch.setattr(group_table.GroupTable, "replay", only_offsets)


def hand_out_shares_before_they_are_stored(patch: Patch) -> None:
    decide = group_table.GroupTable.decide

    def hasty(self: Any, group_id: str, event: Any, now_ms: int) -> GroupDecision:
        found = decide(self, group_id, event, now_ms)
        early = [x for x in found.writes if isinstance(x.purpose, StoreAssignment)]
        effects = [x for write in early for x in self.stored(write, now_ms).effects]
        return replace(found, effects=(*found.effects, *effects))

    patch.setattr(group_table.GroupTable, "decide", hasty)


def give_everything_to_each_member(patch: Patch) -> None:
    def greedy(_: str, subscriptions: Any, counts: Any) -> Any:
        everything = [
            TopicPartition(name, at) for name in counts for at in range(counts[name].listed)
        ]
        return dict.fromkeys(subscriptions, everything)

    patch.setattr(group_member, "assign", greedy)


def commit_what_is_not_delivered(patch: Patch) -> None:
    """A member commits what it has fetched ahead, as if it were handed out."""

    def ahead(self: Any) -> dict[TopicPartition, int]:
        return {place: item.fetch_offset for place, item in self._assigned.items()}

    patch.setattr(Fetcher, "positions", ahead)


# --- the store ---------------------------------------------------------------------------------


def believe_who_was_eligible_by_a_higher_minimum(patch: Patch) -> None:
    """C1: the minimum was lowered while no controller was active."""
    patch.setattr(config_effects, "of_a_start", lambda cluster: ControllerDecision(None))
    patch.setattr(elections, "eligible_now", lambda state, minimum: state.eligible_replicas)


def tell_what_is_not_durable(patch: Patch) -> None:
    """C2: what a tool wrote is taken up in the state that outboxes read."""
    patch.setattr(ControllerCluster, "draft", lambda self: self)
    patch.setattr(ControllerCluster, "adopt", lambda self, draft: None)


UNCLEAN = {"kill_two": 2.0, "kill_broker": 2.0, "lose_all_power": 0.5}
MEMBERS: dict[str, Any] = {"weights": {**KILLS, "isolate": 2.0}, "pause": (0.1, 2.0)}
LATE = {"late_commit": 3.0, "leave": 1.0}
LONGER = Course(seconds=30.0, end_seconds=34.0, **MEMBERS)
JOINS = ("only_the_complete_join", *LOSSES)

PLANTED = (
    Planted(acknowledge_before_the_isr_has_it, LOSSES, directed(KILLS)),
    Planted(
        read_what_is_not_committed,
        ("above the high watermark", "read_is_not_unread"),
        directed(KILLS),
    ),
    Planted(
        raise_the_watermark_before_truncation,
        LOSSES,
        directed({"isolate": 3, "pause": 3, "kill_broker": 1}),
        first_seed=3,
    ),
    Planted(
        truncate_to_the_high_watermark,
        LOSSES,
        directed({**KILLS, "kill_two": 3.0}),
        first_seed=17,
    ),
    Planted(join_below_the_epoch_start, JOINS, directed(KILLS, fetch_bytes=500)),
    Planted(
        count_the_small_isr,
        JOINS,
        directed({"lose_the_answer_to_a_join": 1}),
    ),
    Planted(
        forget_producers_on_a_change_of_leader,
        ("idempotent_is_once", "idempotence_survives"),
        directed(KILLS),
        first_seed=1,
    ),
    Planted(
        accept_a_bad_crc_from_a_leader,
        ("no_bad_crc_is_accepted",),
        directed({"damage_on_the_wire": 1}),
    ),
    Planted(
        claim_what_is_not_synced,
        LOSSES,
        directed({"lose_all_power": 1, "lose_power": 1, "slow_disk": 1}, durability="sync"),
    ),
    Planted(skip_the_epoch_of_a_stop, PROOF, directed({"late_stop": 3, "kill_broker": 1})),
    Planted(skip_the_topic_id_of_a_stop, PROOF, directed(REPLAYS)),
    Planted(delete_on_partial_metadata, PROOF, directed(KILLS)),
    Planted(send_a_full_of_what_has_a_leader, PROOF, directed({**KILLS, "kill_two": 3.0})),
    Planted(
        accept_a_former_channel,
        (*PROOF, "no_step_back", "one_offset_one_record"),
        directed(REPLAYS),
    ),
    Planted(
        use_a_stale_broker_epoch,
        JOINS,
        directed({"lose_a_new_member": 1}, careful=False, durability="replicated"),
        first_seed=1,
    ),
    Planted(take_a_suspect_for_dead, ("death_takes_its_time",), directed(KILLS)),
    Planted(
        write_as_a_zombie,
        ("one_controller_writes",),
        directed({"pause": 2, "expire_session": 3, "kill_broker": 3}, controllers=2),
    ),
    Planted(
        clear_the_unclean_flag_by_default,
        ("unclean_is_recorded",),
        directed(
            {"lose_all_power": 3, "slow_network": 2},
            unclean=True,
            durability="replicated",
            controllers=1,
        ),
        first_seed=5,
    ),
    Planted(elect_outside_of_the_isr, ("only_the_complete_lead",), directed(KILLS), first_seed=5),
    Planted(
        keep_replicas_eligible_for_ever,
        ("only_the_complete_lead", "acked_is_not_lost"),
        directed({"kill_two": 3, "kill_broker": 3, "isolate": 1}),
        first_seed=6,
    ),
    Planted(
        keep_no_debt,
        ("unclean_is_recorded",),
        directed(UNCLEAN, durability="replicated"),
        first_seed=1,
    ),
    Planted(forget_which_topics_are_older_than_ids, PROOF, directed(BOUNCES, mixed=True)),
    Planted(
        drop_the_unclean_flag_below_1_3,
        ("unclean_is_recorded",),
        directed(
            {"lose_all_power": 3, "slow_network": 2},
            mixed=True,
            unclean=True,
            durability="replicated",
        ),
        first_seed=5,
    ),
    Planted(
        accept_commits_of_any_generation,
        ("old_generations_do_not_commit",),
        Course(seconds=20.0, end_seconds=22.0, weights=KILLS, members=LATE),
        first_seed=1,
    ),
    Planted(
        forget_groups_when_the_coordinator_moves,
        ("members_begin_where_the_last_stopped", "commits_go_forward"),
        LONGER,
        first_seed=2,
    ),
    Planted(forget_members_when_the_coordinator_moves, ("generations_rise",), LONGER),
    Planted(
        hand_out_shares_before_they_are_stored,
        ("one_owner_in_a_generation", "members_begin_where_the_last_stopped"),
        LONGER,
        first_seed=3,
    ),
    Planted(give_everything_to_each_member, ("one_owner_in_a_generation",), LONGER),
    Planted(commit_what_is_not_delivered, ("a_group_gets_everything",), LONGER),
    Planted(
        believe_who_was_eligible_by_a_higher_minimum,
        LOSSES,
        directed(
            {"lower_a_minimum_unseen": 1},
            seconds=24.0,
            end_seconds=30.0,
            pause=(4.0, 8.0),
            durability="replicated",
        ),
    ),
    Planted(
        tell_what_is_not_durable,
        LOSSES,
        directed({"mark_in_vain": 1}, deletes=False, pause=(2.0, 4.0)),
    ),
    Planted(
        ask_no_more_after_an_error,
        ("full ISRs",),
        directed({"damage_a_topic": 1}, deletes=False, pause=(2.0, 6.0)),
    ),
)


@pytest.mark.parametrize("planted", PLANTED, ids=[each.plant.__name__ for each in PLANTED])
def test_a_planted_bug_is_found(planted: Planted, monkeypatch: Patch) -> None:
    planted.plant(monkeypatch)
    found = find(planted)
    assert found is not None, f"{planted.plant.__name__} survived {SEEDS} seeds"
    result, line = found
    print(f"{planted.plant.__name__}: seed {result.seed}: {line}")
