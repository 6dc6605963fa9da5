"""Opening the logs of a directory, several at a time where there is much to check.

Owns which checks run in this process and which in a helper process: a batch costs about 2 µs of
Python, however many threads there are, and a start after a kill may have millions. Short checks run
here, one log after the other, because a helper process takes half a second to start.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait

from tidelog.records.batch import HEADER_SIZE, read_header
from tidelog.runtime.disk import Disk
from tidelog.storage.loaded import Loading
from tidelog.storage.log.checking import Check, Checks, check_file

HERE_MS = 500
"""Estimated time of checks in this process before helper processes get any."""

LEAST_MS = 20
"""Shorter checks always run in this process."""

CHECK_S = 0.2
"""How often the load checks whether it was abandoned, while helper processes check."""


class Opening:
    """The logs that are being opened. Used by one thread."""

    def __init__(self, disk: Disk, loading: Loading, helpers: Executor | None, most: int) -> None:
        """``most``: checks that helpers do at a time. Without ``helpers`` all run in this
        process."""
        self._disk = disk
        self._loading = loading
        self._helpers = helpers
        self._most = most
        self._begun_ms = 0.0
        self._apart: dict[Future[Check], tuple[Checks[None], Check]] = {}

    def open_all(self, logs: Iterable[Checks[None]]) -> None:
        """Open all of them. OSError and LoadAbandoned as the first log raises it; the results of
        helpers are then dropped."""
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

    def _go_on(self, log: Checks[None], check: Check | None) -> None:
        try:
            asked = next(log) if check is None else log.send(check)
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
        done, _ = wait(self._apart, CHECK_S, FIRST_COMPLETED)
        self._loading.note(0)
        for future in done:
            log, asked = self._apart.pop(future)
            try:
                check = future.result()
            except BrokenExecutor:
                # The helper was killed, and others with it: what it had was a copy.
                check = check_file(self._disk, asked, self._loading)
            else:
                self._loading.note(check.position - asked.position)
            self._go_on(log, check)


def _cost_ms(disk: Disk, asked: Check) -> float:
    """Estimate the time of a check, as if all batches were as large as the first."""
    size = asked.end - asked.position
    if size < HEADER_SIZE:
        return 0
    file = disk.open(asked.path, read_only=True)
    try:
        header = file.read_at(asked.position, HEADER_SIZE)
    finally:
        file.close()
    batch_bytes = max(HEADER_SIZE, read_header(header).size) if len(header) == HEADER_SIZE else size
    return size / batch_bytes * 2e-3 + size / 1e6  # 2 µs for a batch, a GB of its bytes in a second
