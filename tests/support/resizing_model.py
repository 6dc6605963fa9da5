"""What must hold of resizes at every moment, whatever dies: a pure cluster with modelled leaders.

Each leader takes up (count, resize epoch, sealed) with its leader epoch, appends a fence or seal,
commits it some time later, and reports it, perhaps twice, late, or after it was deposed. ``check``
is called after each commit.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.support.resizing_world import ResizingWorld
from tidelog.controller.decisions import soft_state
from tidelog.controller.decisions.cluster import NO_LEADER, FenceReport
from tidelog.controller.decisions.decision import Put
from tidelog.controller.decisions.elections import Standing
from tidelog.controller.decisions.registration import expire
from tidelog.controller.decisions.resize_requests import begun_again
from tidelog.controller.decisions.resizing import Progress, advance
from tidelog.controller.decisions.settlement import settle_all
from tidelog.controller.decisions.sides import Side, Sides
from tidelog.metadata import layout
from tidelog.metadata.records import BrokerNode, ResizeKind, ResizeStep
from tidelog.model.topics import TopicPartition


@dataclass
class Leader:
    """What the newest leader of a partition has taken up, and what of it is committed."""

    leader_epoch: int
    resize_epoch: int
    is_committed: bool = False


@dataclass
class Model:
    """One topic, its brokers and its history; ``rng`` draws everything."""

    rng: random.Random
    world: ResizingWorld = field(default_factory=lambda: ResizingWorld(2, brokers=4))
    leaders: dict[int, Leader] = field(default_factory=dict)
    fences: dict[int, set[int]] = field(default_factory=dict)
    """The resize epochs of the committed fences and seals, by partition."""
    reports: list[soft_state.ReportedFence] = field(default_factory=list)
    away: dict[int, BrokerNode] = field(default_factory=dict)
    seen: dict[tuple[int, int], tuple[Side, bool]] = field(default_factory=dict)
    shown: list[tuple[int, int, int]] = field(default_factory=list)
    lives: dict[int, int] = field(default_factory=dict)
    """The partition epochs of the partitions that are there."""
    finished: list[ResizeKind] = field(default_factory=list)
    commits: int = 0

    # -- events

    def ask(self, count: int | None = None) -> None:
        """Ask for another count, or for an epoch with the same one."""
        before = self.world.history
        now = self.world.cluster.topics["t"].undeleted_partition_count
        count = self.rng.choice((2, 3, 4, 5, 7, 8, now)) if count is None else count
        if count == now:
            writes = begun_again(self.world.cluster, "t")
            if isinstance(writes, list):
                self.world.commit(tuple(writes))
        else:
            self.world.ask(count)
        if before.resize is not None:
            assert self.world.history == before, "two resizes interleave"
        self.check()

    def advance(self, *, is_late: bool = False) -> Progress:
        """The controller makes one commit, or waits."""
        plan = self.world.history.resize
        decision = advance(self.world.cluster, "t", is_late=is_late, is_known=True)
        self.world.do(decision)
        self.commits += bool(decision.writes)
        progress: Progress = decision.answer.progress
        if progress is Progress.REMOVED:
            assert plan is not None
            self.finished.append(plan.kind)
        self.check()
        return progress

    def controller_dies(self) -> None:
        """The next controller knows the nodes alone."""
        self.world.next_controller()
        self.check()

    def broker_dies(self, broker: int) -> None:
        """A broker's registration expires."""
        if broker not in self.away and len(self.world.cluster.brokers) > 1:
            self.away[broker] = self.world.cluster.brokers[broker]
            self.world.do(expire(self.world.cluster, [broker]))
            self.check()

    def broker_returns(self, broker: int) -> None:
        """A broker registers again: it may lead what waits for it."""
        if broker in self.away:
            self.world.commit((Put(layout.broker(broker), self.away.pop(broker)),))
            places = sorted(self.world.cluster.states)
            cluster = self.world.cluster
            self.world.commit(tuple(settle_all(cluster, places, Standing.of(cluster))))
            self.check()

    def deliver(self, index: int) -> None:
        """The partition's leader takes up its newest LeaderAndIsr, and appends what it must."""
        where = TopicPartition("t", index)
        state = self.world.cluster.states.get(where)
        known = self.leaders.get(index)
        if state is None or state.leader == NO_LEADER or state.leader in self.away:
            return
        if known is None or known.leader_epoch < state.leader_epoch:
            epoch = self._side(index).resize_epoch
            has_it = epoch in self.fences.setdefault(index, set())
            self.leaders[index] = Leader(state.leader_epoch, epoch, is_committed=has_it)

    def commit(self, index: int) -> None:
        """What the leader appended falls below the high watermark."""
        leader = self.leaders.get(index)
        if leader is not None and leader.resize_epoch:
            leader.is_committed = True
            self.fences[index].add(leader.resize_epoch)

    def report(self, index: int) -> None:
        """A leader reports; the report may be sent again at any later time."""
        leader = self.leaders.get(index)
        if leader is None or not leader.is_committed:
            return
        node = self.world.node(index)
        report = FenceReport(node.partition_epoch, leader.leader_epoch, leader.resize_epoch)
        topic_id = self.world.cluster.topic_id("t")
        self.reports.append(soft_state.ReportedFence(topic_id, index, report))
        self.report_again(self.reports[-1])

    def report_again(self, report: soft_state.ReportedFence) -> None:
        """A report arrives, perhaps once more."""
        soft_state.note_fences(self.world.cluster, [report])

    def everything_works(self) -> None:
        """All brokers are there, and every leader does its work, until no plan is left."""
        for broker in sorted(self.away):
            self.broker_returns(broker)
        for _ in range(200):
            if self.world.history.resize is None:
                return
            for index in sorted(self.world.cluster.topics["t"].partitions):
                self.deliver(index)
                self.commit(index)
                self.report(index)
            self.advance()
        raise AssertionError(f"it is stuck: {self.world.history}")

    # -- what must hold

    def check(self) -> None:
        """Check every rule in the state as it is now."""
        self._check_incarnations()
        self._check_shown()
        self._check_sides()
        self._check_order()

    def _side(self, index: int) -> Side:
        cluster = self.world.cluster
        sides = Sides("t", cluster.topics["t"], self.world.history, cluster.partition_nodes)
        return sides.of(index)

    def _check_incarnations(self) -> None:
        """An incarnation ends for good: the next one begins above its offsets and leader epochs."""
        cluster, former = self.world.cluster, self.world.history.former
        now = {x.partition: node.partition_epoch for x, node in cluster.partition_nodes.items()}
        for index, epoch in list(self.lives.items()):
            if now.get(index) != epoch:
                assert former[index].partition_epoch == epoch, "no process knows where it ended"
                assert index in self.world.history.pending_stops, "no broker is to stop it"
                assert index >= self.shown[-1][2], "a client saw it"
                # Its log is gone, with its fences.
                self.fences.pop(index, None)
                self.leaders.pop(index, None)
                del self.lives[index]
        for index, epoch in now.items():
            node, gone = self.world.node(index), former.get(index)
            if self.lives.setdefault(index, epoch) != epoch or gone is None:
                continue
            assert gone.partition_epoch < epoch
            assert gone.end_offset <= node.birth_offset
            assert gone.leader_epoch < self.world.state(index).leader_epoch

    def _check_shown(self) -> None:
        """No count that a client saw is undone: each is of a resize epoch that only grows."""
        shown = self.world.shown
        if self.shown:
            count, epoch, partitions = self.shown[-1]
            assert shown[1] >= epoch
            assert shown[1] > epoch or shown == (count, epoch, partitions)
            assert shown[2] >= partitions, "a client lost a partition"
        self.shown.append(shown)

    def _check_sides(self) -> None:
        """Count, resize epoch and seal change with the leader epoch alone."""
        newest: dict[int, tuple[int, int]] = {}
        for where, state in self.world.cluster.states.items():
            index = where.partition
            sealed = self.world.node(index).retirement_epoch >= 0
            side = self._side(index), sealed
            assert self.seen.setdefault((index, state.leader_epoch), side) == side, where
            newest[index] = state.leader_epoch, side[0].resize_epoch
        for (index, leader_epoch), (side_seen, _) in self.seen.items():
            now = newest.get(index)
            if now is not None and leader_epoch <= now[0]:
                assert side_seen.resize_epoch <= now[1], "a partition went back"

    def _check_order(self) -> None:
        """Children after all fences, survivors after all seals, publication after both."""
        history, nodes = self.world.history, self.world.cluster.partition_nodes
        plan = history.resize
        count = self.world.cluster.topics["t"].undeleted_partition_count
        assert count is not None
        epochs = [node.partition_epoch for node in nodes.values()]
        assert len(set(epochs)) == len(epochs)
        assert max(epochs) <= self.world.cluster.counters[layout.PARTITION_EPOCH]
        if plan is None:
            assert set(self.world.cluster.topics["t"].partitions) == {x.partition for x in nodes}
            retired = [x.partition for x, node in nodes.items() if node.retirement_epoch >= 0]
            assert sorted(retired) == list(range(count, len(nodes)))
            for index in retired:
                assert self.world.node(index).leader_epoch_before_deletion
            return
        assert plan.resize_epoch == history.resize_epoch
        epoch = plan.resize_epoch
        if plan.kind is ResizeKind.UNDO:
            if plan.published and plan.to_count < plan.from_count:
                assert {x.partition for x in nodes} == set(range(plan.to_count)), "a child is left"
            return
        old = range(min(plan.from_count, plan.to_count))
        if plan.kind is ResizeKind.GROW:
            children = [x for x in nodes if x.partition >= plan.from_count]
            if children:
                assert all(epoch in self.fences.get(x, ()) for x in old), "children before parents"
        if plan.kind is ResizeKind.SHRINK and plan.step is ResizeStep.FENCE:
            seals = range(plan.to_count, plan.from_count)
            assert all(epoch in self.fences.get(x, ()) for x in seals), "survivors before seals"
        if plan.published:
            everything = range(max(plan.from_count, plan.to_count))
            assert all(epoch in self.fences.get(x, ()) for x in everything)
