"""The commits of a consumer and its questions: what is sent, and what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support.committing import A, B, Committing
from tests.support.network_server import until
from tests.support.scripted_cluster import ScriptedCluster, topic, view_of
from tests.support.stories import story
from tidelog.aio import Consumer
from tidelog.aio.commits_aside import CommitsAside
from tidelog.aio.consumer_types import OffsetAndMetadata, OffsetAndTimestamp
from tidelog.client.errors import CommitFailed, GaveUp, Refused, WrongState
from tidelog.client.fetching.record_queue import RecordQueue
from tidelog.client.groups.committed_offsets import Position
from tidelog.client.groups.reader_commits import MOST_WAITING
from tidelog.client.offsets import EARLIEST, LATEST, IsolationLevel
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages


def test_a_commit_is_of_what_was_returned_or_of_what_is_given() -> None:
    async def of() -> None:
        one = Committing()
        await one.read(3)
        assert await one.consumer.places() == {A: OffsetAndMetadata(3, "", 3)}
        await one.consumer.commit()
        assert one.stored == {A: Position(3, 3, "")}
        await one.consumer.commit({A: 1})
        assert one.stored == {A: Position(1, -1, "")}
        await one.consumer.commit({B: OffsetAndMetadata(9, "note", 2)})
        assert one.stored == {A: Position(1), B: Position(9, 2, "note")}
        assert await one.consumer.committed(A) == 1
        assert await one.consumer.committed(B, metadata=True) == OffsetAndMetadata(9, "note", 2)
        assert await one.consumer.committed(TopicPartition("t", 7)) is None
        await one.consumer.commit({B: OffsetAndMetadata(8, None)})  # type: ignore[arg-type]
        await one.consumer.commit({A: (7, "tuple")})  # type: ignore[dict-item]
        assert one.stored == {A: Position(7, -1, "tuple"), B: Position(8)}
        assert one.consumer.metrics()["consumer-metrics"]["commit-total"] == 5
        await one.consumer.close()

    story(of)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.ILLEGAL_GENERATION, CommitFailed),
        (ErrorCode.UNKNOWN_MEMBER_ID, CommitFailed),
        (ErrorCode.REBALANCE_IN_PROGRESS, Refused),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, Refused),
    ],
)
def test_a_commit_of_a_group_that_has_gone_on_says_so(code: ErrorCode, kind: type[Refused]) -> None:
    async def of() -> None:
        one = Committing()
        await one.read(1)
        one.code = code
        with pytest.raises(kind) as raised:
            await one.consumer.commit()
        assert raised.value.code == code
        assert isinstance(raised.value, CommitFailed) == (kind is CommitFailed)
        assert ("gone on without this consumer" in str(raised.value)) == (kind is CommitFailed)
        says_what_to_do = "poll, then commit" in str(raised.value)
        assert says_what_to_do == (code is ErrorCode.REBALANCE_IN_PROGRESS)
        await one.consumer.close()

    story(of)


def test_a_commit_aside_says_how_it_ended() -> None:
    async def of() -> None:
        one = Committing()
        await one.read(2)
        ended: list[Any] = []
        await (await one.consumer.commit_async(callback=lambda *got: ended.append(got)))
        assert ended == [({A: OffsetAndMetadata(2, "", 3)}, None)]
        one.code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        task = await one.consumer.commit_async({A: 1}, callback=lambda *got: ended.append(got))
        await task
        offsets, error = ended[1]
        assert offsets == {A: OffsetAndMetadata(1)} and isinstance(error, Refused)
        with pytest.raises(Refused):
            await (await one.consumer.commit_async({A: 1}))
        one.code = ErrorCode.NONE
        await (await one.consumer.commit_async({A: 1}))
        assert one.stored[A].offset == 1 and len(ended) == 2
        await one.consumer.close()

    story(of)


def test_commits_aside_are_made_in_the_order_of_the_calls() -> None:
    async def of() -> None:
        one = Committing()
        await one.read(1)
        aside = await one.consumer.commit_async({A: 5})
        await one.consumer.commit({A: 6})
        await aside
        assert one.sent == [5, 6]
        await one.consumer.close()

    story(of)


@pytest.mark.parametrize("ends", ["close", "unsubscribe"])
def test_the_end_waits_for_commits_aside_and_their_callbacks(ends: str) -> None:
    """The second was never sent, and its callback was not called."""

    async def of() -> None:
        one = Committing()
        await one.read(1)
        one.held = asyncio.get_running_loop().create_future()
        ended: list[Any] = []

        async def callback(offsets: Any, error: Any) -> None:
            await asyncio.sleep(0)
            ended.append((offsets[A].offset, error))

        for offset in (5, 6):
            await one.consumer.commit_async({A: offset}, callback=callback)
        consumer = one.consumer
        if ends != "close":
            consumer.unsubscribe()
        end = asyncio.ensure_future(
            consumer.close() if ends == "close" else consumer.leave_former()
        )
        await until(lambda: one.sent)
        assert not end.done()
        one.held.set_result(None)
        await end
        await until(lambda: len(ended) == 2 or ends == "close")
        assert ended == [(5, None), (6, None)] and one.sent == [5, 6]
        await consumer.close()

    story(of)


def test_a_commit_aside_without_a_response_fails_when_the_end_has_waited_long_enough() -> None:
    async def of() -> None:
        one = Committing()
        await one.read(1)
        one.held = asyncio.get_running_loop().create_future()
        ended: list[Any] = []

        async def callback(offsets: Any, error: Any) -> None:
            ended.append((offsets[A].offset, type(error)))
            # Not a time for the end to wait for this callback.
            await one.consumer.close()

        for offset in (5, 6):
            await one.consumer.commit_async({A: offset}, callback=callback)
        waiting = asyncio.ensure_future(one.consumer.commit({A: 7}))
        await until(lambda: one.sent)
        await one.consumer.close(timeout_ms=1)
        assert ended == [(5, WrongState), (6, WrongState)] and one.sent == [5]
        with pytest.raises(WrongState, match="closed before a response"):
            await waiting

    story(of)


@pytest.mark.parametrize("is_automatic", [True, False])
def test_another_assignment_does_not_wait_for_commits(is_automatic: bool) -> None:
    async def of() -> None:
        one = Committing(enable_auto_commit=is_automatic, auto_commit_interval_ms=10**8)
        await one.read(1)
        one.held = asyncio.get_running_loop().create_future()
        aside = await one.consumer.commit_async({A: 5})
        await until(lambda: one.sent)
        one.consumer.assign([A, B])
        async with asyncio.timeout(30):
            assert await one.consumer.position(B) == 0
        assert not aside.done()
        one.held.set_result(None)
        await aside
        await one.consumer.close()

    story(of)


def test_a_commit_of_what_was_returned_leaves_out_what_is_short_of_a_reset() -> None:
    async def of() -> None:
        one = Committing()
        await one.read(3)
        await (await one.consumer.ready()).commits.reset(A, 16)
        await one.consumer.commit()
        await (await one.consumer.commit_async())
        assert one.sent == [16]
        await one.consumer.commit({A: 2})
        assert one.sent == [16, 2]
        await one.consumer.close()

    story(of)


def test_in_the_middle_of_a_batch_a_commit_has_the_epoch_of_the_record_before() -> None:
    async def of() -> None:
        one = Committing(max_poll_records=1)
        await one.read(3)
        assert await one.consumer.places() == {A: OffsetAndMetadata(1, "", 3)}
        await one.consumer.close()

    story(of)


def test_a_consumer_reads_from_what_was_committed() -> None:
    async def of() -> None:
        one = Committing()
        one.stored[A] = Position(1, 3)
        one.fetches.write(A, b"0")
        one.fetches.write(A, b"1")
        one.consumer.assign([A])
        assert await one.consumer.position(A) == 1
        record = await one.consumer.getone()
        assert (record.offset, record.value) == (1, b"1")
        await one.consumer.close()

    story(of)


@pytest.mark.parametrize("is_automatic", [True, False])
def test_positions_are_committed_at_the_end_where_that_is_wanted(is_automatic: bool) -> None:
    async def of() -> None:
        for autocommit in (True, False):
            one = Committing(enable_auto_commit=is_automatic, auto_commit_interval_ms=10**8)
            await one.read(2)
            await one.consumer.close(autocommit=autocommit)
            is_wanted = is_automatic and autocommit
            assert one.stored.get(A, Position(0)).offset == (2 if is_wanted else 0)

    story(of)


def test_offsets_of_logs_and_of_times() -> None:
    async def of() -> None:
        one = Committing(isolation_level="read_committed")
        asked = []

        def answer(_: int, request: Any) -> Any:
            asked.append(request)
            response = messages.ListOffsetsResponse
            part = response.ListOffsetsPartitionResponse
            of_each = {
                0: part(partition_index=0, offset=0, timestamp=70, leader_epoch=2),
                1: part(partition_index=1, offset=-1, timestamp=-1, leader_epoch=-1),
            }
            parts = [of_each[each.partition_index] for each in request.topics[0].partitions]
            named = response.ListOffsetsTopicResponse(name="t", partitions=parts)
            return response(topics=[named])

        one.cluster.answers[messages.ListOffsetsRequest] = answer
        assert await one.consumer.offsets_for_times({A: 60, B: 61}) == {
            A: OffsetAndTimestamp(0, 70, 2),
            B: None,
        }
        assert await one.consumer.beginning_offsets([A]) == {A: 0}
        assert await one.consumer.end_offsets([A]) == {A: 0}
        wanted = [each.topics[0].partitions[0].timestamp for each in asked]
        assert sorted(wanted[:2]) == [60, 61] and wanted[2:] == [EARLIEST, LATEST]
        assert {each.isolation_level for each in asked} == {IsolationLevel.READ_COMMITTED}
        await one.consumer.close()

    story(of)


QUESTIONS: list[Callable[[Consumer], Awaitable[Any]]] = [
    lambda consumer: consumer.committed(A),
    lambda consumer: consumer.topics(),
    lambda consumer: consumer.fetch_partitions("t"),
    lambda consumer: consumer.offsets_for_times({A: 1}),
    lambda consumer: consumer.beginning_offsets([A]),
]


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_first_question_reaches_the_cluster_and_none_does_after_the_end(
    question: Callable[[Consumer], Awaitable[Any]],
) -> None:
    async def of() -> None:
        one, opened = Committing(), 0

        async def opening() -> None:
            nonlocal opened
            opened += 1

        one.cluster.open = opening  # type: ignore[method-assign, assignment]
        assert not one.consumer.bootstrap_connected()
        for _ in range(2):
            await question(one.consumer)
            assert opened == 1 and one.consumer.bootstrap_connected()
        await one.consumer.close()
        with pytest.raises(WrongState, match="this consumer is closed"):
            await question(one.consumer)

    story(of)


def test_a_consumer_reaches_the_cluster_that_its_settings_name() -> None:
    async def of() -> None:
        consumer = Consumer(bootstrap_servers="a:1,b:2", client_id="c")
        assert consumer._cluster._bootstrap == [("a", 1), ("b", 2)]
        assert consumer._cluster.settings.client_id == "c"
        await consumer.close()

    story(of)


def test_topics_and_their_partitions() -> None:
    async def of() -> None:
        one = Committing()
        assert await one.consumer.topics() == {"t"}
        assert one.consumer.partitions_for_topic("t") == {0, 1}
        assert one.consumer.partitions_for_topic("u") is None
        one.cluster.show(topic("t", [1], error=3))
        assert one.consumer.partitions_for_topic("t") is None
        one.cluster.described = view_of(topic("t", [1, 2, 1], ordered=False))
        one.cluster.show()
        one.cluster.described = view_of(topic("t", [1, 2, 1], ordered=False))
        assert await one.consumer.fetch_partitions("t") == {0, 1, 2}
        with pytest.raises(Refused, match="INVALID_TOPIC"):
            await one.consumer.fetch_partitions("a b")
        assert one.consumer.bootstrap_connected()
        await one.consumer.close()
        assert not one.consumer.bootstrap_connected()

    story(of)


def test_given_offsets_are_committed_without_a_look_at_what_is_not_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That would decode the records."""

    async def of() -> None:
        one = Committing()
        await one.read(3)

        def looks(_: RecordQueue) -> Any:
            raise AssertionError("records are decoded")

        monkeypatch.setattr(RecordQueue, "positions", looks)
        await one.consumer.commit({A: 1})
        assert one.stored == {A: Position(1)}
        monkeypatch.undo()
        await one.consumer.close()

    story(of)


