"""A partition that moves in a drawn history: requests, joins, deaths, new controllers, late stops.

The model keeps every stop that was ever decided, and checks after each step that R loses no member
outside a completion, that the leader is in R, and that each stop of a broker is older than its next
assignment (promises 16, 18, 21).
"""

from __future__ import annotations

from uuid import UUID

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.controller_world import KEPT, World
from tidelog.controller.decisions import soft_state
from tidelog.controller.decisions.cluster import NO_LEADER, ClusterState, LogEnd
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.deletion import confirm
from tidelog.controller.decisions.isr import Proposal, alter_isr
from tidelog.controller.decisions.moves import complete
from tidelog.controller.decisions.nodes import load
from tidelog.controller.decisions.reassignments import Asked, known_brokers, reassign
from tidelog.controller.decisions.registration import (
    Address,
    Registration,
    expire,
    register,
    replace_unfit,
    settle_returned,
)
from tidelog.controller.decisions.stops import Stop, stops_of
from tidelog.metadata.records import PartitionState
from tidelog.model.errors import ErrorCode
from tidelog.model.registration import FormerRegistration
from tidelog.model.topics import TopicPartition

BROKERS = range(1, 7)
T0 = TopicPartition("t", 0)

some_broker = st.sampled_from(BROKERS)
replicas_of_a_partition = st.lists(some_broker, min_size=1, max_size=4, unique=True)


