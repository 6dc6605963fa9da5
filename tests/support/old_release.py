"""Commit 02f3bcb, whose data directories, stores and brokers the present code must live with.

Its source comes from the history of this repository, and what it leaves on disk from a fixture:
`python -m tests.support.old_release` rebuilds `tests/fixtures/02f3bcb.tar.xz`. That holds two
folders of one process with both roles on an SQLite store, `clean` after a clean stop and `killed`
after kill -9, each with the books of what is in it (`Books`).
"""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import confluent_kafka
from confluent_kafka import TopicPartition

from tests.support.clients import admin, create_topic
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.server import TidelogNode

COMMIT = "02f3bcb"
ROOT = Path(__file__).parents[2]
FIXTURE = ROOT / "tests" / "fixtures" / f"{COMMIT}.tar.xz"
MAIN = "tidelog.cli.main"

PLAIN, COMPACTED, GROUP = "plain", "compacted", "readers"
PARTITIONS, RECORDS = 2, 110
KEPT = ("data", "metadata.db", "metadata.db-wal")
CONFIG: Mapping[str, object] = {
    "log.cleaner.backoff.ms": 200,
    "log.flush.scheduler.interval.ms": 200,
}


@dataclass
class Books:
    """What a folder of the fixture holds, as the old code itself said."""

    topic_ids: dict[str, str]
    records: dict[str, dict[str, dict[str, list[str]]]]
    """Topic -> partition -> offset -> key and value."""
    committed: dict[str, int]
    """Partition of `plain` -> the group's offset."""
    epochs: list[int]
    """The offsets at which leader epochs with records began in partition 0 of `compacted`."""


def unpack_source(folder: Path) -> Path:
    """Return the folder of the old package, for PYTHONPATH.

    AssertionError with what to do when the history of this checkout does not reach it.
    """
    done = subprocess.run(
        ["git", "archive", "--format=tar", COMMIT, "src"], cwd=ROOT, capture_output=True
    )
    assert done.returncode == 0, (
        f"commit {COMMIT} is not in the history of {ROOT} ({done.stderr.decode().strip()}): "
        "the upgrade from it cannot be tested in a shallow clone; run `git fetch --unshallow`"
    )
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder / "src"


def unpack_fixture(folder: Path, which: str) -> Books:
    """Put `data` and the store of one folder of the fixture into `folder`; return its books."""
    with tarfile.open(FIXTURE) as files:
        members = [each for each in files.getmembers() if each.name.startswith(f"{which}/")]
        for each in members:
            each.name = each.name.removeprefix(f"{which}/")
        files.extractall(folder, members, filter="data")
    return Books(**json.loads((folder / "books.json").read_text()))


def contents(bootstrap: str, topic: str) -> dict[str, dict[str, list[str]]]:
    """Read a topic to its ends: partition -> offset -> key and value."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found: dict[str, dict[str, list[str]]] = {str(number): {} for number in range(PARTITIONS)}
    left = set(range(PARTITIONS))
    while left:
        message = consumer.poll(DEADLINE_S)
        assert message is not None, f"{topic} was read to {found}"
        error = message.error()
        if error is not None:
            assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
            left.discard(message.partition())
            continue
        record = [message.key().decode(), message.value().decode()]
        found[str(message.partition())][str(message.offset())] = record
    consumer.close()
    return found


def committed(bootstrap: str) -> dict[str, int]:
    """Return the group's offsets in `plain`, by partition."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    asked = [TopicPartition(PLAIN, number) for number in range(PARTITIONS)]
    answered = consumer.committed(asked, DEADLINE_S)
    consumer.close()
    return {str(each.partition): each.offset for each in answered}


def topic_ids(bootstrap: str) -> dict[str, str]:
    """Return the ids of both topics."""
    asked = confluent_kafka.TopicCollection([PLAIN, COMPACTED])
    client = admin(bootstrap)
    answers = client.describe_topics(asked)
    return {name: str(answer.result(DEADLINE_S).topic_id) for name, answer in answers.items()}


