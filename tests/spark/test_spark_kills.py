"""kill -9 of executors and of the driver in mid-run, on a cluster of processes: exactly once.

The first executor dies while it writes a file, the second after a file is whole and before it says
so; the driver where the files of a batch lie in their places and the manifest does not. `make
chaos` kills it at every step of a batch in turn.

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
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support import java, killed_job, killed_worker
from tests.support.processes import DEADLINE_S, Program, wait_until
from tests.support.spark_jobs import counted
from tests.support.spark_topics import JVM, Topic
from tidelog.pipeline.lake.chain import read_manifests
from tidelog.pipeline.lake.layout import Layout

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.long]

CLUSTER = "local-cluster[2,1,700]"
# What a job sets by itself where spark-submit does not start it: workers that start cheaply.
DAEMON = "tidelog.pipeline.worker_daemon"
RECORDS = 30_000
PER_BATCH = 1000
START_S = 240.0
ROOT = Path(__file__).parents[2]
LOCAL = ("--master", "local[2]", "--conf", f"spark.driver.extraJavaOptions={JVM}")
# At which steps of a batch the driver is killed, each time in another run.
STEPS = tuple(killed_job.STEPS) if os.environ.get("TIDELOG_CHAOS") == "long" else ("linked",)


def spark_environment() -> dict[str, str]:
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }


def job_file() -> str:
    """The file that is given to spark-submit."""
    return subprocess.run(
        [sys.executable, "-m", "tidelog.pipeline", "file"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def submit(master: str, *arguments: str, job: str | None = None, daemon: str = DAEMON) -> list[str]:
    """The command line of a job by spark-submit."""
    return [
        str(Path(sys.executable).with_name("spark-submit")), "--master", master,
        "--driver-java-options", JVM, "--conf", f"spark.executor.extraJavaOptions={JVM}",
        "--conf", "spark.executor.memory=600m",
        "--conf", f"spark.python.daemon.module={daemon}",
        job or job_file(), *arguments,
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


def killed(status: int | None) -> bool:
    """Whether the driver ended by SIGKILL; spark-submit says so as a shell does."""
    return status in (-signal.SIGKILL, 128 + signal.SIGKILL)


def check_step(lake: Path, step: str) -> None:
    """What the step leaves: data files that no manifest names yet, drafts, staged files."""
    layout = Layout.at(str(lake))
    named = {file.path for manifest in read_manifests(layout) for file in manifest.files}
    stray = len(set(layout.data_files()) - named)
    drafts = len(list(layout.manifests.glob("*.draft")))
    staged = len(list(layout.inflight.iterdir()))
    # A worker that was killed leaves files that it had begun; a start takes them away.
    assert stray == {"half linked": 1, "linked": 2}.get(step, 0), step
    assert drafts == (step in ("drafted", "half linked", "linked", "in the lake")), step
    assert staged >= (0 if step in ("begun", "cleaned up") else 2), step


def test_executors_and_driver_killed_in_mid_run(topic: Topic, tmp_path: Path) -> None:
    if java.missing() is not None and "Java" in str(java.missing()):
        pytest.skip(str(java.missing()))
    lake, struck = tmp_path / "lake", tmp_path / "struck"
    struck.mkdir()
    topic.create(2)
    half = RECORDS // 2
    for partition in (0, 1):
        topic.write(counted(half, half * partition), partition=partition)
    archive = (
        "archive", "--bootstrap-server", topic.bootstrap, "--topic", topic.name,
        "--lake", str(lake), "--json",
    )  # fmt: skip
    paced = ("--trigger", "0ms", "--max-offsets-per-trigger", str(PER_BATCH))
    first, *others = STEPS
    command = submit(
        CLUSTER, first, *archive, *paced, job=killed_job.__file__, daemon=killed_worker.__name__
    )
    environment = {**spark_environment(), killed_worker.FOLDER: str(struck)}
    with Program(command, tmp_path / "job.log", environment) as program:
        wait_until(lambda: program.exit_status() is not None, START_S, "the driver is killed")
        assert killed(program.exit_status()), program.output()[-3000:]
    assert len(list(read_manifests(Layout.at(str(lake))))) >= killed_job.BATCHES
    assert {each.name for each in struck.iterdir()} == set(killed_worker.STEPS)
    check_step(lake, first)
    for step in others:
        command = [sys.executable, killed_job.__file__, step, *archive, *paced, *LOCAL]
        assert killed((done := ended(command)).returncode), done.stderr[-3000:]
        check_step(lake, step)
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
            for file in sorted((lake / topic.name).glob(f"id=*/p={partition}/*.parquet"))
            for offset in pq.ParquetFile(file).read(["offset"]).column(0).to_pylist()
        ]
        assert found == list(range(half))
    audit = (
        "audit", "--bootstrap-server", topic.bootstrap, "--lake", str(lake), "--complete",
        "--keys", "murmur2", "--full",
    )  # fmt: skip
    # A JVM that writes to standard output does not get among the JSON (P20).
    talkative = ("--conf", f"spark.driver.extraJavaOptions={JVM} -Xlog:gc")
    place = tmp_path / "found.json"
    by_itself = ended([*directly(CLUSTER, *audit, "--json"), *talkative])
    submitted = ended(submit("local[2]", *audit, "--json-file", str(place)))
    assert "[gc" in by_itself.stderr
    for audited, text in ((by_itself, by_itself.stdout), (submitted, place.read_text())):
        result = json.loads(text)
        assert result["records"] == result["compared_now"] == RECORDS
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
    no_lake = run("audit", "--bootstrap-server", "x:1", "--lake", str(tmp_path))
    assert (no_lake.returncode, no_lake.stderr) == (
        2,
        f"error: there is no lake in {tmp_path}: the job archive makes one\n",
    )
    assert run(*base, "--starting-offsets", "soon").stderr.startswith("error: option starting")
    assert "Missing option" in run("archive").stderr
    assert run("archive").returncode == 2
