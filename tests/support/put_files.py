"""Writing small files over and over, as tests do that flip one bit after another.

Owns one way around ext4: it writes a file to the disk as soon as it is closed that was cut to
nothing before (``auto_da_alloc``), which is a thousand such writes of a test at a disk's pace.
"""

from __future__ import annotations

import os
from pathlib import Path


def put(path: Path, content: bytes) -> None:
    """Do as ``Path.write_bytes``, but leave what is written to the page cache."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        os.ftruncate(fd, len(content))
        assert os.write(fd, content) == len(content)
    finally:
        os.close(fd)
