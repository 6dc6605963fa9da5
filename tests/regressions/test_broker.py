"""Known traps of the field (docs/promises.md) between a leader and a follower, each by its name."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from pathlib import Path
from typing import Any

from tests.support.broker_pair import append, content, run, running, until_same
from tests.support.lone_broker import Peer, until
from tests.support.produce_fetch import LATEST, batch, fetch, produce
from tests.support.produce_fetch import running as running_alone
from tidelog.broker.metadata.configurations import EntityType
from tidelog.model.errors import ErrorCode
from tidelog.model.work import finish
from tidelog.records.batch import walk
from tidelog.records.builder import NewRecord, Producer, build_batch
from tidelog.storage.log.region import LEAST_BYTES

LONG_MS = 60_000


def test_a_replica_is_removed_while_its_fetch_response_is_in_flight(tmp_path: Path) -> None:
    """The fetcher goes on with the other partitions, on the same connection."""

    async def main() -> None:
        async with running(tmp_path, {"replica.fetch.wait.max.ms": LONG_MS}) as pair:
            leaders = [pair.lead(index) for index in range(3)]
            followers = [pair.follow(index) for index in range(3)]
            await until(lambda: all(leader.followers.get(2) for leader in leaders))
            for leader, follower in zip(leaders, followers, strict=True):
                append(leader, "a")
                await until_end(follower, 1)
            (connection,) = [c for c in pair.leader.server.connections if c.unanswered]
            # The answer is made in this turn's end; the replica is gone before it comes.
            for leader in leaders:
                append(leader, "b")
            pair.follower.broker.partitions.stop("t", 0, delete=True)
            for index in (1, 2):
                await until_end(followers[index], 2)
                append(leaders[index], "c")
                await until_end(followers[index], 3)
                assert content(leaders[index]) == content(followers[index])
            assert followers[0].end_offset == 1
            assert not connection.is_closing

    run(main())


async def until_end(hosted: Any, offset: int) -> None:
    await until(lambda: hosted.end_offset == offset)


def test_size_and_high_watermark_read_at_different_times(tmp_path: Path) -> None:
    """Never bytes above the high watermark, whatever the way they take and whatever is appended."""

    async def main() -> None:
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        source = random.Random(seed)
        async with running_alone(tmp_path) as (lone, peer):
            hosted = lone.lead(
                "t", isr=(1, 2), replicas=(1, 2), configs={"segment.bytes": "300000"}
            )
            now_ms = int(time.time() * 1000)
            sizes = (10, 1000, LEAST_BYTES // 4, LEAST_BYTES)
            for _ in range(300):
                value = b"x" * source.choice(sizes)
                hosted.append(build_batch([NewRecord(now_ms, None, value)]), now_ms)
                held = source.randint(hosted.high_watermark, hosted.end_offset)
                hosted.follower_fetched(2, held)
                mark = hosted.high_watermark
                offset = source.randint(0, mark)
                limit = source.choice((1, 5000, LEAST_BYTES, 4 * LEAST_BYTES))
                asked = fetch(offset, max_bytes=limit, partition_max_bytes=limit)
                peer.send(asked, 12)
                # What comes while the answer is on its way is not in it.
                hosted.append(build_batch([NewRecord(now_ms, None, value)]), now_ms)
                answer = (await peer.receive()).responses[0].partitions[0]
                assert answer.high_watermark == mark, f"seed {seed}"
                ends = [header.next_offset for _, header in walk(answer.records)]
                assert all(end <= mark for end in ends), f"seed {seed}"
                assert ends or offset == mark, f"seed {seed}"

    run(main())


async def sent(port: int, records: bytes) -> Any:
    peer = await Peer.connect(port)
    answer = await peer.ask(produce(records, timeout_ms=5000), LATEST)
    peer.writer.close()
    return answer.responses[0].partition_responses[0]


def test_a_retried_batch_after_a_leader_change_and_retention_succeeds_once(tmp_path: Path) -> None:
    """The answer was lost with the old leader; the new one knows the batch from its own copy."""

    async def main() -> None:
        async with running(tmp_path) as pair:
            leader = pair.lead()
            follower = pair.follow()
            known = [batch(str(at), producer=Producer(7, 0, at)) for at in range(3)]
            for at, records in enumerate(known):
                answer = await sent(pair.leader.port, records)
                assert (answer.error_code, answer.base_offset) == (0, at)
            await until_same(leader, follower)
            pair.leader.broker.partitions.stop("t", 0, delete=False)
            moved = {"leader": 2, "isr": (2,), "isr_version": 5}
            leading = pair.follow(epoch=2, **moved)
            assert leading.is_leader
            # Everything is too old by now: the segment that holds the batches goes.
            assert leading.log.roll(0) is None
            assert leading.log.advance_start(3) is None
            finish(leading.log.housekeeping(int(time.time() * 1000)))
            assert len(leading.log.segments) == 1
            for at, records in enumerate(known):
                again = await sent(pair.follower.port, records)
                assert (again.error_code, again.base_offset) == (0, at)
            assert leading.end_offset == 3
            fresh = await sent(pair.follower.port, batch("3", producer=Producer(7, 0, 3)))
            assert (fresh.error_code, fresh.base_offset) == (0, 3)
            gap = await sent(pair.follower.port, batch("5", producer=Producer(7, 0, 5)))
            assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    run(main())


def test_deletion_of_a_partition_under_heavy_appends_flush_and_segment_roll(tmp_path: Path) -> None:
    """No error takes a directory offline, neither the leader's nor the follower's."""

    async def main() -> None:
        source = random.Random(7)
        async with running(tmp_path) as pair:
            both = (pair.leader.broker, pair.follower.broker)
            small = {"segment.bytes": "2000", "flush.messages": "1", "file.delete.delay.ms": "0"}
            for broker in both:
                finish(broker.topic_configs.apply([(EntityType.TOPIC, "t", small)], complete=False))
            for life in range(30):
                names = {"topic_id": uuid.UUID(int=life + 1), "partition_epoch": life}
                leader, follower = pair.lead(epoch=life, **names), pair.follow(epoch=life, **names)
                for _ in range(source.randrange(5, 30)):
                    append(leader, "x" * 500)
                    for _ in range(source.randrange(3)):
                        await asyncio.sleep(0)
                assert leader.log.configs.segment_bytes == 2000
                for broker in both if source.random() < 0.5 else reversed(both):
                    broker.partitions.stop("t", 0, delete=True)
                    finish(broker.partitions.syncing_names())
                    await broker.maintenance.check_retention()
                    await broker.maintenance.remove()
                assert leader.log.closed
                assert follower.log.closed
            await asyncio.gather(*(broker.commit.settled() for broker in both))
            for broker in both:
                assert [each.failed for each in broker.directories] == [None]
            final = {"topic_id": uuid.UUID(int=99), "partition_epoch": 99}
            leader, follower = pair.lead(epoch=99, **final), pair.follow(epoch=99, **final)
            append(leader, "the last life")
            await until_same(leader, follower)

    run(main())
