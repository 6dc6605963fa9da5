"""Registrations that a controller refuses: what the log, the health page and the start say.

Owns the sentence with its way out, and whether it is said again. Not the attempts: see `session`.
"""

from __future__ import annotations

import asyncio
import logging

from tidelog.model.errors import ErrorCode
from tidelog.observe.repeated_line import RepeatedLine

logger = logging.getLogger(__name__)

UNPROVEN = ": it asks for a proof of the cluster secret, set cluster.secret.file to the same file"

ADVICE = {
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: UNPROVEN,
    ErrorCode.DUPLICATE_BROKER_REGISTRATION: (
        ": the node id is taken, a broker with another directory is registered under it and not "
        "dead; give this one another node.id, or its former log.dirs, or stop the other broker: "
        "this one registers once the session of that one has ended"
    ),
}
"""What the line of a refused registration adds to the name of the error: the way out."""

FATAL = frozenset(
    {
        ErrorCode.INCONSISTENT_CLUSTER_ID,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
)
"""Errors of a registration that no retry can resolve."""


class RefusedRegistrations:
    """Of one broker, since its last registration."""

    def __init__(self) -> None:
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Has a result, one line, once the controller has refused this broker for good."""
        self.why: str | None = None
        """Why the controller refused the last registration for good; None while it did not."""
        self._lines = RepeatedLine(logger)
        """Registrations that were refused for a while, each tried again twice a second."""

    def add(self, error: ErrorCode, what: str) -> None:
        """Note that a registration was refused; ``what`` says by which process."""
        sentence = f"{what}{error.name}{ADVICE.get(error, '')}"
        if error in FATAL:
            if self.why != sentence:
                self.why = sentence
                logger.error("%s", sentence)
            if not self.failed.done():
                self.failed.set_result(sentence)
        elif error is not ErrorCode.NOT_CONTROLLER:
            self._lines.add(sentence, asyncio.get_running_loop().time())

    def over(self) -> None:
        """Note that the broker is registered."""
        self.why = None
        self._lines.over()
