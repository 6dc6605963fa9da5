"""A follower against a leader, both real brokers in this process without a controller."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.broker_pair import (
    FOLLOWER_EPOCH,
    append,
    content,
    flip_a_bit,
    run,
    running,
    slow_greeting,
    until_same,
)
from tests.support.every_yield import every_yield
from tests.support.lone_broker import until
from tests.support.processes import DEADLINE_S
from tidelog.broker.data_loss import loss_notes
from tidelog.broker.following import fetch_patience, source_fetcher
from tidelog.broker.following.follower_log import diverges, take_in
from tidelog.broker.following.source_fetcher import FollowerFetcher
from tidelog.broker.partitions.partition import HostedPartition, Role
from tidelog.client.connecting import connection as connections
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.work import Work, finish
from tidelog.protocol import codec, messages
from tidelog.storage.log.partition_log import PartitionLog

LONG_WAIT_MS = 60_000


def test_a_follower_copies_from_empty_and_learns_the_high_watermark(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as pair:
            leader = pair.lead()
            append(leader, "a", "b", "c")
            assert leader.high_watermark == 0, "the follower has nothing of it"
            follower = pair.follow()
            await until_same(leader, follower)
            assert leader.followers[2].broker_epoch == FOLLOWER_EPOCH
            append(leader, "d")
            await until_same(leader, follower)

    run(main())


def test_why_a_leader_cannot_be_followed_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Until it changes, or the leader was followed in between: not at each attempt."""
    connected, attempts = FollowerFetcher._connected, 0

    async def counted(self: FollowerFetcher) -> Any:
        nonlocal attempts
        attempts += 1
        return await connected(self)

    def said(what: str) -> int:
        return sum("following broker 1" in x.message and what in x.message for x in caplog.records)

    async def main() -> None:
        monkeypatch.setattr(FollowerFetcher, "_connected", counted)
        async with running(tmp_path) as pair:
            request = messages.UpdateMetadataRequest
            update = request(controller_id=1, live_brokers=[request.UpdateMetadataBroker(id=2)])
            pair.follower.broker.metadata.apply(update, complete=True)
            leader, follower = pair.lead(), pair.follow()
            await until(lambda: attempts > 3)
            assert said("no address of broker 1") == 1
            pair.tell(pair.leader.port)
            for count in (1, 2):
                append(leader, "a")
                await until_same(leader, follower)
                (fetcher,) = pair.follower.broker.followers._fetchers.values()
                assert fetcher._connection is not None
                fetcher._connection.close("planted")
                await until(lambda count=count: said("planted") == count)

    with caplog.at_level(logging.INFO):
        run(main())


def test_with_sync_a_follower_claims_what_is_synced(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, {"log.durability": "sync"}) as pair:
            leader = pair.lead()
            follower = pair.follow()

            def holds(count: int) -> bool:
                assert leader.followers[2].end_offset <= follower.log.synced_end_offset
                return leader.followers[2].end_offset >= count

            for number in range(1, 10):
                append(leader, str(number))
                await until(lambda count=number: holds(count))  # type: ignore[misc]
            await until_same(leader, follower)
            assert follower.log.synced_end_offset == follower.end_offset

    run(main())


def test_with_sync_a_log_that_cannot_be_synced_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = f"{tmp_path / '2'}/t-0"
    unsynced = PartitionLog.unsynced

    def lacking_files(log: PartitionLog, **options: bool) -> Any:
        if log.path == stuck:
            raise OSError(errno.EMFILE, "planted")
        return unsynced(log, **options)

    async def main() -> None:
        async with running(tmp_path, {"log.durability": "sync"}) as pair:
            leaders = [pair.lead(index) for index in range(2)]
            followers = [pair.follow(index) for index in range(2)]
            with monkeypatch.context() as patched:
                patched.setattr(PartitionLog, "unsynced", lacking_files)
                append(leaders[0], "stuck")
                await until(lambda: followers[0].end_offset == 1)
                for count in range(1, 6):
                    append(leaders[1], "on")
                    await until(lambda count=count: leaders[1].followers[2].end_offset == count)  # type: ignore[misc]
                assert leaders[0].followers[2].end_offset == 0, "what is not synced is not claimed"
            for leader, follower in zip(leaders, followers, strict=True):
                await until_same(leader, follower)

    run(main())


