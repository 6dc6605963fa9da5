"""What the controllers wrote to the store: leaders and ISRs, the writer, the unclean flag.

Owns the checks of promises 14-17 and 22 on the journal of commits. Decodes the nodes with
the product's layout, and keeps its own view of each partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.simulation.cluster.disks import topic_id_in
from tests.simulation.cluster.nodes import LOGS, Cluster, Node
from tests.simulation.cluster.store import TOOL, Commit
from tidelog.metadata import layout
from tidelog.metadata.records import (
    BrokerNode,
    ConfigNode,
    PartitionNode,
    PartitionState,
    ResizePlan,
    TopicHistory,
    TopicNode,
)
from tidelog.metadata.store import CheckVersion, Create, Delete, Set
from tidelog.model.levels import LATEST, Level, level_of

UNCLEAN = "unclean.leader.election.enable"


class Place(NamedTuple):
    """One partition in one life of its topic."""

    topic_id: str
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass
class Known:
    """One partition as the journal has it."""

    state: PartitionState
    leaders: dict[int, int] = field(default_factory=dict)
    """Leader epoch -> leader."""
    admitted: dict[int, float] = field(default_factory=dict)
    """Member of ISR or eligible replicas -> since when."""
    elected_at: float = 0.0


class Loss(NamedTuple):
    """A broker may have lost data: when, and with which broker epoch it came back (-1: not yet)."""

    at: float
    back_at: float


class StateWatch:
    """Follows the journal; ``found`` is what should not have been written."""

    def __init__(self, cluster: Cluster, say: Callable[[str], None]) -> None:
        self.cluster = cluster
        self.found: list[str] = []
        self.unclean: set[Place] = set()
        """Partitions in which an unclean election has happened."""
        self.places: dict[Place, Known] = {}
        self.topics: dict[str, TopicNode] = {}
        self.ids: dict[str, str] = {}
        self.losses: dict[int, Loss] = {}
        self.unclean_asked = False
        """Whether an administrator has asked for unclean elections."""
        self.given_up: set[Place] = set()
        """Partitions for which the operator has asked: their last copies are damaged."""
        self.when_unclean: Callable[[Place], None] = lambda place: None
        self.when_elected: Callable[[Place, Known], None] = lambda place, known: None
        self.when_grown: Callable[[Place, Known, int], None] = lambda place, known, member: None
        self.when_buried: Callable[[int], None] = lambda broker: None
        self.forgot_its_id: Callable[..., bool] = lambda node, path, lost_power: False
        self.id_on_disk: Callable[[Node, str], str] = lambda node, path: topic_id_in(
            node.machine.disk, path
        )
        """The topic id of a directory, however it is known."""
        self.level = LATEST
        """That of the controller that became active last."""
        self.elections = 0
        self._unclean_allowed: dict[str, bool] = {}
        self._plans: dict[str, ResizePlan | None] = {}
        self._resized: set[str] = set()
        """Topics whose resize goes on with the commit that is looked at."""
        self._epoch_writer = -1
        self._epoch_versions = 0
        self._debts: dict[str, set[int]] = {}
        self._reported: set[Place] = set()
        self._marked: set[str] = set()
        """Topics in Kafka's queue of deletions: below level 1.4 they stand until they are gone."""
        self._migrated: dict[str, bool] = {}
        self._partition_epochs: dict[tuple[str, int], int] = {}
        self._ended_epochs: set[int] = set()
        """Partition epochs of incarnations that were removed; no other incarnation has one."""
        self._say = say
        cluster.tree.when_written = self.take

    def assigned(self, topic_id: str, partition: int, broker: int, epoch: int = -1) -> bool:
        """Return whether a replica is assigned to a broker by the store as it is now.

        ``epoch`` is the partition epoch on its disk: one of a former incarnation is not assigned.
        """
        name = self.ids.get(topic_id)
        node = None if name is None else self.topics.get(name)
        if node is None or name is None or name in self._marked:
            return False
        if epoch in self._ended_epochs:
            return False
        if epoch >= 0 and self._partition_epochs.get((name, partition), epoch) != epoch:
            return False
        return broker in node.partitions.get(partition, [])

    def is_marked(self, topic: str) -> bool:
        """Whether a topic is in Kafka's queue of deletions."""
        return topic in self._marked

    def id_of(self, topic: str) -> str:
        """Return the id of a topic's present life, "" if there is none."""
        node = self.topics.get(topic)
        return "" if node is None else node.topic_id or ""

    def life_without_id(self, topic: str) -> str:
        """Return the id of the life that a replica belongs to which is made now without an id.

        Below level 1.4 that is the topic's present life: its name is free only when all replicas of
        the former one are gone. At 1.4 only a topic that was there before has such replicas.
        """
        known = self.id_of(topic)
        return known if not self.level.topic_ids or self._migrated.get(known) else ""

    def has_led(self, topic_id: str, topic: str, partition: int, leader: int, epoch: int) -> bool:
        """Whether a broker was elected in a leader epoch of this life of the partition."""
        known = self.places.get(Place(topic_id, topic, partition))
        return known is not None and known.leaders.get(epoch) == leader

    @property
    def deleting(self) -> bool:
        """Whether deletions with ids are not done: no controller below 1.4 becomes active."""
        return any(path.startswith(layout.DELETIONS + "/") for path in self.cluster.tree.nodes)

    def lost(self, broker: int) -> None:
        """A broker's disk may have lost what was written."""
        self.losses[broker] = Loss(self.cluster.world.loop.time(), -1.0)

    def place(self, topic: str, partition: int) -> Place | None:
        """Return the present life of a partition."""
        node = self.topics.get(topic)
        if node is None or node.topic_id is None or partition not in node.partitions:
            return None
        return Place(node.topic_id, topic, partition)

    def out_of_sync(self) -> list[str]:
        """Return the partitions whose ISR is not full, each with its ISR."""
        return [
            f"{place} {known.state.isr} of {replicas}"
            for place, known, replicas in self._present()
            if not set(replicas) <= set(known.state.isr)
        ]

    def not_whole(self, *beside: int) -> set[str]:
        """Return the partitions of which a replica may lack something, whatever the store says.

        Those on the brokers ``beside`` are not looked at. The store has a member in sync until its
        broker is missed or registers again: longer than a lost disk takes to come back empty, with
        no controller active even longer.
        """
        return {
            str(place)
            for place, known, replicas in self._present()
            for member in replicas
            if member not in beside
            and (
                member not in known.state.isr
                or (
                    (loss := self.losses.get(member)) is not None
                    and known.admitted.get(member, 0.0) <= loss.at
                )
            )
        }

    def _present(self) -> Iterator[tuple[Place, Known, list[int]]]:
        """Yield the present life of each partition, and on which brokers it has replicas."""
        for place, known in self.places.items():
            if self.place(place.topic, place.partition) == place:
                yield place, known, self.topics[place.topic].partitions[place.partition]

    def take(self, commit: Commit) -> None:
        """Verdict one commit and take it up."""
        self._check_writer(commit)
        for operation in commit.operations:
            above, _, name = operation.path.rpartition("/")
            if isinstance(operation, Delete):
                self._gone(operation.path)
            elif isinstance(operation, Create) and above == layout.DELETE_TOPICS:
                self._marked.add(name)
        records = [
            (operation.path, layout.decode(operation.path, operation.data))
            for operation in commit.operations
            if isinstance(operation, Create | Set) and operation.data
        ]
        self._resized.clear()
        for path, record in records:
            if isinstance(record, layout.Damaged) and commit.controller != TOOL:
                self._say(f"no_delete_without_proof: {commit.controller} wrote it: {record}")
            if isinstance(record, TopicNode):
                name = path.rpartition("/")[2]
                self.topics[name] = record
                if record.topic_id is not None:
                    self.ids[record.topic_id] = name
            elif isinstance(record, PartitionNode):
                found = layout.partition_of(path)
                assert found is not None
                self._partition_epochs[found] = record.partition_epoch
            elif isinstance(record, ConfigNode) and path.startswith(layout.TOPIC_CONFIGS):
                allowed = record.config.get(UNCLEAN) == "true"
                self._unclean_allowed[path.rpartition("/")[2]] = allowed
            elif isinstance(record, TopicHistory):
                self._migrated[record.topic_id] = record.migrated
                self._take_memory(path.rpartition("/")[2], record)
            elif isinstance(record, BrokerNode):
                broker = int(path.rpartition("/")[2])
                loss = self.losses.get(broker)
                if loss is not None and loss.back_at < 0 and self.cluster.broker(broker).alive:
                    self.losses[broker] = Loss(loss.at, commit.at)
        created = {each.path for each in commit.operations if isinstance(each, Create)}
        for path, record in records:
            if isinstance(record, PartitionState):
                self._take_state(path, record, commit, is_new=path in created)

    def _take_memory(self, topic: str, memory: TopicHistory) -> None:
        """Promise 1: what replicas report as lost can only be lost where it is not clean."""
        self._debts[topic] = set(memory.unclean)
        if memory.resize is not None and memory.resize != self._plans.get(topic):
            self._resized.add(topic)
        self._plans[topic] = memory.resize
        past = [(index, each) for index, found in memory.unclean_past.items() for each in found]
        for partition, debt in [*past, *memory.unclean.items()]:
            place = Place(memory.topic_id, topic, partition)
            if debt.lost and place not in self.unclean and place not in self._reported:
                self._reported.add(place)
                self.found.append(
                    f"no_loss_while_clean: a replica of {place} had to cut committed records: "
                    f"{debt.lost[0]}"
                )

    def _gone(self, path: str) -> None:
        above, _, name = path.rpartition("/")
        if above.startswith(layout.TOPICS) and above.endswith("/partitions"):
            topic = above.split("/")[-2]
            ended = self._partition_epochs.pop((topic, int(name)), -1)
            if ended >= 0:
                self._ended_epochs.add(ended)
        if above == layout.BROKERS:
            self.when_buried(int(name))
        if above == layout.DELETE_TOPICS:
            self._marked.discard(name)
        if above == layout.TOPICS:
            node = self.topics.pop(name, None)
            if node is not None and node.topic_id is not None:
                self.ids.pop(node.topic_id, None)
            self._unclean_allowed.pop(name, None)
            self._debts.pop(name, None)

    def _check_writer(self, commit: Commit) -> None:
        """Promise 22: each write is conditional on the epoch of the controller that makes it.

        One below level 1.4 marks topics before it is active, while the epoch stands that it found.
        """
        if commit.controller == TOOL:
            return
        wrote_epoch = any(
            isinstance(operation, Create | Set) and operation.path == layout.CONTROLLER_EPOCH
            for operation in commit.operations
        )
        if wrote_epoch:
            self._epoch_writer = commit.session
            self.level = self.level_of(commit.controller)
            return
        checks = any(
            isinstance(operation, CheckVersion) and operation.path == layout.CONTROLLER_EPOCH
            for operation in commit.operations
        )
        if checks and not self.level_of(commit.controller).topic_ids and _only_marks(commit):
            return
        if commit.session != self._epoch_writer or not checks:
            self.found.append(
                f"one_controller_writes: session {commit.session} of {commit.controller} wrote "
                f"{commit.operations[-1].path} after session {self._epoch_writer} became active"
                if commit.session != self._epoch_writer
                else f"one_controller_writes: a write of {commit.controller} does not check the "
                "controller epoch"
            )

    def level_of(self, controller: str) -> Level:
        """Return the level of a controller's process, as commits name it."""
        host = controller.rpartition("@")[2]
        return next(level_of(x.level) for x in self.cluster.controllers if x.host == host)

    def _take_state(
        self, path: str, state: PartitionState, commit: Commit, *, is_new: bool
    ) -> None:
        found = layout.partition_of(path)
        assert found is not None
        topic, partition = found
        node = self.topics.get(topic)
        place = Place((node.topic_id or "") if node else "", topic, partition)
        known = self.places.get(place)
        if known is None or is_new:
            # A partition that was removed may be created again (KIP-253): it begins as a new one.
            self.places[place] = Known(
                state,
                {**({} if known is None else known.leaders), state.leader_epoch: state.leader},
                {x: commit.at for x in state.isr if self.cluster.broker(x).alive},
                commit.at,
            )
            return
        self._say(
            f"{place}: leader {state.leader} epoch {state.leader_epoch} isr {state.isr} "
            f"eligible {state.eligible_replicas}{' UNCLEAN' if state.is_unclean_leader else ''}"
        )
        before, known.state = known.state, state
        self._check_epochs(place, known, before)
        # A move and a resize raise the epoch of a leader, which leads on: that is no election.
        leads_on = state.leader == before.leader and (
            state.target_replicas != before.target_replicas or topic in self._resized
        )
        if state.leader != before.leader or state.leader_epoch != before.leader_epoch:
            known.elected_at = commit.at
            if state.leader >= 0 and not leads_on:
                self._check_election(place, known, before)
        self._check_flag(place, state, before)
        if state.leader >= 0 and state.leader not in state.isr:
            # No leader proposes an ISR without itself, and the controller keeps none (promise 15).
            self.found.append(
                f"only_the_leader_changes_the_isr: {place} is led by {state.leader} in leader "
                f"epoch {state.leader_epoch}, with the ISR {state.isr}"
            )
        members = {*state.isr, *state.eligible_replicas}
        new = [member for member in state.isr if member not in before.isr]
        if state.is_unclean_leader and state.leader_epoch > before.leader_epoch and not leads_on:
            new.append(state.leader)  # what it has is what there is, from now on
        # A member that lost power and was not missed yet has not come back with anything.
        here = [member for member in new if not self._is_gone(member)]
        known.admitted = {
            member: commit.at if member in here else known.admitted[member]
            for member in members
            if member in here or member in known.admitted
        }
        same_epoch = state.leader_epoch == before.leader_epoch
        for member in dict.fromkeys(new):
            if same_epoch and state.leader >= 0:
                self.when_grown(place, known, member)

    def _is_gone(self, broker: int) -> bool:
        loss = self.losses.get(broker)
        return loss is not None and loss.back_at < 0

    def _check_epochs(self, place: Place, known: Known, before: PartitionState) -> None:
        state = known.state
        if state.leader_epoch < before.leader_epoch:
            self.found.append(
                f"one_leader_per_epoch: the leader epoch of {place} went back from "
                f"{before.leader_epoch} to {state.leader_epoch}"
            )
        leader = known.leaders.setdefault(state.leader_epoch, state.leader)
        if leader != state.leader:
            self.found.append(
                f"one_leader_per_epoch: {place} had leaders {leader} and {state.leader} in leader "
                f"epoch {state.leader_epoch}"
            )

    def _check_election(self, place: Place, known: Known, before: PartitionState) -> None:
        """Promises 16 and 17: the elected replica is complete, or the election is flagged."""
        state = known.state
        leader = state.leader
        self.elections += 1
        # The election of an in-sync replica clears the flag: with the flag it was unclean, again.
        if state.is_unclean_leader:
            self.unclean.add(place)
            self.when_unclean(place)
            union = {*before.isr, *before.eligible_replicas}
            all_lost = all(self._has_lost(place, known, member) for member in union)
            allowed = (
                self._unclean_allowed.get(place.topic, False)
                or self.unclean_asked
                or place in self.given_up
            )
            if not allowed and not all_lost:
                self.found.append(
                    f"unclean_is_allowed: {place} elected {leader} from {sorted(union)} uncleanly "
                    "though neither its configuration nor anybody asked for it"
                )
            if place.partition not in self._debts.get(place.topic, set()):
                self.found.append(f"unclean_is_recorded: {place} has no debt record")
            return
        if leader not in before.isr and leader not in before.eligible_replicas:
            self.found.append(
                f"only_the_complete_lead: {place} elected {leader}, which is neither in the ISR "
                f"{before.isr} nor in {before.eligible_replicas}, and did not flag it"
            )
        loss = self.losses.get(leader)
        if loss is not None and loss.back_at >= 0 and known.admitted.get(leader, 0) < loss.at:
            self.found.append(
                f"only_the_complete_lead: {place} elected {leader}, which came back without all "
                "of its data and has not been in the ISR since"
            )
        self.when_elected(place, known)

    def _has_lost(self, place: Place, known: Known, member: int) -> bool:
        """Whether a member may lack what it held when it was admitted, or never had a replica."""
        loss = self.losses.get(member)
        if member not in known.admitted:
            return True  # it was away when it became a member, and had no replica
        if loss is not None and loss.at >= known.admitted[member]:
            return True
        node, path = self.cluster.broker(member), f"{LOGS}/{place}"
        if self.forgot_its_id(node, path, lost_power=loss is not None):
            return True
        return self.id_on_disk(node, path) != place.topic_id

    def _check_flag(self, place: Place, state: PartitionState, before: PartitionState) -> None:
        if before.is_unclean_leader and not state.is_unclean_leader:
            elected = state.leader_epoch > before.leader_epoch and state.leader >= 0
            debt = place.partition in self._debts.get(place.topic, set())
            if not elected and debt:
                self.found.append(
                    f"unclean_is_recorded: the flag of {place} was cleared by a change that is "
                    "neither an election of an in-sync replica nor the end of its handling"
                )


def _only_marks(commit: Commit) -> bool:
    """Whether a commit does nothing but mark topics as migrated."""
    written = [each for each in commit.operations if not isinstance(each, CheckVersion)]
    return all(
        isinstance(each, Set)
        and (
            each.path == layout.REVISION
            or (
                isinstance(record := layout.decode(each.path, each.data), TopicHistory)
                and record.migrated
            )
        )
        for each in written
    )
