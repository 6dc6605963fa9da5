"""What can go wrong between a client and its cluster, as exceptions with one line for a person.

Owns the exceptions of this folder. Which of them is tried again is decided in ``retries``.
"""

from __future__ import annotations

import json
from typing import Any

from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition


class ClientError(Exception):
    """Anything a client of a cluster can meet; the text is one line that says what happened."""


class ConnectionLost(ClientError):
    """The connection could not be made, or ended before the answer came.

    A request that was under way may or may not have been carried out.
    """


class RequestTimedOut(ConnectionLost):
    """No answer came in time; the connection is given up, as answers come in order."""


class InvalidAnswer(ConnectionLost):
    """The peer sent bytes that are no answer of Kafka's protocol."""


class ProofFailed(ClientError):
    """The peer and this process do not prove the same cluster secret to each other."""


class VersionUnsupported(ClientError):
    """The peer and this client share no version of a request."""


class ClusterUnreachable(ClientError):
    """None of the known addresses answered within the time given."""


class Refused(ClientError):
    """A broker answered with an error code.

    ``code`` is the code, ``subject`` what it was said of (a topic, partition, group), ``reason``
    the broker's own sentence or "".
    """

    def __init__(self, code: int, subject: str, reason: str | None = None) -> None:
        self.code = error_code(code)
        self.subject = subject
        self.reason = reason or ""
        said = f": {self.reason}" if self.reason else ""
        super().__init__(f"{subject}: {self.code.name}{said}")

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.code.retriable


class OffsetOutOfRange(Refused):
    """The position of ``partition`` is before the start of the log or past its end."""

    def __init__(self, partition: TopicPartition, offset: int) -> None:
        super().__init__(ErrorCode.OFFSET_OUT_OF_RANGE, f"{partition} at offset {offset}")
        self.partition = partition
        self.offset = offset


class LogTruncated(OffsetOutOfRange):
    """The log of ``partition`` was cut at ``end_offset``, before ``offset``, which was read."""

    def __init__(self, partition: TopicPartition, offset: int, end_offset: int) -> None:
        super().__init__(partition, offset)
        self.end_offset = end_offset
        self.args = (f"{partition} was cut at offset {end_offset}, before {offset} that was read",)


class GaveUp(ClientError):
    """Retries ended at the deadline; ``__cause__`` is the last thing that went wrong."""


def error_code(code: int) -> ErrorCode:
    """Return the named error; a number this client does not know is UNKNOWN_SERVER_ERROR."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def json_of(answer: Any, text: str, subject: str) -> dict[str, Any]:
    """Return the object that ``text``, a field of ``answer``, is as JSON.

    Raises Refused when the whole answer is a refusal, and ClientError when it is no JSON.
    """
    if answer.error_code:
        raise Refused(answer.error_code, subject, answer.error_message)
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError:
        raise ClientError(f"{subject} was answered in no JSON") from None
    return found
