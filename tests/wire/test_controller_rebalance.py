"""The timer of a controller that moves leaders back to the preferred replicas."""

from __future__ import annotations

import asyncio

import msgspec

from tests.support.controller_process import World as Processes
from tests.support.controller_process import run, topic
from tests.support.processes import DEADLINE_S


def test_the_controller_looks_by_itself() -> None:
    async def scenario(world: Processes) -> None:
        controller = await world.controller(
            leader_imbalance_check_interval_seconds="1",
            broker_session_timeout_ms="60000",
            broker_silence_suspect_ms="59000",
        )
        one = await world.broker(controller, 1)
        two = await world.broker(controller, 2)
        assert (await one.forward(topic("t", 4, 2), 7)).topics[0].error_code == 0
        leading = {where: state.leader for where, state in controller.cluster.states.items()}
        assert set(leading.values()) == {1, 2}
        await two.heartbeat(want_shut_down=True)
        assert {state.leader for state in controller.cluster.states.values()} == {1}
        two.incarnation = two.directory
        assert (await two.register(controller.listener_port)).error_code == 0
        # The follower is in sync again.
        for where, state in list(controller.cluster.states.items()):
            controller.cluster.states[where] = msgspec.structs.replace(state, isr=[1, 2])
        async with asyncio.timeout(DEADLINE_S):
            while {w: s.leader for w, s in controller.cluster.states.items()} != leading:
                one.more.clear()
                await one.more.wait()

    run(scenario)
