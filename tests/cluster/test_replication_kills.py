"""Three real brokers and a controller: killed, stopped, emptied; nothing acked is lost.

One cluster for all tests, which leave all brokers running and in sync. The last test stops them and
holds the replicas' bytes against each other. Everything that a killed leader's replacement takes is
at its default; a silent broker counts as dead after 3 s instead of 6.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator

import confluent_kafka
import pytest

from tests.support.acked_stream import Writer, lost_acks, read_all
from tests.support.cluster import TidelogCluster, differing_replicas
from tests.support.lone_broker import Peer
from tests.support.own_time import OwnTime, until_in_time
from tests.support.processes import DEADLINE_S, SIGCONT, SIGSTOP, wait_until
from tests.support.target import TARGET
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.records.builder import NewRecord, build_batch

pytestmark = [
    pytest.mark.kill,
    pytest.mark.long(20),
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]

PARTITIONS = 3
MIN_INSYNC = 2
LONGEST_GAP_S = 1.0
KILLS = 3
LEADERS_WITHIN_S = 5.0
"""Promise 24 with sessions of 3 s."""

TOPICS = ("followers", "leaders", "emptied", "deposed")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with TidelogCluster(folder, config={"broker.session.timeout.ms": 3000}) as started:
        for topic in TOPICS:
            started.create_topic(topic, PARTITIONS, min_insync_replicas=MIN_INSYNC)
        yield started


class TimedWriter(Writer):
    """A writer that notes when acknowledgements of partition 0 come."""

    def __init__(self, cluster: TidelogCluster, topic: str, *, idempotent: bool = True) -> None:
        self.times: list[float] = []
        super().__init__(cluster.bootstrap, topic, "writer", PARTITIONS, idempotent=idempotent)

    def _answered(
        self, number: int, error: confluent_kafka.KafkaError | None, message: object
    ) -> None:
        if number % PARTITIONS == 0:
            self.times.append(time.monotonic())
        super()._answered(number, error, message)

    def longest_silence_s(self) -> float:
        """The longest time between two acknowledgements of partition 0."""
        return max(after - before for before, after in itertools.pairwise(self.times))

    def until_more(self, count: int) -> None:
        """Wait until so many more records were acknowledged."""
        wanted = len(self.acked) + count
        wait_until(lambda: self.has_acked(wanted), DEADLINE_S, self.state, 0.01)


def check_nothing_lost(cluster: TidelogCluster, topic: str, writer: Writer) -> None:
    """Every acknowledged record is where it was acknowledged; none is there twice."""
    writer.finish()
    assert not writer.failed, writer.state()
    found = read_all(cluster.bootstrap, topic, PARTITIONS)
    lost = lost_acks(writer, found)
    assert not lost, f"{len(lost)} acknowledged records are lost: {lost[:5]}; {writer.state()}"
    mine = [value for value in found.values() if value.startswith("writer:")]
    assert len(set(mine)) == len(mine), "a record of an idempotent writer is there twice"


def test_a_killed_follower_leaves_the_isr_and_comes_back(cluster: TidelogCluster) -> None:
    topic = "followers"
    writer = TimedWriter(cluster, topic)
    writer.start()
    writer.until_more(500)
    killed = next(n for n in cluster.brokers if n != cluster.leader(topic, 0))
    cluster.brokers[killed].kill()
    asked = next(n for n in cluster.brokers if n != killed)

    def without() -> bool:
        found = cluster.partitions(topic, asked).values()
        return all(killed not in each.isrs and each.leader not in (-1, killed) for each in found)

    until_in_time(
        without,
        LEADERS_WITHIN_S,
        cluster.pids,
        lambda: f"broker {killed} left the ISRs\n{cluster.said('')}",
    )
    writer.until_more(500)
    cluster.brokers[killed].start()
    cluster.until_in_sync(topic, 3)
    writer.until_more(100)
    check_nothing_lost(cluster, topic, writer)


def test_a_killed_leader_is_replaced_within_a_second(cluster: TidelogCluster) -> None:
    topic = "leaders"
    writer = TimedWriter(cluster, topic)
    writer.start()
    gaps_s: list[float] = []
    # A busy machine may make one longer: the best of some must keep the promise.
    while len(gaps_s) < KILLS and min(gaps_s, default=LONGEST_GAP_S) >= LONGEST_GAP_S:
        writer.until_more(500)
        killed = cluster.leader(topic, 0)
        others = [node.port for n, node in cluster.brokers.items() if n != killed]
        del writer.times[:-1]
        cluster.brokers[killed].kill()
        gaps_s.append(seconds_until_acked(cluster, topic, others))
        writer.until_more(1000)
        print(
            f"from kill -9 to the next acknowledgement {gaps_s[-1] * 1000:.0f} ms; "
            f"longest gap that librdkafka's users see {writer.longest_silence_s() * 1000:.0f} ms"
        )
        cluster.brokers[killed].start()
        cluster.until_in_sync(topic, 3)
    check_nothing_lost(cluster, topic, writer)
    assert min(gaps_s) < LONGEST_GAP_S, f"{gaps_s} {cluster.said('replaced its leader')}"


def seconds_until_acked(cluster: TidelogCluster, topic: str, ports: list[int]) -> float:
    """How long until one of these brokers leads partition 0 and acknowledges a record, less what
    was waited for a processor.

    librdkafka asks for the new leader at intervals of its own, that double up to a second.
    """
    own = OwnTime(cluster.pids)
    wait_until(
        lambda: any(not asyncio.run(error_of_a_record(topic, port)) for port in ports),
        DEADLINE_S,
        "a record was acknowledged",
        0.005,
    )
    return own.seconds()


async def error_of_a_record(topic: str, port: int) -> int:
    """Send one record to partition 0 of a broker; its error code."""
    peer = await Peer.connect(port)
    answer = await peer.ask(produce(topic, b"asked"), 9)
    peer.writer.close()
    return int(answer.responses[0].partition_responses[0].error_code)


def produce(topic: str, value: bytes) -> messages.ProduceRequest:
    """One record to partition 0 with acks=all."""
    records = build_batch([NewRecord(int(time.time() * 1000), None, value)])
    request = messages.ProduceRequest
    part = request.PartitionProduceData(index=0, records=records)
    data = request.TopicProduceData(name=topic, partition_data=[part])
    return request(acks=-1, timeout_ms=5000, topic_data=[data])


def test_a_follower_with_an_empty_disk_gets_everything(cluster: TidelogCluster) -> None:
    topic = "emptied"
    writer = TimedWriter(cluster, topic)
    writer.start()
    writer.until_more(2000)
    emptied = next(n for n in cluster.brokers if n != cluster.leader(topic, 0))
    cluster.brokers[emptied].kill()
    cluster.empty(emptied)
    # Another directory under the same id is refused until the former life is dead.
    cluster.brokers[emptied].start()
    cluster.until_in_sync(topic, 3)
    check_nothing_lost(cluster, topic, writer)
    for each in TOPICS:
        cluster.until_in_sync(each, 3)


def test_a_deposed_leader_acknowledges_nothing(cluster: TidelogCluster) -> None:
    topic = "deposed"
    stopped = cluster.leader(topic, 0)
    other = next(n for n in cluster.brokers if n != stopped)

    async def produce_to_the_stopped_one() -> int:
        peer = await Peer.connect(cluster.brokers[stopped].port)
        cluster.brokers[stopped].program.send(SIGSTOP)
        try:
            # It waits in the socket: the first thing that the stopped leader finds.
            peer.send(produce(topic, b"from the past"), 9)
            await asyncio.to_thread(
                wait_until,
                lambda: cluster.partitions(topic, other)[0].leader not in (-1, stopped),
                DEADLINE_S,
                "another broker leads",
            )
        finally:
            cluster.brokers[stopped].program.send(SIGCONT)
        answer = await peer.receive()
        return int(answer.responses[0].partition_responses[0].error_code)

    writer = TimedWriter(cluster, topic)
    writer.start()
    writer.until_more(200)
    error = ErrorCode(asyncio.run(produce_to_the_stopped_one()))
    assert error in (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    ), error
    writer.until_more(200)
    cluster.until_in_sync(topic, 3)
    check_nothing_lost(cluster, topic, writer)


def test_all_replicas_are_the_same_in_the_end(cluster: TidelogCluster) -> None:
    for topic in TOPICS:
        cluster.until_in_sync(topic, 3)
    for node in cluster.brokers.values():
        assert node.stop() == 0, node.said("stopped cleanly")
    wrong = [line for topic in TOPICS for line in differing_replicas(cluster, topic, PARTITIONS)]
    assert not wrong, "\n".join(wrong)
