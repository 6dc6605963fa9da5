"""What the real disk makes is for the server's user and group, whoever runs it (N11)."""

from __future__ import annotations

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
    disk.make_directory(str(folder))
    disk.open(str(folder / "log"), create=True).close()
    disk.replace(str(folder / "checkpoint"), b"0\n0\n")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}
    assert modes == {"t-0": 0o750, "log": 0o640, "checkpoint": 0o640}
