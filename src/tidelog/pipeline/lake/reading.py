"""The reading of a topic from a lake with Spark, by the manifests.

Owns which files are the topic; a file that no manifest names is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tidelog.pipeline.errors import LakeRefused
from tidelog.pipeline.lake.chain import read_manifests
from tidelog.pipeline.lake.layout import Layout
from tidelog.pipeline.lake.manifest import BadFile, LakeFile, Manifest
from tidelog.pipeline.lake.offsets import ends
from tidelog.pipeline.topic_ids import normal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(spark: SparkSession, lake: str, topic: str, topic_id: str | None = None) -> DataFrame:
    """The records of a topic in a lake, each once, with the columns that all lakes have.

    Where several topics had the name one after the other, the newest counts unless `topic_id` says
    another. Raises LakeRefused when the lake does not hold the topic.
    """
    layout = Layout.at(lake)
    return rows_of(spark, layout, _files(layout, topic, topic_id, lambda manifest: manifest.files))


def read_bad(spark: SparkSession, lake: str, topic: str, topic_id: str | None = None) -> DataFrame:
    """The bad records of a topic (onBadRecord=quarantine), each with its bytes and the reason.

    As `read` otherwise.
    """
    from tidelog.pipeline.lake.bad_files import COLUMNS

    layout = Layout.at(lake)
    names = _files(layout, topic, topic_id, lambda manifest: manifest.bad)
    return _parquet(spark, layout, names, COLUMNS)


def _files(
    layout: Layout,
    topic: str,
    topic_id: str | None,
    of: Callable[[Manifest], Sequence[LakeFile | BadFile]],
) -> list[str]:
    # As a person copies it, perhaps from a lake of before.
    topic_id = None if topic_id is None else normal(topic_id)
    names: dict[str, list[str]] = {}
    for manifest in read_manifests(layout):
        for home in ends(manifest.end):
            if home.topic == topic:
                # The newest is the last one.
                names[home.topic_id] = names.pop(home.topic_id, [])
        for file in of(manifest):
            if file.home.topic == topic:
                names.setdefault(file.home.topic_id, []).append(file.path)
    if not names or (topic_id is not None and topic_id not in names):
        what = topic if topic_id is None else f"{topic} of id {topic_id}"
        raise LakeRefused(f"lake {layout.root} does not hold topic {what}")
    return names[topic_id if topic_id is not None else list(names)[-1]]


def rows_of(spark: SparkSession, layout: Layout, names: list[str]) -> DataFrame:
    """The records of data files, of whatever version."""
    # Not before: what only writes a lake needs no Spark.
    from tidelog.pipeline.lake.files import COLUMNS

    return _parquet(spark, layout, names, COLUMNS)


def _parquet(
    spark: SparkSession, layout: Layout, names: list[str], columns: Sequence[str]
) -> DataFrame:
    from tidelog.pipeline.schema import spark_schema

    schema = spark_schema(columns)
    if not names:
        return spark.createDataFrame([], schema)
    # The folders say nothing that the columns do not, and those of the two versions differ.
    reader = spark.read.schema(schema).option("recursiveFileLookup", "true")
    return reader.parquet(*layout.patterns(names))
