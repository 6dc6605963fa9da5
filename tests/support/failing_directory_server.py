"""`tidelog` of whose log directories one fails: writes to it end with EIO.

Which one is the first line of the file that TIDELOG_FAILING names; without the file none fails.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from tidelog.cli.main import main
from tidelog.runtime.disk import Buffer, RealFile

FLAG = Path(os.environ["TIDELOG_FAILING"])
_write_at = RealFile.write_at


def write_at(self: RealFile, position: int, chunks: Sequence[Buffer]) -> int:
    """Write, or fail as a broken disk does."""
    if FLAG.exists() and self.path.startswith(FLAG.read_text().strip()):
        raise OSError(errno.EIO, os.strerror(errno.EIO), self.path)
    return _write_at(self, position, chunks)


RealFile.write_at = write_at  # type: ignore[method-assign]
main()
