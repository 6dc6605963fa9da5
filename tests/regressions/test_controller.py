"""The known traps of elections and the ISR, each run through the controller's own decisions.

Not those of processes and disks: see ``test_simulated_cluster``, ``test_processes``.
"""

from __future__ import annotations

from itertools import count
from typing import Any
from uuid import UUID

import pytest

from tests.support.controller_world import World
from tidelog.controller.decisions.cluster import LogEnd
from tidelog.controller.decisions.configuration import Resource, replace_configs
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.decision import RequestRefusal
from tidelog.controller.decisions.isr import Outcome, Proposal, alter_isr
from tidelog.controller.decisions.registration import (
    Address,
    Registration,
    expire,
    register,
    replace_unfit,
)
from tidelog.controller.decisions.requested_elections import elect_on_request
from tidelog.metadata.records import PartitionState
from tidelog.model.admin_requests import ElectionType
from tidelog.model.errors import ErrorCode as E
from tidelog.model.registration import FormerRegistration
from tidelog.model.topics import TopicPartition

T0 = TopicPartition("t", 0)
TOPIC, BROKER = 2, 4
MINIMUM, UNCLEAN = "min.insync.replicas", "unclean.leader.election.enable"
lives = count(1)


class Story:
    """A partition t-0 on brokers 1, 2 and 3, led by 1, all in sync."""

    def __init__(self, **configs: str) -> None:
        self.world = World()
        self.cluster = self.world.cluster
        self.ends: dict[int, LogEnd] = {}
        for broker in (1, 2, 3):
            self.comes(broker, FormerRegistration.CLEAN, None)
        named = tuple((name.replace("_", "."), value) for name, value in configs.items())
        (created,) = self.world.create(TopicToCreate("t", 1, 3, configs=named))
        assert created.refusal is None

    @property
    def now(self) -> PartitionState:
        return self.cluster.states[T0]

    def comes(
        self, broker: int, ended: FormerRegistration, end: tuple[int, int] | None = (0, 100)
    ) -> None:
        """A new life of a broker registers; ``end``: epoch and end of its log, None for no log."""
        inventory = {}
        if end is not None:
            inventory = {(self.cluster.topic_id("t"), 0): LogEnd(1, *end)}
        request = Registration(
            broker,
            "",
            UUID(int=next(lives)),
            UUID(int=broker),
            (Address("PLAINTEXT", "h", 9092, "PLAINTEXT"),),
            None,
            ended,
            inventory,
        )
        self.cluster.suspected.discard(broker)
        self.cluster.inventories[broker] = inventory
        assert isinstance(self.world.do(register(self.cluster, request, 1)), int)

    def dies(self, *brokers: int) -> None:
        self.world.do(expire(self.cluster, brokers))
        self.cluster.suspected.difference_update(brokers)

    def suspects(self, *brokers: int) -> None:
        self.cluster.suspected.update(brokers)
        self.world.do(replace_unfit(self.cluster))

    def epoch(self, broker: int) -> int:
        return self.cluster.brokers[broker].broker_epoch

    def proposes(self, *isr: int, **changes: Any) -> Outcome:
        """The leader proposes an ISR, with the present lives of the members."""
        knows = changes.pop("knows_configs", True)
        fields: dict[str, Any] = {
            "leader_epoch": self.now.leader_epoch,
            "isr_version": self.cluster.isr_version(T0),
            "broker_epochs": tuple(map(self.epoch, isr)),
            **changes,
        }
        proposal = Proposal(T0, UUID(int=0), isr=isr, **fields)
        decision = alter_isr(self.cluster, self.now.leader, [proposal], knows_configs=knows)
        (outcome,) = self.world.do(decision)
        assert isinstance(outcome, Outcome)
        return outcome

    def configures(self, kind: int, name: str, **configs: str) -> RequestRefusal | None:
        named = [(key.replace("_", "."), value) for key, value in configs.items()]
        decision = replace_configs(self.cluster, [(Resource(kind, name), named)])
        ((_, refusal),) = self.world.do(decision)
        assert refusal is None or isinstance(refusal, RequestRefusal)
        return refusal


def test_two_members_are_killed_and_the_last_one_loses_power() -> None:
    """RF 3, min 2: what was acknowledged is still elected (eligible replicas)."""
    story = Story(min_insync_replicas="2")
    story.dies(3)
    assert (story.now.isr, story.now.eligible_replicas) == ([1, 2], [])
    story.dies(2)
    # From here on 1 acknowledges nothing: 2 holds everything that was.
    assert (story.now.isr, story.now.eligible_replicas) == ([1], [2])
    story.dies(1)
    story.comes(1, FormerRegistration.UNCLEAN, (0, 50))
    assert (story.now.leader, story.now.isr, story.now.eligible_replicas) == (-1, [], [2])
    # 3 had left while the ISR was large enough: it may lack what was acknowledged since.
    story.comes(3, FormerRegistration.CRASHED)
    assert story.now.leader == -1
    story.comes(2, FormerRegistration.CRASHED)
    assert (story.now.leader, story.now.isr) == (2, [2])
    assert not story.now.is_unclean_leader
    assert story.cluster.topic_histories["t"].unclean == {}


