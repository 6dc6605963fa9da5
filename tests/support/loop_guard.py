"""Finds calls that wait for the disk on the event loop of a server that runs.

Such a call is one of ``os.fsync`` and the like, or the sync of a disk that a test put in its place
(``look``), made in a thread whose loop is running, out of a coroutine of the product or a callback
of its. What a test itself calls on its loop is its own affair, and ``ALLOWED`` names the rest with
reasons. What is found goes to the file that ``TIDELOG_LOOP_GUARD`` names, and the test during which
that happened fails (``tests/conftest.py``): every Python process that a test starts has the guard
too, by ``on_start/sitecustomize.py``. Imports nothing of the product, nor of the tests.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

FILE = "TIDELOG_LOOP_GUARD"
"""The environment variable with the file of findings."""

ON_START = str(Path(__file__).with_name("on_start"))
"""On the path of Python it has a process begin with the guard."""

PRODUCT = str(Path(__file__).parents[2] / "src" / "tidelog") + os.sep

ALLOWED = {
    "broker/partitions/log_directories.py:LogDirectories.open": (
        "a start: its broker serves no client yet, and a directory is locked before it is read"
    ),
    "broker/partitions/log_directories.py:LogDirectories._refuse_copies": (
        "a start: a creation that failed is quarantined before the broker serves clients"
    ),
    "cli/cluster_secret.py:secret_for": "a start: no client is served before the secret is there",
    "broker/process.py:BrokerProcess._undo": "the final stop: no client is served",
}
"""By file and name of the function: whatever is called below it."""

PLANTED = os.sep + "planted" + os.sep
"""In the paths of the tests that put bugs into the product."""

_SLOW = ("fsync", "fdatasync", "sync")
_LOOPS_OWN = ("/asyncio/runners.py", "/asyncio/events.py", "/asyncio/base_events.py")
_ASYNC = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_said: set[str] = set()


def install() -> None:
    """Have this process look at each of its calls that wait for the disk."""
    for name in _SLOW:
        call = getattr(os, name)
        if not hasattr(call, "checked"):
            setattr(os, name, _looked_at(name, call))


def _looked_at(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def looking(*args: Any) -> Any:
        look(f"os.{name}")
        return call(*args)

    looking.checked = True  # type: ignore[attr-defined]
    return looking


def forget() -> None:
    """Report each place once more: a process reports it once."""
    _said.clear()


def look(what: str) -> None:
    """Note the call that is being made, if it is one. O(depth of the stack)."""
    events = sys.modules.get("asyncio.events")
    path = os.environ.get(FILE)
    if events is None or path is None or events._get_running_loop() is None:
        return
    stack = _stack(sys._getframe(1))
    product = [frame for frame in stack if frame.f_code.co_filename.startswith(PRODUCT)]
    is_callback = bool(product) and product[-1] is stack[-1]
    if not is_callback and not any(frame.f_code.co_flags & _ASYNC for frame in product):
        return
    if any(_name(frame) in ALLOWED for frame in product) or _is_planted(stack):
        return
    lines = [f"  {frame.f_code.co_filename}:{frame.f_lineno} {_called(frame)}" for frame in stack]
    text = "\n".join([f"{what} on an event loop, called from", *lines, "", ""])
    if text not in _said:
        _said.add(text)
        with open(path, "a") as out:
            out.write(text)


def _stack(frame: FrameType | None) -> list[FrameType]:
    """The frames of the callback that the loop runs, the innermost first."""
    found = []
    while frame is not None and not frame.f_code.co_filename.endswith(_LOOPS_OWN):
        if frame.f_code.co_filename != __file__:
            found.append(frame)
        frame = frame.f_back
    return found


def _is_planted(stack: list[FrameType]) -> bool:
    """Whether a bug that a test has planted makes the call: that is no work of the product."""
    return any(PLANTED in frame.f_code.co_filename for frame in stack)


def _called(frame: FrameType) -> str:
    return frame.f_code.co_qualname


def _name(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename.removeprefix(PRODUCT)}:{_called(frame)}"
