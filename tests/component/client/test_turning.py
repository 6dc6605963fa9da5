"""A sender whose topic grows and shrinks: each key in its order, nothing lost or twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import cast

import pytest

from tests.order.checks import violations_in
from tests.order.history import History, Outcome, Send
from tests.order.reference import Reference
from tests.order.timeline import report
from tests.simulation.kernel.loop import SimulatedLoop
from tests.support.network_server import until
from tests.support.resizing_leaders import NAME, ResizingCluster, ResizingLeaders
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, ConnectionLost, GaveUp, WrongState
from tidelog.client.producing.delivery import CLOSED, TRIED
from tidelog.client.producing.record_metadata import RecordMetadata
from tidelog.client.producing.sender import RecordSender
from tidelog.client.producing.settings import SendSettings
from tidelog.client.stamps import stamp_of
from tidelog.partitioning.older_keys import ALONE, OlderKeys
from tidelog.protocol import messages
from tidelog.records.reader import read_batch

SENDS = 250
KEYS = 6


class Run:
    """One sender on resizing leaders, driven by chance."""

    def __init__(self, seed: int, *, removes: bool = False, **memory: int) -> None:
        self.chance = random.Random(seed)
        self.leaders = ResizingLeaders(self.chance)
        self.cluster = ResizingCluster(self.leaders, self.chance)
        settings = SendSettings(
            linger_ms=0,
            batch_bytes=self.chance.choice([120, 400]),
            delivery_timeout_ms=10 if removes else 120_000,
            **memory,
        )
        self.sender = RecordSender(cast("Cluster", self.cluster), settings)
        if not removes:
            # A batch whose partition was removed would have no outcome until its time-out.
            self.leaders.may_remove = self.is_determined
        self.open: dict[int, tuple[str, int, int, int]] = {}
        self.numbers: dict[str, int] = {}

    @property
    def history(self) -> History:
        return self.leaders.history

    async def run(self) -> History:
        """Send everything, and wait for all outcomes."""
        uid = 0
        while uid < SENDS:
            self.leaders.now += 1
            dice = self.chance.random()
            if dice < 0.4:
                await self.send(uid)
                uid += 1
            elif dice < 0.5:
                self.leaders.step()
            elif dice < 0.53:
                await self.cluster.refresh()
            elif dice < 0.56:
                self.leaders.move()
                await self.cluster.refresh()
                self.sender.delivery.drain()
            elif dice < 0.8:
                self.cluster.answer()
            await asyncio.sleep(0)
        self.leaders.finish()
        await self.flush()
        for last in range(KEYS):
            await self.send(SENDS + last)
        await self.flush()
        await self.sender.close()
        assert not self.open
        self.leaders.note_all()
        return self.history

    async def flush(self) -> None:
        """Answer requests until everything has an outcome."""
        flushing = asyncio.ensure_future(self.sender.flush())
        while not flushing.done():
            self.leaders.now += 1
            self.cluster.answer()
            await asyncio.sleep(0)

    def is_determined(self, partition: int) -> bool:
        """Whether the sender has the outcome of all that it sends to a retired partition."""
        epochs = self.sender.turning.topics.get(NAME)
        if epochs is None or epochs.stamp != stamp_of(self.leaders.described.topics[NAME]):
            return False
        queues = self.sender.queues
        return not any(q.undetermined() for q in queues if q.partition.partition == partition)

    async def stop_in_a_resize(self) -> None:
        """Let leaders refuse batches after their fences, of a resize that is not published."""
        leaders = self.leaders
        while leaders.described.topics[NAME].resize_epoch == leaders.resize_epoch or not all(
            one.is_committed and one.resize_epoch == leaders.resize_epoch
            for one in leaders.leaders.values()
        ):
            leaders.step()
        while not self.sender.turning.topics[NAME].held:
            self.cluster.answer()
            await asyncio.sleep(0)

    async def send(self, uid: int, size: int = 1) -> None:
        key = f"k{self.chance.randrange(KEYS)}"
        number = self.numbers[key] = self.numbers.get(key, -1) + 1
        epoch = self.cluster.view.topics[NAME].resize_epoch
        self.open[uid] = (key, number, epoch, self.leaders.now)
        try:
            future = await self.sender.send(NAME, b"%0*d" % (size, uid), key.encode())
        except ClientError:
            del self.open[uid]
            raise
        future.add_done_callback(partial(self.done, uid))

    def done(self, uid: int, future: asyncio.Future[RecordMetadata]) -> None:
        key, number, epoch, sent_at = self.open.pop(uid)
        error = future.exception()
        place = (-1, -1) if error else (future.result().partition, future.result().offset)
        outcome = Outcome.INFO if error else Outcome.OK
        now = self.leaders.now
        send = Send(uid, key, "w", number, epoch, sent_at, outcome, now, *place)
        self.history.events.append(send)


@pytest.mark.parametrize("seed", range(40))
def test_each_key_keeps_its_order_whatever_the_leaders_answer(seed: int) -> None:
    history = asyncio.run(Run(seed).run())
    reference = Reference(history)
    found = violations_in(reference)
    assert not found, report(reference, found, seed)
    sends = history.of(Send)
    assert len(sends) == SENDS + KEYS
    assert all(send.outcome is Outcome.OK for send in sends)


def violated(seeds: Sequence[int]) -> bool:
    """Whether the order checker finds something in the runs with some seeds."""
    return any(violations_in(Reference(asyncio.run(Run(seed).run()))) for seed in seeds)


def test_a_sender_that_forgets_the_partition_that_keys_came_from_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add = OlderKeys.add
    monkeypatch.setattr(OlderKeys, "add", lambda self, place, _: add(self, place, ALONE))
    assert violated(range(40))


def test_a_sender_that_waits_for_no_older_batch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OlderKeys, "holds", lambda *_: False)
    assert violated(range(40))


@pytest.mark.parametrize("seed", range(8))
def test_a_batch_whose_partition_was_removed_times_out_and_the_others_go_on(seed: int) -> None:
    # A loop whose clock is its own: no load lets the last records time out.
    loop = SimulatedLoop(random.Random(seed))
    try:
        history = loop.run_until_complete(Run(seed, removes=True).run())
    finally:
        loop.close()
    reference = Reference(history)
    found = violations_in(reference)
    assert not found, report(reference, found, seed)
    last = [send.outcome for send in history.of(Send) if send.uid >= SENDS]
    assert last == [Outcome.OK] * KEYS


async def out_of_memory(run: Run) -> None:
    """Fill the memory while the topic turns; then let the resize be published."""
    uid = 0
    for uid in range(4):
        await run.send(uid, size=300)
    await run.stop_in_a_resize()
    with pytest.raises(GaveUp) as raised:
        while True:
            uid += 1
            await run.send(uid)
    said = str(raised.value)
    assert said.startswith("no memory for a record within 50 ms: ")
    assert "of them wait for the end of a resize (topic t)" in said and "\n" not in said
    run.numbers = {key: number + 1 for key, number in run.numbers.items()}
    run.leaders.finish()
    await run.flush()
    await run.send(SENDS)
    await run.flush()
    await run.sender.close()
    assert not run.open
    run.leaders.note_all()


@pytest.mark.parametrize("seed", range(8))
def test_a_producer_without_memory_in_a_resize_says_so_and_goes_on(seed: int) -> None:
    run = Run(seed, buffer_bytes=3_000, max_block_ms=50)
    asyncio.run(out_of_memory(run))
    reference = Reference(run.history)
    assert not violations_in(reference), report(reference, violations_in(reference), seed)
    assert all(send.outcome is Outcome.OK for send in run.history.of(Send))


@pytest.mark.parametrize("seed", range(8))
def test_a_producer_that_is_closed_in_a_resize_fails_what_has_no_outcome(seed: int) -> None:
    async def story() -> None:
        run = Run(seed)
        futures = [await run.sender.send(NAME, b"%d" % n, b"k%d" % n) for n in range(20)]
        await run.stop_in_a_resize()
        futures += [await run.sender.send(NAME, b"%d" % n, b"k%d" % n) for n in range(20, 40)]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await run.sender.close()
        assert all(future.done() for future in futures)
        errors = [future.exception() for future in futures if future.exception()]
        assert len(errors) >= 20
        for error in errors:
            assert isinstance(error, WrongState)
            assert str(error) in (CLOSED, TRIED)
        assert str(errors[-1]) == CLOSED, "the last ones were held for the resize"
        with pytest.raises(WrongState, match="closed: open another one"):
            await run.sender.send(NAME, b"0", b"k")
        # Nothing of it goes on.
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert run.sender.memory.used == 0

    asyncio.run(story())


def test_a_new_leader_gets_nothing_before_the_former_one_has_answered() -> None:
    async def run() -> None:
        leaders = ResizingLeaders(random.Random(1))
        cluster = ResizingCluster(leaders, random.Random(1))
        sender = RecordSender(cast("Cluster", cluster), SendSettings(linger_ms=0))
        await sender.send(NAME, b"0", b"k")
        await until(lambda: any(cluster.waiting.values()))
        ((former, ((request, unanswered),)),) = cluster.waiting.items()
        other = next(node_id for node_id in cluster.lives if node_id != former)
        topic = leaders.described.topics[NAME]
        moved = {index: replace(each, leader=other) for index, each in topic.partitions.items()}
        shown = replace(topic, partitions=moved)
        leaders.described = replace(leaders.described, topics={NAME: shown})
        await cluster.refresh()
        # A leader that does not know the producer would take it, and refuse the first one then.
        await sender.send(NAME, b"1", b"k")
        for _ in range(100):
            await asyncio.sleep(0)
        assert not cluster.waiting.get(other)
        unanswered.set_exception(ConnectionLost("the former leader is silent"))
        await until(lambda: cluster.waiting.get(other))
        assert records_of(cluster.waiting[other][0][0]) == records_of(request) == [b"0"]
        cluster.lives = dict.fromkeys(cluster.lives, -1)
        for _, future in cluster.waiting[other]:
            future.cancel()

    asyncio.run(run())


async def moved(
    leaders: ResizingLeaders, cluster: ResizingCluster, sender: RecordSender, partition: int
) -> int:
    """Let metadata show another leader of a partition; return it."""
    topic = leaders.described.topics[NAME]
    part = topic.partitions[partition]
    now = replace(part, leader=(part.leader + 1) % 3, leader_epoch=part.leader_epoch + 1)
    shown = replace(topic, partitions={**topic.partitions, partition: now})
    leaders.described = replace(leaders.described, topics={NAME: shown})
    await cluster.refresh()
    sender.delivery.drain()
    return now.leader


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_new_leader_gets_what_a_silent_one_leaves_unanswered(idempotent: bool) -> None:
    """In the order of send, the oldest alone; without idempotence it could be written twice."""

    async def run() -> None:
        leaders = ResizingLeaders(random.Random(1))
        cluster = ResizingCluster(leaders, random.Random(1))
        settings = SendSettings(linger_ms=0, idempotent=idempotent)
        sender = RecordSender(cast("Cluster", cluster), settings)
        first = await sender.send(NAME, b"0", b"k")
        await until(lambda: any(cluster.waiting.values()))
        ((_, ((request, unanswered),)),) = cluster.waiting.items()
        partition = request.topic_data[0].partition_data[0].index
        other = await moved(leaders, cluster, sender, partition)
        if not idempotent:
            for _ in range(100):
                await asyncio.sleep(0)
            assert not cluster.waiting.get(other) and not unanswered.done()
            unanswered.cancel()
            await sender.delivery.work.stop()
            return
        second = await sender.send(NAME, b"1", b"k")
        await until(lambda: cluster.waiting.get(other))
        ((again, answer),) = cluster.waiting[other]
        assert records_of(again) == records_of(request) == [b"0"]
        assert again.topic_data[0].partition_data[0].records == (
            request.topic_data[0].partition_data[0].records
        ), "under its numbers"
        assert unanswered.done(), "no outcome depends on it"
        assert cluster.late == [request]
        cluster._execute(cluster.late.pop())
        cluster.waiting[other].clear()
        answer.set_result(cluster._execute(again))
        await until(lambda: cluster.waiting.get(other))
        ((later, answer),) = cluster.waiting[other]
        assert records_of(later) == [b"1"]
        answer.set_result(cluster._execute(later))
        await until(lambda: first.done() and second.done())
        assert [first.result().offset, second.result().offset] == [0, 1]
        await sender.close()

    asyncio.run(run())


def test_a_request_that_others_wait_for_is_not_given_up_with_one_partition() -> None:
    async def run() -> None:
        leaders = ResizingLeaders(random.Random(1))
        cluster = ResizingCluster(leaders, random.Random(1))
        part = leaders.described.topics[NAME].partitions
        together = {index: replace(each, leader=0) for index, each in part.items()}
        shown = replace(leaders.described.topics[NAME], partitions=together)
        leaders.described = replace(leaders.described, topics={NAME: shown})
        await cluster.refresh()
        sender = RecordSender(cast("Cluster", cluster), SendSettings(linger_ms=0))
        sent = [await sender.send(NAME, b"%d" % n, b"k", partition=n) for n in (0, 1)]
        await until(lambda: any(cluster.waiting.values()))
        ((_, ((request, unanswered),)),) = cluster.waiting.items()
        assert len(request.topic_data[0].partition_data) == 2
        other = await moved(leaders, cluster, sender, 1)
        await until(lambda: cluster.waiting.get(other))
        assert not unanswered.done()
        ((again, answer),) = cluster.waiting[other]
        assert records_of(again) == [b"1"]
        cluster.waiting.clear()
        unanswered.set_result(cluster._execute(request))
        await until(sent[0].done)
        assert not sent[1].done(), "the former leader's word does not count"
        answer.set_result(cluster._execute(again))
        await until(sent[1].done)
        await sender.close()

    asyncio.run(run())


def records_of(request: messages.ProduceRequest) -> list[bytes | None]:
    """Return the values of a request with one batch."""
    (topic,) = request.topic_data
    (part,) = topic.partition_data
    return [record.value for record in read_batch(part.records)]
