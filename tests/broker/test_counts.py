"""The counters of partitions: what moves them, and that none steps back when a partition goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.group_broker import GroupBroker
from tests.support.led_partition import append
from tests.support.lone_broker import Peer, until
from tests.support.metrics import Page
from tests.support.resized import EPOCH, fence, put
from tests.support.resized_topics import tell_resized
from tidelog.broker.coordinator import group_lag
from tidelog.broker.handlers import offset_commit
from tidelog.broker.metrics import BrokerCollector
from tidelog.broker.partitions.counts import Counts
from tidelog.broker.partitions.registry import Partitions
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.network.tally import Tally
from tidelog.protocol import messages

TOPICS = "kafka_server_brokertopicmetrics"
OF_T = '{topic="t"}'


@asynccontextmanager
async def started(folder: Path) -> AsyncIterator[GroupBroker]:
    broker = GroupBroker(folder)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


async def shown(broker: GroupBroker) -> Page:
    """The metrics, as another thread collects them."""
    registry = CollectorRegistry()
    registry.register(BrokerCollector(broker.broker, broker.server))
    made = asyncio.get_running_loop().run_in_executor(None, generate_latest, registry)
    return Page((await made).decode())


def test_records_are_counted_by_leaderships() -> None:
    counts = Counts()
    assert counts.messages(100) == 0, "another one's"
    counts.leads(False, 100, 1, 1)
    assert counts.messages(130) == 30
    counts.leads(True, 130, 1, 1)
    assert counts.messages(131) == 31, "it leads on"
    counts.led_until(131)
    assert counts.messages(500) == 31, "what it followed"
    counts.leads(False, 500, 3, 3)
    assert counts.messages(501) == 32
    assert counts.messages(490) == 31, "not less than when it began"


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (ErrorCode.MESSAGE_TOO_LARGE, True),
        (ErrorCode.NOT_ENOUGH_REPLICAS, True),
        (ErrorCode.OFFSET_OUT_OF_RANGE, True),
        (ErrorCode.KAFKA_STORAGE_ERROR, True),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, False),
        (ErrorCode.FENCED_LEADER_EPOCH, False),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, False),
    ],
)
def test_a_client_that_is_sent_elsewhere_has_not_failed(error: ErrorCode, counts: bool) -> None:
    found = Counts()
    found.append_refused(error)
    found.fetch_refused(error)
    assert (found.refused_appends, found.refused_fetches) == (counts, counts)


def test_the_isr_is_counted_while_it_is_led(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path) as broker:
            hosted = broker.lead("t", epoch=1, isr=(1, 2, 3), replicas=(1, 2, 3))
            hosted.take_isr((1, 3), 1)
            broker.lead("t", epoch=2, isr=(1,), replicas=(1, 2, 3), isr_version=2)
            hosted.take_isr((1, 2), 3)
            found = hosted.counts
            assert (found.isr_shrinks, found.isr_expansions) == (2, 1)
            broker.lead("t", epoch=3, leader=2, isr=(2,), replicas=(1, 2, 3), isr_version=4)
            broker.lead("t", epoch=4, isr=(1, 2, 3), replicas=(1, 2, 3), isr_version=5)
            assert (found.isr_shrinks, found.isr_expansions) == (2, 1), "another one's doing"

    asyncio.run(main())


def test_a_move_is_counted_and_under_replication_by_the_replicas_before_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path) as broker:
            place = "kafka_server_replicamanager"

            async def numbers() -> tuple[float, float]:
                page = await shown(broker)
                return (
                    page.value(f"{place}_reassigningpartitions"),
                    page.value(f"{place}_underreplicatedpartitions"),
                )

            hosted = broker.lead("t", epoch=1, isr=(1, 2), replicas=(1, 2))
            assert await numbers() == (0, 0)
            moves: dict[str, Any] = {"targets": (1, 3, 4), "replicas": (1, 2)}
            broker.lead("t", epoch=2, isr=(1, 2), **moves)
            assert hosted.state.original == (1, 2)
            assert await numbers() == (1, 0)
            hosted.take_isr((1, 2, 3), 1)
            hosted.take_isr((1, 2), 2)
            assert hosted.replicas == (1, 2, 3)
            assert await numbers() == (1, 0), "a target that joined and left is not missed"
            hosted.take_isr((1,), 3)
            assert await numbers() == (1, 1)
            # Another epoch of the same move keeps them; its end forgets them.
            broker.lead("t", epoch=3, isr=(1,), targets=(1, 4), replicas=(1, 2, 3), isr_version=4)
            assert hosted.state.original == (1, 2)
            broker.lead("t", epoch=4, isr=(1, 4), replicas=(1, 4), isr_version=5)
            assert hosted.state.original == ()
            assert await numbers() == (0, 0)

    asyncio.run(main())


def test_a_broker_that_starts_in_mid_move_counts_by_the_replicas_that_it_sees(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with started(tmp_path) as broker:
            hosted = broker.lead("t", epoch=1, isr=(1, 2), replicas=(1, 2), targets=(1, 3))
            assert hosted.state.original == (1, 2)

    asyncio.run(main())


def test_no_counter_steps_back_when_a_partition_goes(tmp_path: Path) -> None:
    """A lower value is taken for a restart, and the whole of it for new."""

    async def main() -> None:
        async with started(tmp_path) as broker:
            broker.lead("t", 2)
            for number in range(2):
                partition = broker.broker.partitions.get("t", number)
                assert partition is not None
                append(partition, number + 1)
            before = await shown(broker)
            assert before.value(f"{TOPICS}_messagesin_total", OF_T) == 3
            partitions = broker.broker.partitions
            partitions.stop("t", 1, delete=True)
            after = await shown(broker)
            for name in ("messagesin", "bytesin", "totalproducerequests"):
                full = f"{TOPICS}_{name}_total"
                assert after.value(full, OF_T) == before.value(full, OF_T) > 0
            partitions.stop("t", 0, delete=True)
            assert OF_T not in (await shown(broker)).samples.get(f"{TOPICS}_bytesin_total", {})
            assert partitions.past.by_topic == {}, "nothing is kept of a topic that is gone"
            assert partitions.past.all.messages == 3

    asyncio.run(main())


def commit(group: str, topic: str, offsets: dict[int, int]) -> Any:
    request = messages.OffsetCommitRequest
    parts = [
        request.OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
        for index, offset in offsets.items()
    ]
    asked = request.OffsetCommitRequestTopic(name=topic, partitions=parts)
    return request(group_id=group, generation_id_or_member_epoch=-1, topics=[asked])


def with_groups(tmp_path: Path, story: Callable[[GroupBroker], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with started(tmp_path) as broker:
            hosted = broker.lead("t", 3)
            append(hosted, 10)
            broker.lead_offsets()
            await until(lambda: not isinstance(broker.coordinator.table_of("g"), ErrorCode))
            answer = await broker.ask(offset_commit, commit("g", "t", {0: 4, 1: 7}), 8)
            assert {x.error_code for x in answer.topics[0].partitions} == {0}
            await story(broker)

    asyncio.run(main())


def test_the_lag_of_a_group(tmp_path: Path) -> None:
    async def story(broker: GroupBroker) -> None:
        found = await shown(broker)
        of_group = '{consumergroup="g",topic="t"}'
        place = '{{consumergroup="g",partition="{}",topic="t"}}'
        name = "kafka_consumergroup"
        assert found.value(f"{name}_members", '{consumergroup="g"}') == 0
        assert found.value(f"{name}_current_offset", place.format(0)) == 4
        assert found.value(f"{name}_lag", place.format(0)) == 6
        # It committed more than there is.
        assert found.value(f"{name}_lag", place.format(1)) == 0
        assert place.format(2) not in found.samples[f"{name}_lag"]
        assert found.value(f"{name}_current_offset_sum", of_group) == 11
        assert found.value(f"{name}_lag_sum", of_group) == 6
        assert found.value("tidelog_group_positions_left_out") == 0

    with_groups(tmp_path, story)


def test_fences_are_no_lag_whoever_leads(tmp_path: Path) -> None:
    """The leader of this broker, and another one that is asked: both name their fences."""

    async def story(broker: GroupBroker) -> None:
        hosted = broker.broker.partitions.get("t", 0)
        assert hosted is not None
        put(hosted)
        fence(hosted, 7)
        tell_resized(broker, "t", dict.fromkeys(range(3), (0, 0)), resize_epoch=EPOCH)
        found = await shown(broker)
        place = '{consumergroup="g",partition="0",topic="t"}'
        assert found.value("kafka_consumergroup_lag", place) == 5
        assert found.value("kafka_consumergroup_lag_sum", '{consumergroup="g",topic="t"}') == 5
        others = broker.broker.other_brokers
        lag = group_lag.GroupLag(
            broker.coordinator, NotHere(), broker.broker.metadata, others, broker.broker.clock
        )  # fmt: skip
        asked = await lag.snapshot()
        assert asked.lag(TopicPartition("t", 0), 4) == 5
        assert asked.lag(TopicPartition("t", 0), 8) == 2
        assert asked.lag(TopicPartition("t", 9), 0) is None

    with_groups(tmp_path, story)


class NotHere(Partitions):
    """Partitions of which other brokers have the replicas."""

    def __init__(self) -> None:
        """Host none."""

    def get(self, topic: str, index: int) -> None:
        return None


def test_a_page_has_so_many_positions_and_says_what_it_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_lag, "MOST_POSITIONS", 1)

    async def story(broker: GroupBroker) -> None:
        found = await shown(broker)
        assert len(found.samples["kafka_consumergroup_lag"]) == 1
        assert found.value("tidelog_group_positions_left_out") == 1

    with_groups(tmp_path, story)


def test_a_page_has_so_many_groups_and_says_how_many_it_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may connect makes groups: one commit each."""
    monkeypatch.setattr(group_lag, "MOST_GROUPS", 2)

    async def story(broker: GroupBroker) -> None:
        for number in range(3):
            await broker.ask(offset_commit, commit(f"other-{number}", "t", {2: 1}), 8)
        found = await shown(broker)
        assert len(found.samples["kafka_consumergroup_members"]) == 2
        assert found.value("tidelog_groups_left_out") == 2
        assert found.value("tidelog_group_positions_left_out") == 2

    with_groups(tmp_path, story)


