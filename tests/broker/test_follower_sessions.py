"""The leader's half of a follower's fetch session: what it looks at, and what it tells."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from tests.support.broker_pair import append as append_values
from tests.support.broker_pair import content
from tests.support.broker_pair import running as running_pair
from tests.support.follower_fetches import LIFE, ask, partition, session_of, told
from tests.support.led_partition import append, lead, run, running
from tests.support.lone_broker import Peer, until
from tests.support.produce_fetch import fetch as consumer_fetch
from tidelog.model.errors import ErrorCode
from tidelog.replication.isr import Follower

LONG_MS = 60_000


def test_only_what_changed_is_looked_at_and_sent(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as lone:
            lead(lone, (1, 2), partitions=50)
            peer = await Peer.connect(lone.port)
            first = await peer.ask(ask((0, 0), dict.fromkeys(range(50), 0)), 12)
            assert len(told(first)) == 50
            session = first.session_id
            assert not session_of(lone).dirty, "nothing is looked at again before it changes"
            peer.send(ask((session, 1), wait_ms=LONG_MS), 12)
            await until(lambda: session_of(lone).waiting)
            append(partition(lone, 7))
            answer = await peer.receive()
            assert list(told(answer)) == [7]
            assert len(told(answer)[7].records)
            assert partition(lone, 7).high_watermark == 0
            peer.send(ask((session, 2), {7: 1}, wait_ms=LONG_MS), 12)
            await until(lambda: partition(lone, 7).high_watermark == 1)
            # The watermark is sent with the next records; alone it wakes no follower.
            append(partition(lone, 8))
            answer = await peer.receive()
            assert told(answer)[7].high_watermark == 1
            assert sorted(told(answer)) == [7, 8]

    run(main())


def test_what_has_no_room_is_sent_with_the_next_response(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as lone:
            lead(lone, (1, 2), partitions=3)
            for index in range(3):
                append(partition(lone, index))
            peer = await Peer.connect(lone.port)
            request = ask((0, 0), dict.fromkeys(range(3), 0))
            request.max_bytes = 1
            seen: dict[int, int] = {}
            for turn in range(1, 4):
                answer = await peer.ask(request, 12)
                full = [index for index, part in told(answer).items() if len(part.records)]
                assert len(full) == 1, "the first batch is sent whole, no other"
                seen[full[0]] = turn
                request = ask((answer.session_id, turn), {full[0]: 1})
                request.max_bytes = 1
            assert sorted(seen) == [0, 1, 2], "each had its turn"

    run(main())


def test_a_session_goes_on_over_another_connection(tmp_path: Path) -> None:
    """What the lost connection carried is sent again, and the waiting request is given up."""

    async def main() -> None:
        async with running(tmp_path) as lone:
            lead(lone, (1, 2), partitions=2)
            peer = await Peer.connect(lone.port)
            session = (await peer.ask(ask((0, 0), {0: 0, 1: 0}), 12)).session_id
            append(partition(lone, 1))
            append(partition(lone, 0))
            await peer.ask(ask((session, 1)), 12)
            lost = await peer.ask(ask((session, 2), {0: 1}), 12)
            assert partition(lone, 0).high_watermark == 1
            assert list(told(lost)) == [0], "its watermark"
            append(partition(lone, 1))
            lost = await peer.ask(ask((session, 3), {1: 0}), 12)
            partition(lone, 0).waiting.start_moved()
            other = await Peer.connect(lone.port)
            again = await other.ask(ask((session, 4)), 12)
            assert list(told(again)) == [1]
            assert bytes(told(again)[1].records) == bytes(told(lost)[1].records)
            watermark = await other.ask(ask((session, 5), {1: 2}), 12)
            assert [p.high_watermark for p in told(watermark).values()] == [2]
            third = await Peer.connect(lone.port)
            again = await third.ask(ask((session, 6)), 12)
            assert [p.high_watermark for p in told(again).values()] == [2]
            stale = await peer.ask(ask((session, 2)), 12)
            assert stale.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH

    run(main())


def test_another_life_of_the_follower_is_noted_everywhere(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as lone:
            lead(lone, (1, 2), partitions=3)
            peer = await Peer.connect(lone.port)
            session = (await peer.ask(ask((0, 0), dict.fromkeys(range(3), 0)), 12)).session_id
            await peer.ask(ask((session, 1), life=LIFE + 1), 12)
            lives = {partition(lone, i).followers[2].broker_epoch for i in range(3)}
            assert lives == {LIFE + 1}

    run(main())


def test_one_session_per_follower(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as lone:
            hosted = lead(lone, (1, 2))
            peer = await Peer.connect(lone.port)
            first = (await peer.ask(ask((0, 0), {0: 0}), 12)).session_id
            second = (await peer.ask(ask((0, 0), {0: 0}), 12)).session_id
            assert len(lone.broker.follower_sessions) == 1
            assert len(hosted.waiting.followers) == 1
            gone = await peer.ask(ask((first, 1)), 12)
            assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            assert (await peer.ask(ask((second, 1)), 12)).error_code == 0
            forgotten = await peer.ask(ask((second, 2), forget=(0,)), 12)
            assert forgotten.error_code == 0
            assert not hosted.waiting.followers
            await peer.ask(consumer_fetch(0, session=(0, 0)), 12)
            assert len(lone.broker.follower_sessions) == 1, "consumers' sessions are others"

    run(main())


def test_a_follower_outside_of_the_isr_is_looked_at_with_each_request(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as lone:
            hosted = lead(lone, (1, 2), partitions=2)
            peer = await Peer.connect(lone.port)
            session = (await peer.ask(ask((0, 0), {0: 0, 1: 0}), 12)).session_id
            assert not session_of(lone).out_of_isr
            hosted.take_isr((1,), 1)
            await peer.ask(ask((session, 1)), 12)
            assert [entry.index for entry in session_of(lone).out_of_isr] == [0]
            await peer.ask(ask((session, 2)), 12)
            assert session_of(lone).out_of_isr
            hosted.take_isr((1, 2), 2)
            await peer.ask(ask((session, 3)), 12)
            assert not session_of(lone).out_of_isr

    run(main())


def test_a_follower_taken_out_while_its_request_waits_is_looked_at_with_the_next(
    tmp_path: Path,
) -> None:
    """A suspicion that ends again: nothing is written, and it must come back all the same."""

    async def main() -> None:
        async with running(tmp_path) as lone:
            hosted = lead(lone, (1, 2), partitions=2)
            peer = await Peer.connect(lone.port)
            session = (await peer.ask(ask((0, 0), {0: 0, 1: 0}), 12)).session_id
            peer.send(ask((session, 1), wait_ms=50), 12)
            await until(lambda: session_of(lone).waiting)
            hosted.take_isr((1,), 1)
            assert not told(await peer.receive())
            await peer.ask(ask((session, 2)), 12)
            assert [entry.index for entry in session_of(lone).out_of_isr] == [0]

    run(main())


def test_a_follower_in_another_leader_epoch_is_sent_the_watermark_again(tmp_path: Path) -> None:
    """It drops what was under way when the epoch changed, and its session knows nothing of it."""

    async def main() -> None:
        async with running(tmp_path) as lone:
            append(lead(lone, (1,)))
            peer = await Peer.connect(lone.port)
            dropped = await peer.ask(ask((0, 0), {0: 1}), 12)
            assert told(dropped)[0].high_watermark == 1
            session = dropped.session_id
            assert not told(await peer.ask(ask((session, 1), {0: 1}), 12)), "nothing is new"
            lone.lead("t", epoch=2, isr=(1,), replicas=(1, 2, 3), isr_version=2)
            again = told(await peer.ask(ask((session, 2), {0: 1}, epoch=2), 12))
            assert (again[0].error_code, again[0].high_watermark) == (0, 1)

    run(main())


def test_a_session_reports_a_replica_that_is_removed_and_created_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as lone:
            lead(lone, (1, 2), partitions=2)
            peer = await Peer.connect(lone.port)
            session = (await peer.ask(ask((0, 0), {0: 0, 1: 0}), 12)).session_id
            peer.send(ask((session, 1), wait_ms=LONG_MS), 12)
            await until(lambda: session_of(lone).waiting)
            lone.broker.partitions.stop("t", 0, delete=True)
            gone = told(await peer.receive())
            assert {i: part.error_code for i, part in gone.items()} == {
                0: ErrorCode.NOT_LEADER_OR_FOLLOWER
            }
            lead(lone, (1, 2), partitions=1)
            append(partition(lone, 0))
            back = told(await peer.ask(ask((session, 2), {0: 0}), 12))
            assert len(back[0].records)

    run(main())


def test_a_follower_that_held_all_until_now_has_not_lagged() -> None:
    """Nothing was written for an hour, then something is: the hour was no lag."""
    follower = Follower()
    follower.fetched(5, 5, LIFE, 1000)
    follower.leader_appended(3_600_000)
    assert follower.caught_up_ms == 3_600_000
    follower.fetched(5, 6, LIFE, 3_600_100)
    follower.leader_appended(3_700_000)
    assert follower.caught_up_ms == 3_600_000, "it has lagged since then"
    fresh = Follower(caught_up_ms=7)
    fresh.leader_appended(3_700_000)
    assert fresh.caught_up_ms == 7, "it has not fetched in this epoch"


def test_through_random_breaks_all_logs_become_the_same(tmp_path: Path) -> None:
    """Appends to random partitions while connections break and partitions come and go."""

    async def main() -> None:
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        source = random.Random(seed)
        async with running_pair(tmp_path) as pair:
            leaders = {index: pair.lead(index) for index in range(12)}
            followers = {index: pair.follow(index) for index in range(8)}
            for turn in range(300):
                append_values(leaders[source.randrange(12)], str(turn))
                chance = source.random()
                if chance < 0.05:
                    for connection in list(pair.leader.server.connections):
                        connection.close("a test breaks it")
                elif chance < 0.15:
                    index = source.randrange(12)
                    epoch = leaders[index].leader_epoch + 1
                    leaders[index] = pair.lead(index, epoch)
                    followers[index] = pair.follow(index, epoch)
                elif chance < 0.2:
                    index = source.randrange(12)
                    if index in followers:
                        pair.follower.broker.partitions.stop("t", index, delete=True)
                        followers[index] = pair.follow(index, leaders[index].leader_epoch)
                for _ in range(source.randrange(20)):
                    await asyncio.sleep(0)
            for index in range(12):
                followers.setdefault(index, pair.follow(index, leaders[index].leader_epoch))
            await until(
                lambda: all(followers[i].end_offset == leaders[i].end_offset for i in leaders)
            )
            for index in leaders:
                assert content(leaders[index]) == content(followers[index]), f"seed {seed}"
            append_values(leaders[0], "the end")
            await until(lambda: all(x.high_watermark == x.end_offset for x in leaders.values()))

    run(main())


def test_a_follower_that_names_a_count_is_refused_and_not_noted(tmp_path: Path) -> None:
    """A limit by its resize epoch would stop the copy at a fence (KIP-253)."""

    async def main() -> None:
        async with running(tmp_path) as lone:
            lead(lone, (1, 2))
            append(partition(lone, 0))
            peer = await Peer.connect(lone.port)
            request = ask((0, 0), {0: 1})
            request.topics[0].undeleted_partition_count = 4
            answer = await peer.ask(request, 12)
            assert told(answer)[0].error_code == ErrorCode.INVALID_REQUEST
            assert partition(lone, 0).high_watermark == 0
            await peer.ask(ask((answer.session_id, 1), {0: 1}), 12)
            assert partition(lone, 0).high_watermark == 1

    run(main())
