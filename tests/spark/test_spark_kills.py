"""kill -9 of an executor and of the driver in mid-run, on a cluster of processes: exactly once.

Each job runs by spark-submit and by `python -m tidelog.pipeline`, on local-cluster (a driver and
two executors as JVMs of their own) and on local[2]: the archive by spark-submit until it is killed,
and resumed by the other on local[2]; the audit by `python -m` on local-cluster, then by
spark-submit.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.spark.conftest import JVM, Topic
from tests.spark.test_spark_jobs import counted
from tests.support import java
from tests.support.processes import DEADLINE_S, Program, wait_until

from tidelog.pipeline.lake.layout import Layout
from tidelog.pipeline.lake.manifest import read_manifests

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.long]

CLUSTER = "local-cluster[2,1,700]"
# What a job sets by itself where spark-submit does not start it: workers that start cheaply.
DAEMON = "spark.python.daemon.module=tidelog.pipeline.worker_daemon"
RECORDS = 30_000
PER_BATCH = 1000
START_S = 240.0


def spark_environment() -> dict[str, str]:
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def descendants(pid: int) -> Iterator[tuple[int, str]]:
    """The processes that a process started, with their command lines."""
    listed = subprocess.run(
        ["ps", "-eww", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    ).stdout
    lines = [line.split(None, 2) for line in listed.splitlines()]
    family = {pid}
    # Once per generation; a driver's family has four.
    for _ in range(6):
        for child, parent, *command in lines:
            if int(parent) in family and int(child) not in family:
                family.add(int(child))
                yield int(child), " ".join(command)


def progress(program: Program) -> dict[str, int]:
    lines = [line for line in program.output().splitlines() if line.startswith('{"job"')]
    return json.loads(lines[-1]) if lines else {"batch": -1, "rows": 0}


def end(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def submit(master: str, *arguments: str) -> list[str]:
    """The command line of a job by spark-submit."""
    job_file = subprocess.run(
        [sys.executable, "-m", "tidelog.pipeline", "file"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    return [
        str(Path(sys.executable).with_name("spark-submit")), "--master", master,
        "--driver-java-options", JVM, "--conf", f"spark.executor.extraJavaOptions={JVM}",
        "--conf", "spark.executor.memory=600m", "--conf", DAEMON,
        job_file, *arguments,
    ]  # fmt: skip


def directly(master: str, *arguments: str) -> list[str]:
    """The command line of a job by `python -m tidelog.pipeline`."""
    return [
        sys.executable, "-m", "tidelog.pipeline", *arguments, "--master", master,
        "--conf", f"spark.driver.extraJavaOptions={JVM}",
        "--conf", f"spark.executor.extraJavaOptions={JVM}",
        "--conf", "spark.executor.memory=600m",
    ]  # fmt: skip


def ended(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=START_S, check=False,
        env={**os.environ, **spark_environment()},
    )  # fmt: skip


def test_executor_and_driver_killed_in_mid_run(topic: Topic, tmp_path: Path) -> None:
    if java.missing() is not None and "Java" in str(java.missing()):
        pytest.skip(str(java.missing()))
    lake = tmp_path / "lake"
    topic.create(2)
    half = RECORDS // 2
    for partition in (0, 1):
        topic.write(counted(half, half * partition), partition=partition)
    archive = (
        "archive", "--bootstrap-server", topic.bootstrap, "--topic", topic.name,
        "--lake", str(lake), "--json",
    )  # fmt: skip
    paced = ("--trigger", "0ms", "--max-offsets-per-trigger", str(PER_BATCH))
    command = submit(CLUSTER, *archive, *paced)
    with Program(command, tmp_path / "job.log", spark_environment()) as program:
        wait_until(
            lambda: progress(program)["batch"] >= 2 or program.exit_status() is not None,
            START_S,
            "two batches are archived",
        )
        assert program.exit_status() is None, program.output()[-3000:]
        family = list(descendants(program.pid))
        executors = [pid for pid, line in family if "CoarseGrainedExecutorBackend" in line]
        assert len(executors) == 2, family
        os.kill(executors[0], signal.SIGKILL)
        reached = progress(program)["batch"] + 3
        wait_until(lambda: progress(program)["batch"] >= reached, START_S, "the job goes on")
        family = list(descendants(program.pid))
        program.kill()
        end([pid for pid, _ in family])
        rows = sum(manifest.rows for manifest in read_manifests(Layout.at(str(lake))))
        assert 0 < rows < RECORDS, "the kill came too late to show anything"
    resumed = ended(directly("local[2]", *archive, "--once"))
    assert resumed.returncode == 0, resumed.stderr[-3000:]
    assert json.loads(resumed.stdout.splitlines()[-1])["rows"] == RECORDS
    assert "resuming after batch" in resumed.stderr and f"with {rows:,} records" in resumed.stderr
    # Independent of manifest and audit: every file of the folder, read with pyarrow.
    for partition in (0, 1):
        found = [
            offset
            for file in sorted((lake / topic.name / f"p={partition}").glob("*.parquet"))
            for offset in pq.ParquetFile(file).read(["offset"]).column(0).to_pylist()
        ]
        assert found == list(range(half))
    audit = ("audit", "--bootstrap-server", topic.bootstrap, "--lake", str(lake), "--json")
    for audited in (
        ended(directly(CLUSTER, *audit, "--complete")),
        ended(submit("local[2]", *audit, "--complete")),
    ):
        result = json.loads(audited.stdout)
        assert result["records"] == RECORDS
        assert {each["rule"] for each in result["findings"]} == {"home"}, audited.stderr[-2000:]
        assert audited.returncode == 1, "keys written to two partitions by hand are a fault"


def test_the_command_line_refuses_before_spark_starts(tmp_path: Path) -> None:
    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tidelog.pipeline", *more],
            capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip

    base = ["archive", "--bootstrap-server", "x:1", "--topic", "t", "--lake", str(tmp_path)]
    wrong = run(*base, "--option", "maxOffsetPerTrigger=1")
    assert wrong.returncode == 2
    assert wrong.stderr == (
        "error: option maxOffsetPerTrigger does not exist; did you mean maxOffsetsPerTrigger?\n"
    )
    assert run(*base, "--starting-offsets", "soon").stderr.startswith("error: option starting")
    assert "Missing option" in run("archive").stderr
    assert run("archive").returncode == 2
