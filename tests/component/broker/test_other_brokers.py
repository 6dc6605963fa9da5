"""The questions of one broker to others: the connections that they share, and how these end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.network_server import turn, until
from tidelog.broker.metadata import other_brokers
from tidelog.broker.metadata.cache import MetadataCache
from tidelog.broker.metadata.leader_fences import ask_for_fences
from tidelog.broker.metadata.leader_offsets import EARLIEST, ask_leader
from tidelog.broker.metadata.other_brokers import MOST_PAUSE_MS, OtherBrokers
from tidelog.model.api_keys import ApiKey
from tidelog.model.configs.server import ServerConfigs, from_mapping
from tidelog.model.topics import TopicPartition
from tidelog.network import api_versions
from tidelog.network.router import Handler, Router, Scope
from tidelog.network.server import Server
from tidelog.protocol import messages
from tidelog.runtime.backoff import Backoff

LONG_MS = 60_000


@pytest.fixture(autouse=True)
def long_limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No limit ends in a test that does not say so, however slow the machine is."""
    monkeypatch.setattr(other_brokers, "ANSWER_MS", LONG_MS)
    yield


class Leader:
    """Another broker. The start of each log is the number of its partition."""

    def __init__(self) -> None:
        self.port = 0
        self.accepted: set[Any] = set()
        """The connections on which requests came."""
        self.client_ids: set[str | None] = set()
        self.seen: list[int] = []
        self.pending: list[tuple[asyncio.Future[Any], Any]] = []
        self.holds = False
        """Whether a response waits until the test releases it."""

    async def start(self) -> None:
        api, versions = ApiKey.LIST_OFFSETS, range(1, 8)
        offsets = Handler(api, Scope.CLIENT, self._offsets, pipelined=True, versions=versions)
        self.server = Server(Router([api_versions.HANDLER, offsets]), None)
        self.port = await self.server.listen("PLAINTEXT", "127.0.0.1", self.port)

    async def stop(self) -> None:
        await self.server.stop(grace_s=0)

    @property
    def open(self) -> int:
        """The number of open connections."""
        return len(self.server.connections)

    def _offsets(self, _: Any, request: Any, context: Any) -> Any:
        self.accepted.add(context.connection)
        self.client_ids.add(context.client_id)
        found = messages.ListOffsetsResponse
        parts = [each.partition_index for each in request.topics[0].partitions]
        self.seen += parts
        made = [found.ListOffsetsPartitionResponse(part, 0, -1, part) for part in parts]
        response = found(topics=[found.ListOffsetsTopicResponse("t", made)])
        if not self.holds:
            return response
        future = asyncio.get_running_loop().create_future()
        self.pending.append((future, response))
        return future

    def release(self) -> None:
        """Send the oldest response that waits, if its connection is still there."""
        future, response = self.pending.pop(0)
        if not future.done():
            future.set_result(response)


class Asking:
    """The questions of broker 1."""

    def __init__(self) -> None:
        configs = from_mapping(
            {
                "process.roles": "broker",
                "node.id": "1",
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "controller.quorum.bootstrap.servers": "127.0.0.1:1",
                "log.dirs": "unused",
            }
        )
        assert isinstance(configs, ServerConfigs), configs
        self.metadata = MetadataCache()
        self.others = OtherBrokers(self.metadata, configs, None, random.Random(1))
        self.metadata.when_brokers_changed.append(self.others.brokers_changed)

    def learn(self, **ports: int) -> None:
        """Take metadata with these live brokers: b2=PORT is broker 2."""
        request = messages.UpdateMetadataRequest
        brokers = [
            request.UpdateMetadataBroker(
                id=int(name[1:]),
                endpoints=[
                    request.UpdateMetadataEndpoint(
                        port=port, host="127.0.0.1", listener="PLAINTEXT"
                    )
                ],
            )
            for name, port in ports.items()
        ]
        self.metadata.apply(request(controller_id=1, live_brokers=brokers), complete=False)

    async def ask(self, *partitions: int, broker: int = 2) -> list[int]:
        """Ask a broker for the starts of partitions."""
        wanted = [TopicPartition("t", each) for each in partitions]
        found = await ask_leader(self.others, broker, "test", wanted, EARLIEST)
        return list(found.values())


