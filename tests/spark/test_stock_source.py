"""The stock Kafka source and sink of Spark read and write our server."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.spark.stock import stock_environment, stock_python
from tests.support import java
from tests.support.spark_topics import Topic

pytestmark = [pytest.mark.spark, pytest.mark.java]

DEADLINE_S = 240


def test_the_stock_source_reads_and_writes(topic: Topic, tmp_path: Path) -> None:
    if java.missing() is not None:
        pytest.skip(str(java.missing()))
    topic.create(2)
    job = str(Path(__file__).with_name("stock_job.py"))
    done = subprocess.run(
        [str(stock_python()), job, topic.bootstrap, topic.name, str(tmp_path / "checkpoint")],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env=stock_environment(),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.strip().splitlines()[-1])
    assert seen["spark"].startswith("4.0.")
    assert seen["batch"] == 10
    wanted = [f"{kind}{number}" for kind in ("batch", "stream") for number in range(10)]
    assert seen["stream"] == sorted(wanted)