def test_before_the_first_poll_there_is_nothing_to_commit() -> None:
    """It was refused, as of a member that its group has removed."""

    async def of() -> None:
        cluster = ScriptedCluster(view_of(topic("t", [1], ordered=False)))
        ended: list[Any] = []
        async with Consumer("t", cluster=cluster, group_id="g") as consumer:
            await consumer.commit()
            await consumer.commit({})
            await (await consumer.commit_async(callback=lambda *got: ended.append(got)))
            with pytest.raises(CommitFailed):
                await consumer.commit({A: 5})
        assert ended == [({}, None)]

    story(of)


def test_a_close_that_is_cancelled_does_not_wait_for_commits() -> None:
    async def of() -> None:
        one = Committing()
        await one.read(1)
        one.held = asyncio.get_running_loop().create_future()
        aside = await one.consumer.commit_async({A: 5})
        end = asyncio.ensure_future(one.consumer.close(timeout_ms=10**8))
        await until(lambda: one.sent)
        assert not end.done()
        end.cancel()
        async with asyncio.timeout(30):
            await asyncio.wait([end])
        assert end.cancelled()
        with pytest.raises(WrongState, match="closed before a response"):
            await aside
        with pytest.raises(WrongState, match="closed"):
            await one.consumer.poll()

    story(of)