def test_logs_that_part_are_cut_before_the_watermark_is_believed(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as pair:
            # Both have "a"; the follower led in epoch 1 and has two records that no other has.
            leader = pair.lead(epoch=0, isr=(1,))
            append(leader, "a")
            former = pair.follow(epoch=0)
            await until(lambda: former.end_offset == 1)
            pair.follow(epoch=1, leader=2, isr=(2, 1))
            append(former, "lost", "lost too")
            pair.lead(epoch=2, isr=(1,))
            append(leader, "b", "c", "d")
            assert leader.high_watermark == 4
            pair.follow(epoch=2)
            await until_same(leader, former)
            assert [epoch for epoch, _ in former.log.epochs.entries] == [0, 2]

    run(main())


def test_many_cuts_share_a_note_and_let_others_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an unclean election one answer may cut thousands of logs below their watermarks."""
    partitions, writes, turns = 20, [], 0
    cut_in_turn = []

    def taking_in(hosted: HostedPartition, part: Any, *more: Any) -> Work[str | None]:
        if diverges(part):
            cut_in_turn.append(turns)
        return take_in(hosted, part, *more)

    monkeypatch.setattr(source_fetcher, "take_in", taking_in)

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> None:
        async with running(tmp_path) as pair:
            for index in range(partitions):
                append(pair.lead(index, epoch=0, isr=(1,)), "a")
                append(pair.follow(index, epoch=1, leader=2, isr=(2,)), "lost", "lost too")
                append(pair.lead(index, epoch=2, isr=(1,)), "b", "c")
            disk = pair.follower.seams.disk
            replace = disk.replace

            def counting(path: str, content: bytes) -> None:
                if path.endswith(loss_notes.FILE):
                    writes.append(content.count(b"\n"))
                replace(path, content)

            monkeypatch.setattr(disk, "replace", counting)
            logs = [pair.follow(index, epoch=2) for index in range(partitions)]
            others = asyncio.create_task(take_turns())
            for index, log in enumerate(logs):
                await until_same(pair.lead(index, epoch=2, isr=(1,)), log)
            others.cancel()
            assert pair.follower.broker.loss_reports.lost_offsets == 2 * partitions

    with every_yield():
        run(main())
    assert writes == [partitions]
    assert len(cut_in_turn) == partitions
    assert max(cut_in_turn.count(turn) for turn in cut_in_turn) == 1


def test_after_a_cut_to_the_leaders_end_the_watermark_is_sent_again(tmp_path: Path) -> None:
    """The answer that says where to cut has a watermark, too, and the follower must not use it."""

    async def main() -> None:
        async with running(tmp_path) as pair:
            leader = pair.lead(epoch=0)
            append(leader, "a", "b")
            former = pair.follow(epoch=0)
            await until(lambda: former.end_offset == 2)
            pair.follow(epoch=1, leader=2, isr=(2, 1))
            append(former, "lost")
            assert former.high_watermark == 0
            pair.lead(epoch=2, isr=(1,))
            assert leader.high_watermark == 2
            pair.follow(epoch=2, isr=(1,))
            await until_same(leader, former)

    run(main())


def test_with_sync_the_watermark_rises_with_the_sync(tmp_path: Path) -> None:
    """The leader tells it with the records, once; nothing is written after them."""

    async def main() -> None:
        async with running(tmp_path, {"log.durability": "sync"}) as pair:
            leader = pair.lead(isr=(1,))
            append(leader, "a", "b", "c")
            await until(lambda: leader.high_watermark == 3)
            await until_same(leader, pair.follow(isr=(1,)))

    run(main())


def test_a_watermark_sent_before_a_cut_no_longer_counts(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, {"log.durability": "sync"}) as pair:
            follower = pair.lead(isr=(1,))
            append(follower, "a", "b", "c")
            await until(lambda: follower.high_watermark == 3)
            pair.lead(epoch=2, leader=2)
            follower.log.high_watermark = 0
            follower.log.synced_end_offset = 1
            follower.replicated(0, 3)
            assert follower.high_watermark == 1, "not above what is synced"
            assert finish(follower.log.truncation(2, 0)) is None
            follower.log.synced_end_offset = 2
            follower.synced()
            assert follower.high_watermark == 1
            follower.replicated(0, 3)
            assert follower.high_watermark == 2

    run(main())


def test_a_watermark_sent_in_a_former_epoch_no_longer_counts(tmp_path: Path) -> None:
    """What the next leader says of it comes first: it may part from this log below it."""

    async def main() -> None:
        async with running(tmp_path, {"log.durability": "sync"}) as pair:
            follower = pair.lead(isr=(1,))
            append(follower, "a", "b", "c")
            await until(lambda: follower.high_watermark == 3)
            pair.lead(epoch=2, leader=2)
            follower.log.high_watermark = 0
            follower.log.synced_end_offset = 1
            follower.replicated(0, 3)
            assert follower.high_watermark == 1
            pair.lead(epoch=3, leader=2)
            follower.log.synced_end_offset = 3
            follower.synced()
            assert follower.high_watermark == 1
            follower.replicated(0, 3)
            assert follower.high_watermark == 3

    run(main())


def test_an_epoch_without_records_leaves_no_trace(tmp_path: Path) -> None:
    """Two leader changes with no write in between: the truncation point is known."""

    async def main() -> None:
        async with running(tmp_path) as pair:
            leader = pair.lead(epoch=0, isr=(1,))
            append(leader, "a")
            follower = pair.follow(epoch=0)
            await until(lambda: follower.end_offset == 1)
            append(leader, "b")
            await until(lambda: follower.end_offset == 2)
            # Broker 2 leads twice and writes nothing; "c" of epoch 0 was only on broker 1.
            pair.lead(epoch=0, isr=(1,))
            append(leader, "c")
            pair.follow(epoch=1, leader=2, isr=(2,))
            pair.follow(epoch=2, leader=2, isr=(2,))
            pair.lead(epoch=3, isr=(1,))
            append(leader, "d")
            pair.follow(epoch=3)
            await until_same(leader, follower)
            assert follower.log.epochs.entries == leader.log.epochs.entries

    run(main())


def test_a_follower_below_the_leaders_start_starts_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as pair:
            leader = pair.lead(isr=(1,))
            append(leader, *"abcdef")
            assert leader.log.advance_start(4) is None
            follower = pair.follow()
            await until_same(leader, follower)
            assert follower.start_offset == 4
            assert leader.log.advance_start(5) is None
            append(leader, "g")
            await until(lambda: follower.start_offset == 5)

    run(main())


def test_a_log_within_the_leaders_is_not_thrown_away_for_a_refused_offset(tmp_path: Path) -> None:
    """A leader that was deposed, or a bug, says OFFSET_OUT_OF_RANGE: what is here may be all."""

    async def main() -> None:
        async with running(tmp_path) as pair:
            leader = pair.lead(isr=(1,))
            append(leader, *"abcdef")
            follower = pair.follow()
            await until_same(leader, follower)
            before = content(follower)
            reports = pair.follower.broker.loss_reports
            code = ErrorCode.OFFSET_OUT_OF_RANGE
            for start in (-1, 0, 3, 6):
                answer = messages.FetchResponse.PartitionData(0, code, log_start_offset=start)
                why = finish(take_in(follower, answer, 0, reports))
                assert why is not None and "refuses offset 6" in why
                assert content(follower) == before
            answer = messages.FetchResponse.PartitionData(0, code, log_start_offset=9)
            assert finish(take_in(follower, answer, 0, reports)) is None
            assert (follower.start_offset, follower.end_offset) == (9, 9)

    run(main())


def test_a_corrupt_partition_does_not_stop_the_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as pair:
            leaders = [pair.lead(index, isr=(1,)) for index in (0, 1)]
            for leader in leaders:
                append(leader, "a" * 100, "b" * 100)
            flip_a_bit(leaders[0])
            bad, good = (pair.follow(index) for index in (0, 1))
            await until_same(leaders[1], good)
            assert bad.end_offset == 0
            append(leaders[1], "c")
            await until_same(leaders[1], good)
            # The leader has noticed it itself: nothing of its bytes is served any more.
            assert leaders[0].role is Role.OFFLINE and bad.end_offset == 0
            # The controller gets the report when a thread has made the note of it durable.
            await until(lambda: pair.leader.broker.partitions.failures() is not None)
            named = pair.leader.broker.partitions.failures()
            assert [each.partition_index for each in named.damaged_replicas] == [0]

    run(main())


def test_a_corrupt_answer_is_fetched_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as pair:
            leader = pair.lead(isr=(1,))
            append(leader, "a" * 100, "b" * 100)
            sound = bytes(leader.log.read(0, 1_000_000))
            follower = pair.follow()
            await until_same(leader, follower)
            assert finish(follower.log.truncation(0, 0)) is None
            for records, end in ((sound[:100] + b"?" + sound[101:], 0), (sound, 2)):
                answer = messages.FetchResponse.PartitionData(0, 0, 0, 0, 0, records=records)
                reports = pair.follower.broker.loss_reports
                refused = finish(take_in(follower, answer, 0, reports))
                assert (refused is None) == (end == 2)
                assert follower.end_offset == end and follower.log.damaged is None

    run(main())


def test_another_incarnation_of_the_topic_is_neither_served_nor_counted(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as pair:
            leader = pair.lead()
            append(leader, "a")
            follower = pair.follow(topic_id=uuid.uuid4())
            other = pair.follow(index=1)
            others_leader = pair.lead(index=1)
            append(others_leader, "x")
            await until_same(others_leader, other)
            assert leader.followers[2].end_offset == -1
            assert (leader.high_watermark, follower.end_offset) == (0, 0)

    run(main())


@pytest.mark.parametrize("trip_ms", [None, 40])
def test_a_partition_added_while_a_fetch_waits_is_fetched_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trip_ms: int | None
) -> None:
    """The request that idles is given up; at once, or when it is older than an answer takes."""
    monkeypatch.setattr(fetch_patience, "SHORT_FOR_MS", 0)

    async def main() -> None:
        config: dict[str, object] = {"replica.fetch.wait.max.ms": LONG_WAIT_MS}
        async with running(tmp_path, config) as pair:
            first_leader = pair.lead(0)
            append(first_leader, "a")
            first = pair.follow(0)
            await until(lambda: first.end_offset == 1 and first_leader.waiting.followers)
            fetcher = pair.follower.broker.followers._fetchers[1]
            await until(lambda: first_leader.high_watermark == 1 and fetcher._due_ms is not None)
            former = fetcher._connection
            fetcher._patience._trip_ms = trip_ms
            second_leader = pair.lead(1)
            append(second_leader, "b")
            second = pair.follow(1)
            await until(lambda: second.end_offset == 1 and second_leader.high_watermark == 1)
            assert fetcher._connection is not former
            # What was there goes on in the new session, and leaves it without a stop of the other.
            append(first_leader, "c")
            await until(lambda: first.end_offset == 2)
            pair.follower.broker.partitions.stop("t", 0, delete=True)
            append(first_leader, "d")
            append(second_leader, "e")
            await until(lambda: second.end_offset == 2)
            assert first.end_offset == 2

    run(main())


def test_partitions_that_are_added_all_the_time_do_not_starve_the_others(tmp_path: Path) -> None:
    """B4: a leader that is 30 ms away, and with each request that it gets a partition more."""

    async def main() -> None:
        asked = connections = answered = 0
        async with running(tmp_path, {"replica.fetch.wait.max.ms": LONG_WAIT_MS}) as pair:
            loop = asyncio.get_running_loop()

            def answer(writer: asyncio.StreamWriter, correlation_id: int) -> None:
                nonlocal answered
                if not writer.is_closing():
                    answered += 1
                    response = messages.FetchResponse(session_id=7)
                    parts = codec.encode_response(ApiKey.FETCH, 12, correlation_id, response)
                    writer.write(b"".join(parts))

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                nonlocal asked, connections
                connections += 1
                with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                    while True:
                        size = int.from_bytes(await reader.readexactly(4), "big")
                        frame = await reader.readexactly(size)
                        asked += 1
                        pair.follow(asked)
                        correlation_id = int.from_bytes(frame[4:8], "big")
                        loop.call_later(0.03, answer, writer, correlation_id)
                writer.close()

            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            async with server:
                pair.tell(server.sockets[0].getsockname()[1])
                pair.follow(0)
                await until(lambda: answered >= 20 or asked >= 100)
                # What was given up is asked again, and answered before another is given up.
                assert asked <= 2 * answered + 1, (asked, answered)
                assert connections <= 1 + answered, (connections, answered)
                await pair.follower.broker.followers.close()

    run(main())


@pytest.mark.parametrize("arrives", [True, False], ids=["an answer arrives", "it idles"])
def test_only_the_request_that_a_partition_was_added_to_is_given_up_and_only_if_it_idles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrives: bool
) -> None:
    """B4: what comes next is asked without a pause, and is short."""
    monkeypatch.setattr(fetch_patience, "SHORT_FOR_MS", 0)
    monkeypatch.setattr(source_fetcher, "FIRST_PAUSE_MS", 10 * LONG_WAIT_MS)
    writers: list[asyncio.StreamWriter] = []

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(ConnectionError):
            while await reader.read(1000):
                pass
        writer.close()

    async def main() -> None:
        async with running(tmp_path, {"replica.fetch.wait.max.ms": LONG_WAIT_MS}) as pair:
            server = await asyncio.start_server(swallow, "127.0.0.1", 0)
            pair.tell(server.sockets[0].getsockname()[1])
            pair.follow(0)
            fetcher = pair.follower.broker.followers._fetchers[1]
            patience, clock = fetcher._patience, pair.follower.broker.clock

            def idles() -> bool:
                now_ms = clock.monotonic_ms()
                return patience.give_up_in_ms(now_ms, is_arriving=False) == 0

            await until(lambda: len(writers) == 2 and idles())
            former = fetcher._connection
            assert former is not None
            fetcher._check_request(fetcher._requests - 1)
            assert fetcher._connection is former, "that one was answered"
            if arrives:
                writers[0].write(bytes(2))
                await until(lambda: former.is_receiving)
            fetcher._check_request(fetcher._requests)
            assert former.closed != arrives
            if not arrives:
                # The second connection is the probe's.
                await until(lambda: len(writers) == 3 and fetcher._due_ms is not None)
                assert patience._sent is not None
                assert patience._sent[1] == fetch_patience.INTERRUPT_MS
            await pair.follower.broker.followers.close()
            server.close()

    run(main())


def test_a_request_whose_answer_is_here_is_not_given_up(tmp_path: Path) -> None:
    """B4: the fetcher has not had its turn yet; nothing is in flight any more."""

    async def main() -> None:
        async with running(tmp_path) as pair:
            pair.tell(1)
            pair.follow(0)
            fetcher = pair.follower.broker.followers._fetchers[1]
            closed: list[str] = []
            answered = SimpleNamespace(is_receiving=False, in_flight=0, close=closed.append)
            monotonic_ms = pair.follower.broker.clock.monotonic_ms
            fetcher._patience.sent(LONG_WAIT_MS, monotonic_ms() - LONG_WAIT_MS)
            fetcher._connection = answered  # type: ignore[assignment]
            fetcher._check_request(fetcher._requests)
            assert not closed
            answered.in_flight = 1
            fetcher._check_request(fetcher._requests)
            assert closed

    run(main())


def test_partitions_that_are_added_together_have_one_timer(tmp_path: Path) -> None:
    """B4: a leader may get ten thousand at once."""

    async def main() -> None:
        async with running(tmp_path) as pair:
            pair.tell(1)
            hosted = [pair.follow(at) for at in range(3)]
            fetcher = pair.follower.broker.followers._fetchers[1]
            loop = asyncio.get_running_loop()
            timers: list[Any] = []
            call_later = loop.call_later
            loop.call_later = lambda *asked: timers.append(asked[1]) or call_later(*asked)  # type: ignore
            fetcher._added.clear()
            for each in hosted:
                fetcher.follow(each)
            assert timers == [fetcher._check_request]
            loop.call_later = call_later  # type: ignore[method-assign]

    run(main())


def test_a_request_that_waits_for_a_lost_leader_is_woken_when_it_answers_again(
    tmp_path: Path,
) -> None:
    """Section 4: an answer to a client waits until a lost leader is replaced, or answers."""

    async def main() -> None:
        async with running(tmp_path) as pair:
            leader = pair.lead(0)
            append(leader, "a")
            follower = pair.follow(0)
            await until_same(leader, follower)
            fetcher = pair.follower.broker.followers._fetchers[1]
            await until(lambda: fetcher._due_ms is not None)
            fetcher._lost_at_ms = 0
            woken = pair.follower.broker.metadata.changed()
            append(leader, "b")
            await asyncio.wait_for(woken, DEADLINE_S)
            assert fetcher._lost_at_ms is None

    run(main())


def test_nothing_is_given_up_while_no_request_is_under_way(tmp_path: Path) -> None:
    """The disk holds the next request up: the connection is kept, and the leader is not lost."""

    async def main() -> None:
        held, looked = asyncio.Event(), asyncio.Event()
        config = {"replica.fetch.wait.max.ms": LONG_WAIT_MS, "log.durability": "sync"}
        async with running(tmp_path, config) as pair:
            leader = pair.lead(0)
            first = pair.follow(0)
            append(leader, "a")
            await until_same(leader, first)
            commit = pair.follower.broker.commit
            until_stored = commit.until_stored

            async def slow(partition: HostedPartition) -> None:
                held.set()
                await looked.wait()
                await until_stored(partition)

            commit.until_stored = slow  # type: ignore[method-assign]
            append(leader, "b")
            await until(held.is_set)
            fetcher = pair.follower.broker.followers._fetchers[1]
            present = fetcher._connection
            second_leader = pair.lead(1)
            second = pair.follow(1)
            append(second_leader, "c")
            # What the timer does that began when it was added.
            fetcher._check_request(fetcher._requests)
            looked.set()
            await until(lambda: second.end_offset == 1 and leader.high_watermark == 2)
            assert fetcher._connection is present is not None
            assert not fetcher.source_lost_for_ms

    run(main())


def test_a_lost_leader_is_found_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as pair:
            leader = pair.lead()
            pair.tell(1)
            follower = pair.follow()
            append(leader, "a")
            pair.tell(pair.leader.port)
            await until_same(leader, follower)
            for connection in list(pair.leader.server.connections):
                connection.close("a test breaks it")
            append(leader, "b")
            await until_same(leader, follower)

    run(main())


def test_a_source_that_greets_slowly_is_followed_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was given up after three seconds, again and again, and got nothing but more to do."""
    least_ms = source_fetcher.CONNECT_TIMEOUT_MS
    asked: list[int | None] = []
    slow = slow_greeting(asked, 4 * least_ms)

    def connect(*address: Any, **options: Any) -> Any:
        is_of_probe = options["on_closed"] is None
        return (connections.connect if is_of_probe else slow)(*address, **options)

    monkeypatch.setattr(source_fetcher, "connect", connect)

    async def main() -> None:
        async with running(tmp_path) as pair:
            leader = pair.lead()
            append(leader, "a")
            follower = pair.follow()
            await until_same(leader, follower)
            assert asked == [least_ms, 2 * least_ms, 4 * least_ms]
            for connection in list(pair.leader.server.connections):
                connection.close("a test breaks it")
            await until(lambda: len(asked) > 3)
            assert asked[3] == least_ms, "an answer ends the row"
            append(leader, "b")
            await until_same(leader, follower)

    run(main())


def test_garbage_for_one_partition_does_not_stop_the_others(tmp_path: Path) -> None:
    """What is no batch at all, and a batch whose length lies."""

    async def main() -> None:
        async with running(tmp_path) as pair:
            leaders = [pair.lead(index, isr=(1,)) for index in range(3)]
            for leader in leaders:
                append(leader, "a" * 100, "b" * 100)
            overwrite(leaders[0], 0, b"\x7f" * 61)
            overwrite(leaders[1], 8, b"\x7f\xff\xff\xff")
            followers = [pair.follow(index) for index in range(3)]
            append(leaders[2], "c")
            await until_same(leaders[2], followers[2])
            assert [each.end_offset for each in followers[:2]] == [0, 0]

    run(main())


def overwrite(hosted: HostedPartition, position: int, content: bytes) -> None:
    """Damage the first batch in the file."""
    with Path(f"{hosted.log.path}/{0:020}.log").open("r+b") as file:
        file.seek(position)
        file.write(content)


def test_batches_that_have_no_room_in_one_answer_come_with_a_later_one(tmp_path: Path) -> None:
    """Of several partitions whose next batch is larger than what is fetched of one at once."""

    async def main() -> None:
        config: dict[str, object] = {"replica.fetch.max.bytes": 500, "log.segment.bytes": 2000}
        async with running(tmp_path, config) as pair:
            leaders = [pair.lead(index, isr=(1,)) for index in range(3)]
            for leader in leaders:
                append(leader, *("x" * 700 for _ in range(8)))
                assert len(leader.log.segments) > 2
            followers = [pair.follow(index) for index in range(3)]
            for leader, follower in zip(leaders, followers, strict=True):
                await until_same(leader, follower)

    run(main())
