"""A checkpoint of Spark's that the source of commit 02f3bcb wrote (offsets of version 1).

`python -m tests.support.old_checkpoint` rebuilds `tests/fixtures/checkpoint-02f3bcb.tar.xz`: a
stream of that commit's source reads a topic of one partition; the topic grows to two; the next
batch, in which the second partition is new, is killed with SIGKILL in `foreachBatch`. So the
fixture holds an offset log of version 1 with a batch that was not finished. The topic's id is
written as `TOPIC-ID`, for a topic of a test has an id of its own.
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
from tests.support.old_lake import topic_id
from tests.support.old_release import COMMIT, ROOT, unpack_source
from tests.support.processes import DEADLINE_S
from tests.support.server import TidelogNode

FIXTURE = ROOT / "tests" / "fixtures" / f"checkpoint-{COMMIT}.tar.xz"
TOPIC = f"read-by-{COMMIT}"
READ, PLANNED = [3], [4, 1]
"""Where the finished batches and the one that was killed end, by partition."""
_ID = "TOPIC-ID"
_READ_AND_DIE = """
import os, signal, sys
from tidelog.pipeline.session import session
bootstrap, topic, checkpoint, dies = sys.argv[1:]
def keep(batch, number):
    count = batch.count()
    if dies == "yes" and count:
        os.kill(spark.sparkContext._gateway.proc.pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
with session("old", "local[1]") as spark:
    rows = spark.readStream.format("tidelog").options(**{
        "kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"})
    query = (rows.load().writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint)
        .trigger(availableNow=True).start())
    query.awaitTermination()
"""


def produce(bootstrap: str, partition: int, first: int, last: int) -> None:
    """Write the records `first` to `last` (exclusive) of a partition."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for number in range(first, last):
        producer.produce(TOPIC, b"%d-%d" % (partition, number), None, partition)
    assert producer.flush(DEADLINE_S) == 0


def fill(bootstrap: str) -> None:
    """Make the topic, its records of the first batches, and nothing else."""
    # The cluster of that version grew without fences, which are records here.
    create_topic(bootstrap, TOPIC, 2, retention_ms=-1)
    produce(bootstrap, 0, 0, READ[0])


def grow(bootstrap: str) -> None:
    """Make the records of the batch that was killed, with the second partition's first ones."""
    produce(bootstrap, 0, READ[0], PLANNED[0])
    produce(bootstrap, 1, 0, PLANNED[1])


def unpack(folder: Path, bootstrap: str) -> Path:
    """Put the checkpoint into `folder`, as if its topic were this cluster's; return its place."""
    with tarfile.open(FIXTURE) as files:
        files.extractall(folder, filter="data")
    place = folder / "checkpoint"
    _replace(place, _ID, topic_id(bootstrap, TOPIC))
    return place


def _replace(checkpoint: Path, word: str, other: str) -> None:
    for each in checkpoint.glob("offsets/*"):
        each.write_text(each.read_text().replace(word, other))


def make_fixture() -> None:
    """Run the old source twice and pack what it leaves."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = unpack_source(folder)
        place = folder / "checkpoint"
        environment = {**os.environ, "PYTHONPATH": str(source), "PYSPARK_PYTHON": sys.executable}
        with TidelogNode(folder / "node") as node:

            def run(dies: str) -> int:
                command = [sys.executable, "-c", _READ_AND_DIE, node.bootstrap, TOPIC, str(place)]
                return subprocess.run([*command, dies], env=environment).returncode

            fill(node.bootstrap)
            assert run("no") == 0
            grow(node.bootstrap)
            assert run("yes") < 0, "the query was to be killed"
            known = topic_id(node.bootstrap, TOPIC)
        # Sums of texts that are about to change.
        for each in place.rglob("*.crc"):
            each.unlink()
        _replace(place, known, _ID)
        with tarfile.open(FIXTURE, "w:xz") as archive:
            archive.add(place, "checkpoint")
    print(f"{FIXTURE}: {FIXTURE.stat().st_size} bytes")


if __name__ == "__main__":
    make_fixture()
