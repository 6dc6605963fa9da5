"""What moves write to the store and leave on the disks: promises 18 and 21, docs/design/moving.md.

Owns the checks of each commit that touches replicas, targets, the record of a move or its stops,
of each copy that a broker removes, and of what is left when all moves have ended. It keeps its own
view of the nodes, one commit at a time; elections and ISRs are ``journal``'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.simulation.cluster.disks import DiskWatch
from tests.simulation.cluster.journal import Place, StateWatch
from tests.simulation.cluster.nodes import LOGS, BrokerNode, Cluster
from tests.simulation.cluster.store import Commit
from tests.simulation.kernel.inodes import DirectoryNode
from tidelog.metadata import layout
from tidelog.metadata.records import PartitionState, TopicHistory
from tidelog.metadata.store import Create, Set
from tidelog.model.topics import TopicPartition
from tidelog.storage.names import DELETE_DIRECTORY, STRAY_DIRECTORY, parse_directory


@dataclass(frozen=True)
class Moving:
    """One partition after a commit: R, the state with I and T, O, the stops that are owed."""

    replicas: tuple[int, ...]
    state: PartitionState
    original: tuple[int, ...] | None = None
    stops: Mapping[int, int] = field(default_factory=dict)

    @property
    def targets(self) -> tuple[int, ...] | None:
        targets = self.state.target_replicas
        return None if targets is None else tuple(targets)

    @property
    def hosts(self) -> set[int]:
        return {*self.replicas, *(self.targets or ())}


class MoveWatch:
    """Follows the journal and the disks; ``found`` is what no move may do."""

    def __init__(self, cluster: Cluster, states: StateWatch, disks: DiskWatch) -> None:
        self.found: list[str] = []
        self.started = 0
        self.changed = 0
        self.cancelled = 0
        self.completed = 0
        self.joined = 0
        self._cluster = cluster
        self._states = states
        self._histories: dict[str, TopicHistory] = {}
        self._known: dict[Place, Moving] = {}
        self._host_since: dict[tuple[Place, int], float] = {}
        self._made_at: dict[tuple[str, str], float] = {}
        """(host, directory) -> when a copy was made that stands there."""
        cluster.tree.when_written = self.take
        disks.when_made = self._made
        disks.when_removed = self._removed

    def counts(self) -> dict[str, int]:
        """How many moves of a partition did what, as the store has it; none where nothing moves."""
        return {
            "moves started": self.started,
            "moves changed": self.changed,
            "moves cancelled": self.cancelled,
            "moves completed": self.completed,
            "targets joined": self.joined,
        }

    # --- the store -------------------------------------------------------------------------------

    def take(self, commit: Commit) -> None:
        """Take up one commit, after ``journal`` has, and compare each partition that it touches."""
        self._states.take(commit)
        topics: set[str] = set()
        for operation in commit.operations:
            if not isinstance(operation, Create | Set) or not operation.data:
                continue
            found = layout.partition_of(operation.path)
            if found is not None:
                topics.add(found[0])
            elif operation.path.startswith(layout.TOPICS + "/"):
                topics.add(operation.path.removeprefix(layout.TOPICS + "/"))
            else:
                record = layout.decode(operation.path, operation.data)
                if isinstance(record, TopicHistory):
                    topics.add(operation.path.rpartition("/")[2])
                    self._histories[operation.path.rpartition("/")[2]] = record
        for topic in sorted(topics):
            self._compare(topic, commit.at)

    def _compare(self, topic: str, at: float) -> None:
        node = self._states.topics.get(topic)
        for index in () if node is None else node.partitions:
            place = self._states.place(topic, index)
            if place is None or place not in self._states.places:
                continue
            now = self._moving(place)
            before = self._known.get(place)
            self._known[place] = now
            for broker in now.hosts - (set() if before is None else before.hosts):
                self._host_since[place, broker] = at
            if before is not None and before != now:
                self._check(place, before, now)

    def _moving(self, place: Place) -> Moving:
        replicas = tuple(self._states.topics[place.topic].partitions[place.partition])
        state = self._states.places[place].state
        history = self._histories.get(place.topic)
        if history is None or history.topic_id != place.topic_id:
            return Moving(replicas, state)
        original = history.original_replicas.get(place.partition)
        return Moving(
            replicas,
            state,
            None if original is None else tuple(original),
            history.pending_stops.get(place.partition, {}),
        )

    def _check(self, place: Place, before: Moving, now: Moving) -> None:
        # Where all targets are replicas already, a cancellation leaves the same replicas as the
        # completion, which waits for all of them to be in sync.
        is_completed = (
            before.targets is not None
            and now.targets is None
            and now.replicas == before.targets
            and (now.replicas != before.replicas or set(now.replicas) <= set(before.state.isr))
        )
        self.completed += is_completed and before.targets != before.replicas
        self._count(before.targets, now.targets, is_completed=is_completed)
        self.joined += len(set(now.replicas).difference(before.replicas))
        self._check_replicas(place, before, now, is_completed=is_completed)
        if before.targets != now.targets and now.state.leader_epoch <= before.state.leader_epoch:
            self.found.append(
                f"a_move_raises_the_epoch: {place} has targets {now.targets} after "
                f"{before.targets}, and the leader epoch {now.state.leader_epoch} of before"
            )
        self._check_record(place, before, now, is_completed=is_completed)
        for broker in sorted(before.hosts - now.hosts):
            if now.stops.get(broker) != now.state.leader_epoch:
                self.found.append(
                    f"a_move_notes_its_stops: {place} leaves {broker} in leader epoch "
                    f"{now.state.leader_epoch}, and the stops are {dict(now.stops)}"
                )
        for broker in sorted(now.hosts & now.stops.keys()):
            self.found.append(f"a_move_notes_its_stops: {broker} hosts {place} and owes its stop")

    def _count(
        self, before: tuple[int, ...] | None, now: tuple[int, ...] | None, *, is_completed: bool
    ) -> None:
        if before != now:
            self.started += before is None
            self.changed += None not in (before, now)
            self.cancelled += now is None and not is_completed

    def _check_replicas(
        self, place: Place, before: Moving, now: Moving, *, is_completed: bool
    ) -> None:
        """Promise 21: replicas join with the ISR, and leave when all targets are in it."""
        lost = set(before.replicas) - set(now.replicas)
        if lost and not is_completed:
            self.found.append(
                f"a_move_keeps_redundancy: {place} has replicas {now.replicas} after "
                f"{before.replicas}, and no move was completed"
            )
        if is_completed and not set(now.replicas) <= set(before.state.isr):
            self.found.append(
                f"a_move_keeps_redundancy: a move of {place} to {now.replicas} was completed with "
                f"the ISR {before.state.isr}"
            )
        for broker in sorted(set(now.replicas) - set(before.replicas)):
            if broker not in (before.targets or ()) or broker not in now.state.isr:
                self.found.append(
                    f"a_move_keeps_redundancy: {broker} became a replica of {place} with targets "
                    f"{before.targets} and the ISR {now.state.isr}"
                )
        if now.state.leader >= 0 and now.state.leader not in now.replicas:
            self.found.append(
                f"only_the_complete_lead: {place} is led by {now.state.leader}, which is not among "
                f"its replicas {now.replicas}"
            )

    def _check_record(
        self, place: Place, before: Moving, now: Moving, *, is_completed: bool
    ) -> None:
        """O is R before the first change, for as long as a move runs or R differs from it."""
        expected = before.original
        if before.targets is None and now.targets is not None and before.original is None:
            expected = before.replicas
        elif now.targets is None and (now.original is None or is_completed):
            expected = None
        if now.original != expected:
            self.found.append(
                f"a_move_keeps_its_record: {place} has the original replicas {now.original} after "
                f"{before.original}, its replicas were {before.replicas}"
            )

    # --- the disks -------------------------------------------------------------------------------

    def _made(self, node: BrokerNode, directory: str) -> None:
        self._made_at[node.host, directory] = self._cluster.world.loop.time()

    def _removed(
        self, node: BrokerNode, where: TopicPartition, topic_id: str, source: str, ending: str
    ) -> None:
        """Promise 18: a copy goes when its broker has left the ISR, and no target loses its own."""
        made_at = self._made_at.pop((node.host, source), 0.0)
        place = self._states.place(where.topic, where.partition)
        if place is None or place.topic_id != topic_id or self._states.is_marked(where.topic):
            return
        now = self._known.get(place)
        if now is None:
            return
        broker = node.node_id
        if ending == DELETE_DIRECTORY and broker in now.state.isr and broker not in now.hosts:
            self.found.append(
                f"a_stop_follows_the_shrink: {node.host} deleted its copy of {place}, and the ISR "
                f"is {now.state.isr} of {now.replicas}"
            )
        since = self._host_since.get((place, broker), 0.0)
        if broker in (now.targets or ()) and broker not in now.replicas and made_at > since:
            self.found.append(
                f"no_late_deletion: {node.host} removed its copy of {place}, which is a target "
                "of the move for which it was made"
            )

    # --- the end ---------------------------------------------------------------------------------

    def left(self) -> list[str]:
        """Return what still differs from the end of all moves."""
        found: list[str] = []
        present = {
            place: now
            for place, now in self._known.items()
            if self._states.place(place.topic, place.partition) == place
        }
        for place, now in present.items():
            if now.targets is not None:
                found.append(f"{place} moves to {now.targets} with the ISR {now.state.isr}")
            elif set(now.state.isr) != set(now.replicas):
                found.append(f"{place} has the ISR {now.state.isr} of {now.replicas}")
            elif now.state.leader not in now.replicas:
                found.append(f"{place} is led by {now.state.leader} of {now.replicas}")
            if now.original is not None and now.targets is None and now.original == now.replicas:
                found.append(f"{place} has a record of a move that is over")
            if now.stops:
                found.append(f"{place} waits for the stops {dict(now.stops)}")
        hosts = {f"{place}": now.hosts for place, now in present.items()}
        for node in self._cluster.brokers:
            folder = node.machine.disk.lookup(LOGS)
            for name in sorted(folder.entries) if isinstance(folder, DirectoryNode) else ():
                copy = parse_directory(name)
                if copy is not None and copy.ending == STRAY_DIRECTORY:
                    continue  # a restart keeps it, for an operator: it serves nothing
                known = None if copy is None else hosts.get(str(copy.partition))
                if known is not None and node.node_id not in known:
                    found.append(f"{node.host} has {name}")
        return found
