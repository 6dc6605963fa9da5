"""Restarts of one child process: how long to wait before the next start, and when none will help.

Owns the rule, without processes. Not the processes: see ``up`` and ``up_child``.

| a start | consequence |
|---|---|
| succeeded | the next one comes after the first pause again |
| failed, however | the pause doubles, up to ``LONGEST_PAUSE_S`` |
| failed by itself ``SAME_IN_A_ROW`` times in a row for the same reason | it is hopeless |
| was killed while it started | says nothing of the next one: the row begins again |
"""

from __future__ import annotations

from tidelog.runtime.backoff import steady

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1, 30

SAME_IN_A_ROW = 4
"""With the pauses between them, these starts take 15 s at least."""


class Restarts:
    """The starts of one child since it last ran."""

    def __init__(self) -> None:
        self._failures = 0
        self._reason = ""
        self._in_a_row = 0
        self._backoff = steady(FIRST_PAUSE_S * 1000, LONGEST_PAUSE_S * 1000)

    @property
    def pause_s(self) -> float:
        """How long to wait before the next start."""
        return self._backoff.pause_s(self._failures)

    @property
    def is_hopeless(self) -> bool:
        """Whether the last starts failed by themselves, with one reason."""
        return self._in_a_row >= SAME_IN_A_ROW

    def succeeded(self) -> None:
        """A start succeeded."""
        self._failures = self._in_a_row = 0
        self._reason = ""

    def failed(self, reason: str | None) -> None:
        """A start failed, with the child's own reason; None: something else ended it."""
        self._failures += 1
        if reason is None:
            self._in_a_row, self._reason = 0, ""
            return
        self._in_a_row = self._in_a_row + 1 if reason == self._reason else 1
        self._reason = reason
