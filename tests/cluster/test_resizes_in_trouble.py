"""What is short while a topic is resized: replicas in sync, disk, records, the brokers themselves.

The resize is refused or undone with one clear line, or it is done later; nothing that was
acknowledged is lost, and the order checker finds nothing. Random faults: see `tests/chaos`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
import pytest

from tests.order.aware_run import RealRun
from tests.order.checks import violations_in
from tests.order.history import Outcome, Send
from tests.order.reference import Reference
from tests.order.timeline import report
from tests.support.cluster import TidelogCluster
from tests.support.processes import DEADLINE_S, SIGCONT, SIGSTOP, wait_until
from tests.support.small_disk import SmallDisk
from tests.support.target import TARGET
from tests.support.turns import key_of
from tidelog.client.admin.configs import ResourceType, alter_configs
from tidelog.client.admin.topics import (
    TopicSpec,
    create_partitions,
    create_topics,
    delete_topics,
)
from tidelog.client.cluster import Cluster
from tidelog.client.connecting.connection import connect
from tidelog.client.errors import ClientError
from tidelog.client.fetching.fetcher import OffsetReset
from tidelog.client.groups.group_reader import GroupReader
from tidelog.client.producing.sender import RecordSender
from tidelog.protocol import messages

pytestmark = [
    pytest.mark.kill,
    pytest.mark.long(90),
    pytest.mark.skipif(TARGET != "tidelog", reason="growing and shrinking is tidelog's"),
]

TOPIC = "troubled"
INITIAL = 2
CONFIG = {
    "offsets.topic.num.partitions": 1,
    "min.insync.replicas": 2,
    "broker.session.timeout.ms": 3_000,
    "replica.lag.time.max.ms": 1_000,
    "resize.timeout.ms": 2_000,
    "group.initial.rebalance.delay.ms": 100,
    "retired.check.interval.ms": 300,
    "retired.purge.delay.ms": 0,
    "log.retention.check.interval.ms": 300,
}


@contextmanager
def cluster_of(
    folder: Path, config: Mapping[str, object] | None = None
) -> Iterator[TidelogCluster]:
    with TidelogCluster(folder, config={**CONFIG, **(config or {})}) as started:
        yield started


def create(cluster: TidelogCluster, replication: int = 3, **config: object) -> None:
    wanted = {"retired_purge": "drained", "segment_bytes": 20_000, **config}
    cluster.create_topic(TOPIC, INITIAL, replication, **wanted)


Course = Callable[[RealRun], Awaitable[None]]


def judged(cluster: TidelogCluster, course: Course) -> None:
    """Run aware clients beside a course, and judge what they note."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    run = RealRun(cluster.bootstrap, TOPIC, INITIAL, seed)

    async def main() -> None:
        run.start()
        try:
            await run.until(lambda: len(acked(run)) > 50, lambda: "the writers write")
            await course(run)
            await run.finish()
        finally:
            await run.close()

    asyncio.run(main())
    reference = Reference(run.history)
    found = violations_in(reference)
    assert not found, report(reference, found, seed)


def acked(run: RealRun) -> list[Send]:
    return [send for send in run.history.of(Send) if send.outcome is Outcome.OK]


async def more(run: RealRun, records: int = 50) -> None:
    """Wait until so many more records are acknowledged."""
    count = len(acked(run)) + records
    await run.until(lambda: len(acked(run)) >= count, lambda: f"{len(acked(run))} of {count}")


async def ask(cluster: TidelogCluster, count: int, *, only_checks: bool = False) -> str:
    """Ask the first broker for a count once; return what is answered, "" for yes."""
    async with Cluster(cluster.brokers[1].bootstrap) as client:
        asked = create_partitions(client, {TOPIC: count}, force=True, validate_only=only_checks)
        outcome = (await asked)[TOPIC]
        return "" if outcome is None else str(outcome)


def test_too_few_replicas_in_sync(tmp_path: Path) -> None:
    said: list[str] = []

    async def course(run: RealRun) -> None:
        two = [cluster.brokers[number] for number in (2, 3)]
        # In the midst of a resize: no fence can be below the high watermark.
        asking = asyncio.create_task(ask(cluster, 4))
        for node in two:
            node.program.send(SIGSTOP)
        said.append(await asking)
        # And before one.
        said.append(await ask(cluster, 4))
        for node in two:
            node.program.send(SIGCONT)
        await more(run)
        await run.resize(4)
        await more(run)
        await run.resize(INITIAL)

    with cluster_of(tmp_path) as cluster:
        create(cluster)
        judged(cluster, course)
    print(said)
    for line in said:
        assert "\n" not in line
    undone, refused = said
    assert "was undone" in undone, undone
    assert "It has 2 partitions as before" in undone, undone
    assert "so a resize could not finish" in refused, refused
    # Which is found first depends on the time: they are silent before anything is closed, a leader
    # is frozen, or its followers are.
    for line in said:
        is_named = f"{TOPIC}-" in line or "brokers 2, 3 did not respond" in line
        assert is_named or "no leader has reported a committed fence" in line, line
        assert "send the request again" in line, line


