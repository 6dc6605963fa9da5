"""The jobs of the pipeline, run in this process, and what they report."""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.spark_topics import Topic
from tidelog.pipeline.jobs import archive, audit
from tidelog.pipeline.progress import Bar


def archived(spark: SparkSession, topic: Topic, lake: Path, **more: object) -> dict[str, object]:
    settings = archive.ArchiveSettings(
        topic.bootstrap,
        (topic.name,),
        str(lake),
        once=True,
        **more,  # type: ignore[arg-type]
    )
    return archive.run(spark, settings, Bar("archived"))


def audited(spark: SparkSession, topic: Topic, lake: Path, **more: object) -> audit.AuditResult:
    settings = audit.AuditSettings(topic.bootstrap, str(lake), **more)  # type: ignore[arg-type]
    return audit.run(spark, settings)


def counted(count: int, first: int = 0) -> list[tuple[bytes | None, bytes | None]]:
    return [
        (None if n % 7 == 0 else b"k%d" % (n % 5), json.dumps({"n": n}).encode())
        for n in range(first, first + count)
    ]
