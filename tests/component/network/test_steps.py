"""Requests that are done in steps: turns of the loop, long requests, answers charged while made."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from itertools import groupby
from typing import Any

import pytest
import uvloop

from tests.support.network_server import Peer, heartbeat, produce, until
from tests.support.processes import DEADLINE_S
from tests.support.set_clock import SetClock, burn
from tidelog.broker import handlers
from tidelog.broker.control_plane.forwarding import forwarded
from tidelog.controller.handlers import alter_partition_reassignments
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.work import Work
from tidelog.network import api_versions
from tidelog.network.answer_queue import ANSWERS_RETRY_S, AnswerQueue
from tidelog.network.limits import Account, Limits
from tidelog.network.router import MOST_ELEMENTS, CloseConnection, Handler, Router, Scope
from tidelog.network.server import Server
from tidelog.protocol import codec, messages
from tidelog.protocol.primitives import TooManyElements
from tidelog.runtime.clock import Clock
from tidelog.runtime.pace import REQUESTS_MS

TURN_S = REQUESTS_MS / 1000


@pytest.fixture
def run() -> Iterator[Any]:
    """Run a coroutine on uvloop."""

    def call(main: Any) -> Any:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main)

    yield call


class Works:
    """Handlers that are generators, and what they saw."""

    def __init__(self, *, waits_first: bool = False) -> None:
        self.waits_first = waits_first
        self.steps = 0
        self.steps_of: list[int] = []
        """By request of ``endless``."""
        self.most_steps = 10**9
        self.step_s = 0.0
        self.ended = 0
        self.goes_on = False
        self.bytes_at_a_step = 0
        self.records: list[bytes] = []
        self.described: list[int] = []

    def produce(self, _: Any, request: Any, context: Any) -> Any:
        """Look at the records before each step and after the last."""
        (topic,) = request.topic_data
        (part,) = topic.partition_data
        before = bytes(part.records)
        if request.acks == 7:
            raise CloseConnection("seven")
        for _ in range(3):
            burn(TURN_S)
            yield 0
        if request.acks == 8:
            raise ZeroDivisionError("planted")
        assert bytes(part.records) == before
        self.records.append(before)
        return messages.ProduceResponse(throttle_time_ms=request.timeout_ms)

    def heartbeat(self, _: Any, request: Any, context: Any) -> Any:
        return messages.HeartbeatResponse(error_code=0)

    def endless(self, _: Any, request: Any, context: Any) -> Any:
        """Go on until the test has seen enough."""
        at = len(self.steps_of)
        self.steps_of.append(0)
        try:
            while self.goes_on and self.steps_of[at] < self.most_steps:
                self.steps += 1
                self.steps_of[at] += 1
                burn(self.step_s)
                yield self.bytes_at_a_step
            return messages.ListGroupsResponse(error_code=0)
        finally:
            self.ended += 1

    async def later(self, server: Any, request: Any, context: Any) -> Any:
        """Wait, and do the same then."""
        await asyncio.sleep(0)
        return self.endless(server, request, context)

    def describe(self, _: Any, request: Any, context: Any) -> Any:
        self.described.append(len(request.groups))
        group = messages.DescribeGroupsResponse.DescribedGroup
        return messages.DescribeGroupsResponse(groups=[group(group_id=n) for n in request.groups])

    def router(self) -> Router:
        endless = self.later if self.waits_first else self.endless
        return Router(
            [
                api_versions.HANDLER,
                Handler(ApiKey.HEARTBEAT, Scope.CLIENT, self.heartbeat),
                Handler(
                    ApiKey.PRODUCE,
                    Scope.CLIENT,
                    self.produce,
                    pipelined=True,
                    long_records=True,
                    versions=range(12),
                ),
                Handler(ApiKey.LIST_GROUPS, Scope.CLIENT, endless),
                Handler(ApiKey.DESCRIBE_GROUPS, Scope.CLIENT, self.describe),
            ]
        )


@asynccontextmanager
async def serving(works: Works, limits: Limits | None = None, clock: Clock | None = None) -> Any:
    """The server, and how to connect to it."""
    server = Server(works.router(), None, limits, clock=clock)
    port = await server.listen("PLAINTEXT", "127.0.0.1", 0)

    async def connect(**options: Any) -> Peer:
        return Peer(*await asyncio.open_connection("127.0.0.1", port, limit=2**26, **options))

    try:
        yield server, connect
    finally:
        works.goes_on = False
        await server.stop(grace_s=0.2)


WAITS_FIRST = pytest.mark.parametrize("waits_first", [False, True])


@WAITS_FIRST
def test_others_have_their_turn_while_a_request_is_done_in_steps(
    run: Any, waits_first: bool
) -> None:
    async def main() -> None:
        works = Works(waits_first=waits_first)
        works.goes_on = True
        async with serving(works) as (server, connect):
            long, other = await connect(), await connect()
            long.send(ApiKey.LIST_GROUPS, 4, 1, messages.ListGroupsRequest())
            long.send(ApiKey.HEARTBEAT, 4, 2, heartbeat("g"))
            await until(lambda: works.steps)
            for number in range(20):
                other.send(ApiKey.HEARTBEAT, 4, number, heartbeat("g"))
                assert await other.receive_correlation() == number
            assert server.router.tallies[ApiKey.HEARTBEAT].requests == 20, "the rest must wait"
            works.goes_on = False
            assert [await long.receive_correlation() for _ in range(2)] == [1, 2]
            assert works.ended == 1

    run(main())


def test_record_bytes_stay_until_the_steps_end_and_answers_keep_their_order(run: Any) -> None:
    async def main() -> None:
        works = Works()
        async with serving(works) as (_, connect):
            peer = await connect()
            sizes = [10, 70_000, 300, 200_000, 5, 1_000_000, 100]
            bodies = [bytes([number]) * size for number, size in enumerate(sizes)]
            for number, body in enumerate(bodies):
                peer.send(ApiKey.PRODUCE, 9, number, produce(body))
            got = [await peer.receive_correlation() for _ in sizes]
            assert got == list(range(len(sizes)))
            assert works.records == bodies

    run(main())


def test_a_failure_in_mid_work_is_answered_and_a_refusal_closes(
    run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        works = Works()
        async with serving(works) as (_, connect):
            peer = await connect()
            for number, acks in enumerate((8, 1)):
                request = produce(b"x")
                request.acks = acks
                peer.send(ApiKey.PRODUCE, 9, number, request)
                assert await peer.receive_correlation() == number
            request.acks = 7
            peer.send(ApiKey.PRODUCE, 9, 3, request)
            assert await peer.ended()

    with caplog.at_level(logging.WARNING):
        run(main())
    lines = [each.getMessage() for each in caplog.records if each.name.startswith("tidelog")]
    assert len(lines) == 2 and "Produce failed" in lines[0] and lines[1].endswith(": seven")


@WAITS_FIRST
def test_work_for_a_client_that_is_gone_ends(run: Any, waits_first: bool) -> None:
    async def main() -> None:
        works = Works(waits_first=waits_first)
        works.goes_on, works.bytes_at_a_step, works.step_s = True, 10, TURN_S
        async with serving(works) as (server, connect):
            peer = await connect()
            peer.send(ApiKey.LIST_GROUPS, 4, 1, messages.ListGroupsRequest())
            await until(lambda: works.steps)
            await until(lambda: server.memory.answers)
            peer.writer.close()
            await until(lambda: works.ended and not server.connections)
            assert works.goes_on
            assert server.memory.used == server.memory.answers == server.memory.unmade == 0

    run(main())


@WAITS_FIRST
def test_an_answer_is_charged_while_it_is_made_and_has_a_limit(
    run: Any, caplog: pytest.LogCaptureFixture, waits_first: bool
) -> None:
    async def main() -> None:
        works = Works(waits_first=waits_first)
        works.goes_on, works.bytes_at_a_step = True, 10
        async with serving(works, Limits(max_request_bytes=5_000_000)) as (server, connect):
            peer = await connect()
            peer.send(ApiKey.LIST_GROUPS, 4, 1, messages.ListGroupsRequest())
            await until(lambda: server.memory.answers > 1000)
            works.goes_on = False
            assert await peer.receive_correlation() == 1
            await until(lambda: server.memory.answers == 0)
            works.goes_on, works.bytes_at_a_step = True, 1000
            peer.send(ApiKey.LIST_GROUPS, 4, 1, messages.ListGroupsRequest())
            assert await peer.ended()
            await until(lambda: server.memory.answers == 0)

    with caplog.at_level(logging.WARNING):
        run(main())
    assert "its response has more than 5000000 bytes: ask in parts" in caplog.text


def test_one_answer_grows_at_a_time_while_there_is_too_much(run: Any) -> None:
    async def main() -> None:
        works = Works()
        works.goes_on, works.bytes_at_a_step = True, 1000
        async with serving(works, Limits(unsent_answer_bytes=1_000_000)) as (server, connect):
            peers = [await connect() for _ in range(5)]
            for peer in peers:
                peer.send(ApiKey.LIST_GROUPS, 4, 1, messages.ListGroupsRequest())
            await until(lambda: server.memory.answers > 4 / 3 * 1_000_000)
            works.bytes_at_a_step = 0
            steps = list(works.steps_of)
            await asyncio.sleep(0)
            same_address = await connect()
            same_address.send(ApiKey.HEARTBEAT, 4, 1, heartbeat("g"))
            await until(lambda: len(server.connections) == 6 and works.steps > sum(steps))
            assert len(works.steps_of) == len(steps)
            grown = sum(now > before for now, before in zip(works.steps_of, steps, strict=True))
            assert grown == 1, "no other connection's"
            assert not server.router.tallies[ApiKey.HEARTBEAT].requests, "no connection's begins"
            for peer in peers:
                peer.writer.close()
            assert await same_address.receive_correlation() == 1
            assert server.memory.answers == 0

    run(main())


@WAITS_FIRST
def test_answers_that_are_made_do_not_wait_for_each_other(run: Any, waits_first: bool) -> None:
    """All of them stopped when they were too large together, and were closed as idle after 10 s."""

    async def main() -> None:
        works = Works(waits_first=waits_first)
        works.goes_on, works.bytes_at_a_step, works.step_s = True, 400_000, TURN_S
        works.most_steps = 3
        async with serving(works, Limits(unsent_answer_bytes=1_000_000)) as (server, connect):
            peers = [await connect() for _ in range(5)]
            for peer in peers:
                peer.send(ApiKey.LIST_GROUPS, 4, 1, messages.ListGroupsRequest())
            for peer in peers:
                assert await peer.receive_correlation() == 1
            assert server.memory.used == server.memory.answers == server.memory.unmade == 0

    run(main())


@WAITS_FIRST
def test_no_answer_is_finished_while_clients_leave_theirs_unread(
    run: Any, waits_first: bool
) -> None:
    async def main() -> None:
        works = Works(waits_first=waits_first)
        works.goes_on, works.bytes_at_a_step, works.step_s = True, 100_000, TURN_S
        async with serving(works, Limits(unsent_answer_bytes=1_000_000)) as (server, connect):
            peer = await connect()
            peer.send(ApiKey.LIST_GROUPS, 4, 1, messages.ListGroupsRequest())
            await until(lambda: works.steps)
            (connection,) = server.connections
            other = await connect(local_addr=("127.0.0.3", 0))
            # What another connection of its address leaves unread.
            server.memory.charge(2_000_000, connection)
            steps, end = works.steps, server.loop.time() + 5 * ANSWERS_RETRY_S
            while server.loop.time() < end:
                other.send(ApiKey.HEARTBEAT, 4, 1, heartbeat("g"))
                assert await other.receive_correlation() == 1
            assert works.steps <= steps + 1
            server.memory.charge(-2_000_000, connection)
            await until(lambda: works.steps > steps + 1)

    run(main())


def test_connections_that_wait_for_readers_share_one_queue(run: Any) -> None:
    """Each connection asked again every 20 ms: 500 of them took a seventh of a core."""

    async def main() -> None:
        works = Works()
        async with serving(works, Limits(unsent_answer_bytes=1_000_000)) as (server, connect):
            holder = await connect()
            holder.send(ApiKey.HEARTBEAT, 4, 0, heartbeat("g"))
            assert await holder.receive_correlation() == 0
            (connection,) = server.connections
            server.memory.charge(2_000_000, connection)
            peers = [await connect() for _ in range(300)]
            for number, peer in enumerate(peers):
                peer.send(ApiKey.HEARTBEAT, 4, number, heartbeat("g"))
            await until(
                lambda: server.counts.bytes_in >= 301 * 20 and len(server.connections) == 301
            )
            queue = server.answer_queue
            await until(lambda: sum(each in queue for each in server.connections) == 300)
            asked, end = 0, server.loop.time() + 10 * ANSWERS_RETRY_S
            in_share = Account.in_share

            def counted(self: Account, *how: Any) -> bool:
                nonlocal asked
                asked += 1
                return in_share(self, *how)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Account, "in_share", counted)
                await until(lambda: server.loop.time() > end)
            assert asked <= 20, f"{asked} times in 10 looks"
            peers[7].writer.close()
            await until(lambda: len(server.connections) == 300)
            server.memory.charge(-2_000_000, connection)
            for number, peer in enumerate(peers):
                if number != 7:
                    assert await peer.receive_correlation() == number
            assert not server.answer_queue._waiting and not server.answer_queue._place

    run(main())


def test_the_longest_waiting_is_asked_first_and_each_address_in_turn() -> None:
    async def main() -> None:
        asked: list[str] = []
        account = Account(100)
        queue = AnswerQueue(asyncio.get_running_loop(), account)

        class Waits:
            def __init__(self, name: str, *, has_room: bool) -> None:
                self.client_host, self.name, self.has_room = name[0], name, has_room

            def may_answer_now(self) -> bool:
                asked.append(self.name)
                return self.has_room

            def answer_now(self) -> None:
                asked.append("go on")

        first = [Waits(f"a{number}", has_room=False) for number in range(3)]
        others = [Waits("b0", has_room=True), Waits("c0", has_room=False)]
        for each in (*first, *others):
            queue.wait(each, 0)
        await until(lambda: len(asked) >= 4)
        assert asked == ["a0", "b0", "go on", "c0"], "a1 and a2 need the same as a0"
        first[0].has_room = True
        assert queue.left(others[1]) and not queue.left(others[0])
        await until(lambda: "a1" in asked)
        assert asked[4:] == ["a0", "go on", "a1"]
        assert account.may_finish(first[2])
        first[2].has_room = True
        await until(lambda: "a2" in asked)
        assert asked[7:] == ["a2", "go on", "a1"], "others of its address wait for this one"
        assert first[1] in queue and first[2] not in queue
        queue.stop()

    asyncio.run(main())


def test_a_request_does_not_wait_for_what_it_is_charged_itself(run: Any) -> None:
    """A long request was charged more than answers may take, and its answer never grew."""

    def handle(_: Any, request: Any, _context: Any) -> Any:
        for _ in range(3):
            burn(TURN_S)
            yield 10_000
        return messages.DescribeGroupsResponse()

    async def main() -> None:
        router = Router(
            [api_versions.HANDLER, Handler(ApiKey.DESCRIBE_GROUPS, Scope.CLIENT, handle)]
        )
        server = Server(router, None, Limits(unsent_answer_bytes=100_000))
        port = await server.listen("PLAINTEXT", "127.0.0.1", 0)
        peer = Peer(*await asyncio.open_connection("127.0.0.1", port))
        groups = [f"group-{number}" for number in range(10_000)]
        peer.send(ApiKey.DESCRIBE_GROUPS, 5, 1, messages.DescribeGroupsRequest(groups=groups))
        assert await peer.receive_correlation() == 1
        assert server.memory.answers == server.memory.unmade == 0
        await server.stop(grace_s=0.2)

    run(main())


def test_a_connection_that_waits_after_its_steps_does_not_keep_the_favour(run: Any) -> None:
    """It kept it, and its buffer, until it was answered: all others waited for that."""
    pending: list[asyncio.Future[Any]] = []

    def handle(_: Any, request: Any, _context: Any) -> Any:
        if not request.groups:
            return messages.DescribeGroupsResponse()
        for _ in range(3):
            burn(TURN_S)
            yield 0
        pending.append(asyncio.get_running_loop().create_future())
        return pending[0]

    async def main() -> None:
        router = Router(
            [api_versions.HANDLER, Handler(ApiKey.DESCRIBE_GROUPS, Scope.CLIENT, handle)]
        )
        server = Server(router, None, Limits(queued_request_bytes=10_000))
        port = await server.listen("PLAINTEXT", "127.0.0.1", 0)
        peer = Peer(*await asyncio.open_connection("127.0.0.1", port))
        peer.send(ApiKey.DESCRIBE_GROUPS, 5, 0, messages.DescribeGroupsRequest())
        assert await peer.receive_correlation() == 0
        groups = [f"group-{number}" for number in range(10_000)]
        peer.send(ApiKey.DESCRIBE_GROUPS, 5, 1, messages.DescribeGroupsRequest(groups=groups))
        await until(lambda: pending)
        assert not server.memory.contended
        pending[0].set_result(messages.DescribeGroupsResponse())
        assert await peer.receive_correlation() == 1
        await server.stop(grace_s=0.2)

    run(main())


def test_a_long_request_is_parsed_in_steps(run: Any) -> None:
    async def main() -> None:
        works = Works()
        async with serving(works) as (_, connect):
            peer = await connect()
            names = [f"group-{number}" for number in range(20_000)]
            for number, version in enumerate((0, 5)):
                request = messages.DescribeGroupsRequest(groups=names)
                peer.send(ApiKey.DESCRIBE_GROUPS, version, number, request)
                frame = memoryview(await peer.receive())
                answer = codec.decode_response(ApiKey.DESCRIBE_GROUPS, version, frame)[1]
                assert [each.group_id for each in answer.groups] == names
            assert works.described == [20_000, 20_000]

    run(main())


def test_a_long_request_of_records_is_parsed_in_steps(run: Any) -> None:
    """A Produce of 360 kB names 20,000 topics: parsed at once it took 45 to 85 ms of the loop."""

    def at_once(*_: Any) -> Any:
        raise AssertionError("it was parsed at once")

    async def main() -> None:
        works = Works()
        async with serving(works) as (server, connect):
            for trusted in (True, False):
                route = server.router.route(ApiKey.PRODUCE, 9, trusted)
                assert route is not None
                route.decode = at_once
            peer = await connect()
            peer.send(ApiKey.PRODUCE, 9, 1, produce(bytes(70_000)))
            assert await peer.receive_correlation() == 1
            assert works.records == [bytes(70_000)]

    run(main())


def test_the_elements_of_a_long_request_of_records_are_charged_while_it_has_steps(run: Any) -> None:
    """19,000 topics in 300 kB are 4 MB of objects, and no limit counted them."""
    many = 19_000
    parsed: list[int] = []
    may_end: list[int] = []

    def handle(_: Any, request: Any, _context: Any) -> Any:
        parsed.append(len(request.topic_data))
        while request.timeout_ms not in may_end:
            yield 0
        return messages.ProduceResponse()

    async def main() -> None:
        router = Router(
            [
                api_versions.HANDLER,
                Handler(ApiKey.HEARTBEAT, Scope.CLIENT, Works().heartbeat),
                Handler(
                    ApiKey.PRODUCE,
                    Scope.CLIENT,
                    handle,
                    pipelined=True,
                    long_records=True,
                    versions=range(12),
                ),
            ]
        )
        server = Server(router, None, Limits(unsent_answer_bytes=1_000_000))
        port = await server.listen("PLAINTEXT", "127.0.0.1", 0)
        peer = Peer(*await asyncio.open_connection("127.0.0.1", port))
        # Records are in the receive buffer alone.
        request = produce(bytes(2_000_000))
        request.timeout_ms = 1
        peer.send(ApiKey.PRODUCE, 9, 1, request)
        await until(lambda: parsed == [1])
        assert server.memory.unmade == server.memory.answers == 0
        may_end.append(1)
        assert await peer.receive_correlation() == 1

        topic = messages.ProduceRequest.TopicProduceData
        topics = [topic(name=f"topic-{number}") for number in range(many)]
        request = messages.ProduceRequest(acks=1, timeout_ms=2, topic_data=topics)
        peer.send(ApiKey.PRODUCE, 9, 2, request)
        await until(lambda: parsed == [1, many])
        await until(lambda: server.memory.unmade > 200 * many)
        assert server.memory.answers == server.memory.unmade
        (first,) = server.connections
        other = Peer(*await asyncio.open_connection("127.0.0.1", port))
        other.send(ApiKey.HEARTBEAT, 4, 3, heartbeat("g"))
        waits = lambda: [x for x in server.connections if x in server.answer_queue]  # noqa: E731
        await until(waits)
        assert waits() != [first], "the Produce goes on, and the other request waits for it"
        may_end.append(2)
        assert await peer.receive_correlation() == 2
        assert await other.receive_correlation() == 3
        assert server.memory.answers == server.memory.unmade == 0
        await server.stop(grace_s=0.2)

    run(main())


@pytest.mark.parametrize("count", [MOST_ELEMENTS, MOST_ELEMENTS + 1])
def test_the_elements_of_a_request_have_a_limit(
    run: Any, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        works = Works()
        async with serving(works) as (_, connect):
            peer = await connect()
            peer.send(
                ApiKey.DESCRIBE_GROUPS, 5, 1, messages.DescribeGroupsRequest(groups=[""] * count)
            )
            if count > MOST_ELEMENTS:
                assert await peer.ended()
            else:
                assert await peer.receive_correlation() == 1

    with caplog.at_level(logging.WARNING):
        run(main())
    said = "groups: more than 50000 elements in one message" in caplog.text
    assert said == (count > MOST_ELEMENTS)


@pytest.mark.parametrize("state", ["", "a"], ids=["at once", "in steps"])
def test_too_many_elements_are_answered_where_the_answer_has_a_place_for_it(
    run: Any, state: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its connection was closed: clients sent it again until their time was over."""

    async def main() -> None:
        works = Works()
        async with serving(works) as (_, connect):
            peer = await connect()
            request = messages.ListGroupsRequest(states_filter=[state] * (MOST_ELEMENTS + 1))
            peer.send(ApiKey.LIST_GROUPS, 4, 1, request)
            answer = codec.decode_response(ApiKey.LIST_GROUPS, 4, memoryview(await peer.receive()))
            assert answer[1].error_code == ErrorCode.INVALID_REQUEST
            peer.send(ApiKey.LIST_GROUPS, 4, 2, messages.ListGroupsRequest())
            assert await peer.receive_correlation() == 2, "the connection is served on"

    with caplog.at_level(logging.WARNING):
        run(main())
    assert caplog.text.count("INVALID_REQUEST for its ListGroups") == 1