def test_a_page_does_not_grow_with_the_ids_that_clients_choose(tmp_path: Path) -> None:
    """An id of 32 kB stood in four lines for each position: 20,000 of them were a page of 2 GB."""

    async def story(broker: GroupBroker) -> None:
        longest, longer = "i" * group_lag.LONGEST_ID, "i" * 32_767
        for group in (longest, longer):
            answer = await broker.ask(offset_commit, commit(group, "t", {0: 1, 1: 2, 2: 3}), 8)
            assert {x.error_code for x in answer.topics[0].partitions} == {0}
        found = await shown(broker)
        groups = found.samples["kafka_consumergroup_members"]
        assert set(groups) == {f'{{consumergroup="{group}"}}' for group in ("g", longest)}
        assert not any(longer in labels for of in found.samples.values() for labels in of)
        assert found.value("tidelog_groups_left_out") == 1
        assert found.value("tidelog_group_positions_left_out") == 3

    with_groups(tmp_path, story)


HOSTILE = (
    'a"b',
    "a\\",
    'a\\"} 1\nup{x="',
    "a\nkafka_consumergroup_members 7",
    "a\r\u2028b",
    'x="y",',
)


@pytest.mark.parametrize("group", HOSTILE)
def test_a_group_id_makes_no_line_and_no_label(tmp_path: Path, group: str) -> None:
    async def story(broker: GroupBroker) -> None:
        await broker.ask(offset_commit, commit(group, "t", {0: 1}), 8)
        registry = CollectorRegistry()
        registry.register(BrokerCollector(broker.broker, broker.server))
        made = asyncio.get_running_loop().run_in_executor(None, generate_latest, registry)
        families = text_string_to_metric_families((await made).decode())
        told = [
            (sample.labels, sample.value)
            for family in families
            if family.name == "kafka_consumergroup_current_offset"
            for sample in family.samples
            if sample.labels["consumergroup"] != "g"
        ]
        assert told == [({"consumergroup": group, "topic": "t", "partition": "0"}, 1.0)]

    with_groups(tmp_path, story)