def test_a_lowered_minimum_clears_the_eligible_replicas_before_brokers_receive_it() -> None:
    """``min.insync.replicas`` lowered while the eligible set is not empty, in all three ways."""
    for kind, name in ((TOPIC, "t"), (BROKER, "")):
        story = Story()
        assert story.configures(BROKER, "", min_insync_replicas="2") is None
        story.dies(2, 3)
        assert (story.now.isr, story.now.eligible_replicas) == ([1], [2, 3])
        assert story.configures(kind, name, min_insync_replicas="1") is None
        assert story.now.eligible_replicas == []
        # 1 may acknowledge alone now: no other replica is elected without the flag.
        story.dies(1)
        story.comes(2, FormerRegistration.CRASHED)
        assert story.now.leader == -1
    # A minimum that one topic lowers leaves others alone, and a raised one clears nothing.
    story = Story(min_insync_replicas="2")
    story.dies(2, 3)
    story.configures(BROKER, "", min_insync_replicas="1")
    story.configures(TOPIC, "t", min_insync_replicas="3")
    assert story.now.eligible_replicas == [2, 3]


def test_one_broker_cannot_have_a_minimum_of_its_own() -> None:
    """Leader and controller must go by the same number (KIP-966)."""
    story = Story()
    refusal = story.configures(BROKER, "1", min_insync_replicas="1")
    assert refusal is not None
    assert refusal.error is E.INVALID_CONFIG


def test_a_leader_without_the_raised_minimum_is_not_left_alone() -> None:
    """It goes by 1 still, and would acknowledge alone after the response; updated, it shrinks."""
    story = Story(min_insync_replicas="1")
    story.configures(TOPIC, "t", min_insync_replicas="2")
    before = story.now
    assert story.proposes(1, knows_configs=False).error is E.INELIGIBLE_REPLICA
    assert story.now == before
    assert story.proposes(1, 2, knows_configs=False).error is E.NONE
    assert (story.now.isr, story.now.eligible_replicas) == ([1, 2], [])
    assert story.proposes(1).error is E.NONE
    assert (story.now.isr, story.now.eligible_replicas) == ([1], [2])


def test_a_leader_without_the_raised_minimum_receives_no_eligible_replica() -> None:
    """Its proposal meets the controller's own change: by the answer it would acknowledge alone,
    and then 2, which lacks that, would be elected as if it had everything."""
    story = Story(min_insync_replicas="1")
    known = story.cluster.isr_version(T0)
    story.configures(TOPIC, "t", min_insync_replicas="2")
    story.dies(2, 3)
    assert (story.now.isr, story.now.eligible_replicas) == ([1], [2, 3])
    late = story.proposes(1, isr_version=known, knows_configs=False)
    assert (late.error, late.state, late.isr_version) == (E.INVALID_UPDATE_VERSION, None, -1)
    told = story.proposes(1, isr_version=known)
    assert (told.error, told.state) == (E.INVALID_UPDATE_VERSION, story.now)


def test_the_revision_of_the_last_change_of_a_configuration_is_known() -> None:
    story = Story()
    for change in ("2", "3"):
        story.configures(TOPIC, "t", min_insync_replicas=change)
        assert story.cluster.configs_changed_at == story.cluster.revision
        before = story.cluster.revision
        story.proposes(1, 2) if change == "2" else story.proposes(1)
        assert story.cluster.configs_changed_at == before < story.cluster.revision


def test_a_member_that_came_back_empty_while_its_joining_was_in_flight_is_refused() -> None:
    """AlterIsr(+C) in flight; C dies, comes back with an empty disk and registers."""
    story = Story()
    story.proposes(1, 2)
    former = (story.epoch(1), story.epoch(2), story.epoch(3))
    story.dies(3)
    story.comes(3, FormerRegistration.CLEAN, None)
    assert story.proposes(1, 2, 3, broker_epochs=former).error is E.INELIGIBLE_REPLICA
    assert story.now.isr == [1, 2]
    # As its present life it joins.
    assert story.proposes(1, 2, 3).error is E.NONE
    # The change committed first: then its registration takes it out again.
    story.comes(3, FormerRegistration.CLEAN, None)
    assert story.now.isr == [1, 2]


