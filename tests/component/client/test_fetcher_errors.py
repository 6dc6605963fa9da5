"""What errors, positions outside the log and logs that were cut lead to in a fetcher."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.support.fetch_answers import batch
from tests.support.fetching_reader import FIRST_MS, MOST_MS, A, B, Fetching
from tests.support.network_server import until
from tests.support.scripted_cluster import listed_offsets, topic, view_of
from tests.support.stories import story
from tidelog.client.errors import (
    ClientError,
    ConnectionLost,
    LogTruncated,
    OffsetOutOfRange,
    Refused,
)
from tidelog.client.fetching.fetch_requests import FetchOptions
from tidelog.client.fetching.fetcher import OffsetReset
from tidelog.client.offsets import EARLIEST, LATEST, IsolationLevel
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages


def test_a_refusal_that_may_pass_lets_the_leader_be_looked_for_after_a_while() -> None:
    async def of() -> None:
        one = Fetching([1, 1])
        one.fetcher.assign({A: 0, B: 0})
        for failures, wait_ms in enumerate((FIRST_MS, 2 * FIRST_MS, MOST_MS), 1):
            begun = asyncio.get_running_loop().time()
            (await one.asked()).answer({A: ErrorCode.NOT_LEADER_OR_FOLLOWER})
            asked = await one.asked()
            assert asked.offsets == {B: 0}
            assert one.state().failures == failures and one.cluster.expired
            left_s = one.state().not_before - begun
            assert wait_ms / 1000 <= left_s < wait_ms / 1000 + 5
            assert one.fetcher._timer is not None
            assert one.fetcher._timer.when() == pytest.approx(one.state().not_before, abs=1)
            refreshes = one.cluster.refreshes
            one.state().not_before = 0.0
            asked.answer()
            await until(lambda before=refreshes: one.cluster.refreshes > before)
            (await one.asked()).answer()
        one.fetches.waiting.clear()
        await until(lambda: one.state().busy and one.fetches.waiting)
        one.fetches.waiting.pop().answer({A: batch(0, b"0")})
        await until(lambda: one.state().failures == 0)
        await one.fetcher.close()

    story(of)


def test_a_newer_leader_epoch_is_looked_for_at_once() -> None:
    """Each resize begins one: a consumer that waits is refused, and must not pause for it."""

    async def of() -> None:
        one = Fetching([1, 1])
        one.fetcher.assign({A: 0})
        for pauses in (False, True):
            (await one.asked()).answer({A: ErrorCode.FENCED_LEADER_EPOCH})
            if not pauses:
                continue
            await until(lambda: one.state().failures == 2)
            assert one.state().not_before > asyncio.get_running_loop().time()
        await one.fetcher.close()

    story(of)


def test_a_lost_connection_begins_a_new_session() -> None:
    async def of() -> None:
        one = Fetching([1])
        one.fetcher.assign({A: 0})
        (await one.asked()).answer(session_id=9)
        asked = await one.asked()
        assert (asked.request.session_id, asked.request.session_epoch) == (9, 1)
        assert asked.named == {}
        asked.future.set_result(ConnectionLost("gone"))
        await until(lambda: one.state().failures)
        one.state().not_before = 0.0
        one.fetcher._start()
        asked = await one.asked()
        assert (asked.request.session_id, asked.request.session_epoch) == (0, 0)
        assert asked.offsets == {A: 0}
        await one.fetcher.close()

    story(of)


@pytest.mark.parametrize(
    ("code", "is_failure"),
    [
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, False),
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, False),
        (ErrorCode.KAFKA_STORAGE_ERROR, True),
    ],
)
def test_a_session_that_its_broker_does_not_know_is_begun_again_at_once(
    code: ErrorCode, is_failure: bool
) -> None:
    async def of() -> None:
        one = Fetching([1])
        one.fetcher.assign({A: 0})
        (await one.asked()).answer(session_id=9)
        (await one.asked()).answer(error_code=int(code))
        if is_failure:
            await until(lambda: one.state().failures == 1)
            assert await one.quiet()
        else:
            asked = await one.asked()
            assert asked.request.session_epoch == 0 and asked.offsets == {A: 0}
            assert one.state().failures == 0
        await one.fetcher.close()

    story(of)


def test_close_ends_the_sessions_that_brokers_have() -> None:
    async def of() -> None:
        one = Fetching([1, 2], options=FetchOptions(max_wait_ms=77))
        one.fetcher.assign({A: 0, B: 0})
        await until(lambda: len(one.fetches.waiting) == 2)
        for asked in sorted(one.fetches.waiting, key=lambda each: each.node_id):
            asked.answer(session_id=9 if asked.node_id == 1 else 0)
        one.fetches.waiting.clear()
        await until(lambda: len(one.fetches.waiting) == 2)
        one.fetches.waiting.clear()
        closing = asyncio.ensure_future(one.fetcher.close())
        asked = await one.asked()
        assert asked.node_id == 1 and asked.request.max_wait_ms == 0
        assert (asked.request.session_id, asked.request.session_epoch) == (9, -1)
        asked.answer()
        await closing
        assert await one.quiet()

    story(of)


def test_the_error_of_a_partition_is_raised_after_what_was_fetched_and_once() -> None:
    async def of() -> None:
        one = Fetching([1, 1])
        one.fetcher.assign({A: 0, B: 0})
        (await one.asked()).answer({A: batch(0, b"0")})
        (await one.asked()).answer({A: ErrorCode.TOPIC_AUTHORIZATION_FAILED})
        await until(lambda: one.state().problem)
        assert await one.poll() == {A: [b"0"]}
        with pytest.raises(Refused, match="TOPIC_AUTHORIZATION_FAILED"):
            await one.poll()
        assert await one.poll() == {}
        (await one.asked()).answer({B: batch(0, b"x")})
        assert (await one.asked()).offsets == {B: 1}, "A is not fetched any more"
        one.fetcher.seek(A, 1)
        one.fetches.waiting.clear()
        assert one.state().not_before == 0.0 and one.state().problem is None
        await one.fetcher.close()

    story(of)


def test_a_partition_with_an_error_is_fetched_again_after_its_time() -> None:
    async def of() -> None:
        one = Fetching([1], again_after_ms=500_000)
        one.fetcher.assign({A: 0})
        (await one.asked()).answer({A: ErrorCode.TOPIC_AUTHORIZATION_FAILED})
        await until(lambda: one.state().problem)
        begun = asyncio.get_running_loop().time()
        with pytest.raises(Refused):
            await one.poll()
        assert 500 <= one.state().not_before - begun < 505
        assert await one.quiet()
        one.state().not_before = 0.0
        await one.poll()
        assert (await one.asked()).offsets == {A: 0}
        await one.fetcher.close()

    story(of)


def test_bytes_without_a_batch_are_a_failure() -> None:
    async def of() -> None:
        one = Fetching([1])
        one.fetcher.assign({A: 0})
        (await one.asked()).answer({A: batch(0, b"0")[:40]})
        await until(lambda: one.state().failures == 1)
        assert one.state().fetch_offset == 0 and one.fetcher.buffered_bytes == 0
        await one.fetcher.close()

    story(of)


def test_a_leader_that_refuses_a_resize_epoch_is_asked_for_metadata() -> None:
    async def of() -> None:
        one = Fetching([2])
        one.fetcher.assign({A: 0})
        asked = await one.asked()
        polling = asyncio.ensure_future(one.fetcher.poll(10**8))
        await one.quiet()
        asked.answer({A: ErrorCode.INVALID_PARTITION_METADATA})
        assert await polling == [], "the reader looks at the metadata"
        assert one.cluster.described_by == [2]
        await one.fetcher.close()

    story(of)


def test_a_bug_is_raised_by_poll() -> None:
    async def of() -> None:
        one = Fetching([1])
        one.fetcher.assign({A: 0})
        asked = await one.asked()
        polling = asyncio.ensure_future(one.fetcher.poll(10**8))
        await one.quiet()
        asked.future.set_exception(ZeroDivisionError("planted"))
        with pytest.raises(ClientError, match=r"fetching failed: ZeroDivisionError\('planted'\)"):
            await polling
        await one.fetcher.close()

    story(of)


# Positions outside the log, and logs that were cut


def test_a_position_out_of_range_is_an_error_without_a_policy() -> None:
    async def of() -> None:
        one = Fetching([1])
        one.fetcher.assign({A: 7})
        (await one.asked()).answer({A: ErrorCode.OFFSET_OUT_OF_RANGE})
        with pytest.raises(OffsetOutOfRange, match="at offset 7"):
            await one.fetcher.poll(10**8)
        await one.fetcher.close()

    story(of)


def test_a_reset_is_taken_up_before_anything_is_fetched_there() -> None:
    async def of() -> None:
        noted: list[tuple[TopicPartition, int]] = []
        may_go = asyncio.Event()

        async def note(where: TopicPartition, offset: int) -> None:
            noted.append((where, offset))
            await may_go.wait()

        one = Fetching([1], reset=OffsetReset.EARLIEST, on_reset=note)
        one.lists[A] = 20
        one.fetcher.assign({A: 7}, epochs={A: 3})
        (await one.asked()).answer({A: ErrorCode.OFFSET_OUT_OF_RANGE})
        await until(lambda: noted)
        assert noted == [(A, 20)] and one.fetcher.positions() == {A: 7}
        assert await one.quiet()
        may_go.set()
        assert (await one.asked()).offsets == {A: 20}
        assert one.fetcher.positions() == {A: 20}
        assert one.fetcher.epoch_before(A, 20) == -1 == one.state().fetch_epoch
        await one.fetcher.close()

    story(of)


@pytest.mark.parametrize("policy", list(OffsetReset))
@pytest.mark.parametrize("offset", [9, 10])
def test_a_position_from_before_the_birth_of_a_partition_goes_to_its_start(
    policy: OffsetReset, offset: int
) -> None:
    """Seed 950 of the simulation: a member with `latest` had not read past the seal at 9."""

    async def of() -> None:
        one = Fetching([1], reset=policy)
        shown = topic("t", [1])
        born = replace(shown.partitions[0], birth_epoch=1, birth_offset=10)
        one.cluster.show(replace(shown, partitions={0: born}))
        one.lists[A] = 20
        one.fetcher.assign({A: offset})
        (await one.asked()).answer({A: ErrorCode.OFFSET_OUT_OF_RANGE})
        if offset == 10 and policy is OffsetReset.NONE:
            await until(lambda: one.state().problem is not None)
        else:
            assert (await one.asked()).offsets == {A: 20}
            ((_, asked),) = one.cluster.asked_for(messages.ListOffsetsRequest)
            is_start = offset < 10 or policy is OffsetReset.EARLIEST
            assert asked.topics[0].partitions[0].timestamp == (EARLIEST if is_start else LATEST)
        await one.fetcher.close()

    story(of)


def test_a_reset_does_not_pass_what_was_fetched_before() -> None:
    async def of() -> None:
        one = Fetching([1], reset=OffsetReset.LATEST)
        one.lists[A] = 20
        one.fetcher.assign({A: 0})
        (await one.asked()).answer({A: batch(0, b"0")})
        (await one.asked()).answer({A: ErrorCode.OFFSET_OUT_OF_RANGE})
        assert (await one.asked()).offsets == {A: 20}
        assert one.fetcher.positions() == {A: 0}
        assert await one.poll() == {A: [b"0"]}
        await one.fetcher.close()

    story(of)


@pytest.mark.parametrize("is_refused", [True, False])
def test_a_reset_that_fails_or_is_late_changes_nothing(is_refused: bool) -> None:
    async def of() -> None:
        async def note(*_: Any) -> None:
            if is_refused:
                raise ConnectionLost("the coordinator is away")
            one.fetcher.seek(A, 3)

        one = Fetching([1], reset=OffsetReset.LATEST, on_reset=note)
        one.lists[A] = 20
        one.fetcher.assign({A: 7})
        (await one.asked()).answer({A: ErrorCode.OFFSET_OUT_OF_RANGE})
        if is_refused:
            await until(lambda: one.state().failures)
            assert one.fetcher.positions() == {A: 7} and one.state().fetch_offset == 7
        else:
            assert (await one.asked()).offsets == {A: 3}
        await one.fetcher.close()

    story(of)


@pytest.mark.parametrize("does", ["seek", "remove"])
def test_a_reset_that_is_overtaken_while_its_offset_is_looked_up_is_not_taken_up(does: str) -> None:
    """Its offset was committed, and commits of lower positions were dropped after that."""

    async def of() -> None:
        noted: list[tuple[TopicPartition, int]] = []

        async def note(where: TopicPartition, offset: int) -> None:
            noted.append((where, offset))

        one = Fetching([1], reset=OffsetReset.LATEST, on_reset=note)
        looked_up: list[asyncio.Future[Any]] = []

        def look_up(_: int, request: Any) -> Any:
            looked_up.append(asyncio.get_running_loop().create_future())
            return looked_up[-1]

        one.cluster.answers[messages.ListOffsetsRequest] = look_up
        one.fetcher.assign({A: 7})
        (await one.asked()).answer({A: ErrorCode.OFFSET_OUT_OF_RANGE})
        await until(lambda: looked_up)
        if does == "seek":
            one.fetcher.seek(A, 3)
        else:
            one.fetcher.remove([A])
        ((_, request),) = one.cluster.asked_for(messages.ListOffsetsRequest)
        looked_up[0].set_result(listed_offsets(request, {A: 20}))
        if does == "seek":
            assert (await one.asked()).offsets == {A: 3}
        else:
            assert await one.quiet()
        assert noted == []
        await one.fetcher.close()

    story(of)


def test_a_new_leader_is_asked_where_the_epoch_of_what_was_read_ends() -> None:
    async def of() -> None:
        one = Fetching([1])
        one.fetcher.assign({A: 7}, epochs={A: 2})
        await until(lambda: one.ends)
        asked = one.ends[0][0].topics[0].partitions[0]
        assert (asked.leader_epoch, asked.current_leader_epoch) == (2, 3)
        leader = one.cluster.leader
        one.cluster.leader = None  # type: ignore[method-assign, assignment]
        one.fetcher._start()
        assert await one.quiet(), "nothing is looked up meanwhile"
        one.cluster.leader = leader  # type: ignore[method-assign]
        one.end_is(A, 2, 7)
        asked_for = await one.asked()
        assert asked_for.offsets == {A: 7} and one.state().asked_in == 3
        # Once for each epoch of a leader.
        asked_for.answer({A: ErrorCode.KAFKA_STORAGE_ERROR})
        await until(lambda: one.state().failures)
        one.state().not_before = 0.0
        one.fetcher._start()
        await one.asked()
        assert not one.ends
        await one.fetcher.close()

    story(of)


def test_a_log_that_was_cut_is_read_from_the_cut_or_is_an_error() -> None:
    async def of() -> None:
        for reset in (OffsetReset.NONE, OffsetReset.LATEST):
            one = Fetching([1], reset=reset)
            one.fetcher.assign({A: 7}, epochs={A: 2})
            await until(lambda now=one: now.ends)
            one.end_is(A, 1, 4)
            if reset is OffsetReset.NONE:
                with pytest.raises(LogTruncated, match="truncated to offset 4, below 7"):
                    await one.fetcher.poll(10**8)
            else:
                # Epoch 1 is an earlier one: the leader is asked about it, too.
                await until(lambda now=one: now.ends)
                assert one.ends[0][0].topics[0].partitions[0].leader_epoch == 1
                one.end_is(A, 1, 4)
                assert (await one.asked()).offsets == {A: 4}
                assert one.fetcher.epoch_before(A, 4) == 1
            await one.fetcher.close()

    story(of)


async def led_again(one: Fetching) -> None:
    """Let the partition have a new leader epoch, and its leader be asked for the last one."""
    one.cluster.described = view_of(topic("t", [1], leader_epoch=4))
    (await one.asked()).answer({A: ErrorCode.NOT_LEADER_OR_FOLLOWER})
    await until(lambda: one.state().failures)
    one.state().not_before = 0.0
    one.fetcher._start()
    await until(lambda: one.ends)


@pytest.mark.parametrize("is_committed", [True, False])
def test_the_epoch_that_is_asked_for_is_that_of_the_last_batch_that_was_fetched(
    is_committed: bool,
) -> None:
    async def of() -> None:
        one = Fetching([1])
        one.fetcher.assign({A: 7}, epochs={A: 3} if is_committed else {})
        if not is_committed:
            (await one.asked()).answer({A: batch(7, b"7")})
        await led_again(one)
        assert one.ends[0][0].topics[0].partitions[0].leader_epoch == 3
        await one.fetcher.close()

    story(of)


@pytest.mark.parametrize("is_sought", [True, False])
def test_what_was_fetched_beyond_the_cut_is_dropped_once(is_sought: bool) -> None:
    async def of() -> None:
        one = Fetching([1], reset=OffsetReset.LATEST)
        one.fetcher.assign({A: 7})
        (await one.asked()).answer({A: batch(7, b"7", b"8")})
        await led_again(one)
        assert one.fetcher.buffered_bytes == len(batch(7, b"7", b"8"))
        if is_sought:
            # The answer is of a position that does not count any more.
            one.fetcher.seek(A, 20)
            assert one.fetcher.buffered_bytes == 0
        one.end_is(A, 2, 8)
        await until(lambda: one.ends or one.fetches.waiting)
        assert one.fetcher.buffered_bytes == one.state().buffered_bytes == 0
        assert one.fetcher.positions() == {A: 20 if is_sought else 7}
        await one.fetcher.close()

    story(of)


def test_an_unanswered_question_is_a_failure() -> None:
    async def of() -> None:
        one = Fetching([1])
        one.fetcher.assign({A: 7}, epochs={A: 2})
        await until(lambda: one.ends)
        one.end_is(A, -1, -1, int(ErrorCode.FENCED_LEADER_EPOCH))
        await until(lambda: one.state().failures == 1)
        assert await one.quiet()
        one.state().not_before = 0.0
        one.fetcher._start()
        await until(lambda: one.ends)
        one.ends.pop()[1].set_result(ConnectionLost("gone"))
        await until(lambda: one.state().failures == 2)
        await one.fetcher.close()

    story(of)


def test_a_leader_of_an_older_epoch_than_what_was_read_is_not_used() -> None:
    async def of() -> None:
        one = Fetching([1])
        one.fetcher.assign({A: 7}, epochs={A: 4})
        await until(lambda: one.state().lagging_since)
        since = one.state().lagging_since
        assert await one.quiet() and one.state().failures == 1
        one.state().not_before = 0.0
        one.fetcher._start()
        await until(lambda: one.state().failures == 2)
        assert one.state().lagging_since == since
        # For so long that the position may be of a former topic of the name.
        one.state().lagging_since -= one.cluster.settings.metadata_max_age_ms / 1000 + 1
        one.state().not_before = 0.0
        one.fetcher._start()
        assert (await one.asked()).offsets == {A: 7}
        assert one.state().lagging_since is None and one.state().fetch_epoch == -1
        await one.fetcher.close()

    story(of)


def test_a_reader_of_committed_records_says_so() -> None:
    async def of() -> None:
        one = Fetching([1], isolation=IsolationLevel.READ_COMMITTED)
        one.fetcher.assign({A: 0})
        asked = await one.asked()
        assert asked.request.isolation_level == IsolationLevel.READ_COMMITTED
        asked.answer({A: batch(0, b"0")})
        await until(lambda: one.fetcher.buffered_bytes)
        (piece,) = await one.fetcher.poll(0)
        assert piece.aborted == []
        await one.fetcher.close()

    story(of)