def test_an_error_at_the_end_of_a_reader_does_not_keep_commits_from_their_callbacks() -> None:
    async def of() -> None:
        one = Committing()
        await one.read(1)
        one.held = asyncio.get_running_loop().create_future()
        ended: list[Any] = []

        async def callback(_: Any, error: Any) -> None:
            for _ in range(100):
                await asyncio.sleep(0)
            ended.append(type(error))

        async def give_up(*_: Any, **__: Any) -> None:
            raise ValueError("a listener's")

        await one.consumer.commit_async({A: 5}, callback=callback)
        reader = await one.consumer.ready()
        reader.give_up = give_up  # type: ignore[method-assign]
        with pytest.raises(ValueError, match="a listener's"):
            await one.consumer.close(timeout_ms=1)
        assert ended == [WrongState]

    story(of)


@pytest.mark.parametrize("is_answered", [False, True])
def test_more_commits_aside_than_the_bound_are_refused_until_one_has_ended(
    is_answered: bool,
) -> None:
    """Each of them was a task that waited for the callbacks before it."""

    async def of() -> None:
        one = Committing()
        await one.read(1)
        may_end = asyncio.Event()
        one.held = None if is_answered else asyncio.get_running_loop().create_future()
        ended: list[int] = []

        async def callback(offsets: Any, _: Any) -> None:
            await may_end.wait()
            ended.append(offsets[A].offset)

        begun = [
            await one.consumer.commit_async({A: number}, callback=callback)
            for number in range(MOST_WAITING)
        ]
        await until(lambda: len(one.sent) == (MOST_WAITING if is_answered else 1))
        for _ in range(2):
            with pytest.raises(GaveUp, match=r"wait for one, or commit less often"):
                await one.consumer.commit_async({A: 0}, callback=callback)
        may_end.set()
        if one.held is not None:
            one.held.set_result(None)
        one.held = None
        await begun[0]
        begun.append(await one.consumer.commit_async({A: MOST_WAITING}, callback=callback))
        await asyncio.wait(begun)
        assert ended == [*range(MOST_WAITING + 1)]
        await one.consumer.close()

    story(of)


