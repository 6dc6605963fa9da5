"""One partition is stuck, mostly while its topic is resized: how long other keys wait.

In virtual time, with default settings of the producer. The bound is the producer's and the
controller's together: the resize itself is refused or undone, and then nothing waits for the stuck
partition except what may have its keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from tests.simulation.cluster.nodes import PORT
from tests.simulation.cluster.scripted_run import ScriptedRun
from tests.simulation.cluster.writing import COUNT, Writing, now_s
from tests.simulation.planted.resize_stories import CREATE
from tidelog.client.connecting.connection import connect
from tidelog.controller.decisions.resize_beginnings import is_unbegun

pytestmark = pytest.mark.usefixtures("quiet")

AFTER_S = 15.0
OTHERS_S = 1.0
"""The longest wait of a key that was never at home in a stuck partition."""

SUSPECTED_S = 2.5
"""The same where the stuck broker cannot be spared: the usual silence, and an undo."""

FROZEN_S = 4.0
"""With three replicas each acknowledgement waits until the frozen one has left the ISR."""


async def grow(run: ScriptedRun) -> None:
    """Ask for twice the partitions; it may be refused, undone or done."""
    topic = CREATE.CreatePartitionsTopic(name="s", count=2 * COUNT, assignments=None)
    request = CREATE(topics=[topic], timeout_ms=1_000, force=True)
    await run.outside.until(request, lambda _: True)


async def resize(run: ScriptedRun, count: int) -> str:
    """Ask the first broker for a count; return why it was undone, or ""."""
    topic = CREATE.CreatePartitionsTopic(name="s", count=count, assignments=None)
    request = CREATE(topics=[topic], timeout_ms=20_000, force=True)
    connection = await connect(run.cluster.brokers[0].host, PORT)
    response = await connection.send(request, timeout_ms=25_000)
    connection.close()
    return str(response.results[0].error_message or "")


async def stuck(run: ScriptedRun, replicas: int, is_killed: bool) -> tuple[float, float]:
    """Write, stop the leader of some partitions, and grow the topic; return the longest waits."""
    await run.admin.create("s", COUNT, replicas, {"min.insync.replicas": "1"})
    writing = Writing(run)
    work = asyncio.create_task(writing.write())
    await asyncio.sleep(3)
    topic = await run.outside.topic("s")
    leaders = {part.partition_index: part.leader_id for part in topic.partitions}
    node = run.cluster.broker(leaders[0])
    assert node.process is not None
    others = [place for place, leader in leaders.items() if leader != leaders[0]]
    assert others, "another seed has them on other brokers"
    run.faults.unquiet_until = now_s() + 60
    if is_killed:
        node.kill()
    else:
        node.process.pause()
    growth = asyncio.create_task(grow(run))
    await asyncio.sleep(AFTER_S)
    found = writing.longest(lambda place: place % COUNT not in others)
    if is_killed:
        node.start()
    else:
        node.process.resume()
    await growth
    await writing.end(work)
    return found


async def elsewhere(run: ScriptedRun) -> tuple[float, float]:
    """Write, and stop a broker; return the longest waits of keys with a replica there, and of the
    others, of which a leader has partitions of both kinds."""
    await run.admin.create("s", 2 * COUNT, 3, {"min.insync.replicas": "1"})
    writing = Writing(run)
    work = asyncio.create_task(writing.write())
    await asyncio.sleep(3)
    topic = await run.outside.topic("s")
    leaders = {part.partition_index: part.leader_id for part in topic.partitions}
    holds = {part.partition_index: set(part.replica_nodes) for part in topic.partitions}

    def mixes(broker: int) -> bool:
        waiting = {leaders[place] for place, on in holds.items() if broker in on}
        return any(broker not in on and leaders[place] in waiting for place, on in holds.items())

    stopped = next(node for node in run.cluster.brokers if mixes(node.node_id))
    run.faults.unquiet_until = now_s() + 60
    assert stopped.process is not None
    stopped.process.pause()
    await asyncio.sleep(AFTER_S)
    found = writing.longest(lambda place: stopped.node_id in holds[place])
    stopped.process.resume()
    await writing.end(work)
    return found


async def resized_elsewhere(
    run: ScriptedRun, count: int, replicas: int, in_sync: int = 1
) -> tuple[float, float]:
    """Write, stop a broker, and resize the topic at once; return the longest waits of keys that
    have, had or get a replica there, and of the others. Where ``in_sync`` needs it, the resize is
    undone."""
    await run.admin.create("s", COUNT, replicas, {"min.insync.replicas": str(in_sync)})
    if count < 2 * COUNT:
        assert not await resize(run, 2 * COUNT)
    writing = Writing(run)
    work = asyncio.create_task(writing.write())
    await asyncio.sleep(3)
    stopped = run.cluster.brokers[-1]
    run.faults.unquiet_until = now_s() + 60
    assert stopped.process is not None
    stopped.process.pause()
    resizing = asyncio.create_task(resize(run, count))
    await asyncio.sleep(AFTER_S)
    why = await resizing
    topic = await run.outside.topic_of(run.cluster.brokers[0], "s")
    holds = {x.partition_index: stopped.node_id in x.replica_nodes for x in topic.partitions}
    found = writing.longest(lambda key: holds[key % COUNT] or holds.get(key, False))
    print(f"with {replicas} replicas: {why or 'done'}")
    assert ("was undone" in why) == (replicas == in_sync), why
    stopped.process.resume()
    await writing.end(work)
    return found


async def frozen_in_the_midst(
    run: ScriptedRun, count: int, replicas: int, delay_s: float
) -> tuple[float, float]:
    """Write, resize, and stop a broker when the first partitions are closed; return the longest
    waits of keys on whose line is a replica there, and of the others."""
    await run.admin.create("s", COUNT, replicas, {"min.insync.replicas": "1"})
    if count < 2 * COUNT:
        assert not await resize(run, 2 * COUNT)
    writing = Writing(run)
    work = asyncio.create_task(writing.write())
    await asyncio.sleep(3)
    stopped = run.cluster.brokers[-1]
    resizing = asyncio.create_task(resize(run, count))
    await run.world.until(lambda: has_closed(run), 10)
    await asyncio.sleep(delay_s)
    run.faults.unquiet_until = now_s() + 60
    assert stopped.process is not None
    stopped.process.pause()
    await asyncio.sleep(AFTER_S)
    why = await resizing
    topic = await run.outside.topic_of(run.cluster.brokers[0], "s")
    held = {
        x.partition_index % COUNT for x in topic.partitions if stopped.node_id in x.replica_nodes
    }
    print(
        f"with {replicas} replicas: {why or 'done'}; on the line of the broker: {held} of {COUNT}"
    )
    assert len(held) < COUNT, "another seed has others"
    found = writing.longest(lambda key: key % COUNT in held)
    stopped.process.resume()
    await writing.end(work)
    return found


async def paused_in_the_midst(
    run: ScriptedRun, replicas: int, in_sync: int, pause_s: float
) -> tuple[float, float]:
    """Write, grow, and stop a sound broker for a moment when the first partitions are closed: the
    growth is done. Return the longest wait of any key, twice."""
    await run.admin.create("s", COUNT, replicas, {"min.insync.replicas": str(in_sync)})
    writing = Writing(run)
    work = asyncio.create_task(writing.write())
    await asyncio.sleep(3)
    resizing = asyncio.create_task(resize(run, 2 * COUNT))
    await run.world.until(lambda: has_closed(run), 10)
    run.faults.unquiet_until = now_s() + 60
    paused = run.cluster.brokers[-1].process
    assert paused is not None
    paused.pause()
    await asyncio.sleep(pause_s)
    paused.resume()
    why = await resizing
    assert not why, why
    await writing.end(work)
    longest = max(writing.longest(lambda _: True))
    return longest, longest


def has_closed(run: ScriptedRun) -> bool:
    """Whether the resize has closed its first partitions."""
    active = run.cluster.active
    assert active is not None and active.controller is not None
    history = active.controller.cluster.topic_histories.get("s")
    plan = None if history is None else history.resize
    return plan is not None and not is_unbegun(plan)


def played(
    seed: int, of: Callable[[ScriptedRun], Awaitable[tuple[float, float]]], brokers: int = 3
) -> tuple[float, float]:
    found: list[tuple[float, float]] = []

    async def script(run: ScriptedRun) -> None:
        found.append(await of(run))

    configs = {"min.insync.replicas": "2"}
    result = ScriptedRun(seed, script, "replicated", configs, brokers=brokers).run()
    assert not result.violations, result.report()
    return found[0]


@pytest.mark.parametrize("seed", [1, 2])
def test_the_only_replica_of_a_partition_is_gone(seed: int) -> None:
    of_stuck, of_others = played(seed, partial(stuck, replicas=1, is_killed=True))
    print(f"keys of the stuck partitions: {of_stuck:.1f} s, others: {of_others:.2f} s")
    assert of_stuck > AFTER_S - 1, "they wait until it is back"
    assert of_others < OTHERS_S


@pytest.mark.parametrize("seed", [1, 2])
def test_the_leader_of_a_partition_is_frozen(seed: int) -> None:
    of_stuck, of_others = played(seed, partial(stuck, replicas=3, is_killed=False))
    print(f"keys of the frozen leader: {of_stuck:.1f} s, others: {of_others:.2f} s")
    assert max(of_stuck, of_others) < FROZEN_S


@pytest.mark.parametrize("seed", [1, 2])
def test_a_broker_is_frozen_that_has_no_replica_of_a_partition(seed: int) -> None:
    """They waited, too, when their leader had another partition with a replica there."""
    of_held, of_others = played(seed, elsewhere, brokers=4)
    print(f"keys with a replica on the frozen broker: {of_held:.1f} s, others: {of_others:.2f} s")
    assert OTHERS_S < of_held < FROZEN_S, "until it has left the ISR"
    assert of_others < OTHERS_S


@pytest.mark.parametrize(
    ("brokers", "replicas", "in_sync"), [(4, 1, 1), (4, 2, 1), (4, 2, 2), (5, 3, 1), (5, 3, 3)]
)
@pytest.mark.parametrize("count", [2 * COUNT, COUNT])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_broker_is_frozen_right_before_a_resize(
    seed: int, count: int, brokers: int, replicas: int, in_sync: int
) -> None:
    """All keys waited until it was suspected: the resize had closed every partition."""
    resized = partial(resized_elsewhere, count=count, replicas=replicas, in_sync=in_sync)
    of_held, of_others = played(seed, resized, brokers=brokers)
    print(f"keys with a replica on the frozen broker: {of_held:.1f} s, others: {of_others:.2f} s")
    assert of_held > OTHERS_S
    assert of_others < OTHERS_S


@pytest.mark.parametrize(("brokers", "replicas"), [(4, 1), (6, 2), (6, 3)])
@pytest.mark.parametrize("count", [2 * COUNT, COUNT])
@pytest.mark.parametrize(("seed", "delay_s"), [(3, 0.0), (2, 0.01)])
def test_a_broker_is_frozen_in_the_midst_of_a_resize(
    seed: int, delay_s: float, count: int, brokers: int, replicas: int
) -> None:
    """All keys waited for two seconds: their partitions are closed until the resize goes on."""
    midst = partial(frozen_in_the_midst, count=count, replicas=replicas, delay_s=delay_s)
    of_held, of_others = played(seed, midst, brokers=brokers)
    print(f"keys on the line of the frozen broker: {of_held:.1f} s, others: {of_others:.2f} s")
    # With one replica the resize cannot end without it: it is undone after the usual silence.
    assert of_others < (OTHERS_S if replicas > 1 else SUSPECTED_S)


@pytest.mark.parametrize(("replicas", "in_sync"), [(1, 1), (2, 2), (3, 2)])
@pytest.mark.parametrize("pause_s", [0.8, 1.3])
def test_a_pause_of_a_sound_broker_undoes_no_resize(
    pause_s: float, replicas: int, in_sync: int
) -> None:
    """It was suspected after 0.75 s, although the resize could not end without it."""
    midst = partial(paused_in_the_midst, replicas=replicas, in_sync=in_sync, pause_s=pause_s)
    longest, _ = played(1, midst, brokers=4)
    print(f"paused for {pause_s} s: a key waited {longest:.2f} s")
    assert longest < pause_s + OTHERS_S
