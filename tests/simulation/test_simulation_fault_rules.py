"""What faults may do: no more at once than the promises allow, by what is on the disks."""

from __future__ import annotations

from tests.simulation.test_simulation_cluster_traps import Told


def test_nothing_is_harmed_or_lost_beside_a_lost_disk_that_the_store_has_not_missed() -> None:
    """The empty broker is in sync as the store has it: no controller has heard of its loss."""

    async def story(run: Told) -> None:
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
        assert not run.faults.harms.harms
        assert run.states.losses.keys() == {lost.node_id}
        controller.start()
        await run.until(lambda: controller.active, "active anew")
        # Not when it has come back: when its replica was taken back since.
        await run.until(lambda: run.states.losses[lost.node_id].back_at >= 0, "it is known")
        assert run.states.not_whole() == {"t-0"}
        await run.until(lambda: not run.states.not_whole(), "whole again")
        assert not run.states.out_of_sync()
        assert len(await run.read_at_the_end()) == 10

    for seed in (1, 2):
        run = Told(seed, story, "replicated", {"min.insync.replicas": "2"})
        result = run.run()
        assert not result.violations, result.report()
