"""Byte rates of topics that are resized by their load, as a leader's heartbeats have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.lone_broker import LoneBroker, Peer
from tests.support.produce_fetch import produce, run, running
from tests.support.resized import put
from tests.support.set_clock import SetClock
from tidelog.broker.partitions.byte_rates import EVERY_MS, WINDOW_MS
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.records.builder import NewRecord, build_batch

AUTO = {"partitions.auto": "true", "retired.purge": "drained"}
BATCH = build_batch([NewRecord(1, b"k", bytes(1_000))])


async def send(peer: Peer, batches: int) -> int:
    for _ in range(batches):
        answer = await peer.ask(produce(BATCH), 11)
        assert answer.responses[0].partition_responses[0].error_code == 0
    return batches * len(BATCH)


def clock_of(lone: LoneBroker) -> SetClock:
    clock = lone.broker.byte_rates._clock = SetClock()
    return clock


def rates_in(lone: LoneBroker, topic: str = "t") -> dict[int, int] | None:
    """The rates of a topic in the next heartbeat; None if it is not named."""
    (hosted, *_) = lone.broker.partitions.by_topic[topic].values()
    led: list[Any] = lone.broker.led_topics(1)
    assert len({each.topic_id for each in led}) == len(led), "a topic is named once"
    for each in led:
        if each.topic_id == hosted.topic_id and each.byte_rates:
            return {x.partition_index: x.bytes_per_second for x in each.byte_rates}
    return None


def test_a_leader_reports_the_mean_of_the_last_ten_seconds(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            lone.lead("t", 2, AUTO)
            clock = clock_of(lone)
            assert rates_in(lone) is None, "one sample is no rate"
            sent = await send(peer, 10)
            clock.now_ms += EVERY_MS - 1
            assert rates_in(lone) is None, "too early"
            clock.now_ms += 1
            assert rates_in(lone) == {0: sent * 1000 // EVERY_MS, 1: 0}
            for _ in range(WINDOW_MS // EVERY_MS):
                clock.now_ms += EVERY_MS
                last = rates_in(lone)
            assert last == {0: 0, 1: 0}, "older than ten seconds"

    run(main())


def test_only_topics_that_are_resized_by_their_load_are_measured(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, _peer):
            lone.lead("plain")
            lone.lead("off", 1, {"partitions.auto": "false", "retired.purge": "drained"})
            clock = clock_of(lone)
            lone.broker.led_topics(1)
            clock.now_ms += EVERY_MS
            assert rates_in(lone, "plain") is rates_in(lone, "off") is None
            assert not lone.broker.byte_rates._samples
            # A change of the configuration counts from the next report on.
            lone.lead("off", 1, AUTO, epoch=1)
            clock.now_ms += EVERY_MS
            assert rates_in(lone, "off") is None
            clock.now_ms += EVERY_MS
            assert rates_in(lone, "off") == {0: 0}

    run(main())


def test_what_came_in_a_former_leader_epoch_is_no_rate_of_this_one(tmp_path: Path) -> None:
    """After a growth a parent has half of its keys; after an election this broker had followed."""

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted: HostedPartition = lone.lead("t", 1, AUTO)
            clock = clock_of(lone)
            rates_in(lone)
            await send(peer, 10)
            clock.now_ms += EVERY_MS
            assert rates_in(lone)
            lone.lead("t", 1, epoch=1)
            clock.now_ms += EVERY_MS
            assert rates_in(lone) is None
            clock.now_ms += EVERY_MS
            assert rates_in(lone) == {0: 0}
            lone.lead("t", 1, epoch=2, leader=2, replicas=(2, 1), isr=(2, 1))
            clock.now_ms += EVERY_MS
            assert rates_in(lone) is None and not lone.broker.byte_rates._samples
            assert not hosted.is_leader

    run(main())


def test_a_topic_with_rates_still_says_when_writers_without_a_count_were_there(
    tmp_path: Path,
) -> None:
    """Both stand in one entry; one with rates alone would say that there are none."""

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t", 1, AUTO)
            put(hosted, undeleted_count=1, resize_epoch=0)
            await send(peer, 1)
            clock = clock_of(lone)
            seen_ms = lone.broker.unaware_writers.last_ms["t"]
            assert [x.unaware_write_ms for x in lone.broker.led_topics(1)] == [seen_ms]
            clock.now_ms += EVERY_MS
            (led,) = lone.broker.led_topics(1)
            assert (led.unaware_write_ms, len(led.byte_rates)) == (seen_ms, 1)

    run(main())


def test_topics_with_other_configurations_are_not_walked_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, _peer):
            for number in range(20):
                lone.lead(f"t-{number}", 1, {"retention.ms": "1000"})
            clock_of(lone)
            assert lone.broker.byte_rates.report() == {}
            assert lone.broker.byte_rates._names == []

    run(main())
