"""What the real disk makes is for the server's user and group, whoever runs it (N11)."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.runtime.disk import RealDisk


@pytest.fixture
def no_mask() -> Iterator[None]:
    """As of a caller that keeps nothing from anybody: a library, a command, a test."""
    former = os.umask(0)
    try:
        yield
    finally:
        os.umask(former)


@pytest.mark.usefixtures("no_mask")
def test_other_users_read_nothing_that_it_makes(tmp_path: Path) -> None:
    disk = RealDisk()
    folder = tmp_path / "t-0"
    assert disk.make_directory(str(folder)) and not disk.make_directory(str(folder))
    disk.open(str(folder / "log"), create=True).close()
    disk.replace(str(folder / "checkpoint"), b"0\n0\n")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}
    assert modes == {"t-0": 0o750, "log": 0o640, "checkpoint": 0o640}


def test_a_disk_that_cannot_lock_is_not_another_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An EIO was taken for a lock of another server, and the start was refused, though the server
    can go on without this directory."""
    disk, path = RealDisk(), str(tmp_path / ".lock")
    held = disk.lock(path)
    assert held is not None
    assert disk.lock(path) is None
    held.close()

    def fails(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(fcntl, "flock", fails)
    with pytest.raises(OSError, match="Input/output"):
        disk.lock(path)
    assert len(os.listdir("/proc/self/fd")) == before
