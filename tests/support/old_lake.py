"""A lake that commit 02f3bcb wrote (version 1), with the checkpoint of its job.

`python -m tests.support.old_lake` rebuilds `tests/fixtures/lake-02f3bcb.tar.xz`: the archive job
of that commit, from the history of this repository, archives a topic in three batches, goes on, and
is killed with SIGKILL where it would link the manifest of the fourth. So the fixture holds
manifests, files and an offset log of version 1, and the files of a batch that was cut down. The
topic's id and the lake's place are written as `TOPIC-ID` and `LAKE`, for a topic of a test has an
id of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import confluent_kafka

from tests.support.clients import create_topic
from tests.support.old_release import COMMIT, ROOT, unpack_source
from tests.support.processes import DEADLINE_S
from tests.support.server import TidelogNode
from tidelog.client.blocking import BlockingCluster

FIXTURE = ROOT / "tests" / "fixtures" / f"lake-{COMMIT}.tar.xz"
TOPIC = f"archived-by-{COMMIT}"
PARTITIONS = 2
# Of each partition: in manifests, and in all with the batch that was cut down.
COMMITTED, WRITTEN = 20, 30
_ID, _LAKE = "TOPIC-ID", "LAKE"
_TEXTS = (".json", ".draft", "")  # manifests, drafts; Spark's files have no suffix
_KILLED_AT_THE_MANIFEST = """
import os, signal, sys
os.link = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
from tidelog.pipeline.__main__ import run
sys.exit(run(sys.argv[1:]))
"""


def produce(bootstrap: str, first: int, last: int) -> None:
    """Write the records `first` to `last` (exclusive) of each partition, always the same ones."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    for number in range(first, last):
        for partition in range(PARTITIONS):
            value = b'{"n":%d}' % number
            key = None if number % 7 == 0 else b"%d-%d" % (partition, number % 5)
            when = 1_700_000_000_000 + number
            producer.produce(TOPIC, value, key, partition, timestamp=when, headers=[("h", b"1")])
    assert producer.flush(DEADLINE_S) == 0


def topic_id(bootstrap: str, topic: str = TOPIC) -> str:
    """The id of a topic as lake and checkpoint write it."""
    with BlockingCluster(bootstrap) as client:
        return str(client.call(client.cluster.describe([topic])).topics[topic].topic_id)


def unpack(folder: Path, bootstrap: str) -> Path:
    """Put the lake into `folder`, as if its topic were this cluster's; return its place."""
    with tarfile.open(FIXTURE) as files:
        files.extractall(folder, filter="data")
    lake = folder / "lake"
    _replace(lake, {_ID: topic_id(bootstrap), _LAKE: str(lake)})
    return lake


def _replace(lake: Path, words: dict[str, str]) -> None:
    for place in lake.rglob("*"):
        if place.is_file() and place.suffix in _TEXTS:
            text = place.read_text()
            for word, other in words.items():
                text = text.replace(word, other)
            place.write_text(text)


def make_fixture() -> None:
    """Run the old job twice and pack what it leaves."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = unpack_source(folder)
        lake = folder / "lake"
        environment = {
            **os.environ,
            "PYTHONPATH": str(source),
            "PYSPARK_PYTHON": sys.executable,
        }
        with TidelogNode(folder / "node") as node:
            job = [
                *("archive", "--bootstrap-server", node.bootstrap, "--topic", TOPIC),
                *("--lake", str(lake), "--once", "--master", "local[1]"),
                *("--max-offsets-per-trigger", str(COMMITTED)),
            ]
            create_topic(node.bootstrap, TOPIC, PARTITIONS, retention_ms=-1)
            produce(node.bootstrap, 0, COMMITTED)
            subprocess.run(
                [sys.executable, "-m", "tidelog.pipeline", *job], env=environment, check=True
            )
            produce(node.bootstrap, COMMITTED, WRITTEN)
            killed = subprocess.run(
                [sys.executable, "-c", _KILLED_AT_THE_MANIFEST, *job], env=environment
            )
            assert killed.returncode < 0, "the job was to be killed"
            known = topic_id(node.bootstrap)
        # Sums of texts that are about to change, and what belongs to that process only.
        for each in (*lake.rglob("*.crc"), lake / "_manifest" / "lock"):
            each.unlink()
        _replace(lake, {known: _ID, str(lake): _LAKE})
        with tarfile.open(FIXTURE, "w:xz") as archive:
            archive.add(lake, "lake")
    print(f"{FIXTURE}: {FIXTURE.stat().st_size} bytes")


if __name__ == "__main__":
    make_fixture()