def test_an_unreachable_leader_leaves_the_lag_out(tmp_path: Path) -> None:
    async def story(broker: GroupBroker) -> None:
        # Broker 2 leads it now, and has no address.
        broker.lead("t", 3, epoch=1, leader=2, isr=(1, 2), replicas=(1, 2))
        snapshot = await broker.broker.group_lag.snapshot()
        assert len(snapshot.positions) == 2 and snapshot.ends == {}

    with_groups(tmp_path, story)


def test_a_snapshot_of_groups_is_shared_and_holds_for_a_while(tmp_path: Path) -> None:
    async def story(broker: GroupBroker) -> None:
        lag = broker.broker.group_lag
        one, other = await asyncio.gather(lag.snapshot(), lag.snapshot())
        assert one is other is await lag.snapshot()
        assert lag.latest() is one, "the loop's own thread does not wait for itself"

    with_groups(tmp_path, story)


def test_times_of_requests_fall_between_powers_of_two() -> None:
    tally = Tally()
    for ns in (0, 1, 1023, 1024, 2**40):
        tally.took(ns)
    assert [tally.times[bits] for bits in (0, 1, 10, 11, 41)] == [1, 1, 1, 1, 1]
    assert tally.took_ns == 2048 + 2**40


def test_requests_are_timed_whatever_way_they_take(tmp_path: Path) -> None:
    """At once, in steps, and after a wait: each API has as many times as answers."""

    async def main() -> None:
        async with started(tmp_path) as broker:
            broker.lead("t")
            peer = await Peer.connect(broker.port)
            await peer.ask(messages.ApiVersionsRequest(), 0)
            await peer.ask(messages.MetadataRequest(topics=None), 8)
            fetch = messages.FetchRequest
            part = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
            wait_ms = 40
            waiting = fetch(
                max_wait_ms=wait_ms,
                min_bytes=1,
                max_bytes=1000,
                topics=[fetch.FetchTopic("t", partitions=[part])],
            )
            await peer.ask(waiting, 6)
            found = await shown(broker)
            for name in ("ApiVersions", "Metadata", "Fetch"):
                labels = f'{{request="{name}"}}'
                assert found.value("tidelog_request_seconds_count", labels) == 1
                requests = "kafka_network_requestmetrics_requests_total"
                assert found.value(requests, labels) == 1
            waited_s = found.value("tidelog_request_seconds_sum", '{request="Fetch"}')
            assert wait_ms / 1000 <= waited_s
            quick = '{le="0.033554432",request="Fetch"}'
            assert found.value("tidelog_request_seconds_bucket", quick) == 0
            all_ = '{le="+Inf",request="Fetch"}'
            assert found.value("tidelog_request_seconds_bucket", all_) == 1
            peer.writer.close()

    asyncio.run(main())
