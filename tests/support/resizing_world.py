"""A topic that is resized in a pure cluster: its plan, its leaders' reports, its controllers.

Leaders report when a test says so. ``settle`` carries a resize to its end as the controller does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from uuid import UUID

import msgspec

from tests.support.controller_world import KEPT, World
from tidelog.controller.decisions import soft_state
from tidelog.controller.decisions.cluster import ClusterState, FenceReport
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.decision import Put, RequestRefusal
from tidelog.controller.decisions.growth import Growth
from tidelog.controller.decisions.nodes import load
from tidelog.controller.decisions.resize_requests import resize_topics
from tidelog.controller.decisions.resizing import Advanced, Progress, advance, awaited, missing_of
from tidelog.controller.decisions.shown_topics import shown_topic
from tidelog.metadata import layout
from tidelog.metadata.records import PartitionNode, PartitionState, ResizePlan, TopicHistory
from tidelog.model.levels import level_of
from tidelog.model.topics import TopicPartition

NOW_MS = 10_000_000


class ResizingWorld(World):
    """A cluster at level 1.5 with the topic ``t``."""

    def __init__(
        self,
        count: int = 4,
        brokers: int = 3,
        factor: int = 2,
        assignment: Sequence[tuple[int, ...]] = (),
    ) -> None:
        """``assignment``: the brokers of each partition, instead of a count and a factor."""
        super().__init__(*range(1, brokers + 1))
        self.commit(tuple(Put(layout.broker(x), y) for x, y in self.cluster.brokers.items()))
        self.cluster.level = level_of("1.5")
        placed = tuple(enumerate(assignment))
        self.create(
            TopicToCreate("t", assignment=placed) if placed else TopicToCreate("t", count, factor)
        )

    # -- what is there

    @property
    def history(self) -> TopicHistory:
        return self.cluster.topic_histories["t"]

    @property
    def plan(self) -> ResizePlan:
        plan = self.history.resize
        assert plan is not None
        return plan

    @property
    def shown(self) -> tuple[int, int, int]:
        """Count, resize epoch and number of partitions, as clients see them."""
        node = self.cluster.topics["t"]
        found = shown_topic(node, self.history)
        return found.count, found.resize_epoch, sum(map(found.shows, node.partitions))

    def state(self, index: int) -> PartitionState:
        return self.cluster.states[TopicPartition("t", index)]

    def node(self, index: int) -> PartitionNode:
        return self.cluster.partition_nodes[TopicPartition("t", index)]

    # -- what happens

    def ask(
        self,
        count: int,
        assignments: tuple[tuple[int, ...], ...] | None = None,
        *,
        force: bool = True,
        name: str = "t",
        now_ms: int = NOW_MS,
        validate_only: bool = False,
    ) -> RequestRefusal | None:
        growth = Growth(name, count, assignments, force)
        ((_, refusal),) = self.do(
            resize_topics(self.cluster, [growth], self.chance, now_ms, validate_only)
        )
        return refusal

    def advance(
        self, *, is_late: bool = False, is_known: bool = False, silent: Set[int] = frozenset()
    ) -> Advanced:
        advanced: Advanced = self.do(
            advance(self.cluster, "t", is_late=is_late, is_known=is_known, silent=silent)
        )
        return advanced

    def report(
        self,
        indexes: Iterable[int] | None = None,
        leader_epoch: int | None = None,
        resize_epoch: int | None = None,
        partition_epoch: int | None = None,
    ) -> int:
        """The leaders of these partitions report, by default of all that the plan waits for."""
        plan = self.plan
        found = []
        for index in awaited(plan) if indexes is None else indexes:
            node, state = self.node(index), self.state(index)
            report = FenceReport(
                node.partition_epoch if partition_epoch is None else partition_epoch,
                state.leader_epoch if leader_epoch is None else leader_epoch,
                plan.resize_epoch if resize_epoch is None else resize_epoch,
            )
            topic_id = self.cluster.topic_id("t")
            found.append(soft_state.ReportedFence(topic_id, index, report))
        return soft_state.note_fences(self.cluster, found)

    def missing(self) -> list[int]:
        return list(missing_of(self.cluster, "t", self.plan))

    def write_all(self) -> Advanced:
        """Advance until the plan waits."""
        while (advanced := self.advance()).progress is Progress.WROTE:
            pass
        return advanced

    def settle(self, each: Callable[[], object] = lambda: None) -> None:
        """Carry the resize to its end; every leader reports at once."""
        while self.history.resize is not None:
            if self.advance(is_known=True).progress is Progress.WAITS:
                assert self.report(), self.plan
            each()

    def fill_disk(self, broker: int, held: tuple[tuple[UUID, int], ...] | None = None) -> None:
        """A heartbeat says that the broker's only log directory has no room; ``held`` are the
        replicas that it names, by default all."""
        node = msgspec.structs.replace(self.cluster.brokers[broker], log_dirs=["/data"])
        self.commit((Put(layout.broker(broker), node),))
        every = tuple(
            (self.cluster.topic_id(where.topic), where.partition)
            for where in self.cluster.states
            if broker in self.cluster.replicas(where)
        )
        found = [
            soft_state.ReportedShortage(
                "/data", "the disk is full", every if held is None else held
            )
        ]
        soft_state.note_shortages(self.cluster, broker, found)

    def free_disk(self, broker: int) -> None:
        """The next heartbeat names no log directory."""
        soft_state.note_shortages(self.cluster, broker, [])

    def next_controller(self) -> None:
        """Another controller loads the store: it knows no report."""
        again = ClusterState(brokers=self.cluster.brokers, level=self.cluster.level)
        load(again, self.nodes())
        for kept in KEPT:
            if kept not in ("fences", "unaware", "misplaced", "level"):
                setattr(again, kept, getattr(self.cluster, kept))
        self.cluster = again
