"""kill -9 of the driver where a batch is decided and none of its transactions has ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark import sink_job
from tests.support import java, killed_sink
from tests.support.committed_values import committed_values
from tests.support.spark_topics import Topic, numbered

pytestmark = [pytest.mark.spark, pytest.mark.kill]

ROOT = Path(__file__).parents[2]
JOB_S = 240.0


def test_a_driver_killed_after_its_decision(topic: Topic, tmp_path: Path) -> None:
    if java.missing() is not None and "Java" in str(java.missing()):
        pytest.skip(str(java.missing()))
    topic.create(3)
    source = Topic(topic.bootstrap, f"{topic.name}-source").create(2)
    source.write(numbered(100)).write(numbered(100, 100), partition=1)

    def run(batch: int) -> subprocess.CompletedProcess[str]:
        """Run the job; its driver is killed in this batch."""
        (tmp_path / killed_sink.FILE).write_text(str(batch))
        command = [
            sys.executable, sink_job.__file__,
            topic.bootstrap, source.name, topic.name, str(tmp_path),
        ]  # fmt: skip
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        return subprocess.run(
            command, capture_output=True, text=True, timeout=JOB_S, check=False, env=environment
        )

    for batch in (1, 3):
        assert run(batch).returncode != 0
        # Each batch before it is in Spark's log, and this one is not: it runs again.
        commits = {path.name for path in (tmp_path / "checkpoint/commits").glob("[0-9]*")}
        assert commits == {str(number) for number in range(batch)}
    done = run(-1)
    assert done.returncode == 0, done.stderr[-3000:]
    values = committed_values(topic.bootstrap, topic.name)
    assert sorted(values, key=lambda value: int((value or b"")[1:])) == [
        b"v%d" % number for number in range(200)
    ]
