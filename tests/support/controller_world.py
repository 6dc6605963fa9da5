"""A cluster for tests of the controller's decisions: what they write goes through a store.

After every commit the state is held against what a restart would load.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.creation import Created, Defaults, TopicToCreate, create_topics
from tidelog.controller.decisions.decision import Decision, Put, Write
from tidelog.controller.decisions.journal import committed, operations, with_revision
from tidelog.controller.decisions.nodes import load
from tidelog.metadata import layout
from tidelog.metadata import records as nodes
from tidelog.metadata.memory import MemoryTree
from tidelog.metadata.store import Create, Node

DEFAULTS = Defaults(1, 1)
KEPT = (
    "level",
    "confirmed",
    "suspected",
    "shutting_down",
    "presumed",
    "broken",
    "diskless",
    "inventories",
    "nameless",
    "held",
    "seen",
    "loaded",
    "kept",
    "undeletable",
    "fences",
    "unaware",
    "misplaced",
    "byte_rates",
)
"""What a controller does not find in the store again."""


class Chance:
    """Ids that count, and always the first of several."""

    def __init__(self) -> None:
        self.ids = 0

    def new_uuid(self) -> UUID:
        self.ids += 1
        return UUID(int=self.ids)

    def below(self, bound: int) -> int:
        return 0


class World:
    """A cluster whose decisions go through a store, as the controller's do."""

    def __init__(self, *brokers: int, racks: dict[int, str] | None = None) -> None:
        self.tree = MemoryTree()
        self.session = self.tree.new_session()
        self.cluster = ClusterState()
        self.chance = Chance()
        start = [Create(path, b"") for path in layout.CONTAINERS]
        start.append(Create(layout.CONTROLLER_EPOCH, b"1"))
        start.append(Create(layout.BROKER_EPOCH, str(max(brokers, default=0)).encode()))
        assert self.tree.apply(self.session, start) is None
        load(self.cluster, self.nodes())
        for broker in brokers:
            node = nodes.BrokerNode(
                [f"PLAINTEXT://h{broker}:1"],
                {"PLAINTEXT": "PLAINTEXT"},
                "h",
                1,
                -1,
                "0",
                rack=(racks or {}).get(broker),
                broker_epoch=broker,
            )
            self.cluster.brokers[broker] = node

    def nodes(self) -> dict[str, Node]:
        return {path: kept.node for path, kept in self.tree.nodes.items()}

    def commit(self, writes: tuple[Write, ...]) -> None:
        """Store and apply writes; then the state must be what a restart would load."""
        if writes:
            self.commit_only(writes)
        again = ClusterState()
        load(again, self.nodes())
        again.brokers = self.cluster.brokers
        for kept in KEPT:
            setattr(again, kept, getattr(self.cluster, kept))
        for path in again.damaged:
            # What counts in their place is what this controller knew of them.
            above, _, name = path.rpartition("/")
            if above == layout.TOPIC_CONFIGS:
                again.topic_configs[name] = self.cluster.topic_configs[name]
            elif above == layout.BROKER_CONFIGS:
                again.broker_configs[name] = self.cluster.broker_configs[name]
        assert again == self.cluster

    def commit_only(self, writes: tuple[Write, ...]) -> None:
        """Store and apply writes in a world whose state was changed by hand beside the store."""
        complete = with_revision(self.cluster, (*self._counted(writes), *writes))
        found = operations(self.cluster, complete)
        assert self.tree.apply(self.session, found) is None
        committed(self.cluster, found, complete)

    def _counted(self, writes: tuple[Write, ...]) -> tuple[Write, ...]:
        """The counter of an epoch that a test made up: in a sound store it is not below it."""
        made = [x.record for x in writes if isinstance(x, Put)]
        epochs = [x.partition_epoch for x in made if isinstance(x, nodes.PartitionNode)]
        for history in (x for x in made if isinstance(x, nodes.TopicHistory)):
            epochs += [x.partition_epoch for x in history.former.values()]
            epochs += [x for some in history.stop_partition_epochs.values() for x in some.values()]
        is_written = any(x.path == layout.PARTITION_EPOCH for x in writes)
        if is_written or max(epochs, default=0) <= self.cluster.counters.get(
            layout.PARTITION_EPOCH, 0
        ):
            return ()
        return (Put(layout.PARTITION_EPOCH, nodes.Counter(max(epochs))),)

    def do(self, decision: Decision[Any]) -> Any:
        self.commit(decision.writes)
        return decision.answer

    def create(
        self, *topics: TopicToCreate, validate_only: bool = False, for_process: bool = False
    ) -> list[Created]:
        decision = create_topics(
            self.cluster, topics, DEFAULTS, self.chance, validate_only, for_process=for_process
        )
        answer: list[Created] = self.do(decision)
        return answer