def _end(bootstrap: str, topic: str) -> int:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    end: int = consumer.get_watermark_offsets(TopicPartition(topic, 0), DEADLINE_S)[1]
    consumer.close()
    return end


def _write(bootstrap: str, topic: str, name: str, keys: int) -> None:
    """Some records in each partition, one to a batch.

    No idempotent producer writes to `compacted`: the last batch of one is kept, and epochs would
    end in it and not in a gap.
    """
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": topic == PLAIN,
            "linger.ms": 0,
            "batch.num.messages": 1,
        }
    )
    for number in range(RECORDS):
        for partition in range(PARTITIONS):
            key, value = f"k{number % keys}", f"{name}:{number}"
            producer.produce(topic, value, key, partition)
        producer.poll(0)
    assert producer.flush(DEADLINE_S) == 0


def _commit(bootstrap: str, offset: int) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    offsets = [TopicPartition(PLAIN, number, offset + number) for number in range(PARTITIONS)]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


def _compacted(node: TidelogNode, above: int) -> bool:
    """Whether partition 0 of `compacted` was compacted to the segment that is active now."""
    base = max(int(file.stem) for file in (node.data / f"{COMPACTED}-0").glob("*.log"))
    return base > above and f"{COMPACTED}-0: compacted to offset {base}," in node.log.read_text()


def _fill(node: TidelogNode) -> Books:
    """Three lives of a process, a leader epoch with records in each."""
    small = {"segment_bytes": 2000, "file_delete_delay_ms": 0}
    with node:
        create_topic(node.bootstrap, PLAIN, PARTITIONS, retention_ms=-1, **small)
        create_topic(
            node.bootstrap,
            COMPACTED,
            PARTITIONS,
            cleanup_policy="compact",
            min_cleanable_dirty_ratio=0,
            **small,
        )
        epochs = []
        for name in ("first", "second", "third"):
            epochs.append(_end(node.bootstrap, COMPACTED))
            _write(node.bootstrap, PLAIN, name, 100)
            _write(node.bootstrap, COMPACTED, name, 7)
            _commit(node.bootstrap, len(epochs) * 40)
            begun = epochs[-1]
            wait_until(
                lambda begun=begun: _compacted(node, begun), DEADLINE_S, "the log is compacted"
            )
            node.restart()
        books = Books(
            topic_ids(node.bootstrap),
            {topic: contents(node.bootstrap, topic) for topic in (PLAIN, COMPACTED)},
            committed(node.bootstrap),
            epochs,
        )
        assert node.stop() == 0, node.said("stopped cleanly")
    return books


def _live_on(node: TidelogNode) -> Books:
    """A further life that is killed."""
    with node:
        books = Books(topic_ids(node.bootstrap), {}, {}, [])
        _write(node.bootstrap, PLAIN, "fourth", 100)
        _commit(node.bootstrap, 333)
        books.records = {topic: contents(node.bootstrap, topic) for topic in (PLAIN, COMPACTED)}
        books.committed = committed(node.bootstrap)
        node.kill()
    return books


def _pack(archive: tarfile.TarFile, node: TidelogNode, which: str, books: Books) -> None:
    for name in KEPT:
        if (node.folder / name).exists():
            archive.add(node.folder / name, f"{which}/{name}")
    content = json.dumps(asdict(books), sort_keys=True).encode()
    info = tarfile.TarInfo(f"{which}/books.json")
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


def make_fixture() -> None:
    """Run the old code through four lives and pack what it leaves."""
    FIXTURE.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = unpack_source(folder)
        node = TidelogNode(folder / "node", CONFIG)
        node.run_with(MAIN, {"PYTHONPATH": str(source)})
        with tarfile.open(FIXTURE, "w:xz") as archive:
            books = _fill(node)
            _pack(archive, node, "clean", books)
            killed = _live_on(node)
            killed.epochs = books.epochs
            _pack(archive, node, "killed", killed)
    print(f"{FIXTURE}: {FIXTURE.stat().st_size} bytes")


if __name__ == "__main__":
    make_fixture()
