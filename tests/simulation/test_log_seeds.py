"""What single seeds of the log scenario once found, as stories.

What a seed does changes with the scenario, so that a pinned one soon shows nothing. A story does
the same for ever, and each is red without the rule that mended it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.kernel import Crash, DiskOperation, ProcessKilled, fail_once
from tests.simulation.log_node import RECORDS, SMALL, Node, P
from tidelog.model.work import Work, finish
from tidelog.records.batch import Rejected
from tidelog.storage.directory.log_directory import LogDirectory
from tidelog.storage.log import rewriting
from tidelog.storage.log.partition_log import PartitionLog

SEEDS = 20
"""What a power loss leaves is drawn by the disk's seed."""

CUT = RECORDS - 2
"""Within the last segment: nothing but a length changes."""


def kill_in_the_sync(operation: DiskOperation) -> Crash | None:
    is_sync = operation.kind == "sync" and operation.path.endswith(".log")
    return Crash("kill") if is_sync else None


def next_life(node: Node) -> PartitionLog:
    """Start again after a kill, with log.durability=sync."""
    log = node.open().logs[P]
    finish(node.directory.recording_life(str(node.boot), durability="sync"))
    return log


def after_a_power_loss(node: Node) -> PartitionLog:
    node.disk.lose_power()
    node.boot += 1
    return node.open().logs[P]


def a_cut_below_the_recovery_point_then_a_kill(seed: int) -> None:
    """Seed 58: it was taken for damage."""
    node = Node(seed, SMALL)
    log = node.prepare()
    assert finish(log.truncation(11, node.clock.now_ms)) is None
    node.disk.kill(node.view)
    log = node.open().logs[P]
    assert log.damaged is None, log.damaged
    assert log.end_offset == 11


def a_cut_that_a_kill_left_unsynced_then_a_power_loss(seed: int) -> None:
    """Seed 223: what was cut off came back."""
    node = Node(seed, SMALL)
    log = node.prepare()
    node.disk.plan = kill_in_the_sync
    with pytest.raises(ProcessKilled):
        finish(log.truncation(CUT, node.clock.now_ms))
    node.disk.plan = None
    log = next_life(node)
    assert (log.damaged, log.end_offset) == (None, CUT)
    log = after_a_power_loss(node)
    assert (log.damaged, log.end_offset) == (None, CUT)


def a_cut_whose_fsync_failed_and_a_power_loss_two_lives_later(seed: int) -> None:
    """Seed 1919: what was cut off came back."""
    node = Node(seed, SMALL)
    log = node.prepare()
    node.disk.plan = fail_once("sync", ".log")
    assert isinstance(finish(log.truncation(CUT, node.clock.now_ms)), Rejected)
    assert log.failed
    node.disk.plan = None
    for _ in range(2):
        node.disk.kill(node.view)
        log = next_life(node)
        assert (log.damaged, log.end_offset) == (None, CUT)
    log = after_a_power_loss(node)
    assert (log.damaged, log.end_offset) == (None, CUT)


def a_cut_then_a_power_loss(seed: int) -> None:
    """A truncation is durable when it is over."""
    node = Node(seed, SMALL)
    log = node.prepare()
    assert finish(log.truncation(CUT, node.clock.now_ms)) is None
    log = after_a_power_loss(node)
    assert (log.damaged, log.end_offset) == (None, CUT)


def a_torn_tail_that_a_start_cut_then_a_power_loss(seed: int) -> None:
    """What recovery cuts off is gone for good: the next batches stand in its place.

    With log.durability=replicated nothing else syncs what a start finds.
    """
    node = Node(seed, SMALL)
    log = node.prepare()
    finish(node.directory.recording_life(str(node.boot), durability="replicated"))
    node.append(log, RECORDS)
    segment = log.segments[-1]
    whole = segment.size
    node.append(log, RECORDS + 1)
    node.disk.file(segment.log_path).persist()
    node.disk.kill(node.view)
    node.disk.flip_bit(segment.log_path, 8 * (whole + 40))
    log = node.open().logs[P]
    assert (log.damaged, log.end_offset) == (None, RECORDS + 1)
    node.disk.lose_power()
    assert node.disk.view().size(segment.log_path) == whole


STORIES = (
    a_cut_below_the_recovery_point_then_a_kill,
    a_cut_that_a_kill_left_unsynced_then_a_power_loss,
    a_cut_whose_fsync_failed_and_a_power_loss_two_lives_later,
    a_cut_then_a_power_loss,
    a_torn_tail_that_a_start_cut_then_a_power_loss,
)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_a_story(story: Callable[[int], None]) -> None:
    for seed in range(SEEDS):
        story(seed)


# --- the rules that mended them ------------------------------------------------------------------


def no_checkpoint_before_a_cut(patch: pytest.MonkeyPatch) -> None:
    def nothing(self: LogDirectory) -> Work[None]:
        yield from ()

    patch.setattr(LogDirectory, "writing_checkpoint", nothing)


def no_length_is_made_anew(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rewriting, "write_again", lambda log: None)


RULES = (
    (no_checkpoint_before_a_cut, a_cut_below_the_recovery_point_then_a_kill),
    (no_length_is_made_anew, a_cut_that_a_kill_left_unsynced_then_a_power_loss),
    (no_length_is_made_anew, a_cut_whose_fsync_failed_and_a_power_loss_two_lives_later),
)


@pytest.mark.parametrize(("plant", "story"), RULES, ids=lambda each: each.__name__)
def test_a_story_is_red_without_its_rule(
    plant: Callable[[pytest.MonkeyPatch], None],
    story: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(SEEDS):
            story(seed)
