"""The result of a decision: what to make durable, and what to respond.

Owns the vocabulary that all decisions share. How writes become one commit: see ``journal``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from tidelog.metadata.records import Record
from tidelog.model.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class Put:
    """Create or replace one node."""

    path: str
    record: Record


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove one node; children come before their parents."""

    path: str


Write = Put | Remove


A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Decision(Generic[A]):
    """The writes to make durable, in one multi-write, and the answer once they are durable.

    A decision that ``splits`` may take several multi-writes if the store limits their size: its
    writes are in an order in which the next controller can finish them, wherever this one stops.
    """

    answer: A
    writes: tuple[Write, ...] = ()
    splits: bool = False


@dataclass(frozen=True, slots=True)
class RequestRefusal:
    """An expected refusal: Kafka's error code and one sentence for people."""

    error: ErrorCode
    sentence: str
