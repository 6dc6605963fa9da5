"""A disk of its own for one broker, that can be filled and emptied.

Where file systems can be mounted (root) it is a tmpfs, and full is full: the kernel says so. Where
not, the broker runs by `disk_full_server.py`, whose disk says it as long as a flag stands.
"""

from __future__ import annotations

import contextlib
import os
import subprocess

from tests.support.server import TidelogNode

SIZE_BYTES = 256 * 1024 * 1024
FILLER = "filler"


class SmallDisk:
    """The disk of a broker that is not started yet; used as a context it is unmounted."""

    def __init__(self, node: TidelogNode) -> None:
        self._folder = node.data
        self._flag = node.folder / "disk-is-full"
        node.data.mkdir(parents=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "tmpfs", str(node.data)]
        self.is_mounted = (
            os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0
        )
        if self.is_mounted:
            # The broker's own folder is below: a filler beside it is none of its files.
            node.data = node.data / "broker"
            node.data.mkdir()
            node.configure({"log.dirs": node.data})
        else:
            node.run_with(
                "tests.support.disk_full_server", {"TIDELOG_DISK_IS_FULL": str(self._flag)}
            )

    def fill(self) -> None:
        """Leave no room: from now on writes fail."""
        if not self.is_mounted:
            self._flag.touch()
            return
        descriptor = os.open(self._folder / FILLER, os.O_CREAT | os.O_WRONLY)
        size = os.fstat(descriptor).st_size
        with contextlib.suppress(OSError):
            # To the last page: the last write is the one that finds no room.
            while True:
                size += os.pwrite(descriptor, bytes(1024 * 1024), size)
        os.close(descriptor)

    def free(self) -> None:
        """There is room again."""
        self._flag.unlink(missing_ok=True)
        (self._folder / FILLER).unlink(missing_ok=True)

    def __enter__(self) -> SmallDisk:
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_mounted:
            subprocess.run(["umount", "-l", str(self._folder)], check=True)
