"""The exceptions of the client; the text of each is one line for a user.

Owns all exceptions of this package. Not which of them are retried: see ``retries``.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition


class ClientError(Exception):
    """Any error of a client; the text is one line that says what happened."""

    @property
    def retriable(self) -> bool:
        """Whether the same call may succeed later."""
        return False


class ConfigurationRefused(ClientError, ValueError):
    """An argument of a client is not valid."""


class WrongState(ClientError):
    """The client cannot do this now: it is closed, not started, or was opened elsewhere."""


class ConnectionLost(ClientError):
    """The connection could not be opened, or ended before the response arrived.

    The broker may or may not have executed a request that was in flight.
    """

    @property
    def retriable(self) -> bool:
        """Whether the same call may succeed later."""
        return True


class RequestTimedOut(ConnectionLost):
    """No response in time. The connection is closed, because responses arrive in order."""


class InvalidAnswer(ConnectionLost):
    """The peer sent bytes that are not a valid response of Kafka's protocol."""


class TakenOver(ConnectionLost):
    """The request was given up without a response: another broker serves it now."""


class ProofFailed(ClientError):
    """The peer and this process do not prove the same cluster secret to each other."""


class VersionUnsupported(ClientError):
    """The peer and this client share no version of a request."""


class ClusterUnreachable(ClientError):
    """None of the known addresses responded in time."""


class Refused(ClientError):
    """A broker responded with an error code.

    ``subject`` is the topic, partition or group that the code concerns, ``reason`` the broker's
    own message or "". ``Refused(code, …)`` makes an instance of the class of that code, if one was
    defined (``class X(Refused, code=…)``): the code's advice is its text where there is no reason.
    """

    _of_code: ClassVar[dict[int, type[Refused]]] = {}
    advice: ClassVar[str] = ""

    def __init_subclass__(cls, code: ErrorCode | None = None) -> None:
        super().__init_subclass__()
        if code is not None:
            Refused._of_code[code] = cls
            cls.advice = code.advice

    def __new__(cls, code: int, *_: Any) -> Refused:
        kind = Refused._of_code.get(code, cls) if cls is Refused else cls
        return super().__new__(kind)

    def __init__(self, code: int, subject: str, reason: str | None = None) -> None:
        self.code = error_code(code)
        self.subject = subject
        self.reason = reason or ""
        sentence = self.reason or self.advice
        super().__init__(f"{subject}: {self.code.name}{': ' if sentence else ''}{sentence}")

    def __reduce__(self) -> Any:
        return _restored, (type(self), self.args, self.__dict__)

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.code.retriable


class AbortTransaction(ClientError):
    """The transaction cannot be committed: abort it, and go on with another one.

    ``__cause__`` is the first error.
    """


class ProducerEnded(ClientError):
    """No further transaction of this producer succeeds: close it, and open another one."""


class ProducerFenced(Refused, ProducerEnded, code=ErrorCode.PRODUCER_FENCED):
    """Another producer has the transactional id, or the transaction timed out."""


class OffsetOutOfRange(Refused):
    """The position of ``partition`` is before the start of the log or past its end."""

    def __init__(self, partition: TopicPartition, offset: int) -> None:
        super().__init__(ErrorCode.OFFSET_OUT_OF_RANGE, f"{partition} at offset {offset}")
        self.partition = partition
        self.offset = offset


class LogTruncated(OffsetOutOfRange):
    """The log of ``partition`` was truncated to ``end_offset``; ``offset`` had been read."""

    def __init__(self, partition: TopicPartition, offset: int, end_offset: int) -> None:
        super().__init__(partition, offset)
        self.end_offset = end_offset
        self.args = (
            f"{partition} was truncated to offset {end_offset}, below {offset}, read before",
        )


class CommitFailed(Refused):
    """The group has gone on without this consumer: other members have its partitions now."""


class RecordUnreadable(ClientError):
    """A record that cannot be decoded or deserialized; ``seek`` past ``offset`` to go on."""

    def __init__(self, partition: TopicPartition, offset: int, why: str) -> None:
        super().__init__(f"{partition} at offset {offset}: {why}; seek past it to go on")
        self.partition = partition
        self.offset = offset


class Wakeup(ClientError):
    """``wakeup`` was called while the consumer polled, or before."""


class GaveUp(ClientError):
    """Retries ended at the deadline; ``__cause__`` is the last error."""

    @property
    def retriable(self) -> bool:
        """Whether the same call may succeed later."""
        return True


class ListingIncomplete(GaveUp):
    """Some brokers did not list what they have, or not in time.

    ``valid`` is what the others listed, ``errors`` has one error for each that did not.
    """

    def __init__(self, valid: Any, errors: list[ClientError]) -> None:
        super().__init__("; ".join(map(str, errors)))
        self.valid = valid
        self.errors = errors

    def __reduce__(self) -> Any:
        return type(self), (self.valid, self.errors)


def _restored(kind: type[Refused], args: tuple[Any, ...], state: dict[str, Any]) -> Refused:
    """Return a refusal as it was before it was pickled."""
    error = Exception.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


def error_code(code: int) -> ErrorCode:
    """Return the named error; a number this client does not know is UNKNOWN_SERVER_ERROR."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def json_of(answer: Any, text: str, subject: str) -> dict[str, Any]:
    """Parse ``text``, a field of the response ``answer``, as a JSON object.

    Raises Refused when the response has an error code, and ClientError for invalid JSON.
    """
    if answer.error_code:
        raise Refused(answer.error_code, subject, answer.error_message)
    try:
        document: dict[str, Any] = json.loads(text)
    except ValueError:
        raise ClientError(f"{subject}: the response is not valid JSON") from None
    return document
