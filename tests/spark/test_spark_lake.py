"""The lake of the archive job: what its manifests know, lost checkpoints, lakes of version 1."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from pyspark.sql import DataFrame, SparkSession

from tests.support import old_lake
from tests.support.processes import DEADLINE_S
from tests.support.spark_jobs import archived, audited
from tests.support.spark_topics import Topic, delete_records, numbered
from tidelog.pipeline import lake as lakes
from tidelog.pipeline.errors import LakeRefused, PipelineError
from tidelog.pipeline.jobs import archive
from tidelog.pipeline.lake.chain import fold, read_manifests
from tidelog.pipeline.lake.files import COLUMNS
from tidelog.pipeline.lake.layout import Layout
from tidelog.pipeline.lake.manifest import Manifest
from tidelog.pipeline.progress import Bar

pytestmark = pytest.mark.spark


def manifests(lake: Path) -> list[Manifest]:
    return list(read_manifests(Layout.at(str(lake))))


def offsets(rows: DataFrame) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row in rows.select("partition", "offset").collect():
        found.setdefault(row["partition"], []).append(row["offset"])
    return {partition: sorted(each) for partition, each in found.items()}


def committed(topic: Topic, group: str) -> int:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": topic.bootstrap, "group.id": group})
    (found,) = consumer.committed([TopicPartition(topic.name, 0)], DEADLINE_S)
    consumer.close()
    return int(found.offset)


@contextmanager
def default_file_system(spark: SparkSession, root: Path) -> Iterator[None]:
    """Paths without a scheme lead elsewhere: /tmp is a folder below `root`."""
    settings = {
        "fs.defaultFS": "viewfs://c",
        "fs.viewfs.mounttable.c.link./tmp": root.as_uri(),
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


def test_what_was_lost_and_how_it_was_read_stands_in_the_manifest(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    """P1, P2, P8, P9, P12, P19, on the way of one lake."""
    lake, group = tmp_path / "lake", f"{topic.name}-group"
    topic.create(retention_ms=-1).write(numbered(10))
    options = {"kafka.group.id": group, "kafka.isolation.level": "read_committed"}
    with default_file_system(spark, tmp_path / "elsewhere"):
        archived(spark, topic, lake, options=options, roll_bytes=1)
    assert (lake / "_checkpoint" / "metadata").exists()
    assert committed(topic, group) == 10, "the last batch is committed too"
    topic.write(numbered(30, 10))
    delete_records(topic, 25)
    more = {**options, "failOnDataLoss": "false", "maxOffsetsPerTrigger": "20"}
    with default_file_system(spark, tmp_path / "elsewhere"):
        assert archived(spark, topic, lake, options=more)["new_rows"] == 15
        rows = lakes.read(spark, str(lake), topic.name)
        assert offsets(rows) == {0: [*range(10), *range(25, 40)]}
    assert committed(topic, group) == 40
    found = manifests(lake)
    lost = [(loss.start, loss.end, loss.cause) for each in found for loss in each.losses]
    assert lost[0][0] == 10 and lost[-1][1] == 25 and {cause for *_, cause in lost} == {"retention"}
    assert sum(end - start for start, end, _ in lost) == 15
    assert {each.isolation for each in found} == {"read_committed"}
    assert [each.policies for each in found] == [{topic.name: "delete"}] * len(found)
    files = [file for each in found for file in each.files]
    assert all(file.leader_epochs[0][0] >= 0 and file.digest and file.raw_bytes for file in files)
    (folder,) = (lake / topic.name).iterdir()
    assert folder.name == f"id={files[0].home.topic_id}"
    assert set(COLUMNS) <= set(spark.read.parquet(f"file://{folder}").columns)
    a_lost_checkpoint_is_refused_and_adopted(spark, topic, lake)


def a_lost_checkpoint_is_refused_and_adopted(spark: SparkSession, topic: Topic, lake: Path) -> None:
    """P7: the manifests are the truth of a lake, also for Spark."""
    before = len(manifests(lake))
    fold(Layout.at(str(lake)), 2)
    older = lake.parent / "older"
    shutil.copytree(lake / "_checkpoint", older)
    topic.write(numbered(10, 40))
    archived(spark, topic, lake)
    shutil.rmtree(lake / "_checkpoint")
    topic.write(numbered(10, 50))
    with pytest.raises(LakeRefused, match=r"there is no checkpoint in .*--adopt continues"):
        archived(spark, topic, lake)
    assert archived(spark, topic, lake, adopt=True)["new_rows"] == 10
    shutil.rmtree(lake / "_checkpoint")
    older.rename(lake / "_checkpoint")
    topic.write(numbered(10, 60))
    with pytest.raises(LakeRefused, match=r"is older than the lake.*--adopt continues"):
        archived(spark, topic, lake)
    assert archived(spark, topic, lake, adopt=True)["new_rows"] == 10
    assert archived(spark, topic, lake)["new_rows"] == 0
    assert len(manifests(lake)) == before + 3
    assert offsets(lakes.read(spark, str(lake), topic.name)) == {0: [*range(10), *range(25, 70)]}


def test_a_lake_of_version_1_is_resumed(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    """As commit 02f3bcb left it after kill -9 in its fourth batch."""
    topic = Topic(bootstrap, old_lake.TOPIC).create(old_lake.PARTITIONS, retention_ms=-1)
    old_lake.produce(bootstrap, 0, old_lake.WRITTEN + 5)
    lake = old_lake.unpack(tmp_path, bootstrap)
    first = old_lake.PARTITIONS * old_lake.COMMITTED
    settings = archive.ArchiveSettings(bootstrap, (topic.name,), str(lake), once=True)
    done = archive.run(spark, settings, Bar("archived"))
    assert done["rows"] == first + done["new_rows"] == old_lake.PARTITIONS * (old_lake.WRITTEN + 5)
    found = manifests(lake)
    assert [each.version for each in found] == [1, 1, 1, 2, 2]
    assert found[3].end["version"] == 1, "Spark had planned that batch before"
    wanted = {key: [*range(old_lake.WRITTEN + 5)] for key in range(old_lake.PARTITIONS)}
    assert offsets(lakes.read(spark, str(lake), topic.name)) == wanted
    names = sorted(Layout.at(str(lake)).data_files())
    assert names == sorted(file.path for each in found for file in each.files)
    assert audited(spark, topic, lake, complete=True).is_right
    with pytest.raises(LakeRefused, match="does not hold topic other"):
        lakes.read(spark, str(lake), "other")


def test_a_lake_of_two_topics_is_read_by_topic(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    """P10: each topic by itself, and what is only staged is no Parquet for any reader."""
    lake = tmp_path / "lake"
    other = Topic(topic.bootstrap, f"{topic.name}-other").create(retention_ms=-1)
    topic.create(retention_ms=-1).write(numbered(5))
    other.write(numbered(7))
    names = (topic.name, other.name)
    settings = archive.ArchiveSettings(topic.bootstrap, names, str(lake), once=True)
    archive.run(spark, settings, Bar("archived"))
    (lake / "_inflight" / "0123.staged").write_bytes(b"PAR1")
    assert len(list(lake.rglob("*.parquet"))) == 2
    for each, count in ((topic, 5), (other, 7)):
        assert offsets(lakes.read(spark, str(lake), each.name)) == {0: [*range(count)]}
        (folder,) = (lake / each.name).iterdir()
        assert spark.read.parquet(str(folder)).count() == count
    a_topic_is_dropped_and_comes_back(spark, topic, other, lake)


def a_topic_is_dropped_and_comes_back(
    spark: SparkSession, topic: Topic, other: Topic, lake: Path
) -> None:
    """It is no loss, and is read on; a topic that a pattern finds joins at its start."""
    topic.write(numbered(2, 5))
    other.write(numbered(2, 7))
    third = Topic(topic.bootstrap, f"{topic.name}-third").create(retention_ms=-1)
    third.write(numbered(3))
    given = {"lake": str(lake), "once": True}

    def run(*topics: str, **more: object) -> object:
        settings = archive.ArchiveSettings(topic.bootstrap, topics, **given, **more)  # type: ignore[arg-type]
        return archive.run(spark, settings, Bar("archived"))["new_rows"]

    with pytest.raises(LakeRefused, match=f"--drop {other.name} ends the archiving of it"):
        run(topic.name)
    assert run(topic.name, drop=(other.name,)) == 2
    assert run(topic.name) == 0, "it stays dropped"
    assert run(pattern=f"{topic.name}.*") == 2 + 3
    for each, count in ((topic, 7), (other, 9), (third, 3)):
        assert offsets(lakes.read(spark, str(lake), each.name)) == {0: [*range(count)]}
    assert not [loss for manifest in manifests(lake) for loss in manifest.losses]


def test_bad_records_stop_an_archive_or_have_a_table_of_their_own(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    """One producer that writes nanoseconds: the archive goes on, and no record is passed over."""
    lake, nanoseconds = tmp_path / "lake", 1_763_000_000_000_000_000
    topic.create(retention_ms=-1, message_timestamp_after_max_ms=2**63 - 1)
    topic.write(numbered(4), timestamps_ms=[1000, nanoseconds, 2000, nanoseconds + 1])
    with pytest.raises(PipelineError, match=f"timestamp of {nanoseconds} ms does not fit"):
        archived(spark, topic, lake)
    done = archived(spark, topic, lake, on_bad_record="quarantine")
    assert (done["rows"], done["bad"]) == (2, 2)
    assert offsets(lakes.read(spark, str(lake), topic.name)) == {0: [0, 2]}
    bad = lakes.read_bad(spark, str(lake), topic.name).orderBy("offset").collect()
    assert [(row.offset, row.timestampMs, row.value) for row in bad] == [
        (1, nanoseconds, b"v1"),
        (3, nanoseconds + 1, b"v3"),
    ]
    found = audited(spark, topic, lake, complete=True)
    assert found.is_right and "2 offsets of the log cannot be read" in found.text
    (file,) = (lake / "_bad").rglob("*.parquet")
    file.unlink()
    found = audited(spark, topic, lake, full=True)
    assert not found.is_right and "2 records of the log are not in the lake" in found.text
    rows = topic.read(spark, onBadRecord="quarantine")
    assert rows.where("badReason IS NULL AND badRaw IS NULL").count() == 2
    assert rows.where("timestamp IS NULL AND badTo = offset + 1").count() == 2


def test_the_command_line_knows_adopt() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "tidelog.pipeline", "archive", "--help"],
        capture_output=True, text=True, timeout=DEADLINE_S, check=True,
    ).stdout  # fmt: skip
    assert "--adopt" in said and "--roll-bytes" in said
