"""What faults may do: at most what the promises allow at once, by what is on the disks."""

from __future__ import annotations

import asyncio

import pytest

from tests.simulation.clients import send_once
from tests.simulation.cluster.scripted_run import Script, ScriptedRun
from tests.simulation.secret import secret_outside
from tidelog.runtime.cluster_secret import READ_AGAIN_MS
from tidelog.storage import names

pytestmark = pytest.mark.usefixtures("quiet")


def hold(story: Script) -> None:
    """Script a story to two seeds, with unsynced acknowledgements and small segments."""
    for seed in (1, 2):
        configs = {"min.insync.replicas": "2", "segment.bytes": "4000"}
        result = ScriptedRun(seed, story, "replicated", configs).run()
        assert not result.violations, result.report()


def test_nothing_is_harmed_or_lost_beside_a_lost_disk_that_the_store_has_not_missed() -> None:
    """The empty broker is in sync as the store has it: no controller knows of its loss."""

    async def story(run: ScriptedRun) -> None:
        await run.write(10)
        (controller,) = run.cluster.controllers
        controller.kill()
        lost = run.cluster.broker(1)
        run.lose_power(lost.node_id)
        lost.wipe()
        run.disks.forget(lost)
        lost.start()
        assert not run.states.out_of_sync()
        assert run.states.not_whole() == {"t-0"}
        for _ in range(3):
            await run.faults.flip_bits()
            await run.faults.lose_power()
            await run.faults.wipe()
        assert not run.faults.corruptions.corruptions
        assert run.states.losses.keys() == {lost.node_id}
        controller.start()
        await run.until(lambda: controller.active, "active again")
        # Not when it has come back: when its replica was taken back since.
        await run.until(lambda: run.states.losses[lost.node_id].back_at >= 0, "it is known")
        assert run.states.not_whole() == {"t-0"}
        await run.until(lambda: not run.states.not_whole(), "whole again")
        assert not run.states.out_of_sync()
        assert len(await run.read_at_the_end()) == 10

    hold(story)


def test_no_disk_fails_or_is_lost_beside_harmed_bits() -> None:
    """All is in sync as the store has it; what one broker holds is damaged."""

    async def story(run: ScriptedRun) -> None:
        await run.write(10)
        run.faults.corruptions.kinds = {names.LOG: 1.0}
        corrupted = run.cluster.broker(run.now.leader)
        assert run.faults.corruptions.flip(corrupted, run.rng, set()) is not None
        starts = [broker.starts for broker in run.cluster.brokers]
        for _ in range(3):
            await run.faults.lose_all_power()
            await run.faults.lose_a_new_member()
        # Its own disk may fail: let another one be taken.
        run.faults._busy.add(corrupted.host)
        await run.faults.fail_a_sync()
        run.faults._busy.clear()
        assert [broker.starts for broker in run.cluster.brokers] == starts
        assert not run.faults.disks_failed
        assert not run.states.losses

    hold(story)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_disk_fails_only_if_no_other_was_lost_since_it_was_chosen(is_lost: bool) -> None:
    async def story(run: ScriptedRun) -> None:
        await run.write(10)
        failing = run.world.loop.create_task(run.faults.fail_a_sync())
        await asyncio.sleep(0)
        (host,) = run.faults._busy
        chosen = next(node for node in run.cluster.brokers if node.host == host)
        other = next(node for node in run.cluster.brokers if node is not chosen)
        if is_lost:
            run.lose_power(other.node_id)
        failed = False
        while not failing.done():
            await send_once(run.history, run.target, "w", 1_000 + run.history.now, size=1_500)
            failed = failed or host in run.faults.disks_failed
        assert failed is not is_lost
        assert run.states.losses.keys() == {(other if is_lost else chosen).node_id}
        if is_lost:
            other.start()
        await run.until(lambda: not run.states.not_whole(), "whole again")

    hold(story)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_new_member_is_lost_only_if_no_other_was_meanwhile(is_lost: bool) -> None:
    async def story(run: ScriptedRun) -> None:
        await run.write(10)
        leader = run.now.leader
        losing = run.world.loop.create_task(run.faults.lose_a_new_member())
        await asyncio.sleep(0)
        (member,) = (x for x in (1, 2, 3) if x != leader and f"b{x}" in run.faults._busy)
        (third,) = {1, 2, 3} - {leader, member}
        if is_lost:
            run.lose_power(third)
        while not losing.done():
            await send_once(run.history, run.target, "w", 1_000 + run.history.now)
        assert run.states.losses.keys() == {third if is_lost else member}
        if is_lost:
            run.cluster.broker(third).start()
        await run.until(lambda: not run.states.not_whole(), "whole again")

    hold(story)


def test_what_hands_requests_over_proves_the_secret_whatever_disk_is_lost() -> None:
    """It read the secret on broker 1's machine, whose power may go (cluster seed 3025)."""

    async def story(run: ScriptedRun) -> None:
        run.lose_power(1)
        # The file is read again after some seconds.
        await asyncio.sleep(READ_AGAIN_MS / 1000 + 1)
        secret = secret_outside(run.world), run.recording.secret, run.outside.secret
        assert len({each.current() for each in secret}) == 1
        run.cluster.broker(1).start()
        await run.until_isr(1, 2, 3)

    hold(story)
