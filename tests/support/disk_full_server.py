"""`tidelog` whose disk is full as long as the file that TIDELOG_DISK_IS_FULL names is there.

For machines that cannot mount a small disk: see `small_disk.py`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from tidelog.cli.main import main
from tidelog.runtime.disk import Buffer, RealFile

FLAG = os.environ["TIDELOG_DISK_IS_FULL"]
_write_at = RealFile.write_at


def write_at(self: RealFile, position: int, chunks: Sequence[Buffer]) -> int:
    """Write, or find no room."""
    if os.path.exists(FLAG):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
    return _write_at(self, position, chunks)


RealFile.write_at = write_at  # type: ignore[method-assign]
main()
