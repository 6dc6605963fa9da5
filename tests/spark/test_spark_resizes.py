"""The archive job in real Spark while its topic grows and shrinks under load, killed meanwhile.

An aware producer writes numbered records of each key; the topic goes 4 -> 8 -> 5 -> 8; the driver
dies by SIGKILL after each resize, and a broker with it once. The lake must hold each record once,
in an order that `(epoch, offset)` gives back, and the audit finds no fault.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.aware_load import KEYS, Load
from tests.support.cluster import TidelogCluster
from tests.support.processes import Program, wait_until
from tests.support.resizes import resize
from tests.support.spark_jobs import audited
from tests.support.spark_topics import JVM, Topic
from tests.support.target import TARGET
from tidelog.pipeline import lake as lakes
from tidelog.pipeline.lake.chain import read_manifests
from tidelog.pipeline.lake.layout import Layout

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kill,
    pytest.mark.long(90),
    pytest.mark.skipif(TARGET != "tidelog", reason="growing and shrinking is tidelog's"),
]

COUNTS = (8, 5, 8)
INITIAL = 4
START_S = 300.0
GROUP = "archive"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TidelogCluster]:
    config = {
        "auto.create.topics.enable": "false",
        "retired.check.interval.ms": "200",
        "retired.purge.delay.ms": "0",
    }
    with TidelogCluster(tmp_path, config=config) as started:
        yield started


def job(topic: Topic, lake: Path, *more: str) -> list[str]:
    return [
        sys.executable, "-m", "tidelog.pipeline", "archive",
        "--bootstrap-server", topic.bootstrap, "--topic", topic.name, "--lake", str(lake),
        "--option", f"kafka.group.id={GROUP}", "--trigger", "0ms",
        "--master", "local[2]", "--conf", f"spark.driver.extraJavaOptions={JVM}", *more,
    ]  # fmt: skip


def archived(lake: Path) -> tuple[int, set[int]]:
    """The rows of the lake, and the resize epochs in which its batches were planned."""
    rows, epochs = 0, set[int]()
    for manifest in read_manifests(Layout.at(str(lake))):
        rows += manifest.rows
        epochs.update(entry["resizeEpoch"] for entry in manifest.end["topics"].values())
    return rows, epochs


def has_archived(lake: Path, before: int, epoch: int) -> bool:
    """Whether the lake has more than ``before`` rows, and a batch that was planned in ``epoch``."""
    rows, epochs = archived(lake)
    return rows > before and epoch in epochs


def test_a_topic_is_archived_through_resizes_and_kills(
    cluster: TidelogCluster, spark: SparkSession, tmp_path: Path
) -> None:
    topic, lake = Topic(cluster.bootstrap, "t"), tmp_path / "lake"
    cluster.create_topic(topic.name, INITIAL, retired_purge="drained")
    with Load(topic.bootstrap, topic.name) as load:
        load.more(600, START_S)
        for turn, count in enumerate(COUNTS):
            with Program(job(topic, lake), tmp_path / f"job-{turn}.log", {}) as driver:
                before, _ = archived(lake)
                # Also what was written since the last resize: a job that is slow, and killed, may
                # have planned nothing of it yet.
                wait_until(
                    lambda before=before, epoch=turn: has_archived(lake, before, epoch),
                    START_S,
                    "the job archives",
                    # Each look reads all manifests, on the cores that the job needs.
                    pause_s=0.5,
                )
                if turn == len(COUNTS) - 1:
                    # It grows again only when the retired partitions are drained, and removed.
                    wait_until(
                        lambda: len(cluster.partitions(topic.name)) == COUNTS[1],
                        START_S,
                        "retired partitions are removed",
                    )
                resize(topic.bootstrap, topic.name, count)
                load.more(900, START_S)
                if turn == 1:
                    cluster.brokers[3].kill()
                driver.kill()
                if turn == 1:
                    cluster.brokers[3].start()
        load.more(300, START_S)
    assert load.failure is None, load.failure
    with Program(job(topic, lake, "--once"), tmp_path / "last.log", {}) as last:
        wait_until(lambda: last.exit_status() is not None, START_S, "the last run ends")
        assert last.exit_status() == 0, last.output()[-3000:]
    rows, epochs = archived(lake)
    assert rows == load.acked
    found = audited(spark, topic, lake, keys="murmur2", sequence="n", complete=True, full=True)
    assert not any(each.is_fault for each in found.findings), found.text
    assert found.status in (0, 3), found.text
    in_order = defaultdict(list)
    for row in lakes.read(spark, str(lake), topic.name).orderBy("epoch", "offset").collect():
        in_order[bytes(row.key)].append(json.loads(row.value)["n"])
    assert {key: list(range(load.acked // len(KEYS))) for key in KEYS} == in_order
    # Between two batches as well: no key is in two partitions of one batch.
    assert epochs >= {1, 2, 3}, "the job has seen each resize"
