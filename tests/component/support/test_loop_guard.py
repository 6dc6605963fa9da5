"""The guard that nothing of a running server waits for the disk on its event loop."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import loop_guard
from tests.support.lone_broker import LoneBroker
from tests.support.storage_logs import QuickDisk
from tidelog.model.work import Work
from tidelog.runtime.seams import Seams


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Findings of this test alone, which are none of the suite's."""
    path = tmp_path / "found"
    path.touch()
    monkeypatch.setenv(loop_guard.FILE, str(path))
    yield path


def syncing(path: Path) -> Work[None]:
    """Work whose author forgot that a thread is to sync."""
    yield None
    with path.open("w") as file:
        os.fsync(file.fileno())


def syncing_in_a_thread(path: Path) -> Work[None]:
    def sync() -> None:
        with path.open("w") as file:
            os.fsync(file.fileno())

    yield sync


def on_a_broker(folder: Path, work: Work[None]) -> None:
    async def story() -> None:
        lone = LoneBroker(folder / "data")
        await lone.start()
        try:
            await lone.broker.background.run(work)
        finally:
            await lone.stop()

    asyncio.run(story())


def test_a_sync_out_of_a_coroutine_of_the_product_is_found(tmp_path: Path, found: Path) -> None:
    on_a_broker(tmp_path, syncing(tmp_path / "file"))
    said = found.read_text()
    assert said.startswith("os.fsync on an event loop")
    assert "runtime/pace.py" in said and "Background.run" in said


def test_a_sync_in_a_thread_is_none(tmp_path: Path, found: Path) -> None:
    on_a_broker(tmp_path, syncing_in_a_thread(tmp_path / "file"))
    assert not found.read_text()


def test_a_sync_that_the_test_itself_makes_is_none(tmp_path: Path, found: Path) -> None:
    async def story() -> None:
        for _ in syncing(tmp_path / "file"):
            pass

    asyncio.run(story())
    assert not found.read_text()


class OtherDisk(QuickDisk):
    """A disk of a test, with a way of its own to sync names."""

    def sync_directory(self, path: str) -> None:
        pass


def test_a_disk_in_the_place_of_the_real_one_is_looked_at(tmp_path: Path, found: Path) -> None:
    def replaced(disk: QuickDisk) -> Work[None]:
        yield None
        disk.replace(str(tmp_path / "data" / "file"), b"x")

    for disk, syncs in ((QuickDisk(), 2), (OtherDisk(), 2)):
        found.write_text("")
        loop_guard.forget()
        on_a_broker(tmp_path, replaced(disk))
        assert found.read_text().count("on an event loop") == syncs


def test_a_callback_of_the_product_is_looked_at(tmp_path: Path, found: Path) -> None:
    async def story() -> None:
        lone = LoneBroker(tmp_path / "data", seams=Seams(disk=QuickDisk()))
        await lone.start()
        try:
            hosted = lone.lead("t")
            loop = asyncio.get_running_loop()
            # As it would be if a timer of the product synced by itself.
            loop.call_soon(hosted.log.sync)
            await asyncio.sleep(0)
        finally:
            await lone.stop()

    asyncio.run(story())
    assert " sync\n" in found.read_text()


def test_a_process_that_a_test_starts_has_the_guard(tmp_path: Path, found: Path) -> None:
    program = (
        "import asyncio, pathlib\n"
        "from tests.component.support.test_loop_guard import on_a_broker, syncing\n"
        f"on_a_broker(pathlib.Path({str(tmp_path)!r}), syncing(pathlib.Path({str(found)!r} + '2')))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[3])
    assert "Background.run" in found.read_text()