@pytest.mark.parametrize("when", ["before it begins", "in flight", "before its callback"])
def test_the_callback_of_a_cancelled_commit_is_called_in_its_turn(when: str) -> None:
    """It was not called, or before those of the commits before."""

    async def of() -> None:
        one = Committing()
        await one.read(1)
        held = asyncio.get_running_loop().create_future()
        may_end = asyncio.Event()
        ended: list[tuple[int, type | None]] = []

        async def callback(offsets: Any, error: Any) -> None:
            if offsets[A].offset == 5:
                await may_end.wait()
            ended.append((offsets[A].offset, None if error is None else type(error)))

        if when == "in flight":
            one.held = held
        first = await one.consumer.commit_async({A: 5}, callback=callback)
        second = await one.consumer.commit_async({A: 6}, callback=callback)
        if when == "in flight":
            await until(lambda: one.sent == [5])
        elif when == "before its callback":
            await until(lambda: one.sent == [5, 6])
        second.cancel()
        last = await one.consumer.commit_async({A: 7}, callback=callback)
        await asyncio.wait([second])
        assert second.cancelled() and ended == []
        may_end.set()
        held.set_result(None)
        await asyncio.wait([first, last])
        assert ended == [(5, None), (6, WrongState), (7, None)]
        await one.consumer.close()
        assert len(ended) == 3

    story(of)