def test_a_lost_answer_and_a_late_one_converge() -> None:
    story = Story()
    version = story.cluster.isr_version(T0)
    first = story.proposes(1, 2)
    again = story.proposes(1, 2, isr_version=version)
    assert (first.error, again.error) == (E.NONE, E.INVALID_UPDATE_VERSION)
    assert again.state is not None
    assert (again.state.isr, again.isr_version) == ([1, 2], first.isr_version)
    # A request of long ago arrives once more, after other changes: nothing happens.
    story.proposes(1)
    late = story.proposes(1, 2, isr_version=version)
    assert late.error is E.INVALID_UPDATE_VERSION
    assert story.now.isr == [1]
    story.dies(1)
    fenced = alter_isr(story.cluster, 1, [Proposal(T0, UUID(int=0), 0, (1, 2), first.isr_version)])
    assert fenced.answer[0].error is E.FENCED_LEADER_EPOCH
    assert fenced.writes == ()


def test_a_leader_that_returns_before_it_was_missed_leads_in_a_new_epoch_only() -> None:
    """It may have lost an unsynced tail that a follower has: the follower truncates."""
    story = Story()
    before = story.now.leader_epoch
    story.comes(1, FormerRegistration.CRASHED)
    assert story.now.leader_epoch == before + 1
    assert (story.now.leader, story.now.isr) == (1, [1, 2, 3])
    # After a power loss it leads not at all while another member lives.
    story.comes(1, FormerRegistration.UNCLEAN)
    assert story.now.leader in (2, 3)
    assert story.now.isr == [2, 3]


def test_a_suspected_broker_does_not_allow_an_unclean_election_and_its_death_does() -> None:
    story = Story(unclean_leader_election_enable="true")
    story.proposes(1)
    story.suspects(1)
    assert (story.now.leader, story.now.is_unclean_leader) == (1, False)
    answer = story.world.do(elect_on_request(story.cluster, ElectionType.UNCLEAN, [T0]))
    assert answer[T0].error is E.ELECTION_NOT_NEEDED
    story.dies(1)
    assert story.now.is_unclean_leader
    assert story.now.leader in (2, 3)


def test_an_unclean_election_on_request_waits_for_replicas_that_may_have_everything() -> None:
    story = Story(min_insync_replicas="2", unclean_leader_election_enable="true")
    story.dies(3)
    story.suspects(2)
    assert (story.now.isr, story.now.eligible_replicas) == ([1], [2])
    story.dies(1)
    story.comes(3, FormerRegistration.CRASHED)
    assert story.now.leader == -1
    answer = story.world.do(elect_on_request(story.cluster, ElectionType.UNCLEAN, [T0]))
    assert answer[T0].error is E.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert answer[T0].sentence.startswith("Broker 2 may still come back with all of t-0")
    assert story.now.leader == -1
    # It comes back, with everything that was acknowledged.
    story.comes(2, FormerRegistration.CRASHED)
    assert (story.now.leader, story.now.is_unclean_leader) == (2, False)


def test_the_death_of_the_last_eligible_replica_allows_what_the_configuration_does() -> None:
    story = Story(min_insync_replicas="2", unclean_leader_election_enable="true")
    story.dies(2)
    story.dies(3)
    assert (story.now.isr, story.now.eligible_replicas) == ([1], [3])
    story.suspects(1)
    story.comes(2, FormerRegistration.CRASHED)
    story.cluster.suspected.discard(1)
    story.dies(1)
    assert story.now.leader == 2
    assert story.now.is_unclean_leader


@pytest.mark.parametrize("kind", [TOPIC, BROKER])
def test_switching_unclean_elections_on_elects_where_there_is_no_leader(kind: int) -> None:
    story = Story()
    story.proposes(1)
    story.dies(1)
    assert story.now.leader == -1
    name = "t" if kind == TOPIC else ""
    assert story.configures(kind, name, unclean_leader_election_enable="true") is None
    assert story.now.leader in (2, 3)
    assert story.now.is_unclean_leader
    assert set(story.cluster.topic_histories["t"].unclean) == {0}
    # Off again: it changes nothing that has happened.
    before = story.now
    story.configures(kind, name)
    assert story.now == before


def test_preferred_replicas_that_only_seem_to_be_there_are_not_elected() -> None:
    story = Story()
    story.dies(1)
    story.comes(1, FormerRegistration.CRASHED)
    story.proposes(*story.now.isr, 1)
    assert story.now.leader != 1
    for kept in (story.cluster.presumed, story.cluster.broken):
        kept.add(1 if kept is story.cluster.presumed else (1, T0))  # type: ignore[arg-type]
        answer = story.world.do(elect_on_request(story.cluster, ElectionType.PREFERRED, [T0]))
        assert answer[T0].error is E.PREFERRED_LEADER_NOT_AVAILABLE
        kept.clear()
    answer = story.world.do(elect_on_request(story.cluster, ElectionType.PREFERRED, [T0]))
    assert answer == {T0: None}
    assert story.now.leader == 1
