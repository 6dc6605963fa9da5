"""What has a partition's name and is none: never removed, whatever its name says (promise 20)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from tests.support.storage_logs import NOW_MS, batch, removed_now, resolve
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.topics import TopicPartition
from tidelog.runtime.disk import RealDisk
from tidelog.runtime.seams import Seams
from tidelog.storage import names
from tidelog.storage.checkpoints import PartitionMetadata
from tidelog.storage.directory.identity import DirectoryRefused, read_identity
from tidelog.storage.directory.log_directory import LogDirectory, open_directory
from tidelog.storage.foreign import is_log_directory, log_directory_within, strange_in

DISK = RealDisk()
KEY = TopicPartition("broker", 1)
METADATA = PartitionMetadata(UUID(int=9), 4, ())


def put(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")


def opened(path: Path, node_id: int = 1, *, cluster: str = "c") -> LogDirectory:
    found = open_directory(Seams(), str(path), cluster_id=cluster, node_id=node_id, boot_id="b")
    assert isinstance(found, LogDirectory), found
    found.load(resolve)
    return found


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[LogDirectory]:
    found = opened(tmp_path / "data")
    yield found
    found.close()


def test_all_that_a_log_keeps_is_a_partitions(directory: LogDirectory) -> None:
    log = directory.create(KEY, TopicConfigs(segment_bytes=200), METADATA)
    for _ in range(9):
        log.append_as_leader(batch(2), 1, NOW_MS)
    log.sync()
    assert len(DISK.list(log.path)) > 9
    assert strange_in(DISK, log.path) is None
    assert not is_log_directory(DISK, log.path)


@pytest.mark.parametrize("found", [*sorted(names.OF_LOG_DIRECTORIES), "orders-0/x", "a-b-1/x"])
@pytest.mark.parametrize("is_new", [True, False])
def test_a_log_directory_is_no_partition(tmp_path: Path, found: str, is_new: bool) -> None:
    put(tmp_path / "broker-1" / found)
    put(tmp_path / "orders-0" / "00000000000000000000.log")
    put(tmp_path / "logs" / "meta.properties")
    assert log_directory_within(DISK, str(tmp_path), is_new=is_new) == f"{tmp_path}/broker-1"
    if not is_new:
        put(tmp_path / "meta.properties")
    refused = read_identity(DISK, str(tmp_path), 1)
    assert (
        isinstance(refused, DirectoryRefused) and f"log.dirs={tmp_path}/broker-1" in refused.reason
    )


def test_other_names_count_where_nothing_says_whose_a_directory_is(tmp_path: Path) -> None:
    put(tmp_path / "logs" / "meta.properties")
    put(tmp_path / "lost+found" / "0")
    assert log_directory_within(DISK, str(tmp_path), is_new=True) == f"{tmp_path}/logs"
    assert log_directory_within(DISK, str(tmp_path), is_new=False) is None


def test_the_folders_of_other_workers_keep_worker_0_out_of_no_new_directory(tmp_path: Path) -> None:
    """They claimed theirs before it: its first start failed, or they are services of their own."""
    data = tmp_path / "data"
    for index in (2, 10):
        found = opened(data / f"worker.{index}", 100 + index)
        found.create(KEY, TopicConfigs(), METADATA)
        found.close()
    assert read_identity(DISK, str(data), 100) is None
    opened(data, 100).close()
    # Their disk is replaced empty, and worker 2 restarts first.
    shutil.rmtree(data)
    opened(data / "worker.2", 102).close()
    first = opened(data, 100)
    assert first.meta.node_id == 100
    first.close()


@pytest.mark.parametrize(
    ("name", "node_id"), [("worker.2", 7), ("worker.x", 102), ("worker.0", 100)]
)
def test_a_folder_that_is_no_workers_of_this_file_keeps_it_out(
    tmp_path: Path, name: str, node_id: int
) -> None:
    opened(tmp_path / name, node_id).close()
    refused = read_identity(DISK, str(tmp_path), 100)
    assert isinstance(refused, DirectoryRefused) and f"log.dirs={tmp_path}/{name}" in refused.reason


@pytest.mark.parametrize("content", [None, "node.id=102", ""])
def test_a_workers_folder_without_a_readable_identity_is_a_strange_one(
    tmp_path: Path, content: str | None
) -> None:
    put(tmp_path / "worker.2" / "orders-0" / "00000000000000000000.log")
    put(tmp_path / "worker.2" / names.LIFE)
    if content is not None:
        (tmp_path / "worker.2" / names.META_PROPERTIES).write_text(content)
    assert isinstance(read_identity(DISK, str(tmp_path), 100), DirectoryRefused)


@pytest.mark.parametrize(
    ("other", "cluster"), [("worker.1", "c"), ("worker.2", "old"), ("x", "old")]
)
def test_a_new_directory_takes_the_right_cluster_beside_folders_of_workers(
    tmp_path: Path, other: str, cluster: str
) -> None:
    opened(tmp_path, 100, cluster="old").close()
    opened(tmp_path / other, 101, cluster="old").close()
    found = open_directory(
        Seams(), str(tmp_path), cluster_id="c", node_id=100, boot_id="b", founded_as="old"
    )
    if cluster == "c":
        assert isinstance(found, LogDirectory) and found.meta.cluster_id == "c"
        found.close()
    else:
        assert isinstance(found, DirectoryRefused)


@pytest.mark.parametrize("ending", [names.DELETE_DIRECTORY, names.STRAY_DIRECTORY])
@pytest.mark.parametrize(
    ("strange", "metadata", "goes"),
    [
        (None, None, True),
        (None, METADATA, True),
        ("notes.txt", METADATA, True),
        ("notes.txt", None, False),
        ("meta.properties", None, False),
        ("orders-0/00000000000000000000.log", None, False),
        ("orders-0/00000000000000000000.log", METADATA, False),
    ],
)
def test_nothing_is_removed_by_its_name_alone(
    directory: LogDirectory,
    ending: str,
    strange: str | None,
    metadata: PartitionMetadata | None,
    goes: bool,
) -> None:
    log = directory.create(KEY, TopicConfigs(), metadata)
    if strange is not None:
        put(Path(log.path) / strange)
    if ending == names.STRAY_DIRECTORY:
        directory.mark_stray(KEY, remove_after_ms=0)
    else:
        directory.delete(KEY, delay_ms=0)
    assert removed_now(directory) == 1, "it is due once, and never again"
    left = [name for name in DISK.list(directory.path) if name.endswith(ending)]
    assert bool(left) is not goes
    assert all((Path(directory.path) / name / str(strange)).exists() for name in left)


def test_a_deleted_directory_of_an_earlier_process_is_looked_into(tmp_path: Path) -> None:
    kept = tmp_path / "data" / "broker-1.0f-delete" / "orders-0" / "00000000000000000000.log"
    gone = tmp_path / "data" / "orders-0.0f-delete" / "00000000000000000000.log"
    put(kept)
    put(gone)
    found = open_directory(Seams(), str(tmp_path / "data"), cluster_id="c", node_id=1, boot_id="b")
    assert isinstance(found, LogDirectory)
    found.load(lambda _: TopicConfigs(file_delete_delay_ms=0))
    removal = found.due_removal()
    assert removal is not None
    removal.run()
    assert kept.exists() and not gone.exists()
    (sentence,) = removal.kept
    assert sentence.endswith("it has orders-0, which no partition has; remove it yourself")
    found.close()


def test_what_no_partition_has_is_known_and_not_tidied_up(tmp_path: Path) -> None:
    opened(tmp_path / "data").close()
    put(tmp_path / "data" / "broker-1" / "mine.tmp")
    put(tmp_path / "data" / "broker-2" / "00000000000000000000.log.deleted")
    found = opened(tmp_path / "data")
    assert found.strange == {KEY}
    assert (tmp_path / "data" / "broker-1" / "mine.tmp").exists()
    assert not list((tmp_path / "data" / "broker-2").glob("*.deleted"))
    found.close()
