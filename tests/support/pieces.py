"""Driving work in pieces (``model.work``) in a test: by threads, and with others in between."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from tidelog.model.work import Work


def in_thread(work: Callable[[], None]) -> None:
    """Call it in a thread, and wait."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def beside_others(pieces: Work[Any], between: Callable[[], None]) -> None:
    """Do work with others before and after each call. An error of a call is a crash: it is raised
    here, and the work never gets it."""
    made = None
    while True:
        try:
            call = pieces.send(made)
        except StopIteration:
            return
        between()
        made = None if call is None else call()
        between()


def by_threads(pieces: Work[Any], between: Callable[[], None] = lambda: None) -> Any:
    """Do work as a broker does: each call is a thread's, and others have turns before and after."""
    failed: list[Exception] = []
    found: list[Any] = []

    def do(call: Callable[[], Any]) -> None:
        try:
            found.append(call())
        except Exception as error:
            failed.append(error)

    try:
        call = next(pieces)
        while True:
            between()
            if call is not None:
                in_thread(partial(do, call))
            between()
            call = (
                pieces.throw(failed.pop())
                if failed
                else pieces.send(found.pop() if found else None)
            )
    except StopIteration as end:
        return end.value