@asynccontextmanager
async def a_leader() -> AsyncIterator[tuple[Asking, Leader]]:
    leader, asking = Leader(), Asking()
    await leader.start()
    asking.learn(b2=leader.port)
    try:
        yield asking, leader
    finally:
        asking.others.close()
        await leader.stop()


def test_later_questions_use_the_first_ones_connection() -> None:
    async def story() -> None:
        async with a_leader() as (asking, leader):
            for number in range(5):
                assert await asking.ask(number, number + 1) == [number, number + 1]
            assert len(leader.accepted) == leader.open == 1
            assert leader.client_ids == {"broker-1"}

    asyncio.run(story())


def test_questions_at_the_same_time_get_their_own_responses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(other_brokers, "AT_ONCE", 3)

    async def story() -> None:
        async with a_leader() as (asking, leader):
            leader.holds = True
            asked = [asyncio.create_task(asking.ask(number)) for number in range(10)]
            for answered in range(10):
                # So many are in flight, and the others wait for their turn.
                await until(lambda: len(leader.pending) == min(3, 10 - answered))  # noqa: B023
                assert len(leader.seen) == min(10, answered + 3)
                leader.release()
                await asked[answered]
            assert [task.result() for task in asked] == [[number] for number in range(10)]
            assert len(leader.accepted) == 1

    asyncio.run(story())


def test_a_connection_without_questions_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_brokers, "IDLE_S", 0)

    async def story() -> None:
        async with a_leader() as (asking, leader):
            leader.holds = True
            asked = asyncio.create_task(asking.ask(1))
            await until(lambda: leader.pending)
            second = asyncio.create_task(asking.ask(2))
            leader.release()
            # The end of the first question does not close the connection of the second one.
            assert await asked == [1]
            await until(lambda: leader.pending)
            leader.release()
            assert await second == [2]
            await until(lambda: not leader.open)
            leader.holds = False
            assert await asking.ask(3) == [3]
            assert len(leader.accepted) == 2

    asyncio.run(story())


def test_a_broker_that_refused_a_connection_is_not_asked_within_the_back_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(other_brokers, "PAUSE_MS", LONG_MS)
    monkeypatch.setattr(other_brokers, "MOST_PAUSE_MS", LONG_MS)

    async def story() -> None:
        async with a_leader() as (asking, leader):
            await leader.stop()
            # Those that fail together are one failure.
            assert await asyncio.gather(*map(asking.ask, range(4))) == [[]] * 4
            assert asking.others._others[2]._failures == 1
            await leader.start()
            assert await asking.ask(1) == []
            assert not leader.accepted and not leader.open
            # Another address is another chance.
            asking.learn(b3=leader.port)
            asking.learn(b2=leader.port)
            assert await asking.ask(1) == [1]

    asyncio.run(story())


def test_after_the_back_off_it_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_brokers, "PAUSE_MS", 0)
    monkeypatch.setattr(other_brokers, "MOST_PAUSE_MS", 0)

    async def story() -> None:
        async with a_leader() as (asking, leader):
            await leader.stop()
            assert await asking.ask(1) == []
            assert await asking.ask(1) == []
            assert asking.others._others[2]._failures == 2
            await leader.start()
            assert await asking.ask(1) == [1]
            assert asking.others._others[2]._failures == 0

    asyncio.run(story())


def test_an_api_that_a_broker_does_not_serve_is_no_failure() -> None:
    async def story() -> None:
        async with a_leader() as (asking, leader):
            assert not await ask_for_fences(asking.others, 2, "test", [TopicPartition("t", 1)])
            assert await asking.ask(1) == [1]
            assert len(leader.accepted) == leader.open == 1

    asyncio.run(story())


def test_what_is_asked_every_second_is_not_kept_from_it_by_the_back_off() -> None:
    assert MOST_PAUSE_MS * (1 + Backoff().jitter) < 1_000


