"""A warning of something that is tried again and again: once when it changes, then each minute.

Owns when the line is due, and the count of what it stands for.
"""

from __future__ import annotations

import logging

EVERY_S = 60.0
"""How often a state that stays is said again."""


class RepeatedLine:
    """One line of a log. ``now_s`` is the caller's clock, in seconds."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._said: tuple[str, float] | None = None
        """The sentence that was logged last, and when."""
        self._count = 0

    def add(self, sentence: str, now_s: float) -> None:
        """Note one more of these; logged at once if it is another sentence than the last one."""
        if self._said is not None and self._said[0] == sentence:
            self._count += 1
            if now_s - self._said[1] < EVERY_S:
                return
            self._logger.warning(
                "%(what)s (%(count)d times since the last such line)",
                {"what": sentence, "count": self._count},
            )
        else:
            self._logger.warning("%s", sentence)
        self._said, self._count = (sentence, now_s), 0

    def over(self) -> None:
        """The state has ended: the next one is logged at once."""
        self._said = None