def test_the_answer_to_too_many_elements_can_be_written_in_every_version() -> None:
    router = Router([api_versions.HANDLER, *handlers.HANDLERS], lambda: True)
    told = set()
    for handler in handlers.HANDLERS:
        for version in handler.versions:
            route = router.route(handler.api_key, version)
            assert route is not None
            answer = route.too_many("too long")
            if answer is not None:
                told.add(handler.api_key)
                frame = b"".join(codec.encode_response(handler.api_key, version, 1, answer))
                found = codec.decode_response(handler.api_key, version, memoryview(frame)[4:])[1]
                assert found.error_code == ErrorCode.INVALID_REQUEST
    assert {ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.LEAVE_GROUP, ApiKey.FETCH} <= told


def moves(partitions: int, topics: int, replicas: int) -> bytes:
    """A plan, as the bytes of a request."""
    request = messages.AlterPartitionReassignmentsRequest
    rows = [
        request.ReassignablePartition(index, list(range(replicas))) for index in range(partitions)
    ]
    each = partitions // topics
    asked = request(
        topics=[
            request.ReassignableTopic(f"t{at}", rows[at * each : (at + 1) * each])
            for at in range(topics)
        ]
    )
    return b"".join(codec.encode_request(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1, None, asked))


def whole(message: Any, stop: int, frame: memoryview) -> Any:
    assert stop == len(frame)
    return message


