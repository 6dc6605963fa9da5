"""Fetches of many partitions that find nothing: they begin to wait, and end it, in turns."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.fetch_steps import Context, asked, finished
from tests.support.follower_fetches import ask as of_follower
from tests.support.follower_fetches import partition
from tests.support.led_partition import append, lead, running
from tests.support.lone_broker import LoneBroker, Peer, until
from tests.support.produce_fetch import batch, fetch
from tests.support.storage_logs import NOW_MS
from tests.support.turn_costs import TurnCosts
from tidelog.broker.fetching.delayed_requests import DelayedFetch, Departures
from tidelog.broker.handlers import fetch as handler
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.model.errors import ErrorCode
from tidelog.model.work import finish
from tidelog.network.router import begun
from tidelog.runtime import pace

LONG_MS = 3_600_000
MANY = 10_000
LONGEST_S = 0.1
"""What one turn may take (docs/design/speed.md), in CPU seconds."""

PARTITIONS, TOGETHER = 4, 2
MOMENTS = 20
"""Fetches of one test, each of partitions of its own."""

AHEAD = 3
"""What each of them has before the fetch."""

Change = Callable[[LoneBroker, int], None]


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two partitions in a step, and a turn of the loop for each step of those that leave: as on a
    machine that is so busy that each turn is over at once."""
    monkeypatch.setattr(pace, "PART", TOGETHER)
    monkeypatch.setattr(pace, "BACKGROUND_MS", 0)


def begin(lone: LoneBroker, request: Any) -> Any:
    """The steps of a fetch, the first one done, or what it returns."""
    context: Any = Context()
    begins = handler.handle(lone.broker, request, context)
    return begun(begins) if inspect.isgenerator(begins) else begins


async def answered_now(future: Any) -> Any:
    """The answer that a fetch gives as soon as it waits; AssertionError if it goes on waiting."""
    for _ in range(3):
        await asyncio.sleep(0)
    assert future.done(), "it waits, though something has come"
    answer = future.result()
    return finished(answer) if hasattr(answer, "send") else answer


def parts_of(answer: Any) -> dict[int, Any]:
    return {part.partition_index: part for topic in answer.responses for part in topic.partitions}


def nobody_waits(lone: LoneBroker, *besides: HostedPartition) -> bool:
    """Whether no reader or follower waits at any partition."""
    hosted = [*lone.broker.partitions.all(), *besides]
    return not any(each.waiting.readers or each.waiting.followers for each in hosted)


def follow(lone: LoneBroker, index: int, epoch: int = 1) -> None:
    """Follow another leader in a partition whose records are committed."""
    hosted = partition(lone, index)
    state = hosted.state.__class__(
        topic_id=hosted.topic_id,
        partition_epoch=0,
        leader=2,
        leader_epoch=epoch,
        isr=(1, 2),
        replicas=(1, 2),
    )
    mark = hosted.high_watermark
    lone.broker.partitions.apply(hosted, state)
    hosted.log.high_watermark = mark


def records_come(lone: LoneBroker, index: int) -> None:
    append(partition(lone, index))


def it_leads_no_more(lone: LoneBroker, index: int) -> None:
    follow(lone, index)


def it_is_deleted(lone: LoneBroker, index: int) -> None:
    lone.broker.partitions.stop("t", index, delete=True)


def it_is_stopped(lone: LoneBroker, index: int) -> None:
    lone.broker.partitions.stop("t", index, delete=False)


def its_disk_fails(lone: LoneBroker, index: int) -> None:
    partition(lone, index).go_offline("a test")


def records_are_replicated(lone: LoneBroker, index: int) -> None:
    hosted = partition(lone, index)
    hosted.log.append_as_follower(batch_at(hosted), NOW_MS)
    hosted.replicated(100, hosted.end_offset)


def it_is_cut(lone: LoneBroker, index: int) -> None:
    assert finish(partition(lone, index).log.truncation(AHEAD - 1, NOW_MS)) is None


def another_one_leads_and_has_less(lone: LoneBroker, index: int) -> None:
    another_one_leads(lone, index)
    it_is_cut(lone, index)


def it_is_cut_and_filled_up(lone: LoneBroker, index: int) -> None:
    it_is_cut(lone, index)
    hosted = partition(lone, index)
    hosted.log.append_as_follower(batch_at(hosted), NOW_MS)
    hosted.log.high_watermark = AHEAD


def another_one_leads(lone: LoneBroker, index: int) -> None:
    follow(lone, index, epoch=2)


