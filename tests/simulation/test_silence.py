"""Silences on the simulated cluster, in virtual time: which brokers are suspected for one.

Decision 0033. What happens between two heartbeats, and how long the wires take, is the seed's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.clients import send_once
from tests.simulation.cluster.scripted_run import ScriptedRun
from tests.simulation.kernel import World
from tests.simulation.store_stage import Stage
from tests.simulation.striking_store import Strikes
from tests.simulation.struck_stores import InMemory
from tests.support.lone_broker import until
from tidelog.controller.decisions.sessions import BrokerSession, Sessions
from tidelog.model.errors import ErrorCode

pytestmark = pytest.mark.usefixtures("quiet")

SEEDS = 8
SUSPECTED_WITHIN_S = 2.0 + 0.1 + 0.4
"""``broker.silence.suspect.ms``, the time that the controller listens, and the wires."""

SESSION_S = 6.0
STOPPED_S = 3.0

Story = Callable[[ScriptedRun], Awaitable[None]]


def run_script(story: Story, seeds: int = SEEDS) -> None:
    for seed in range(seeds):
        result = ScriptedRun(seed, story, "replicated", {"min.insync.replicas": "2"}).run()
        assert not result.violations, result.report()


def found_by(story: Story, seeds: int = SEEDS) -> bool:
    """Whether a seed shows that something is wrong."""
    runs = (
        ScriptedRun(seed, story, "replicated", {"min.insync.replicas": "2"})
        for seed in range(seeds)
    )
    return any(run.run().violations for run in runs)


def now_s() -> float:
    return asyncio.get_running_loop().time()


def pause(run: ScriptedRun, broker: int) -> Callable[[], None]:
    """SIGSTOP; what is returned is SIGCONT."""
    process = run.cluster.broker(broker).process
    assert process is not None
    process.pause()
    return process.resume


class Unmoved:
    """A partition as it stands now, of which nothing is to be decided: no election, no change of
    the ISR."""

    def __init__(self, run: ScriptedRun) -> None:
        self._run = run
        self._state, self._known = run.now, run.states.place("t", 0)

    async def check(self, seconds: float = 3.0) -> None:
        """AssertionError when it is not as it was, now or for a while."""
        end = now_s() + seconds
        while now_s() < end:
            assert self._run.now == self._state, f"{self._run.now} after {self._state}"
            await asyncio.sleep(0.05)
        assert self._run.states.place("t", 0) == self._known


async def stopped_leader(run: ScriptedRun) -> None:
    await run.write(5)
    leader, began_s = run.now.leader, now_s()
    go_on = pause(run, leader)
    await run.until(lambda: run.now.leader not in (leader, -1), "another leads")
    assert now_s() - began_s < SUSPECTED_WITHIN_S
    assert leader not in run.now.isr
    active = run.cluster.active
    assert active is not None and active.controller is not None
    assert leader in active.controller.cluster.brokers, "it stays registered"
    assert run.now.is_unclean_leader is False
    go_on()
    await run.write(5)
    assert len(await run.read_at_the_end()) >= 10


def test_a_stopped_leader_is_replaced_and_comes_back_as_a_follower() -> None:
    run_script(stopped_leader)


async def stopped_follower(run: ScriptedRun) -> None:
    await run.write(5)
    follower = next(x for x in (1, 2, 3) if x != run.now.leader)
    leader, began_s = run.now.leader, now_s()
    go_on = pause(run, follower)
    await run.until(lambda: follower not in run.now.isr, "it has left the ISR")
    assert now_s() - began_s < SUSPECTED_WITHIN_S
    assert run.now.leader == leader
    go_on()
    await run.write(5)
    assert len(await run.read_at_the_end()) >= 10


def test_a_stopped_follower_holds_nothing_back_for_long() -> None:
    run_script(stopped_follower)


async def two_stopped(run: ScriptedRun) -> None:
    active = run.cluster.active
    assert active is not None and active.controller is not None
    leader = run.now.leader
    go_on = [pause(run, broker) for broker in (1, 2, 3) if broker != leader]
    end = now_s() + SESSION_S - 1.0
    while now_s() < end:
        # That they leave the ISR for their lag is the leader's to ask for.
        assert not active.controller.cluster.suspected and run.now.leader == leader
        await asyncio.sleep(0.05)
    for each in go_on:
        each()
    await run.write(3)


def test_of_two_silent_brokers_none_is_suspected() -> None:
    run_script(two_stopped)


@pytest.mark.parametrize("seconds", [0.6, 1.9, STOPPED_S, 3.6])
def test_a_controller_that_was_stopped_moves_nothing(seconds: float) -> None:
    async def story(run: ScriptedRun) -> None:
        unmoved = Unmoved(run)
        active = run.cluster.active
        assert active is not None and active.process is not None
        active.process.pause()
        await asyncio.sleep(seconds)
        active.process.resume()
        await unmoved.check()

    run_script(story)


@pytest.mark.parametrize("seconds", [1.2, STOPPED_S])
def test_a_controller_that_was_cut_off_from_all_brokers_moves_nothing(seconds: float) -> None:
    run_script(cut_off(seconds))


def cut_off(seconds: float) -> Story:
    async def story(run: ScriptedRun) -> None:
        unmoved = Unmoved(run)
        active = run.cluster.active
        assert active is not None
        brokers = [node.host for node in run.cluster.brokers]
        for host in run.rng.sample(brokers, 3):
            # Heartbeats come at different times, and a network does not heal in one moment.
            await asyncio.sleep(run.rng.uniform(0, 0.25))
            run.world.network.cut(active.host, host)
        await asyncio.sleep(seconds)
        for host in run.rng.sample(brokers, 3):
            run.world.network.heal((active.host, host), (host, active.host))
            await asyncio.sleep(run.rng.uniform(0, 0.25))
        await unmoved.check()

    return story


async def reset_and_stopped(run: ScriptedRun) -> None:
    """A session's connection breaks, and the controller is stopped before the next one is there."""
    unmoved = Unmoved(run)
    active = run.cluster.active
    assert active is not None and active.process is not None
    run.world.network.reset_connections(run.cluster.broker(run.now.leader).host)
    await asyncio.sleep(run.rng.uniform(0.005, 0.09))
    active.process.pause()
    await asyncio.sleep(1.5)
    active.process.resume()
    await unmoved.check()


