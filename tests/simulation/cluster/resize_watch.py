"""What resizes write to the store and to the logs: promises 8 and 11, docs/design/elastic.md.

Owns a check of each commit about the topic that grows and shrinks, and one of the logs at the end.
Not the history of its clients: see ``elastic``.

| a commit | must find |
|---|---|
| the next step of a plan, or its publication | the fences or seals of the step before, committed |
| a new partition beyond the first ones | a plan in the step of births, of the same resize epoch |
| the removal of a partition | no plan, or an undo that removes its children |
| a new plan | no partition that moves |
| a partition that begins to move | no plan |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from tests.simulation.cluster.disks import fences_on_disk
from tests.simulation.cluster.journal import Place, StateWatch
from tests.simulation.cluster.nodes import BrokerNode, Cluster
from tidelog.metadata.records import (
    PartitionNode,
    PartitionState,
    ResizeKind,
    ResizePlan,
    ResizeStep,
    TopicHistory,
)
from tidelog.storage.log.fences import Fences


class ResizeWatch:
    """Watches the resizes of one topic."""

    def __init__(self, topic: str, initial: int, nodes: Cluster, states: StateWatch) -> None:
        self.found: list[str] = []
        self.moving: set[int] = set()
        """Partitions that are reassigned."""
        self._topic = topic
        self._initial = initial
        self._nodes = nodes
        self._states = states

    def take(
        self,
        before: TopicHistory | None,
        after: TopicHistory,
        made: dict[int, PartitionNode],
    ) -> None:
        """Check a commit: the topic's record before and after it, and the nodes that it made."""
        self._check_births(after.resize, made)
        if before is None:
            return
        plan = before.resize
        if plan is None:
            return
        is_undo = plan.kind is ResizeKind.UNDO
        gone = sorted(
            index for index, each in after.former.items() if before.former.get(index) != each
        )
        if gone and not is_undo:
            self.found.append(
                f"no_removal_during_a_resize: partitions {gone} were removed in a plan of resize "
                f"epoch {plan.resize_epoch}"
            )
        now = after.resize
        if now is None or now.resize_epoch != plan.resize_epoch or is_undo:
            return
        if now.step is not plan.step or (now.published and not plan.published):
            for index in _closed_by(plan):
                lacks = self._lacks(index, plan.resize_epoch)
                if lacks:
                    self.found.append(
                        f"fences_come_first: resize epoch {plan.resize_epoch} went on from "
                        f"{plan.step.value}, and {lacks} the one of {self._topic}-{index}"
                    )

    def take_moves(
        self,
        before: TopicHistory | None,
        after: TopicHistory | None,
        states: dict[int, PartitionState],
        gone: Iterable[int],
    ) -> None:
        """Check a commit: a resize and a move of one topic exclude each other (promise 11)."""
        plan = None if after is None else after.resize
        is_new = plan is not None and (before is None or before.resize is None)
        if is_new and self.moving:
            self.found.append(
                f"no_move_meets_a_resize: a plan began while {sorted(self.moving)} were moved"
            )
        for index, state in states.items():
            if state.target_replicas is None:
                self.moving.discard(index)
                continue
            if index not in self.moving and plan is not None:
                self.found.append(
                    f"no_move_meets_a_resize: {self._topic}-{index} began to move in the plan of "
                    f"resize epoch {plan.resize_epoch}"
                )
            self.moving.add(index)
        self.moving.difference_update(gone)

    def _check_births(self, plan: ResizePlan | None, made: dict[int, PartitionNode]) -> None:
        for index, node in made.items():
            if index < self._initial:
                continue
            is_step = plan is not None and plan.step is ResizeStep.BIRTH
            if not is_step or plan is None or node.birth_epoch != plan.resize_epoch:
                self.found.append(
                    f"only_a_growth_makes_partitions: {self._topic}-{index} was made with birth "
                    f"epoch {node.birth_epoch}"
                )

    def _lacks(self, index: int, resize_epoch: int) -> str:
        """Return which brokers lack a fence that is said to be committed, or "".

        All of the ISR have what is committed, but for those that lost power and for what an
        unclean election cut.
        """
        place = self._states.place(self._topic, index)
        if place is None or place in self._states.unclean:
            return ""
        if not any(has is not None for has in self._fences(resize_epoch, index)):
            return "no broker has"
        lost = self._states.losses
        lacking = [
            node.node_id
            for node in self._nodes.brokers
            if node.node_id in self._states.places[place].state.isr
            and node.node_id not in lost
            and (fences := fences_of(node, self._topic, index)) is not None
            and fences.of(resize_epoch) is None
        ]
        return f"brokers {lacking} of the ISR lack" if lacking else ""

    def _fences(self, resize_epoch: int, index: int) -> Iterator[object]:
        for node in self._nodes.brokers:
            fences = fences_of(node, self._topic, index)
            yield None if fences is None else fences.of(resize_epoch)

    def look_at_logs(self, partitions: list[int], is_clean: Callable[[Place], bool]) -> None:
        """Check at the end that each fence stands once in its partition."""
        for index in partitions:
            place = self._states.place(self._topic, index)
            if place is None or not is_clean(place):
                continue
            for node in self._nodes.brokers:
                offsets: dict[int, list[int]] = {}
                for offset, fence in fences_on_disk(node.machine.disk, self._topic, index):
                    offsets.setdefault(fence.resize_epoch, []).append(offset)
                for epoch, found in offsets.items():
                    if len(found) > 1:
                        self.found.append(
                            f"a_fence_is_written_once: that of resize epoch {epoch} stands at "
                            f"{found} of {self._topic}-{index} on {node.host}"
                        )


def _closed_by(plan: ResizePlan) -> range:
    """Return the partitions that a step fences or seals."""
    match plan.kind, plan.step:
        case ResizeKind.GROW, ResizeStep.BIRTH:
            return range(plan.from_count, plan.to_count)
        case ResizeKind.SHRINK, ResizeStep.SEAL:
            return range(plan.to_count, plan.from_count)
        case _:
            return range(min(plan.from_count, plan.to_count))


def fences_of(node: BrokerNode, topic: str, index: int) -> Fences | None:
    """Return the fences of a replica on a broker that runs, None without one."""
    if not node.ready or node.running is None:
        return None
    hosted = node.running.broker.partitions.by_topic.get(topic, {}).get(index)
    return None if hosted is None or hosted.log is None else hosted.log.fences
