"""`tidelog` one of whose calls to the disk fails, once, when a test says so; its helpers, too.

The test puts a file into the folder that TIDELOG_STRIKES names, and reads there what was met:

| file | content |
|---|---|
| `strike` | errno, call, kind of path, start of path: the next such call fails, and the file goes |
| `struck` | a line for each call that failed: which one, on what |
| `seen` | a line for each call and kind of path that was met since the file was taken away |

A kind of path is a path without what tells one file from another of its kind: `T-N/N.log`. What
has no path of its own (a write to an open file) has that of its descriptor. `read` is the reading
of a whole small file. Where `disk_full_server.py` is a full disk, this is a bad one.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidelog.runtime.disk import RealDisk

FOLDER = Path(os.environ["TIDELOG_STRIKES"])
BELOW = os.environ["TIDELOG_STRIKES_BELOW"]
STRIKE, STRUCK, SEEN = (str(FOLDER / name) for name in ("strike", "struck", "seen"))

PATH_FIRST = ("open", "replace", "unlink", "stat", "statvfs", "mkdir", "listdir", "rmdir")
DESCRIPTOR_FIRST = ("pread", "preadv", "pwrite", "pwritev", "fdatasync", "fsync", "ftruncate")

_open, _write, _close, _stat, _unlink = os.open, os.write, os.close, os.stat, os.unlink
_readlink = os.readlink
_seen: set[str] = set()


def kind_of(path: str) -> str:
    """`/…/data/one/t-0/00000000000000000012.log` -> `T-N/N.log`."""
    below = path.removeprefix(BELOW).strip("/").partition("/")[2] or "."
    below = re.sub(r"\b[0-9a-f]{32}\b", "U", below)
    below = re.sub(r"^[A-Za-z_]\w*-\d+(?=[./]|$)", "T-N", below)
    return re.sub(r"\d+", "N", below)


def judge(call: str, path: str) -> None:
    """Fail if this is the call that is to fail."""
    if not path.startswith(BELOW):
        return
    _note(f"{call} {kind_of(path)}\n")
    try:
        with open(STRIKE) as file:
            number, name, kind, start = file.read().split()
    except (FileNotFoundError, ValueError):
        return
    if (name, kind) != (call, kind_of(path)) or not path.startswith(start):
        return
    try:
        _unlink(STRIKE)
    except FileNotFoundError:
        return  # another thread, or process, was faster
    _append(STRUCK, f"{call} {path} in {os.getpid()}\n")
    raise OSError(int(number), os.strerror(int(number)), path)


def _note(line: str) -> None:
    try:
        _stat(SEEN)
    except FileNotFoundError:
        _seen.clear()
    if line not in _seen:
        _seen.add(line)
        _append(SEEN, line)


def _append(path: str, line: str) -> None:
    file = _open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        _write(file, line.encode())
    finally:
        _close(file)


def path_of(descriptor: Any) -> str:
    """Return the path of a descriptor, "" where there is none."""
    number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
    try:
        return _readlink(f"/proc/self/fd/{number}").removesuffix(" (deleted)")
    except OSError:
        return ""


def _with_path(name: str) -> Callable[..., Any]:
    call = getattr(os, name)

    def asked(path: Any = ".", *args: Any, **names: Any) -> Any:
        if isinstance(path, int):
            judge(name, path_of(path))
        else:
            text, folder = os.fspath(path), names.get("dir_fd")
            judge(name, text if folder is None else f"{path_of(folder)}/{text}")
        return call(path, *args, **names)

    return asked


def _with_descriptor(module: Any, name: str, at: int = 0) -> None:
    call = getattr(module, name)

    def asked(*args: Any) -> Any:
        judge(name, path_of(args[at]))
        return call(*args)

    setattr(module, name, asked)


def read(self: RealDisk, path: str) -> bytes:
    """As ``RealDisk.read``, which reads without a call that could be replaced."""
    judge("read", path)
    with open(path, "rb") as file:
        return file.read()


for each in PATH_FIRST:
    setattr(os, each, _with_path(each))
for each in DESCRIPTOR_FIRST:
    _with_descriptor(os, each)
_with_descriptor(os, "sendfile", 1)
_with_descriptor(fcntl, "flock")
RealDisk.read = read  # type: ignore[method-assign]

if __name__ == "__main__":
    # A helper process imports this module under another name: its calls may fail as well.
    from tidelog.cli.main import main

    main()
