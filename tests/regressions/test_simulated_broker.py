"""Known traps of the field that belong to one broker (docs/promises.md), each as a short story.

The real server on the simulated machine; every story ends with all checkers on what was seen.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable

import pytest

from tests.simulation.checkers import violations
from tests.simulation.clients import (
    SimulatedProducer,
    Target,
    _produce_request,
    create_topic,
    delete_topic,
    fetch,
    send_once,
)
from tests.simulation.kernel import UNLIMITED, Fail, fail_once
from tests.simulation.scenarios.broker import HOST, LOGS, PORT, BrokerRun
from tidelog.client.connecting.connection import connect
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.records.builder import NewRecord, Producer, build_batch

pytestmark = pytest.mark.usefixtures("quiet")

Story = Callable[["ScriptedRun"], Awaitable[None]]
NOW_MS = 1_767_225_600_000


class ScriptedRun(BrokerRun):
    """A run whose course a test tells."""

    def __init__(self, story: Story, seed: int, durability: str) -> None:
        super().__init__(seed, durability=durability)
        self._story = story
        self.target = Target(HOST, PORT, "plain", 0)
        self.other = Target(HOST, PORT, "other", 0)

    async def _main(self) -> None:
        self._start()
        await self._until_ready()
        await create_topic(HOST, PORT, "plain", 1, {"segment.bytes": "3000"})
        await create_topic(HOST, PORT, "other", 1)
        self.targets = [self.target, self.other]
        await self._story(self)

    async def produce(self, batches: int = 20, target: Target | None = None) -> SimulatedProducer:
        name = f"p{len(self.producers)}"
        producer = SimulatedProducer(
            self.history, self.world.random(name), target or self.target, name
        )
        self.producers.append(producer)
        await producer.run(batches, 0.02)
        return producer

    async def again(self) -> None:
        """Start the server again and wait until it serves."""
        self.server.forget()
        self._start()
        await self._until_ready()

    def log_of(self, target: Target):
        assert self.server.broker is not None
        return self.server.broker.broker.partitions.get(target.topic, target.partition)


def run_script(story: Story, durability: str = "sync", seeds: int = 3) -> None:
    for seed in range(seeds):
        run = ScriptedRun(story, seed, durability)
        with run.world as world:
            world.run(story_with_end(run))
            found = [*run.found, *violations(run.history), *world.loop.unhandled]
            assert not found, f"seed {seed}: {found}"


async def story_with_end(run: ScriptedRun) -> None:
    await run._main()
    await run._final()


def test_the_only_node_loses_power_and_its_partitions_lead_again_at_once_flagged() -> None:
    async def story(run: ScriptedRun) -> None:
        await run.produce()
        run.server.lose_power()
        await run.again()
        partition = run.log_of(run.target)
        assert partition.is_leader
        # The flag is on record whether or not the handling of the loss has cleared it by now.
        assert run.server.controller is not None
        memory = run.server.controller.cluster.topic_histories[run.target.topic]
        elections = [*memory.unclean_past.get(0, []), *memory.unclean.values()]
        (election,) = (each for each in elections if each.leader_epoch == partition.leader_epoch)
        assert election.leader == partition.state.leader
        while partition.state.is_unclean_leader or partition.state.has_debt:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        (election,) = run.server.controller.cluster.topic_histories[run.target.topic].unclean_past[
            0
        ]
        assert election.end_offset == partition.epoch_start
        assert [lost.first for lost in election.lost] in ([], [election.end_offset])
        # What was not synced may be gone, which this durability allows: check the rest from here.
        run.history.writes.clear()
        await run.produce(5)

    run_script(story, "replicated")


def test_with_sync_the_loss_of_power_is_no_loss_and_not_flagged() -> None:
    async def story(run: ScriptedRun) -> None:
        await run.produce()
        for _ in range(3):
            run.server.lose_power()
            await run.again()
            assert not run.log_of(run.target).state.is_unclean_leader
            await run.produce(5)

    run_script(story)


def test_a_batch_sent_again_after_a_kill_has_its_first_offset() -> None:
    async def story(run: ScriptedRun) -> None:
        connection = await connect(HOST, PORT)
        identity = await connection.send(
            messages.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        )
        batches = [
            build_batch(
                [NewRecord(NOW_MS, None, b"v%d" % number)],
                producer=Producer(identity.producer_id, identity.producer_epoch, number),
            )
            for number in range(5)
        ]
        for number, batch in enumerate(batches):
            run.history.send(run.target.name, "raw", number, b"v%d" % number)
            answer = await connection.send(_produce_request(run.target, batch))
            assert answer.responses[0].partition_responses[0].base_offset == number
        run.server.kill()
        await run.again()
        connection = await connect(HOST, PORT)
        for number, batch in enumerate(batches):
            answer = await connection.send(_produce_request(run.target, batch))
            found = answer.responses[0].partition_responses[0]
            assert (found.error_code, found.base_offset) == (0, number)
        connection.close()

    run_script(story)


def test_a_full_disk_refuses_appends_serves_reads_and_heals_without_a_restart() -> None:
    async def story(run: ScriptedRun) -> None:
        await run.produce(5)
        disk = run.server.machine.disk
        disk.capacity = disk.used()
        run.history.disk_space("full")
        errors = {await send_once(run.history, run.target, "x", n, size=2_000) for n in range(3)}
        assert errors == {ErrorCode.KAFKA_STORAGE_ERROR}
        connection = await connect(HOST, PORT)
        found = await fetch(connection, run.target, 0, 1 << 20)
        connection.close()
        assert found.error_code == 0 and found.records
        run.history.disk_space("read")
        disk.capacity = UNLIMITED
        run.history.disk_space("room")
        assert await send_once(run.history, run.target, "x", 9) is ErrorCode.NONE
        await run.produce(5)

    run_script(story)
    run_script(story, "replicated")


def test_a_failed_fsync_is_final_until_the_next_start() -> None:
    async def story(run: ScriptedRun) -> None:
        await run.produce(5)
        disk = run.server.machine.disk
        disk.plan = fail_once("sync", ".log", Fail(errno.EIO))
        first = await send_once(run.history, run.target, "x", 0)
        assert first is ErrorCode.KAFKA_STORAGE_ERROR
        assert disk.failed_paths and disk.failed_paths[0][0] == "sync"
        for number, target in enumerate((run.target, run.other), 1):
            assert await send_once(run.history, target, "x", number) is not ErrorCode.NONE
        run.server.lose_power()
        disk.plan = None
        await run.again()
        await run.produce(5)

    run_script(story)


def test_a_topic_is_deleted_under_heavy_appends_flushes_and_rolls() -> None:
    async def story(run: ScriptedRun) -> None:
        writers = [asyncio.create_task(run.produce(200)) for _ in range(3)]
        others = asyncio.create_task(run.produce(60, run.other))
        await asyncio.sleep(0.5)
        await delete_topic(HOST, PORT, "plain")
        await others
        for writer in writers:
            writer.cancel()
        assert run.server.broker is not None
        (directory,) = run.server.broker.broker.directories
        assert directory.failed is None
        assert run.log_of(run.target) is None
        # The topic and what was written to it are gone on purpose.
        run.targets = [run.other]
        run.history.writes = [w for w in run.history.writes if w.partition == run.other.name]

    run_script(story)
    run_script(story, "replicated")


def test_damage_below_the_tail_takes_one_replica_out_and_the_others_serve() -> None:
    async def story(run: ScriptedRun) -> None:
        await run.produce(30)
        await run.produce(5, run.other)
        run.server.kill()
        disk = run.server.machine.disk
        # The newest segments are checked after a kill: flip a bit in a batch that others follow.
        path = sorted(p for p in disk.walk(f"{LOGS}/plain-0") if p.endswith(".log"))[0]
        for name in ("recovery-point-offset-checkpoint",):
            if disk.lookup(f"{LOGS}/{name}") is not None:
                view = disk.view("operator")
                view.replace(f"{LOGS}/{name}", b"0\n0\n")
                disk.kill(view)
        disk.flip_bit(path, 8 * 70)
        await run.again()
        partition = run.log_of(run.target)
        assert partition.log.damaged is not None
        assert not partition.is_leader
        error = await send_once(run.history, run.target, "x", 0)
        assert error is not ErrorCode.NONE
        await run.produce(5, run.other)
        run.targets = [run.other]
        run.history.writes = [w for w in run.history.writes if w.partition == run.other.name]
        partition.log.damaged = None  # it is known; the end of the run asks only for the rest

    run_script(story)


def test_a_cut_in_one_direction_makes_no_duplicate() -> None:
    async def story(run: ScriptedRun) -> None:
        writer = asyncio.create_task(run.produce(60))
        for ends in ((HOST, "outside"), ("outside", HOST)) * 2:
            await asyncio.sleep(0.3)
            run.world.network.cut(*ends, one_way=True)
            await asyncio.sleep(12)
            run.world.network.heal()
        await writer

    run_script(story)