def test_a_late_response_meets_no_other_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_brokers, "PAUSE_MS", 0)
    monkeypatch.setattr(other_brokers, "MOST_PAUSE_MS", 0)

    async def story() -> None:
        async with a_leader() as (asking, leader):
            assert await asking.ask(1) == [1]
            leader.holds = True
            monkeypatch.setattr(other_brokers, "ANSWER_MS", 20)
            assert await asking.ask(2) == []
            monkeypatch.setattr(other_brokers, "ANSWER_MS", LONG_MS)
            await until(lambda: not leader.open)
            leader.holds = False
            leader.release()
            assert await asking.ask(3) == [3]
            assert len(leader.accepted) == 2

    asyncio.run(story())


def test_the_connection_stays_when_its_question_is_cancelled() -> None:
    async def story() -> None:
        async with a_leader() as (asking, leader):
            first, second = (asyncio.create_task(asking.ask(each)) for each in (1, 2))
            await until(lambda: leader.open)
            first.cancel()
            # It opens the connection itself, if the first question had not come so far.
            assert await second == [2]
            leader.holds = True
            third = asyncio.create_task(asking.ask(3))
            await until(lambda: leader.pending)
            fourth = asyncio.create_task(asking.ask(4))
            third.cancel()
            leader.holds = False
            leader.release()
            assert await fourth == [4]
            assert len(leader.accepted) == 1

    asyncio.run(story())


def test_a_changed_address_closes_the_connection_to_the_former_one() -> None:
    async def story() -> None:
        async with a_leader() as (asking, former), a_leader() as (_, leader):
            assert await asking.ask(1) == [1]
            asking.learn(b2=leader.port)
            await until(lambda: not former.open)
            assert await asking.ask(2) == [2]
            assert (former.seen, leader.seen) == ([1], [2])
            # The same address in newer metadata: the connection stays.
            asking.learn(b2=leader.port, b3=former.port)
            assert await asking.ask(3) == [3]
            assert len(leader.accepted) == leader.open == 1

    asyncio.run(story())


def test_a_broker_that_the_metadata_lose_is_not_asked() -> None:
    async def story() -> None:
        async with a_leader() as (asking, leader):
            leader.holds = True
            asked = asyncio.create_task(asking.ask(1))
            await until(lambda: leader.pending)
            asking.learn(b3=leader.port)
            assert await asked == []
            assert await asking.ask(1) == []
            await until(lambda: not leader.open)
            assert not asking.others._others

    asyncio.run(story())


def test_a_connection_that_the_other_broker_closed_is_opened_again() -> None:
    async def story() -> None:
        async with a_leader() as (asking, leader):
            assert await asking.ask(1) == [1]
            kept = asking.others._others[2]._connection
            assert kept is not None
            await leader.stop()
            await kept.wait_closed()
            await leader.start()
            assert await asking.ask(2) == [2]

    asyncio.run(story())


def test_a_stop_ends_questions_and_closes_all_connections() -> None:
    async def story() -> None:
        async with a_leader() as (asking, leader), a_leader() as (_, other):
            asking.learn(b2=leader.port, b3=other.port)
            assert await asking.ask(3, broker=3) == [3]
            leader.holds = True
            asked = [asyncio.create_task(asking.ask(each)) for each in (1, 2)]
            await until(lambda: leader.pending)
            asking.others.close()
            assert await asyncio.gather(*asked) == [[], []]
            await until(lambda: not leader.open and not other.open)
            assert await asking.ask(3, broker=3) == []
            assert len(asyncio.all_tasks()) == 1

    asyncio.run(story())


def test_a_stop_while_a_connection_opens_closes_it() -> None:
    async def story() -> None:
        async with a_leader() as (asking, leader):
            asked = [asyncio.create_task(asking.ask(each)) for each in (1, 2)]
            await turn()  # both have begun, and the connection cannot be open yet
            asking.others.close()
            assert await asyncio.gather(*asked) == [[], []]
            await until(lambda: not leader.open)
            assert not leader.seen

    asyncio.run(story())
