"""Opening the logs of a directory, several at a time where there is much to check.

Owns what is checked here and what by a helper process: a batch costs about 2 µs of Python, whatever
threads there are, and a start after a kill may have millions. What is quickly checked is checked
here, one log after the other; a helper process takes half a second to begin.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait

from tidelog.records.batch import HEADER_SIZE, read_header
from tidelog.runtime.disk import Disk
from tidelog.storage.loaded import Loading
from tidelog.storage.log.checking import Check, Checks, check_file

HERE_MS = 500
"""So much is checked here, by what it will take, before helper processes are asked."""

LEAST_MS = 20
"""Less is always checked here."""

LOOK_S = 0.2
"""How often is looked whether the load was abandoned, while helper processes check."""


class Opening:
    """The logs that are being opened. Used by one thread."""

    def __init__(self, disk: Disk, loading: Loading, helpers: Executor | None, most: int) -> None:
        """``most``: checks that helpers do at a time. Without ``helpers`` all is done here."""
        self._disk = disk
        self._loading = loading
        self._helpers = helpers
        self._most = most
        self._begun_ms = 0.0
        self._apart: dict[Future[Check], tuple[Checks[None], Check]] = {}

    def open_all(self, logs: Iterable[Checks[None]]) -> None:
        """Do all of them. OSError and LoadAbandoned as the first of them raises it; what helpers
        do then is of no use any more."""
        try:
            for log in logs:
                self._go_on(log, None)
                while len(self._apart) >= self._most:
                    self._take()
            while self._apart:
                self._take()
        finally:
            for future in self._apart:
                future.cancel()

    def _go_on(self, log: Checks[None], found: Check | None) -> None:
        try:
            asked = next(log) if found is None else log.send(found)
            while self._helpers is None or not self._is_much(asked):
                asked = log.send(check_file(self._disk, asked, self._loading))
        except StopIteration:
            return
        self._apart[self._helpers.submit(check_file, self._disk, asked)] = log, asked

    def _is_much(self, asked: Check) -> bool:
        ms = _cost_ms(self._disk, asked)
        self._begun_ms += ms
        return ms >= LEAST_MS and self._begun_ms >= HERE_MS

    def _take(self) -> None:
        done, _ = wait(self._apart, LOOK_S, FIRST_COMPLETED)
        self._loading.note(0)
        for future in done:
            log, asked = self._apart.pop(future)
            try:
                found = future.result()
            except BrokenExecutor:
                # It was killed, and others with it: what it had was a copy.
                found = check_file(self._disk, asked, self._loading)
            else:
                self._loading.note(found.position - asked.position)
            self._go_on(log, found)


def _cost_ms(disk: Disk, asked: Check) -> float:
    """Return what a check will take, about, if all batches are as large as the first."""
    size = asked.end - asked.position
    if size < HEADER_SIZE:
        return 0
    file = disk.open(asked.path, read_only=True)
    try:
        header = file.read_at(asked.position, HEADER_SIZE)
    finally:
        file.close()
    each = max(HEADER_SIZE, read_header(header).size) if len(header) == HEADER_SIZE else size
    return size / each * 2e-3 + size / 1e6  # 2 µs for a batch, a GB of its bytes in a second
