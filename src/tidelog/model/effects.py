"""Effects of a coordinator's decision: results of waiting requests, and log lines.

Owns values only. The rules of a table return them, and its shell performs them in their order: see
``broker.coordinator.table``. Not the requests and results themselves: each package of rules has its
own, for groups ``groups.events``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from tidelog.model.errors import ErrorCode


class Refusable(Protocol):
    """The result of a request."""

    def refused(self, error: ErrorCode, /) -> Any:
        """Return the result for when what it promises could not be stored."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Effect: the result of a waiting request. There may be two; the first one counts."""

    pending_response: object
    """The handle by which the shell finds the request; the rules never inspect it."""
    result: Refusable


@dataclass(frozen=True, slots=True)
class Note:
    """Effect: a log line about one key, with its fields."""

    message: str
    """What the line says after the name of the key."""
    fields: dict[str, object] = field(default_factory=dict)
    """The key is among them, under the noun of its kind: "group"."""
    is_audited: bool = False
    """Whether the line goes to the audit log: a client's work was ended by another process."""


Effect = Answer | Note
