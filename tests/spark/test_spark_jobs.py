"""The jobs `archive` and `audit` in one session: resume, refusals, and planted faults."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from tests.support.processes import DEADLINE_S
from tests.support.spark_jobs import archived, audited, counted
from tests.support.spark_topics import Topic, delete_records, numbered
from tidelog.pipeline.errors import LakeRefused, PipelineError
from tidelog.pipeline.jobs import archive, audit
from tidelog.pipeline.lake.chain import read_manifests
from tidelog.pipeline.lake.files import COLUMNS
from tidelog.pipeline.lake.layout import Layout
from tidelog.pipeline.progress import JsonLines

pytestmark = pytest.mark.spark


def rules(result: audit.AuditResult) -> set[str]:
    return {finding.rule for finding in result.findings if finding.is_fault}


def test_archive_resumes_and_the_audit_finds_it_right_until_it_is_not(
    spark: SparkSession, topic: Topic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = tmp_path / "lake"
    topic.create(2).write(counted(60), headers=[("h", b"1")]).write(counted(40, 60), partition=1)
    options = {"maxOffsetsPerTrigger": "40"}
    settings = archive.ArchiveSettings(
        topic.bootstrap, (topic.name,), str(lake), once=True, options=options
    )
    done = archive.run(spark, settings, JsonLines("archive"))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (lines[-1]["done"], lines[-1]["total"], lines[-1]["lag"]) == (100, 100, 0)
    assert done["rows"] == 100
    topic.write(counted(10, 100))
    assert archived(spark, topic, lake)["new_rows"] == 10
    assert archived(spark, topic, lake)["new_rows"] == 0
    files = sum(len(each.files) for each in read_manifests(Layout.at(str(lake))))
    report = tmp_path / "report"
    result = audited(spark, topic, lake, complete=True, report=str(report))
    assert result.is_right and not result.findings
    assert (result.facts.rows, result.facts.compared, result.facts.files_now) == (110, 110, files)
    assert sum(part.read_twice for part in result.facts.partitions) > 0
    # The order and the home of keys were not asked for, and are not reported.
    assert "order" not in result.text
    again = audited(spark, topic, lake, complete=True)
    assert again.is_right and (again.facts.compared, again.facts.files_now) == (110, 0)
    assert "110 of them by earlier audits" in again.text
    # Keys of both partitions overlap: the hand that wrote them is not Kafka's partitioner.
    assert rules(audited(spark, topic, lake, keys="murmur2")) == {"home"}
    topic.write(counted(5, 110))
    archived(spark, topic, lake)
    later = audited(spark, topic, lake)
    assert (later.is_right, later.facts.compared_now, later.facts.files_now) == (True, 5, 1)
    assert {each.name for each in report.iterdir()} == {"report.txt", "report.json", "report.html"}
    # A folder that Spark reads without the manifest, and its columns.
    plain = spark.read.parquet(str(lake / topic.name))
    assert plain.count() == 115 and set(COLUMNS) <= set(plain.columns)
    plant_faults(spark, topic, lake)


def plant_faults(spark: SparkSession, topic: Topic, lake: Path) -> None:
    """Damage the lake in five ways, one after the other; the audit names each."""
    layout = Layout.at(str(lake))
    first, *rest = (file for each in read_manifests(layout) for file in each.files)
    place = lake / first.path
    table = pq.ParquetFile(place).read()
    pq.write_table(table.slice(0, table.num_rows - 1), place)
    assert rules(audited(spark, topic, lake)) >= {"missing", "file"}
    pq.write_table(table.slice(0, 1), place)
    values = table.column("value").to_pylist()
    changed = table.set_column(1, table.schema.field(1), [[b"{}", *values[1:]]])
    pq.write_table(changed, place)
    assert rules(audited(spark, topic, lake)) == {"content", "digest"}
    pq.write_table(table.take(list(reversed(range(table.num_rows)))), place)
    assert "order" in rules(audited(spark, topic, lake))
    beyond = table.schema.get_field_index("offset")
    offsets = [*table.column("offset").to_pylist()[:-1], 10**6]
    pq.write_table(table.set_column(beyond, "offset", [offsets]), place)
    assert rules(audited(spark, topic, lake)) >= {"missing", "extra", "range"}
    pq.write_table(table, place)
    assert rules(audited(spark, topic, lake)) == {"digest"}
    twice = lake / rest[0].path
    other = pq.ParquetFile(twice).read()
    pq.write_table(other.take([0, *range(other.num_rows)]), twice)
    assert rules(audited(spark, topic, lake)) >= {"duplicates", "file"}
    twice.unlink()
    assert rules(audited(spark, topic, lake)) >= {"file", "missing"}
    # Without a record all is compared each time, and the audit says so.
    shutil.rmtree(lake / "_audit")
    (lake / "_audit").write_text("in the way")
    result = audited(spark, topic, lake)
    assert [each.rule for each in result.findings if not each.is_fault] == ["audit"]


def test_the_order_of_each_key_by_a_field(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    lake = tmp_path / "lake [1] {a,b}*"
    records: list[tuple[bytes | None, bytes | None]]
    records = [(b"a", b'{"n":1}'), (b"b", b'{"n":9}'), (b"a", b'{"n":3}')]
    # A tombstone does not hide that the next one runs backwards.
    records += [(b"a", None), (b"a", b'{"n":2}')]
    topic.create().write(records)
    archived(spark, topic, lake)
    result = audited(spark, topic, lake, sequence="n")
    assert rules(result) == {"sequence"} and result.facts.keys.keys == 2
    (example,) = result.facts.keys.out_of_sequence_examples
    assert example == f"a ({topic.name}-0 offset 4, record 4 of the key)"
    unknown = audited(spark, topic, lake, sequence="none")
    assert (unknown.facts.keys.keys, unknown.facts.keys.keys_without) == (0, 2)
    assert not unknown.is_right and unknown.status == 3


def test_retention_and_lag_are_notes(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    topic.create().write(numbered(10))
    archived(spark, topic, lake)
    topic.write(numbered(5, 10))
    delete_records(topic, 4)
    result = audited(spark, topic, lake)
    assert result.is_right
    assert {finding.rule for finding in result.findings} == {"behind", "below"}
    assert "RIGHT as far as it was compared" in result.text
    assert "compared: 6 of 10 offsets (60.0 %)" in result.text
    assert not audited(spark, topic, lake, complete=True).is_right


def test_what_was_skipped_is_not_right_and_a_deleted_topic_is_an_answer(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    lake, unseen = tmp_path / "lake", tmp_path / "unseen"
    topic.create().write(numbered(10))
    archived(spark, topic, lake)
    assert audited(spark, topic, lake).is_right
    topic.write(numbered(90, 10))
    delete_records(topic, 50)
    archived(spark, topic, lake, options={"failOnDataLoss": "false"})
    result = audited(spark, topic, lake, complete=True)
    assert (result.is_right, result.status, rules(result)) == (False, 3, set())
    assert [finding.rule for finding in result.findings] == ["lost"]
    assert "40 offsets from 10 on were lost" in result.text and "RIGHT" not in result.text
    # The first ten were compared while the log had them.
    assert "compared: 60 of 100 offsets (60.0 %), 10 of them by earlier audits" in result.text
    archived(spark, topic, unseen)
    admin = AdminClient({"bootstrap.servers": topic.bootstrap})
    admin.delete_topics([topic.name])[topic.name].result(DEADLINE_S)
    quickly = {"fetchOffset.retryIntervalMs": "10"}
    result = audited(spark, topic, unseen, options=quickly)
    assert (result.status, rules(result)) == (3, set())
    assert "the topic is deleted: 50 of 50 archived offsets can never be compared" in result.text
    result = audited(spark, topic, lake, options=quickly)
    assert "the topic is deleted: 40 of 100 archived" in result.text
    topic.create()
    result = audited(spark, topic, unseen, options=quickly)
    assert "the topic was deleted and created again with the id" in result.text


def test_what_the_jobs_refuse(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    topic.create().write(numbered(3))
    with pytest.raises(LakeRefused, match="there is no lake"):
        audited(spark, topic, lake)
    archived(spark, topic, lake)
    with pytest.raises(LakeRefused, match="there is no checkpoint"):
        archived(spark, topic, lake, checkpoint=str(tmp_path / "other"))
    with pytest.raises(PipelineError, match="Parent path is not a directory"):
        place = lake / "_manifest" / "lock" / "checkpoint"
        archived(spark, topic, tmp_path / "second", checkpoint=str(place))
    archived_files = sorted(Layout.at(str(lake)).data_files())
    (lake / "_manifest").rename(tmp_path / "kept")
    topic.write(numbered(3))
    with pytest.raises(PipelineError, match="the lake is empty, but its checkpoint is at batch"):
        archived(spark, topic, lake)
    assert sorted(Layout.at(str(lake)).data_files()) == archived_files, (
        "a lost manifest loses no records"
    )
    admin = AdminClient({"bootstrap.servers": topic.bootstrap})
    admin.delete_topics([topic.name])[topic.name].result(DEADLINE_S)