def batch_at(hosted: HostedPartition) -> Any:
    """One record as the leader of epoch 1 would send it next."""
    made = bytearray(batch("a"))
    made[:8] = hosted.end_offset.to_bytes(8, "big")
    made[12:16] = (1).to_bytes(4, "big")
    return memoryview(made)


CONSUMER: list[Change] = [
    records_come,
    it_leads_no_more,
    it_is_deleted,
    it_is_stopped,
    its_disk_fails,
]
AT_A_FOLLOWER: list[Change] = [
    records_are_replicated,
    another_one_leads,
    another_one_leads_and_has_less,
    it_is_deleted,
    it_is_stopped,
    its_disk_fails,
]


def taken(steps: Any, most: int) -> Any:
    """Take so many steps; return what they return if they end before, or None."""
    for _ in range(most):
        try:
            next(steps)
        except StopIteration as end:
            return end.value
    return None


async def at_each_moment(
    lone: LoneBroker, change: Change, request: Callable[[range], Any], least_moments: int
) -> None:
    """Have a change come to the first partition of a fetch that finds nothing, and to the last one,
    before each of its steps and after the last one: the change is answered at once."""
    groups = iter(range(0, MOMENTS * PARTITIONS, PARTITIONS))
    for which in (0, PARTITIONS - 1):
        for moment in itertools.count():
            base = next(groups)
            here = range(base, base + PARTITIONS)
            hosted = [partition(lone, index) for index in here]
            steps = begin(lone, request(here))
            assert hasattr(steps, "send"), "it is served in steps"
            future = taken(steps, moment)
            change(lone, here[which])
            answer = finished(steps) if future is None else future
            if isinstance(answer, asyncio.Future):
                answer = await answered_now(answer)
            part = parts_of(answer).get(here[which])
            if part is None or not (part.error_code or len(part.records)):
                # The answer of a follower's session may come first, if the next one tells it.
                session = lone.broker.follower_sessions._sessions[2]
                assert here[which] in {entry.index for entry in session.dirty}
            # The answer does not wait until it has left all its partitions: that takes turns.
            await until(lambda: not lone.broker.departures)
            assert not any(each.waiting.readers for each in hosted)
            if future is not None:
                assert moment >= least_moments, "there were steps to come between"
                break


def led(lone: LoneBroker) -> None:
    """Partitions that this broker leads, some records in each; the ISR is its own."""
    lead(lone, (1,), partitions=MOMENTS * PARTITIONS)
    for index in range(MOMENTS * PARTITIONS):
        append(partition(lone, index), AHEAD)


def followed(lone: LoneBroker) -> None:
    """Partitions that this broker led and follows now, all of their records committed."""
    led(lone)
    for index in range(MOMENTS * PARTITIONS):
        follow(lone, index)


def of_a_consumer(here: range) -> Any:
    return fetch(AHEAD, here, max_wait_ms=LONG_MS)


def at_a_follower(here: range) -> Any:
    request = fetch(AHEAD, here, max_wait_ms=LONG_MS, epoch=1)
    request.rack_id = "a"
    return request