def test_a_callback_waits_for_those_before_it_whatever_callbacks_commit() -> None:
    async def of() -> None:
        one = Committing()
        await one.read(1)
        consumer, may_end = one.consumer, asyncio.Event()
        ended: list[int] = []

        async def callback(offsets: Any, _: Any) -> None:
            offset = offsets[A].offset
            if offset == 5:
                # It may wait for what it asks for.
                await (await consumer.commit_async({A: 50}, callback=callback))
            if offset == 6:
                await may_end.wait()
            ended.append(offset)

        for offset in (5, 6, 7):
            await consumer.commit_async({A: offset}, callback=callback)
        await until(lambda: len(ended) == 2)
        await consumer.commit_async({A: 8}, callback=callback)
        await until(lambda: one.sent[-1] == 8)
        for _ in range(20):
            await asyncio.sleep(0)
        assert ended == [50, 5]
        may_end.set()
        await consumer.close()
        assert ended == [50, 5, 6, 7, 8]

    story(of)


def test_the_bound_of_commits_counts_those_that_are_waited_for_too() -> None:
    """The callback of the last one got the error, and its task went on."""

    async def of() -> None:
        one = Committing()
        await one.read(1)
        one.held = asyncio.get_running_loop().create_future()
        ended: list[Any] = []
        own = asyncio.ensure_future(one.consumer.commit({A: 0}))
        await until(lambda: one.sent)
        begun = [await one.consumer.commit_async({A: number}) for number in range(1, MOST_WAITING)]
        with pytest.raises(GaveUp, match=r"wait for one, or commit less often"):
            await one.consumer.commit_async({A: 0}, callback=lambda *got: ended.append(got))
        one.held.set_result(None)
        one.held = None
        await asyncio.gather(own, *begun)
        await one.consumer.close()
        assert not ended and one.stored[A].offset == MOST_WAITING - 1

    story(of)


def test_callbacks_that_are_cancelled_twice_keep_none_after_them_from_its_end() -> None:
    """The end waited for ever, where a program had cancelled every task again and again."""

    async def of() -> None:
        aside, held = CommitsAside(), asyncio.Event()

        async def asked() -> None:
            await held.wait()

        async def callback(*_: Any) -> None:
            await held.wait()

        for _ in range(2):
            aside.begin(asked, {}, callback)
        for _ in range(2):
            for _ in range(20):
                await asyncio.sleep(0)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
        async with asyncio.timeout(30):
            await aside.all_called_back()

    story(of)