SILENCE_S = 6.0
WITH_FROZEN = [(4, 1, 2), (1, 4, 3)]
"""The replicas of partitions 1 and 3: broker 4 is frozen."""

WITHOUT = [(2, 1, 3), (3, 1, 2)]
"""Those of 0 and 2."""


async def ask_one(port: int, count: int, born: list[tuple[int, ...]] | None) -> str:
    """Ask one broker, and no other, for a count; return what is answered, "" for yes."""
    request = messages.CreatePartitionsRequest
    new = request.CreatePartitionsAssignment
    asked = request.CreatePartitionsTopic(
        name=TOPIC, count=count, assignments=None if born is None else [new(list(x)) for x in born]
    )
    connection = await connect("127.0.0.1", port)
    try:
        answer = await connection.send(request([asked], 30_000, force=True), timeout_ms=40_000)
    finally:
        connection.close()
    return answer.results[0].error_message or ""


@pytest.mark.parametrize("is_growth", [True, False])
def test_a_broker_that_was_just_frozen_stops_no_keys_of_others(
    tmp_path: Path, is_growth: bool
) -> None:
    """A resize closes no partition before the brokers of its replicas have responded (0108)."""
    waits: list[float] = []

    async def write(sender: RecordSender, key: bytes) -> None:
        began = time.monotonic()
        await (await sender.send(TOPIC, b"v", key))
        waits.append(time.monotonic() - began)

    async def main() -> None:
        born = [WITHOUT[1], WITH_FROZEN[1]]
        placed_next = born if is_growth else None
        live = [cluster.brokers[number].bootstrap for number in (1, 2, 3)]
        async with Cluster(live) as view, RecordSender(view) as sender:
            await create_topics(view, [TopicSpec(TOPIC, assignment=placed)])
            if not is_growth:
                assert not await ask_one(cluster.brokers[1].port, 4, born)
            # Of partition 0 before, and of 0 or 2 after the growth.
            keys = [key_of(0, 4), key_of(2, 4)]
            for key in keys:
                await write(sender, key)
            waits.clear()
            cluster.brokers[4].program.send(SIGSTOP)
            count = 4 if is_growth else INITIAL
            resizing = asyncio.create_task(ask_one(cluster.brokers[1].port, count, placed_next))
            while not resizing.done():
                await asyncio.gather(*(write(sender, key) for key in keys))
            assert not await resizing

    placed = {0: WITHOUT[0], 1: WITH_FROZEN[0]}
    config = {
        **CONFIG,
        "broker.silence.suspect.ms": int(1000 * SILENCE_S),
        "broker.session.timeout.ms": 20_000,
        "resize.timeout.ms": 20_000,
    }
    with TidelogCluster(tmp_path, brokers=4, config=config) as cluster:
        asyncio.run(main())
        cluster.brokers[4].program.send(SIGCONT)
    print(f"{len(waits)} records, the longest waited {max(waits):.2f} s")
    assert max(waits) < SILENCE_S / 2


def test_a_leader_on_a_full_disk(tmp_path: Path) -> None:
    async def course(run: RealRun) -> None:
        for count in (5, 3, 7):
            leader = cluster.leader(TOPIC, 0)
            disk = disks[leader]
            await asyncio.to_thread(disk.fill)
            # Its next heartbeats say so; then no resize begins.
            async with asyncio.timeout(DEADLINE_S):
                while not (answer := await ask(cluster, count, only_checks=True)):
                    await run.pause(0.1)
            assert f"broker {leader} cannot write {TOPIC}-" in answer, answer
            assert "the disk is full), so a resize could not finish: make room there" in answer
            resizing = asyncio.create_task(run.resize(count))
            await run.pause(random.uniform(0.5, 4))
            await asyncio.to_thread(disk.free)
            await resizing
            await more(run)

    cluster = TidelogCluster(tmp_path, config=CONFIG)
    disks = {number: SmallDisk(node) for number, node in cluster.brokers.items()}
    try:
        with cluster:
            create(cluster)
            judged(cluster, course)
    finally:
        for disk in disks.values():
            disk.__exit__()


RETENTION_S = 8


async def keep(cluster: TidelogCluster, milliseconds: int) -> None:
    async with Cluster(cluster.bootstrap) as client:
        values = {"retention.ms": str(milliseconds)}
        await alter_configs(client, ResourceType.TOPIC, TOPIC, set_values=values)


async def purged(run: RealRun, cluster: TidelogCluster) -> None:
    """Let retention take the retired partitions, and all else that is as old as they are.

    It counts from the time of each record. The lag of a group depends on the machine: so
    records expire only when every group has just read what is that old, and much that is younger.
    """
    shrunk_at = run.now
    await run.until(lambda: run.now > shrunk_at + RETENTION_S, lambda: "they are old enough")
    deadline = run.now + DEADLINE_S
    while True:
        began = run.now
        await run.catch_up()
        if run.now < began + RETENTION_S / 4:
            break
        assert run.now < deadline, "the groups do not keep up"
    await keep(cluster, 1000 * RETENTION_S)
    await run.without_retired()
    await keep(cluster, -1)