READ_AND_JOINED = 2 * PARTITIONS // TOGETHER


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("change", CONSUMER)
def test_what_comes_before_a_consumer_waits_is_answered_at_once(
    tmp_path: Path, change: Change
) -> None:
    """A change after the step that read its partition was found only when the time was over."""

    async def main() -> None:
        async with running(tmp_path) as lone:
            led(lone)
            await at_each_moment(lone, change, of_a_consumer, READ_AND_JOINED)

    asyncio.run(main())


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("change", AT_A_FOLLOWER)
def test_what_comes_to_a_follower_before_a_consumer_waits_is_answered_at_once(
    tmp_path: Path, change: Change
) -> None:
    async def main() -> None:
        async with running(tmp_path) as lone:
            followed(lone)
            await at_each_moment(lone, change, at_a_follower, READ_AND_JOINED)

    asyncio.run(main())


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("change", CONSUMER)
@pytest.mark.parametrize("has_session", [False, True])
def test_what_comes_before_a_follower_waits_is_answered_at_once(
    tmp_path: Path, change: Change, has_session: bool
) -> None:
    """It reads to the log's end: records that no other replica has wake it, too."""

    async def main() -> None:
        async with running(tmp_path) as lone:
            led(lone)
            for index in range(MOMENTS * PARTITIONS):
                # The watermark does not move by what the leader alone has.
                partition(lone, index).take_isr((1, 2, 3), 1)

            def request(here: range) -> Any:
                offsets = dict.fromkeys(here, AHEAD)
                if not has_session:
                    return of_follower((0, -1), offsets, wait_ms=LONG_MS)
                # The first answer tells all; the next request, which names all again, waits.
                first = finished(begin(lone, of_follower((0, 0), offsets)))
                assert len(parts_of(first)) == PARTITIONS
                return of_follower((first.session_id, 1), offsets, wait_ms=LONG_MS)

            await at_each_moment(lone, change, request, PARTITIONS // TOGETHER)

    asyncio.run(main())


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("change", [it_is_cut, it_is_cut_and_filled_up])
def test_a_log_that_is_cut_before_a_consumer_waits_is_looked_at_again(
    tmp_path: Path, change: Change
) -> None:
    """Also where it then ends as before: other records lie there, and the client is to see it."""

    async def main() -> None:
        async with running(tmp_path) as lone:
            followed(lone)
            steps = begin(lone, at_a_follower(range(PARTITIONS)))
            for _ in range(3):
                next(steps)  # until the first partitions are read
            change(lone, 0)
            answer = await answered_now(finished(steps))
            cut_short = change is it_is_cut
            assert bool(parts_of(answer)[0].error_code) == cut_short

    asyncio.run(main())


@pytest.mark.usefixtures("small_steps")
def test_bytes_that_come_before_it_waits_count_for_the_least_that_it_wants(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as lone:
            lead(lone, (1,), partitions=PARTITIONS)
            append(partition(lone, 0))
            size = partition(lone, 0).log.size
            for came in range(1, 3):
                at = partition(lone, 0).end_offset
                request = fetch(at, [0], max_wait_ms=LONG_MS, min_bytes=3 * size)
                others = fetch(0, range(1, PARTITIONS), max_wait_ms=LONG_MS).topics[0].partitions
                request.topics[0].partitions += others
                steps = begin(lone, request)
                for _ in range(3):
                    next(steps)  # until the first partitions are read
                append(partition(lone, 0), came)
                future = finished(steps)
                for missing in range(3 - came, 0, -1):
                    for _ in range(3):
                        await asyncio.sleep(0)
                    assert not future.done(), f"{missing} of 3 batches have still to come"
                    append(partition(lone, 0))
                answer = await answered_now(future)
                assert len(parts_of(answer)[0].records) == 3 * size
                await until(lambda: nobody_waits(lone))

    asyncio.run(main())


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("replica_id", [-1, 2])
def test_a_client_that_goes_before_it_waits_everywhere_waits_nowhere(
    tmp_path: Path, replica_id: int
) -> None:
    async def main() -> None:
        async with running(tmp_path) as lone:
            lead(lone, (1, 2), partitions=PARTITIONS)
            for at in itertools.count():
                request = fetch(
                    0, range(PARTITIONS), max_wait_ms=LONG_MS, replica_id=replica_id, epoch=1
                )
                steps = begin(lone, request)
                future = None
                for _ in range(at):
                    try:
                        next(steps)
                    except StopIteration as end:
                        future = end.value
                        break
                if future is None:
                    steps.close()
                else:
                    future.cancel()
                await until(lambda: nobody_waits(lone) and not lone.broker.departures)
                if future is not None:
                    break

    asyncio.run(main())


def test_a_fetch_whose_wait_ends_before_it_waits_everywhere_is_answered(tmp_path: Path) -> None:
    """Its time is over, or records come, while the others have their turn."""

    async def main() -> None:
        async with running(tmp_path) as lone:
            lead(lone, (1,), partitions=3 * pace.PART)
            for how in ("time", "records"):
                at = partition(lone, 0).end_offset
                request = fetch(at, [0], max_wait_ms=1 if how == "time" else LONG_MS)
                rest = fetch(0, range(1, 3 * pace.PART)).topics[0].partitions
                request.topics[0].partitions += rest
                steps = begin(lone, request)
                while not partition(lone, 0).waiting.readers:
                    next(steps)
                (waiter,) = partition(lone, 0).waiting.readers
                assert isinstance(waiter, DelayedFetch)
                if how == "records":
                    append(partition(lone, 0))
                await until(waiter.future.done)
                future = finished(steps)
                assert not partition(lone, 3 * pace.PART - 1).waiting.readers
                answer = await answered_now(future)
                assert len(parts_of(answer)) == 3 * pace.PART
                assert bool(len(parts_of(answer)[0].records)) == (how == "records")
                await until(lambda: nobody_waits(lone))

    asyncio.run(main())


class Steady:
    """A clock that goes on by a millisecond each time that it is looked at."""

    def __init__(self) -> None:
        self.now_ms = 0

    def wall_ms(self) -> int:
        return self.monotonic_ms()

    def monotonic_ms(self) -> int:
        self.now_ms += 1
        return self.now_ms


def test_all_that_leave_share_one_turn_and_none_is_forgotten() -> None:
    """A thousand clients that go at once; few waits are removed at once."""

    class Nobody:
        def more(self, size: int) -> None:
            raise AssertionError(f"got {size} bytes")

    async def main() -> None:
        departures = Departures(Steady())
        places: list[dict[Any, None]] = [{} for _ in range(3 * pace.PART)]
        few = Nobody()
        places[0][few] = None
        departures.take_off(few, places[: pace.PART])
        assert not places[0] and not departures
        for _ in range(20):
            waiter = Nobody()
            for each in places:
                each[waiter] = None
            departures.take_off(waiter, list(places))
        left = longest = sum(map(len, places))
        most = 0
        while departures:
            before = left
            await asyncio.sleep(0)
            left = sum(map(len, places))
            most = max(most, before - left)
        assert left == 0 and longest == 20 * 3 * pace.PART
        assert most <= (pace.BACKGROUND_MS + 1) * pace.PART

    asyncio.run(main())


def test_ten_thousand_partitions_are_waited_for_and_left_in_turns(tmp_path: Path) -> None:
    """Both were one turn; now one more fetch that comes meanwhile is served between two of them."""

    async def main() -> None:
        async with running(tmp_path) as lone:
            hosted = lead(lone, (1,), partitions=1)
            # One replica for all of them: what is measured is the waiting, not 10,000 logs.
            lone.broker.partitions.by_topic["t"].update(dict.fromkeys(range(1, MANY), hosted))
            joined: list[int] = []
            join = DelayedFetch.join

            def noted(self: DelayedFetch, places: list[Any]) -> None:
                joined.append(len(places))
                join(self, places)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(DelayedFetch, "join", noted)
                answer, turns = await asked(lone, fetch(0, range(MANY), max_wait_ms=1))
            assert len(parts_of(answer)) == MANY
            assert max(joined) <= pace.PART
            assert turns.longest_s < LONGEST_S
            await until(lambda: not lone.broker.departures)
            assert nobody_waits(lone)
            # A client that goes.
            peer = await Peer.connect(lone.port)
            peer.send(fetch(0, range(MANY), max_wait_ms=LONG_MS), 12)
            await until(lambda: lone.server.router.tallies[handler.HANDLER.api_key].pending)
            assert hosted.waiting.readers
            async with TurnCosts() as turns:
                peer.writer.transport.abort()
                await until(lambda: not lone.server.connections)
                await until(lambda: not hosted.waiting.readers and not lone.broker.departures)
            assert turns.longest_s < LONGEST_S

    asyncio.run(main())


def test_partitions_without_new_records_gather_no_waiting_requests(tmp_path: Path) -> None:
    """A client fetches again and again, and gets records of one partition each time."""

    async def main() -> None:
        async with running(tmp_path) as lone:
            count = 4 * pace.PART
            lead(lone, (1,), partitions=count)
            peer = await Peer.connect(lone.port)
            idle = partition(lone, count - 1)
            most = 0
            for at in range(30):
                request = fetch(at, [0], max_wait_ms=LONG_MS)
                request.topics[0].partitions += fetch(0, range(1, count)).topics[0].partitions
                peer.send(request, 12)
                await until(lambda: lone.server.router.tallies[handler.HANDLER.api_key].pending)
                most = max(most, len(idle.waiting.readers))
                append(partition(lone, 0))
                answer = await peer.receive()
                assert len(parts_of(answer)[0].records)
            assert most <= 3
            await until(lambda: nobody_waits(lone) and not lone.broker.departures)

    asyncio.run(main())


def test_a_partition_that_goes_while_it_is_waited_for_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as lone:
            lead(lone, (1,), partitions=3 * pace.PART)
            future = finished(begin(lone, fetch(0, range(3 * pace.PART), max_wait_ms=LONG_MS)))
            gone = partition(lone, 5)
            it_is_deleted(lone, 5)
            answer = await answered_now(future)
            assert parts_of(answer)[5].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            await until(lambda: nobody_waits(lone, gone))

    asyncio.run(main())
