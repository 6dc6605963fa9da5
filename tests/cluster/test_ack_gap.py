"""The longest gap between two acknowledgements when the leader is killed, as producers see it.

Everything is at its default, the brokers' settings and the clients'. The gaps are printed. Each is
judged without the time in which the servers or the client waited for a processor; of all kills the
better half must keep the promise of a second.
librdkafka scans its topics once a second: the kills come at different times of that second.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import confluent_kafka
import pytest

from tests.support.cluster import TidelogCluster
from tests.support.java import missing, start_java
from tests.support.own_time import WaitedAt
from tests.support.processes import wait_until
from tests.support.target import TARGET

pytestmark = [
    pytest.mark.kill,
    pytest.mark.long(45),
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]

KILLS = 3
KILLED_AFTER_S = (0.0, 0.2, 0.4, 0.6, 0.8)
"""When librdkafka's leader is killed, after its first acknowledgements."""

LONGEST_GAP_S = 1.0
PER_S = 200
BEFORE_S, AFTER_S = 1.0, 3.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogCluster]:
    with TidelogCluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


class Gap(NamedTuple):
    """The longest of a kill."""

    wall_s: float
    own_s: float
    """Without the waits for a processor."""


def longest(times_s: list[float], waited: WaitedAt) -> Gap:
    """The longest gap between two moments on the monotonic clock, by each of both measures."""
    pairs = list(itertools.pairwise(times_s))
    return Gap(
        max(after - before for before, after in pairs),
        max(waited.own_s(before, after) for before, after in pairs),
    )


def report(client: str, gaps: list[Gap]) -> None:
    """Print the gaps and hold the better half against the promise."""
    said = ", ".join(f"{gap.wall_s * 1000:.0f} ({gap.own_s * 1000:.0f})" for gap in gaps)
    print(
        f"{client}: longest gaps between acknowledgements around a kill -9 "
        f"(without waits for a processor): {said} ms"
    )
    assert sorted(gap.own_s for gap in gaps)[len(gaps) // 2] < LONGEST_GAP_S, gaps


def test_librdkafka_sees_a_gap_of_less_than_a_second(cluster: TidelogCluster) -> None:
    topic = "gap-librdkafka"
    cluster.create_topic(topic, min_insync_replicas=2)
    gaps: list[Gap] = []
    for killed_after_s in KILLED_AFTER_S:
        killed = cluster.leader(topic)
        times_s: list[float] = []
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "log_level": 0}
        )

        def delivered(
            error: confluent_kafka.KafkaError | None, _: object, times_s: list[float] = times_s
        ) -> None:
            assert error is None, error
            times_s.append(time.monotonic())

        killed_at_s = float("inf")
        with WaitedAt(cluster.pids) as waited:
            while time.monotonic() < killed_at_s + AFTER_S:
                at_work = len(times_s) > PER_S * BEFORE_S
                worked_s = time.monotonic() - times_s[int(PER_S * BEFORE_S)] if at_work else -1.0
                if killed_at_s == float("inf") and worked_s >= killed_after_s:
                    cluster.brokers[killed].program.kill()
                    killed_at_s = time.monotonic()
                producer.produce(topic, b"x", on_delivery=delivered)
                producer.poll(1 / PER_S)
            assert producer.flush(20) == 0
        gaps.append(longest(times_s[PER_S // 10 :], waited))
        cluster.brokers[killed].start()
        cluster.until_in_sync(topic, 3)
    report("librdkafka", gaps)


@pytest.mark.java
def test_the_java_producer_sees_a_gap_of_less_than_a_second(
    cluster: TidelogCluster, tmp_path: Path
) -> None:
    why = missing()
    if why is not None:
        pytest.skip(why)
    topic = "gap-java"
    cluster.create_topic(topic, min_insync_replicas=2)
    # Of itself the tool tries nothing again; these are the producer's own defaults.
    settings = tmp_path / "producer.properties"
    settings.write_text("retries=2147483647\nenable.idempotence=true\n")
    gaps: list[Gap] = []
    for number in range(KILLS):
        killed = cluster.leader(topic)
        command = (
            *("kafka-verifiable-producer", "--bootstrap-server", cluster.bootstrap),
            *("--topic", topic, "--throughput", str(PER_S), "--acks", "-1"),
            *("--command-config", str(settings)),
        )
        # The tool's times are on the wall clock.
        ahead_s = time.time() - time.monotonic()
        with (
            start_java(*command, log=tmp_path / f"{number}.out") as client,
            WaitedAt(lambda pid=client.pid: [*cluster.pids(), pid]) as waited,  # type: ignore[misc]
        ):

            def acked_at_s(
                log: Path = tmp_path / f"{number}.out", ahead_s: float = ahead_s
            ) -> list[float]:
                lines = [line for line in log.read_text().splitlines() if line.endswith("}")]
                found = [json.loads(line) for line in lines if "producer_send_success" in line]
                return [event["timestamp"] / 1000 - ahead_s for event in found]

            wait_until(lambda: len(acked_at_s()) > PER_S * BEFORE_S, 60, "it is at work", 0.2)
            enough = len(acked_at_s()) + PER_S * AFTER_S / 2
            cluster.brokers[killed].kill()
            wait_until(lambda n=enough: len(acked_at_s()) > n, 60, "it goes on", 0.2)  # type: ignore[misc]
            gaps.append(longest(acked_at_s()[PER_S // 10 :], waited))
        cluster.brokers[killed].start()
        cluster.until_in_sync(topic, 3)
    report("the Java producer", gaps)
