"""Bugs of brokers in resizes (KIP-253), to be planted in a run.

Owns the plants: fences and seals, and reports of them. Not the table of courses: see
``resizes``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.simulation.planted.search import Patch
from tidelog.broker.control_plane.fence_reports import FenceReports
from tidelog.broker.partitions import fencing
from tidelog.controller.decisions import resizing
from tidelog.metadata.records import ResizeStep
from tidelog.model.errors import ErrorCode
from tidelog.storage.log.fences import Fences


def report_a_fence_above_the_watermark(patch: Patch) -> None:
    """A leader reports its fence as soon as it has written it."""

    def at_once(self: FenceReports, partition: Any) -> None:
        epoch = partition.state.resize_epoch
        if partition.is_leader and partition.log.fences.of(epoch) is not None:
            self._committed(partition, partition.leader_epoch, ErrorCode.NONE)

    patch.setattr(FenceReports, "began", at_once)


def write_a_fence_in_each_leader_epoch(patch: Patch) -> None:
    """A leader writes the fence of its resize epoch whether its log has it or not."""
    owed = fencing.owed
    patch.setattr(fencing, "owed", lambda state, partition, _: owed(state, partition, Fences()))


def begin_without_a_birth_fence(patch: Patch) -> None:
    """A partition that a growth made begins with data, and no plan waits for its fence."""
    owed, awaited = fencing.owed, resizing.awaited

    def unborn(state: Any, partition: int, fences: Fences) -> list[Any]:
        found = owed(state, partition, fences)
        return [each for each in found if each.resize_epoch != state.birth_epoch]

    patch.setattr(fencing, "owed", unborn)
    patch.setattr(resizing, "awaited", without(awaited, ResizeStep.BIRTH))


def without(awaited: Callable[[Any], range], step: ResizeStep) -> Callable[[Any], range]:
    """Return what plans wait for, but for nothing in one step."""
    return lambda plan: range(0) if plan.step is step else awaited(plan)