class Move(RuleBasedStateMachine):
    """One partition over six brokers."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.lives = 0
        self.running: dict[int, int] = {}
        self.sent: dict[int, int] = {}
        """The newest leader epoch of any stop that was decided, by broker."""
        self.late: list[tuple[int, Stop]] = []

    # -- how the state is read

    @property
    def cluster(self) -> ClusterState:
        return self.world.cluster

    @property
    def state(self) -> PartitionState:
        return self.cluster.states[T0]

    @property
    def replicas(self) -> list[int]:
        return self.cluster.replicas(T0)

    @property
    def owed(self) -> dict[int, int]:
        return self.cluster.topic_histories["t"].pending_stops.get(0, {})

    # -- steps

    @initialize(replicas=replicas_of_a_partition, unclean=st.booleans(), minimum=st.integers(1, 3))
    def begin(self, replicas: list[int], unclean: bool, minimum: int) -> None:
        for broker in BROKERS:
            self._register(broker, FormerRegistration.CLEAN, new=True)
        configs = (
            ("unclean.leader.election.enable", str(unclean).lower()),
            ("min.insync.replicas", str(minimum)),
        )
        topic = TopicToCreate("t", assignment=((0, tuple(replicas)),), configs=configs)
        self.world.create(topic)

    @rule(wanted=replicas_of_a_partition)
    def ask(self, wanted: list[int]) -> None:
        before, hosts, was_moving = self.state, set(self.cluster.hosts(T0)), self._is_moving()
        same, is_there = wanted in (before.target_replicas, self.replicas), wanted == self.replicas
        ((_, refusal),) = self._step(reassign(self.cluster, [Asked(T0, tuple(wanted))]))
        if refusal is not None:
            assert not set(wanted) <= known_brokers(self.cluster) and self.state == before
            return
        if not same:
            assert self.state.leader_epoch == before.leader_epoch + 1
        elif not was_moving or not is_there:
            # Targets equal to the replicas end a running move where it stands.
            assert self.state == before
        for broker in set(self.cluster.hosts(T0)) - hosts:
            assert self.sent.get(broker, -1) < self.state.leader_epoch
            assert broker not in self.state.isr, "it has not fetched yet"

    @rule()
    def cancel(self) -> None:
        before, was_moving, replicas = self.state, self._is_moving(), self.replicas
        ((_, refusal),) = self._step(reassign(self.cluster, [Asked(T0, None)]))
        assert (refusal is None) is was_moving
        assert self.replicas == replicas and not self._is_moving()
        assert self.state.leader_epoch == before.leader_epoch + was_moving

    @rule(data=st.data())
    def leader_changes_the_isr(self, data: st.DataObject) -> None:
        leader = self.state.leader
        if leader == NO_LEADER or leader not in self.cluster.brokers:
            return
        hosts = sorted(set(self.cluster.hosts(T0)) - {leader})
        others = data.draw(st.lists(st.sampled_from(hosts), unique=True)) if hosts else []
        self._propose((leader, *others))

    @precondition(lambda self: self._is_moving() and self.state.leader in self.cluster.brokers)
    @rule()
    def every_target_joins(self) -> None:
        targets = self.state.target_replicas or []
        self._propose(tuple(dict.fromkeys((*self.state.isr, *targets))))

    def _propose(self, isr: tuple[int, ...]) -> None:
        leader = self.state.leader
        replicas, before = self.replicas, self.state
        proposal = Proposal(T0, UUID(int=0), before.leader_epoch, isr, self.cluster.isr_version(T0))
        (outcome,) = self._step(alter_isr(self.cluster, leader, [proposal]))
        if outcome.error is not ErrorCode.NONE:
            assert self.state == before and self.replicas == replicas
            return
        assert list(isr) == self.state.isr
        assert set(self.replicas) == {*replicas, *isr}, "a target joins I and R at once"
        assert self.state.leader_epoch == before.leader_epoch

    @rule()
    def completes(self) -> None:
        before, replicas = self.state, self.replicas
        ended = self._step(complete(self.cluster), completion=True)
        if not ended:
            return
        targets = before.target_replicas
        assert targets is not None and set(targets) <= set(before.isr)
        assert self.replicas == targets and not self._is_moving()
        assert self.state.leader in targets and self.state.leader_epoch == before.leader_epoch + 1
        assert self.state.isr == before.isr, "the leader drops them"
        assert self.owed.keys() >= set(replicas) - set(targets)
        assert 0 not in self.cluster.topic_histories["t"].original_replicas

    @rule(broker=some_broker)
    def dies(self, broker: int) -> None:
        self._step(expire(self.cluster, [broker]))
        soft_state.forget(self.cluster, broker)

    @rule(broker=some_broker)
    def is_silent(self, broker: int) -> None:
        if broker in self.cluster.brokers:
            self.cluster.suspected.add(broker)
            self._step(replace_unfit(self.cluster))

    @rule(broker=some_broker)
    def is_back(self, broker: int) -> None:
        if broker in self.cluster.suspected:
            self.cluster.suspected.discard(broker)
            self._step(settle_returned(self.cluster, broker))

    @rule(
        broker=some_broker,
        ended=st.sampled_from([FormerRegistration.CRASHED, FormerRegistration.UNCLEAN]),
    )
    def restarts(self, broker: int, ended: FormerRegistration) -> None:
        self._register(broker, ended, new=True)

    @rule()
    def another_controller(self) -> None:
        again = ClusterState()
        load(again, self.world.nodes())
        for kept in KEPT:
            setattr(again, kept, getattr(self.cluster, kept))
        again.presumed = set(again.brokers)
        again.suspected = set()
        self.world.cluster = again

    @precondition(lambda self: self.cluster.presumed)
    @rule(data=st.data())
    def registers_with_the_new_controller(self, data: st.DataObject) -> None:
        broker = data.draw(st.sampled_from(sorted(self.cluster.presumed)))
        self._register(broker, FormerRegistration.SAME, new=False)

    @rule(broker=some_broker)
    def is_sent_its_stops(self, broker: int) -> None:
        for stop in stops_of(self.cluster, broker):
            assert broker not in self.state.isr and broker not in self.cluster.hosts(T0)
            assert stop.leader_epoch == self.owed[broker] <= self.state.leader_epoch
            self.late.append((broker, stop))

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def a_stop_is_confirmed_late(self, data: st.DataObject) -> None:
        broker, stop = self.late.pop(data.draw(st.integers(0, len(self.late) - 1)))
        owed = self.owed.get(broker)
        self._step(confirm(self.cluster, broker, [stop]))
        assert self.owed.get(broker) == (None if owed == stop.leader_epoch else owed)

    # -- what always holds

    @invariant()
    def members_are_where_they_may_be(self) -> None:
        if "t" not in self.cluster.topics:
            return
        state, replicas, hosts = self.state, set(self.replicas), set(self.cluster.hosts(T0))
        assert len(self.replicas) == len(replicas) > 0
        assert state.leader == NO_LEADER or state.leader in replicas
        assert state.leader == NO_LEADER or state.leader in state.isr
        holders = (*state.isr, *state.eligible_replicas)
        assert replicas.intersection(holders), "no replica holds what was committed"
        if self._is_moving():
            assert replicas.issuperset(state.isr)
            original = self.cluster.topic_histories["t"].original_replicas[0]
            assert replicas.issuperset(original) or not replicas.intersection(original)
        assert set(state.eligible_replicas) <= replicas
        assert not hosts.intersection(self.owed), "a host owes no stop"
        for broker, epoch in self.owed.items():
            self.sent[broker] = max(self.sent.get(broker, -1), epoch)
        for broker in hosts:
            assert self.sent.get(broker, -1) < state.leader_epoch

    # -- how a step is taken

    def _is_moving(self) -> bool:
        return T0 in self.cluster.moves

    def _step(self, decision, completion: bool = False):  # type: ignore[no-untyped-def]
        replicas = set() if "t" not in self.cluster.topics else set(self.replicas)
        epoch = self.state.leader_epoch if "t" in self.cluster.topics else -1
        answer = self.world.do(decision)
        if "t" in self.cluster.topics:
            assert completion or replicas <= set(self.replicas), "R lost a member"
            assert epoch <= self.state.leader_epoch
        return answer

    def _register(self, broker: int, ended: FormerRegistration, *, new: bool) -> None:
        if new:
            self.lives += 1
            self.running[broker] = self.lives
        cluster, inventory = self.cluster, {}
        if "t" in cluster.topics and broker in cluster.hosts(T0):
            end = LogEnd(-1, self.state.leader_epoch, 10 * broker)
            inventory[cluster.topic_id("t"), 0] = end
        request = Registration(
            broker,
            "",
            UUID(int=self.running[broker]),
            UUID(int=broker),
            (Address("PLAINTEXT", "h", 9092, "PLAINTEXT"),),
            None,
            ended,
            inventory,
        )
        cluster.inventories[broker] = inventory
        self._step(register(cluster, request, 7))
        cluster.suspected.discard(broker)
        cluster.presumed.discard(broker)


TestMove = Move.TestCase
TestMove.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
