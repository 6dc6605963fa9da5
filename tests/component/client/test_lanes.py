"""A broker whose response is late: partitions on other brokers go on over another connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from tests.support.network_server import until
from tests.support.scripted_cluster import ScriptedCluster, topic, view_of
from tests.support.stories import story
from tidelog.client.connecting.connection import ClientConnection
from tidelog.client.errors import ConnectionLost
from tidelog.client.producing import delivery, flights, lanes
from tidelog.client.producing.flights import Flights
from tidelog.client.producing.lanes import MOST_LANES, Lane, Lanes
from tidelog.client.producing.sender import RecordSender
from tidelog.client.producing.settings import SendSettings
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages
from tidelog.records.batch import read_header

SOON_S = 0.05


class CountedFlights(Flights):
    """Counts how often late responses were looked for."""

    looked = 0

    def late(self, now: float) -> set[int]:
        CountedFlights.looked += 1
        return super().late(now)


@pytest.fixture(autouse=True)
def late_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "LATE_S", SOON_S)
    monkeypatch.setattr(delivery, "Flights", CountedFlights)
    monkeypatch.setattr(CountedFlights, "looked", 0)


@dataclass
class Waiting:
    """A request that waits for the test to answer it."""

    purpose: str
    request: messages.ProduceRequest
    answer: asyncio.Future[Any]

    @property
    def partitions(self) -> list[int]:
        return [part.index for part in self.request.topic_data[0].partition_data]

    @property
    def sequences(self) -> dict[int, int]:
        """The first sequence number of each partition."""
        return {
            part.index: read_header(memoryview(cast("bytes", part.records))).base_sequence
            for part in self.request.topic_data[0].partition_data
        }

    def succeed(self) -> None:
        response = messages.ProduceResponse
        parts = [response.PartitionProduceResponse(index, 0, 40) for index in self.partitions]
        self.answer.set_result(
            response(responses=[response.TopicProduceResponse("t", partition_responses=parts)])
        )


@dataclass
class _Connection:
    cluster: LateBroker
    purpose: str
    peer: str = "h:1"
    closed: bool = False
    is_receiving: bool = False

    def submit(self, request: Any, *_: Any, answered: bool) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.cluster.waiting.append(Waiting(self.purpose, request, answer))
        return answer


class LateBroker(ScriptedCluster):
    """Broker 1 leads all partitions; it answers on each of its connections when the test says."""

    def __init__(self, replicas: list[tuple[int, ...]]) -> None:
        described = topic("t", [1] * len(replicas), ordered=False)
        partitions = {
            index: replace(part, replicas=replicas[index], isr=replicas[index])
            for index, part in described.partitions.items()
        }
        identity = messages.InitProducerIdResponse(error_code=0, producer_id=7, producer_epoch=0)
        super().__init__(
            view_of(replace(described, partitions=partitions)),
            {messages.InitProducerIdRequest: lambda *_: identity},
        )
        self.waiting: list[Waiting] = []
        self.greets = True
        self.connections: list[str] = []

    async def connection(self, node_id: int, purpose: str = "") -> ClientConnection:
        if not purpose:
            return await super().connection(node_id)
        self.connections.append(purpose)
        if purpose != "produce" and not self.greets:
            raise ConnectionLost("it is stopped")
        return cast("ClientConnection", _Connection(self, purpose))

    def take(self) -> list[Waiting]:
        found, self.waiting = self.waiting, []
        return found


Story = Callable[[LateBroker, RecordSender], Awaitable[None]]


def played(replicas: list[tuple[int, ...]], of: Story, **settings: Any) -> None:
    async def whole() -> None:
        broker = LateBroker(replicas)
        sender = RecordSender(broker, SendSettings(**{"linger_ms": 0, **settings}))
        await of(broker, sender)
        # Whatever is not sent.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await sender.close()

    story(whole)


async def sent(sender: RecordSender, *partitions: int) -> list[asyncio.Future[Any]]:
    futures = [await sender.send("t", b"v", partition=each) for each in partitions]
    for each in futures:
        each.add_done_callback(lambda each: each.cancelled() or each.exception())
    return futures


async def in_one_request(
    broker: LateBroker, sender: RecordSender, count: int
) -> tuple[list[asyncio.Future[Any]], Waiting]:
    """Send a record to each partition, in one request that nothing answers."""
    futures = await sent(sender, *range(count))
    await until(lambda: broker.waiting)
    (whole,) = broker.take()
    assert whole.purpose == "produce" and whole.partitions == list(range(count))
    return futures, whole


def test_each_part_goes_on_by_itself_under_the_same_numbers() -> None:
    async def of(broker: LateBroker, sender: RecordSender) -> None:
        (stuck, free, too), whole = await in_one_request(broker, sender, 3)
        await until(lambda: len(broker.waiting) == 2)
        parts = {tuple(each.partitions): each for each in broker.take()}
        assert parts.keys() == {(0,), (1, 2)}
        assert len({each.purpose for each in (*parts.values(), whole)}) == 3
        for each in parts.values():
            assert each.sequences.items() <= whole.sequences.items()
        parts[(1, 2)].succeed()
        await asyncio.gather(free, too)
        assert not stuck.done()
        await sent(sender, 0, 1)
        await until(lambda: broker.waiting)
        (later,) = broker.take()
        assert later.partitions == [1] and later.purpose == parts[(1, 2)].purpose
        # The response to the first request says nothing any more.
        whole.succeed()
        await asyncio.sleep(0)
        assert not stuck.done()
        parts[(0,)].succeed()
        await stuck

    played([(1, 2), (1, 3), (3, 1)], of)


async def looks(count: int) -> None:
    """Wait until late responses were looked for so many times."""
    end = CountedFlights.looked + count
    await until(lambda: CountedFlights.looked >= end)


async def stays(broker: LateBroker, sender: RecordSender) -> None:
    futures, whole = await in_one_request(broker, sender, 2)
    await looks(3)
    assert broker.waiting == []
    whole.succeed()
    await asyncio.gather(*futures)


def test_partitions_on_the_same_brokers_wait_together() -> None:
    async def of(broker: LateBroker, sender: RecordSender) -> None:
        await stays(broker, sender)
        assert set(broker.connections) == {"produce"}

    played([(1, 2, 3), (2, 3, 1)], of)


def test_a_broker_that_does_not_greet_gets_nothing_twice() -> None:
    async def of(broker: LateBroker, sender: RecordSender) -> None:
        broker.greets = False
        await stays(broker, sender)
        assert "produce 1" in broker.connections

    played([(1, 2), (1, 3)], of)


def test_without_an_identity_nothing_is_sent_twice() -> None:
    async def of(_: LateBroker, sender: RecordSender) -> None:
        await sent(sender, 0, 1)
        loop = asyncio.get_running_loop()
        end = loop.time() + 3 * SOON_S
        await until(lambda: loop.time() > end)
        assert CountedFlights.looked == 0

    for acks in (-1, 1):
        played([(1, 2), (1, 3)], of, idempotent=False, acks=acks)


def test_a_response_in_time_costs_no_connection() -> None:
    async def of(broker: LateBroker, sender: RecordSender) -> None:
        for _ in range(20):
            futures = await sent(sender, 0, 1)
            while not all(each.done() for each in futures):
                await asyncio.sleep(0)
                for each in broker.take():
                    each.succeed()
        assert set(broker.connections) == {"produce"}

    played([(1, 2), (1, 3)], of)


def test_what_is_in_time_again_shares_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "DIVIDED_S", 5 * SOON_S)

    async def of(broker: LateBroker, sender: RecordSender) -> None:
        await in_one_request(broker, sender, 2)
        await until(lambda: len(broker.waiting) == 2)
        for each in broker.take():
            each.succeed()

        async def is_joined() -> bool:
            await sent(sender, 0, 1)
            await until(lambda: broker.waiting)
            found = broker.take()
            for each in found:
                each.succeed()
            await looks(1)
            return {each.purpose for each in found} == {"produce"}

        async with asyncio.timeout(5):
            while not await is_joined():
                pass

    played([(1, 2), (1, 3)], of)


def test_the_connections_of_a_broker_have_a_bound() -> None:
    view = view_of(topic("t", [1] * 40, ordered=False))
    described = view.topics["t"]
    partitions = {
        index: replace(part, replicas=(1, 100 + index))
        for index, part in described.partitions.items()
    }
    view = view_of(replace(described, partitions=partitions))
    broker = Lanes()
    where = [TopicPartition("t", index) for index in range(40)]
    assert {broker.of(1, each, view) for each in where} == {Lane(1)}
    broker.divide(1, 0.0)
    places = [broker.of(1, each, view) for each in where]
    assert places == [broker.of(1, each, view) for each in where]
    assert {each.number for each in places} == set(range(1, MOST_LANES + 1))
    assert broker.of(2, where[0], view) == Lane(2), "another broker is whole"
    broker.join(lanes.DIVIDED_S)
    assert {broker.of(1, each, view) for each in where} == {Lane(1)}
