"""The known traps of reassignments: stories of three simulated brokers and a controller (KIP-455).

Each commit that touches the moving partition is checked (``tests/simulation/cluster/moves.py``),
and at the end of a move its replicas, ISR, stops and directories are exact. Other traps of moves
are named in docs/design/moving.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.simulation.clients import SimulatedReader
from tests.simulation.cluster.scripted_run import ScriptedRun, run_script
from tests.simulation.cluster.store import Commit
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.metadata.records import PartitionState

pytestmark = pytest.mark.usefixtures("quiet")


def state_of(run: ScriptedRun) -> PartitionState:
    """The state as the store has it, whether a controller lives or not."""
    place = run.states.place("t", 0)
    assert place is not None
    return run.states.places[place].state


def on_commit(run: ScriptedRun, do: Callable[[], None]) -> None:
    """Call something after each commit, once that has been checked."""
    check = run.cluster.tree.when_written

    def both(commit: Commit) -> None:
        check(commit)
        do()

    run.cluster.tree.when_written = both


def test_consumers_progress_through_the_leader_epochs_of_moves() -> None:
    async def story(run: ScriptedRun) -> None:
        reader = SimulatedReader(run.history, run.world.random("reader"), run.target, "r")
        reading = asyncio.create_task(reader.run())
        epoch, written = run.now.leader_epoch, 0
        for replicas in ((2,), (3, 1), (1, 2, 3)):
            await run.move(*replicas)
            await run.write(5)
            written += 5
            await run.until(lambda at=written: reader.position >= at, "read")  # type: ignore[misc]
            await run.moved(*replicas)
        assert run.now.leader_epoch >= epoch + 6
        assert not reading.done()
        reading.cancel()
        # A write without an answer at a change of the leader may be there, too.
        assert written <= len(await run.read_at_the_end()) <= run.sent

    run_script(story, moves=True)


@pytest.mark.parametrize("records", [0, 10])
def test_an_idle_partition_is_reassigned_and_its_isr_is_exact(records: int) -> None:
    async def story(run: ScriptedRun) -> None:
        await run.write(records)
        for replicas in ((1, 2), (3,), (2, 1), (3, 2, 1)):
            await run.move(*replicas)
            await run.moved(*replicas)
            assert set(run.now.isr) == set(replicas)
        assert len(await run.read_at_the_end()) == records

    run_script(story, moves=True)


def test_a_move_whose_isr_shrinks_as_it_would_complete_waits_for_all_targets() -> None:
    """A target that was in sync dies while the other one joins: R := T would lower redundancy."""

    async def story(run: ScriptedRun) -> None:
        await run.move(1, 2)
        await run.moved(1, 2)
        await run.write(10)
        run.cluster.broker(2).kill()
        await run.move(2, 3)
        await run.until(lambda: set(state_of(run).isr) == {1, 3}, "3 joined, 2 left")
        await asyncio.sleep(5)
        state = state_of(run)
        assert (state.target_replicas, state.leader) == ([2, 3], 1)
        assert run.states.topics["t"].partitions[0] == [1, 2, 3]
        await run.write(5)
        run.cluster.broker(2).start()
        await run.moved(2, 3)
        await run.move(2, 3, 1)
        await run.moved(2, 3, 1)
        assert len(await run.read_at_the_end()) == 15

    run_script(story, moves=True, min_insync_replicas="2")


@pytest.mark.parametrize("full_at_once", [True, False])
def test_a_crash_between_the_completion_and_the_stops_leaves_no_copy(full_at_once: bool) -> None:
    """The removed replica is in the ISR still: its leader drops it, and writes go on.

    A FULL of the next controller quarantines it sooner: then the leader needs one AlterIsr.
    """

    async def story(run: ScriptedRun) -> None:
        await run.write(10)
        controller = run.cluster.controllers[0]
        died: list[float] = []

        def die() -> None:
            if not died and state_of(run).target_replicas is None and set(removed()) == {3}:
                died.append(run.world.loop.time())
                assert 3 in state_of(run).isr
                run.world.network.soon(controller.kill)

        def removed() -> set[int]:
            return {1, 2, 3}.difference(run.states.topics["t"].partitions[0])

        on_commit(run, die)
        # It dies before it answers; asked again, it has nothing left to do.
        moving = asyncio.create_task(run.move(1, 2))
        await run.until(lambda: not controller.alive, "it died after R := T")
        if not full_at_once:
            await asyncio.sleep(4)
        controller.start()
        await run.moved(1, 2)
        await moving
        began = run.world.loop.time()
        await run.write(5)
        assert run.world.loop.time() - began < 2, "the watermark waits for the removed replica"
        await run.move(1, 2, 3)
        await run.moved(1, 2, 3)
        assert len(await run.read_at_the_end()) == 15

    run_script(story, moves=True, min_insync_replicas="2")


def test_the_controller_and_the_new_broker_die_together_in_mid_copy() -> None:
    async def story(run: ScriptedRun) -> None:
        await run.move(1, 2)
        await run.moved(1, 2)
        await run.write(30)
        controller, target = run.cluster.controllers[0], run.cluster.broker(3)
        made: list[str] = []
        run.disks.when_appended = lambda node: made.append(node.host)
        await run.move(3, 1)
        await run.until(lambda: target.host in made, "part of the copy is there")
        run.disks.when_appended = lambda node: None
        controller.kill()
        target.kill()
        await asyncio.sleep(3)
        controller.start()
        target.start()
        await run.moved(3, 1)
        await run.move(3, 1, 2)
        await run.moved(3, 1, 2)
        assert len(await run.read_at_the_end()) == 30

    run_script(story, moves=True)


def test_a_broker_that_was_removed_while_dead_and_is_assigned_again_keeps_its_copy() -> None:
    """The stop that it owes from the first move is older than the second assignment."""

    async def story(run: ScriptedRun) -> None:
        await run.write(20)
        run.cluster.broker(3).kill()
        await run.until_isr(1, 2)
        await run.move(1, 2)
        await run.until(lambda: state_of(run).target_replicas is None, "completed without 3")
        assert run.states.topics["t"].partitions[0] == [1, 2]
        await run.move(3, 1, 2)
        run.cluster.broker(3).start()
        await run.moved(3, 1, 2)
        assert run.disks.deleted == 0
        assert len(await run.read_at_the_end()) == 20

    run_script(story, moves=True)


async def a_leader_is_cut_off_as_a_target_joins(run: ScriptedRun) -> None:
    """Its single replica is none any more, which the controller knows and the leader does not:
    what it acknowledges alone, the new leader does not have."""
    await run.move(1)
    await run.moved(1)
    await run.write(5)
    network = run.world.network
    joined: list[bool] = []

    def cut_off() -> None:
        if not joined and set(state_of(run).isr) == {1, 2}:
            joined.append(True)
            for other in ("c1", "b2"):
                network.cut("b1", other)

    on_commit(run, cut_off)
    await run.move(1, 2)
    await run.until(lambda: bool(joined), "2 has joined, and 1 does not know it")
    writing = asyncio.create_task(run.write(5))
    await run.until(lambda: state_of(run).leader == 2, "2 leads")
    network.heal()
    await writing
    await run.moved(1, 2)
    await run.move(1, 2, 3)
    await run.moved(1, 2, 3)
    assert len(await run.read_at_the_end()) >= 10


def test_a_leader_that_is_cut_off_as_a_target_joins_acknowledges_nothing_alone() -> None:
    run_script(a_leader_is_cut_off_as_a_target_joins, moves=True)


def test_the_shortcut_of_a_single_replica_kept_in_a_move_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configure = HostedPartition.configure

    def keep_it(self: HostedPartition) -> None:
        configure(self)
        self._alone = self.state.isr == (self._node_id,) and self.required_in_sync <= 1

    monkeypatch.setattr(HostedPartition, "configure", keep_it)
    with pytest.raises(AssertionError, match="acked_is_not_lost"):
        run_script(a_leader_is_cut_off_as_a_target_joins, moves=True)
