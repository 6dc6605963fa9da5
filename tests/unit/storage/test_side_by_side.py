"""S8. What a start has to check, checked by helper processes: nothing comes out otherwise."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import DEADLINE_S
from tests.support.storage_logs import BOOT, NOW_MS, batch, resolve
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.topics import TopicPartition
from tidelog.model.work import finish
from tidelog.records.builder import Producer
from tidelog.runtime.helper_processes import HelperProcesses
from tidelog.runtime.seams import Seams
from tidelog.storage.directory import side_by_side
from tidelog.storage.directory.log_directory import LogDirectory, open_directory
from tidelog.storage.loaded import LoadAbandoned, Loaded

PARTITIONS = [TopicPartition("t", number) for number in range(4)]
CONFIGS = TopicConfigs(index_interval_bytes=500)


@pytest.fixture
def helpers() -> Iterator[HelperProcesses]:
    made = HelperProcesses(2, niceness=0)
    yield made
    made.shutdown(cancel_futures=True)


@pytest.fixture
def all_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "HERE_MS", 0)
    monkeypatch.setattr(side_by_side, "LEAST_MS", 0)


def a_killed_life(path: Path) -> None:
    """Four partitions with epochs and producers, one with a torn tail; nothing was synced."""
    source = random.Random(8)
    directory = opened(path)
    directory.load(resolve)
    finish(directory.recording_life(BOOT, durability="replicated"))
    for number, partition in enumerate(PARTITIONS):
        log = directory.create(partition, CONFIGS)
        for sequence in range(200 + 50 * number):
            whose = Producer(source.randrange(3), 0, sequence)
            made = batch(timestamp=NOW_MS + source.randrange(900), size=90, producer=whose)
            log.append_as_leader(made, sequence // 60, NOW_MS)
    directory.resources.files.close()
    directory._lock.close()
    torn = path / "t-2" / "00000000000000000000.log"
    torn.write_bytes(torn.read_bytes()[:-7])


def opened(path: Path) -> LogDirectory:
    found = open_directory(Seams(), str(path), cluster_id="c", node_id=1, boot_id=BOOT)
    assert isinstance(found, LogDirectory), found
    return found


def after_a_kill(path: Path, load: Callable[[LogDirectory], Loaded]) -> dict[Any, Any]:
    """Everything that a start knows of a copy of that life."""
    copy = path.with_name(f"{path.name}-copy")
    shutil.copytree(path, copy)
    directory = opened(copy)
    loaded = load(directory)
    told: dict[Any, Any] = {"loaded": (loaded.logs, loaded.recovered_bytes, loaded.damaged)}
    for partition in PARTITIONS:
        log = directory.logs[partition]
        (segment,) = log.segments
        told[partition] = (
            (log.end_offset, log.epochs.entries, log.damaged, log.recovered.cut_bytes),
            {each.producer_id: each.batches for each in log.producers.entries.values()},
            (segment.newest, segment._bytes_since_entry),
            [segment.index.fields(at) for at in range(len(segment.index))],
            [segment.time_index.fields(at) for at in range(len(segment.time_index))],
        )
    directory.close()
    shutil.rmtree(copy)
    return told


def without_times(told: dict[Any, Any]) -> dict[Any, Any]:
    """When the producers' batches count as taken is the time of the start."""
    for key in PARTITIONS:
        producers = told[key][1]
        for number, batches in producers.items():
            producers[number] = [each[:4] for each in batches]
    return told


def test_what_helpers_check_is_what_the_start_would_have_found(
    tmp_path: Path, helpers: HelperProcesses, all_apart: None
) -> None:
    a_killed_life(tmp_path / "data")
    here = after_a_kill(tmp_path / "data", lambda found: found.load(resolve))
    assert here["loaded"][0] == 4 and here[PARTITIONS[2]][0][3] > 0
    apart = after_a_kill(tmp_path / "data", lambda found: found.load(resolve, helpers, 2))
    assert without_times(apart) == without_times(here)
    assert helpers._pool is not None


def test_what_a_killed_helper_had_is_checked_here(tmp_path: Path, all_apart: None) -> None:
    class Dying(HelperProcesses):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            return super().submit(_die)

    a_killed_life(tmp_path / "data")
    here = after_a_kill(tmp_path / "data", lambda found: found.load(resolve))
    dying = Dying(2, niceness=0)
    apart = after_a_kill(tmp_path / "data", lambda found: found.load(resolve, dying, 2))
    dying.shutdown(cancel_futures=True)
    assert without_times(apart) == without_times(here)


def test_little_is_checked_here(tmp_path: Path, helpers: HelperProcesses) -> None:
    """A helper takes half a second to begin: a start after a kill must not wait for that."""
    a_killed_life(tmp_path / "data")
    after_a_kill(tmp_path / "data", lambda found: found.load(resolve, helpers, 2))
    assert helpers._pool is None


def test_a_load_is_called_off_while_helpers_check(tmp_path: Path, all_apart: None) -> None:
    asked = threading.Event()

    class Endless(HelperProcesses):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            asked.set()
            return super().submit(signal.pause)

    a_killed_life(tmp_path / "data")
    directory = opened(tmp_path / "data")
    endless = Endless(2, niceness=0)
    with ThreadPoolExecutor(1) as threads:
        loading = threads.submit(directory.load, resolve, endless, 2)
        assert asked.wait(DEADLINE_S)
        directory.abandon_load()
        with pytest.raises(LoadAbandoned):
            loading.result(DEADLINE_S)
    endless.shutdown(cancel_futures=True)
    directory.close()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
