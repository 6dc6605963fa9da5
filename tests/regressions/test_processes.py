"""Known traps of the field that need real processes and links, each by its name.

One cluster for all tests, which leave everything running and in sync.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator

import pytest

from tests.support.acked_stream import Writer, lost_acks, read_all
from tests.support.cluster import TidelogCluster
from tests.support.links import Network
from tests.support.lone_broker import Peer
from tests.support.node import answers_metadata
from tests.support.own_time import OwnTime, until_in_time
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.target import TARGET
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.records.builder import NewRecord, build_batch

pytestmark = [
    pytest.mark.kill,
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]

SESSION_S = 3.0
LEADERS_WITHIN_S = SESSION_S + 2
"""Promise 24, on a quiet machine."""

PATIENCE = 3
"""How much longer than promised the clients may make it. What a busy machine takes is taken off:
`own_time.py`."""


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with Network() as made:
        yield made


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, network: Network) -> Iterator[TidelogCluster]:
    config = {"broker.session.timeout.ms": int(SESSION_S * 1000), "replica.lag.time.max.ms": 2000}
    with TidelogCluster(tmp_path_factory.mktemp("cluster"), 3, config, network) as started:
        yield started


def writer_on(cluster: TidelogCluster, topic: str) -> Writer:
    writer = Writer(cluster.bootstrap, topic, "writer", 1, idempotent=True, per_s=500)
    writer.start()
    until_more(writer, 200)
    return writer


def until_more(writer: Writer, count: int) -> None:
    """Wait until so many more records were acknowledged."""
    wanted = len(writer.acked) + count
    wait_until(lambda: writer.has_acked(wanted), DEADLINE_S, writer.state, 0.01)


def until_led_again(cluster: TidelogCluster, writer: Writer) -> None:
    """Wait until 200 more records were acknowledged; AssertionError when promise 24 is broken."""
    wanted = len(writer.acked) + 200
    until_in_time(
        lambda: writer.has_acked(wanted),
        LEADERS_WITHIN_S * PATIENCE,
        cluster.pids,
        lambda: f"{writer.state()}, {wanted} wanted\n{cluster.said('leads')}",
        0.01,
    )


def until_over(seconds: float) -> None:
    """Wait until a time-out of the cluster must have passed."""
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > end, seconds + 5, "a time-out has passed")


def check(cluster: TidelogCluster, topic: str, *writers: Writer) -> None:
    """Everything acknowledged is where it was acknowledged, once and in order."""
    for writer in writers:
        writer.finish()
        assert not writer.failed and not writer.wrong, writer.state()
    cluster.until_in_sync(topic, 3)
    found = read_all(cluster.bootstrap, topic, 1)
    for writer in writers:
        lost = lost_acks(writer, found)
        assert not lost, f"{len(lost)} acknowledged records are lost: {lost[:5]}"
    values = list(found.values())
    assert len(set(values)) == len(values), "a record is there twice"


async def write_to(port: int, topic: str, value: bytes) -> ErrorCode:
    """Send one record with acks=all to one broker, whatever others say of the leader."""
    records = build_batch([NewRecord(int(time.time() * 1000), None, value)])
    request = messages.ProduceRequest
    part = request.PartitionProduceData(index=0, records=records)
    data = request.TopicProduceData(name=topic, partition_data=[part])
    peer = await Peer.connect(port)
    answer = await peer.ask(request(acks=-1, timeout_ms=5000, topic_data=[data]), 9)
    peer.writer.close()
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


def test_leaders_serve_on_while_there_is_no_controller(cluster: TidelogCluster) -> None:
    topic = "without-controller"
    cluster.create_topic(topic, min_insync_replicas=2)
    leader = cluster.leader(topic)
    writer = writer_on(cluster, topic)
    own = OwnTime(cluster.pids)
    writer.longest_gap_s = 0.0
    cluster.controller.kill()
    until_over(SESSION_S + 1)
    until_more(writer, 200)
    gap_s, waited_s = writer.longest_gap_s, own.waited_s()
    cluster.controller.start()
    until_more(writer, 200)
    assert cluster.leader(topic) == leader, "no leader was deposed for it"
    check(cluster, topic, writer)
    # Nothing had to be elected: the acknowledgements went on as if nothing was.
    assert gap_s - waited_s < 1.0 * PATIENCE, (gap_s, waited_s)


def test_the_controller_and_a_broker_die_together(cluster: TidelogCluster) -> None:
    topic = "die-together"
    cluster.create_topic(topic, min_insync_replicas=2)
    writer = writer_on(cluster, topic)
    killed = cluster.leader(topic)
    cluster.brokers[killed].kill()
    cluster.controller.kill()
    cluster.controller.start()
    # The new controller presumes the dead one alive until its session times out.
    until_led_again(cluster, writer)
    # A broker without the new metadata may still name the dead one.
    wait_until(lambda: cluster.leader(topic) != killed, DEADLINE_S, "another leads")
    cluster.brokers[killed].start()
    check(cluster, topic, writer)


def test_a_broker_bounced_faster_than_its_session_timeout(cluster: TidelogCluster) -> None:
    topic = "bounced"
    cluster.create_topic(topic, min_insync_replicas=2)
    writer = writer_on(cluster, topic)
    for _ in range(3):
        bounced = cluster.leader(topic)
        cluster.brokers[bounced].kill()
        cluster.brokers[bounced].start()
        # Its new life leads only in a new epoch, and is in sync only once it has fetched.
        until_led_again(cluster, writer)
        cluster.until_in_sync(topic, 3)
    check(cluster, topic, writer)


def test_the_only_member_of_an_isr_that_loses_the_controller_alone_serves_on(
    cluster: TidelogCluster, network: Network
) -> None:
    """ISR = {A}; A loses only the controller's connection: no other replica may lead, and A may."""
    topic = "alone"
    cluster.create_topic(topic)
    alone = cluster.leader(topic)
    others = [node_id for node_id in cluster.brokers if node_id != alone]
    for each in others:
        cluster.brokers[each].kill()
    port = cluster.brokers[alone].port
    numbers = itertools.count()
    acked: list[bytes] = []

    def write() -> None:
        value = b"lonely:%d" % next(numbers)
        error = asyncio.run(write_to(port, topic, value))
        assert error is ErrorCode.NONE, error
        acked.append(value)

    wait_until(
        lambda: len(cluster.partitions(topic, alone)[0].isrs) == 1, DEADLINE_S, "it is alone"
    )
    write()
    network.cut(str(alone), "controller")
    network.cut("controller", str(alone))
    end = time.monotonic() + SESSION_S + 2
    while time.monotonic() < end:
        write()
    # One comes back, without what was written meanwhile: it must not lead.
    cluster.brokers[others[0]].launch()
    wait_until(lambda: answers_metadata(cluster.brokers[others[0]].port), DEADLINE_S, "it is back")
    assert cluster.partitions(topic, others[0])[0].leader in (-1, alone)
    write()
    network.heal(str(alone), ["controller"])
    cluster.brokers[others[1]].launch()
    for each in others:
        cluster.brokers[each].until_ready()
    cluster.until_in_sync(topic, 3)
    found = sorted(read_all(cluster.bootstrap, topic, 1).items())
    assert [value.encode() for _, value in found] == acked