def test_a_session_that_opens_again_while_the_controller_is_stopped() -> None:
    run_script(reset_and_stopped)


def test_a_broker_that_waits_for_the_response_to_its_registration_is_not_silent() -> None:
    """It has no epoch to send heartbeats with; others decide on a slow store meanwhile."""

    async def story(seams: Any) -> None:
        stage = Stage(seams, InMemory(), Strikes(), {"broker.silence.suspect.ms": "2000"})
        controller = stage.controller
        try:
            await stage.start()
            async with controller.turn:
                joining = asyncio.create_task(stage.broker(3))
                # Its decision is the next one, and then comes one that takes long.
                await until(lambda: 3 in stage.brokers and stage.brokers[3].session is not None)
                await asyncio.sleep(0.2)
                slow = asyncio.create_task(hold(controller.turn, STOPPED_S))
                await asyncio.sleep(0)
            began_s = now_s()
            while not joining.done():
                assert 3 not in controller.cluster.suspected
                await asyncio.sleep(0.05)
            assert now_s() - began_s >= STOPPED_S
            await slow
            # From now on its silence counts.
            stage.silent.add(3)
            began_s = now_s()
            await until(lambda: 3 in controller.cluster.suspected, SUSPECTED_WITHIN_S)
            assert now_s() - began_s > 1.5
        finally:
            await stage.end()

    with World(7) as world:
        process = world.machine("host").process("all")
        world.run(process.run(story(process.seams)))


async def hold(lock: asyncio.Lock, seconds: float) -> None:
    async with lock:
        await asyncio.sleep(seconds)


# --- planted bugs: the rules above, one at a time, and the story that finds each ----------------


def test_a_stopped_controller_that_does_not_start_its_clocks_again_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Sessions, "check", lambda _self, _now_ms: 0)
    assert found_by(reset_and_stopped)


def test_suspicion_that_does_not_ask_for_the_others_doubts_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def alone(self: Sessions, now_ms: int, _places: object, _own: object) -> set[int]:
        silent = self.in_doubt(now_ms)
        return {x for x in silent if self.by_broker[x].silent_ms(now_ms) >= 2000}

    monkeypatch.setattr(Sessions, "silent", alone)
    assert found_by(cut_off(STOPPED_S))
    assert found_by(two_stopped)


def test_doubts_that_leave_no_time_to_those_that_shared_them_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Sessions, "_settle", lambda _self, _broker, _now_ms: None)
    assert found_by(cut_off(STOPPED_S))


def test_a_heartbeat_that_ends_no_suspicion_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def received(self: Sessions, broker: int, now_ms: int) -> None:
        before = self.by_broker.get(broker)
        suspected = before is not None and before.suspected
        self.by_broker[broker] = replace(BrokerSession(now_ms), suspected=suspected)

    monkeypatch.setattr(Sessions, Sessions.received.__name__, received)

    async def again(run: ScriptedRun) -> None:
        await stopped_leader(run)
        # Once more, by the same broker: its silence must count again.
        await run.write(1)
        assert await send_once(run.history, run.target, "w", 10_000) is ErrorCode.NONE
        leader = run.now.leader
        go_on = pause(run, leader)
        await run.until(lambda: run.now.leader not in (leader, -1), "another leads")
        go_on()
        first = next(x for x in (1, 2, 3) if x not in (leader, run.now.leader))
        await run.until_isr(1, 2, 3)
        began_s = now_s()
        go_on = pause(run, first)
        await run.until(lambda: first not in run.now.isr, "it has left the ISR")
        assert now_s() - began_s < SUSPECTED_WITHIN_S
        go_on()

    assert found_by(again, 3)