def test_retention_takes_retired_partitions_under_load(tmp_path: Path) -> None:
    """They are removed and grow again; groups that keep up lose nothing."""

    async def course(run: RealRun) -> None:
        for many, few in ((6, 3), (8, INITIAL), (5, INITIAL)):
            for count in (many, few):
                await run.resize(count)
                await more(run)
            await purged(run, cluster)

    with cluster_of(tmp_path) as cluster:
        create(cluster, retired_purge="retention", retention_ms=-1, segment_ms=1_000)
        judged(cluster, course)


def test_a_broker_that_misses_three_resizes(tmp_path: Path) -> None:
    """The other replica of each partition is in sync when it dies: without that no resize could
    finish before it is back, and all would be refused."""

    async def course(run: RealRun) -> None:
        for victim in (1, 2):
            await run.until(all_in_sync, lambda: "every partition has its replicas in sync")
            await asyncio.to_thread(cluster.brokers[victim].kill)
            for count in (5, 3, 8) if victim == 1 else (4, 6, 3):
                await run.resize(count)
                await more(run)
            await asyncio.to_thread(cluster.brokers[victim].start)
            await run.until(all_in_sync, lambda: "every partition has its replicas in sync")
            await more(run)

    def all_in_sync() -> bool:
        found = cluster.partitions(TOPIC)
        return all(len(each.isrs) == len(each.replicas) for each in found.values())

    # On a machine that runs other tests a follower stands still for a second: it stays in sync.
    config = {"min.insync.replicas": 1, "replica.lag.time.max.ms": 30_000}
    with cluster_of(tmp_path, config) as cluster:
        create(cluster, replication=2)
        judged(cluster, course)


def test_all_brokers_die_between_two_steps(tmp_path: Path) -> None:
    async def course(run: RealRun) -> None:
        for number, count in enumerate((6, 3, 8, INITIAL)):
            resizing = asyncio.create_task(run.resize(count))
            await run.pause(random.uniform(0, 0.15))
            nodes = list(cluster.brokers.values())
            if number % 2:
                nodes.append(cluster.controller)
            for node in nodes:
                await asyncio.to_thread(node.kill)
            await asyncio.gather(*(asyncio.to_thread(node.start) for node in nodes))
            await resizing
            await more(run)

    with cluster_of(tmp_path, {"resize.timeout.ms": 10_000}) as cluster:
        create(cluster)
        judged(cluster, course)


async def written(view: Cluster, values: set[bytes]) -> None:
    """Write values with themselves as keys; return when all are acknowledged."""
    async with RecordSender(view) as sender:
        sent = [await sender.send(TOPIC, value, value) for value in sorted(values)]
        await asyncio.gather(*sent)


def stock_read(bootstrap: str, values: set[bytes]) -> None:
    """Read values with a new member of a stock group, and commit."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "stock",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([TOPIC])
    found: set[bytes] = set()

    def has_all() -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found.add(message.value())
        return values <= found

    wait_until(has_all, DEADLINE_S, lambda: f"the stock group lacks {values - found}", 0)
    consumer.commit(asynchronous=False)
    consumer.close()


def test_a_topic_is_deleted_and_made_again_while_it_is_resized(tmp_path: Path) -> None:
    """What its groups had committed is of the former topic: they read the new one as a whole."""
    received: list[bytes] = []
    answers: list[str] = []

    async def read(view: Cluster) -> None:
        async with GroupReader(view, "aware", [TOPIC], reset=OffsetReset.EARLIEST) as reader:
            while True:
                try:
                    for piece in await reader.poll(200):
                        received.extend(bytes(row.value or b"") for row in piece.rows())
                except ClientError:
                    await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.1)

    async def receive(values: set[bytes], member: asyncio.Task[None]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not values <= set(received):
            if member.done():
                member.result()
            assert time.monotonic() < deadline, f"the group lacks {values - set(received)}"
            await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.05)

    async def main() -> None:
        async with Cluster(cluster.bootstrap) as reading:
            member = asyncio.create_task(read(reading))
            for life in range(3):
                values = {b"%d-%d" % (life, number) for number in range(60)}
                async with Cluster(cluster.bootstrap) as view:
                    await written(view, values)
                    await receive(values, member)
                    await asyncio.to_thread(stock_read, cluster.bootstrap, values)
                    asking = asyncio.create_task(ask(cluster, (7, 4, 16)[life]))
                    await run_on(random.uniform(0, 0.15))
                    deleted = await delete_topics(view, [TOPIC])
                    assert deleted[TOPIC] is None, deleted
                    answers.append(await asking)
                    await asyncio.to_thread(create, cluster)
            member.cancel()
            await asyncio.gather(member, return_exceptions=True)

    async def run_on(seconds: float) -> None:
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=seconds)

    with cluster_of(tmp_path) as cluster:
        create(cluster)
        asyncio.run(main())
        assert cluster.partitions(TOPIC).keys() == set(range(INITIAL))
    print(answers)
    assert all("\n" not in line for line in answers)