def ended(steps: Work[Any]) -> Any:
    """The result of steps."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        return end.value


@pytest.mark.parametrize(
    ("partitions", "topics", "replicas", "fits"),
    [
        (50_000, 12_500, 3, True),
        (50_000, 12_500, 4, False),
        (40_000, 1, 3, True),
        (40_000, 20_000, 4, True),
        (99_999, 1, 0, True),
        (100_000, 1, 0, False),
        (1, 1, 399_992, True),
        (1, 1, 399_993, False),
    ],
)
def test_the_limit_of_a_plan_is_in_partitions_and_topics_and_four_replicas_count_as_one(
    partitions: int, topics: int, replicas: int, fits: bool
) -> None:
    """A plan of 40,000 partitions with three replicas is one request of Kafka's tool."""
    of_brokers = forwarded(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
    for handler in (of_brokers, alter_partition_reassignments.HANDLER):
        route = Router([handler]).route(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, trusted=False)
        assert route is not None
        frame = memoryview(moves(partitions, topics, replicas))[4:]
        position = codec.decode_request_header(frame).body
        decoders: list[Callable[[memoryview, int], Any]] = [
            lambda *at, route=route: whole(*route.decode(*at), at[0]),
            lambda *at, route=route: ended(route.decode_in_steps(*at)),
        ]
        for decode in decoders:
            if fits:
                assert len(decode(frame, position).topics) == topics
            else:
                with pytest.raises(TooManyElements, match="more than 100000 elements"):
                    decode(frame, position)


def test_tagged_fields_are_elements(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A megabyte of empty tags took a tenth of a second, whatever the cap of the elements."""

    async def main() -> None:
        works = Works()
        async with serving(works) as (_, connect):
            peer = await connect()
            tags = b"\x80\x08" + b"\x63\x00" * 1024  # 1,024 times tag 99 with no bytes
            topics = b"".join(struct.pack(">B", 2) + b"t\x01" + tags for _ in range(400))
            body = b"\0" + b"\0\0\0\0\0\0" + b"\x91\x03" + topics + b"\0"
            head = struct.pack(">hhih", ApiKey.PRODUCE, 9, 1, 1) + b"c" + b"\0"
            frame = head + body
            peer.writer.write(struct.pack(">i", len(frame)) + frame)
            assert await asyncio.wait_for(peer.ended(), DEADLINE_S)

    with caplog.at_level(logging.WARNING):
        run(main())
    assert "more than 50000 tagged fields and elements in one message" in caplog.text


def test_a_turn_of_a_connection_ends_by_time(run: Any) -> None:
    """64 requests that take a millisecond each were one turn."""
    clock = SetClock()
    served: list[tuple[str, int]] = []
    """Whose request, and in which turn of the loop."""
    loops_turns = 0

    def slow(_: Any, request: Any, context: Any) -> Any:
        clock.now_ms += 1
        served.append((request.group_id, loops_turns))
        return messages.HeartbeatResponse(error_code=0)

    async def count_turns() -> None:
        nonlocal loops_turns
        while True:
            await asyncio.sleep(0)
            loops_turns += 1

    async def main() -> None:
        works = Works()
        works.heartbeat = slow  # type: ignore[method-assign]
        counting = asyncio.create_task(count_turns())
        async with serving(works, clock=clock) as (_, connect):
            peers = {"1": await connect(), "2": await connect()}
            for who, peer in peers.items():
                for number in range(64):
                    peer.send(ApiKey.HEARTBEAT, 4, number, heartbeat(who))
            for peer in peers.values():
                assert [await peer.receive_correlation() for _ in range(64)] == list(range(64))
        counting.cancel()

    run(main())
    # A turn may begin when bytes come, and the next before the loop has counted.
    most = 2 * (REQUESTS_MS + 1)
    at_once = Counter(served)
    assert max(at_once.values()) <= most, f"of one connection in a turn of the loop: {at_once}"
    order = [who for who, _ in served]
    last = len(order) - 1
    # The system may bring the bytes of one later, and one ends first: between that both have some.
    both = order[
        max(order.index(who) for who in "12") : min(last - order[::-1].index(who) for who in "12")
    ]
    longest = max((len([*same]) for _, same in groupby(both)), default=0)
    assert longest <= most, f"{longest} requests of one connection in a row"
