"""A line about something that is tried again and again: once when it changes, then each minute.

Owns when the line is due, and the count of what it stands for.
"""

from __future__ import annotations

import logging

EVERY_S = 60.0
"""How often a state that stays is said again."""


class RepeatedLine:
    """One line of a log. ``now_s`` is the caller's clock, in seconds."""

    def __init__(
        self, logger: logging.Logger, level: int = logging.WARNING, *, shared: bool = False
    ) -> None:
        """``shared``: a different sentence is no change, and counts for the line of the minute."""
        self._logger, self._level, self._shared = logger, level, shared
        self._said: tuple[str, float] | None = None
        """The sentence that was logged last, and when."""
        self._count = 0

    def add(self, sentence: str, now_s: float, error: BaseException | None = None) -> None:
        """Note one more of these; logged at once if it differs, with the stack of an ``error``.

        Each of the others is a line of the level DEBUG.
        """
        is_known = self._said is not None and (self._shared or self._said[0] == sentence)
        if self._said is not None and is_known:
            self._count += 1
            if now_s - self._said[1] < EVERY_S:
                self._logger.debug("%s", sentence)
                return
            self._logger.log(
                self._level,
                "%(what)s (%(count)d times since the last such line)",
                {"what": sentence, "count": self._count},
                exc_info=error,
            )
        else:
            self._logger.log(self._level, "%s", sentence, exc_info=error)
        self._said, self._count = (sentence, now_s), 0

    def over(self) -> None:
        """The state has ended: the next one is logged at once."""
        self._said = None
