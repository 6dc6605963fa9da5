"""The rules that fetch sessions of clients and followers have in common (KIP-227)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.every_yield import every_yield
from tidelog.broker.fetching.session_rules import (
    MAX_INT32,
    UNUSABLE,
    applied,
    next_epoch,
    why_not_next,
)
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages

UNKNOWN, WRONG = ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH


@dataclass
class Session:
    """Writes down what is taken and forgotten; each is one byte."""

    id: int
    epoch: int
    done: str = ""

    def take(self, topic: Any, asked: Any) -> int:
        self.done += f"+{topic.topic}{asked.partition}"
        return 1

    def forget(self, topic: Any, index: int) -> int:
        self.done += f"-{topic.topic}{index}"
        return -1


@pytest.mark.parametrize(
    ("session", "session_id", "epoch", "why"),
    [
        (Session(5, 3), 5, 3, None),
        (Session(5, 3), 5, 4, WRONG),
        (Session(5, 3), 5, 2, WRONG),
        (Session(5, 3), 6, 3, UNKNOWN),
        (None, 5, 3, UNKNOWN),
        # A request is applied to it: also a client that sends this epoch has to wait.
        (Session(5, UNUSABLE), 5, 3, WRONG),
        (Session(5, UNUSABLE), 5, UNUSABLE, WRONG),
    ],
)
def test_the_next_request_of_a_session(
    session: Session | None, session_id: int, epoch: int, why: ErrorCode | None
) -> None:
    assert why_not_next(session, session_id, epoch) is why


def test_epochs_begin_again_at_one() -> None:
    assert [next_epoch(epoch) for epoch in (0, 1, MAX_INT32)] == [1, 2, 1]


@pytest.mark.parametrize(
    ("at_once", "growths"), [(10, [1]), (2, [2, 0, -1]), (1, [1, 1, 1, -1, -1])]
)
def test_a_request_is_applied_in_parts(at_once: int, growths: list[int]) -> None:
    of = messages.FetchRequest
    request = of(
        topics=[
            of.FetchTopic(topic="a", partitions=[of.FetchPartition(0), of.FetchPartition(1)]),
            of.FetchTopic(topic="b", partitions=[of.FetchPartition(0)]),
        ],
        forgotten_topics_data=[of.ForgottenTopic(topic="c", partitions=[7, 8])],
    )
    session = Session(1, 1)
    growth, found = applied(session, request), []
    try:
        with every_yield(at_once):
            while True:
                found.append(next(growth))
    except StopIteration as end:
        found += [end.value] if end.value or not found else []
    assert session.done == "+a0+a1+b0-c7-c8"
    assert found == growths
    assert sum(found) == 1


def test_the_first_request_of_a_session_forgets_nothing() -> None:
    of = messages.FetchRequest
    request = of(forgotten_topics_data=[of.ForgottenTopic(topic="c", partitions=[7])])
    session = Session(1, 1)
    assert not list(applied(session, request, forgets=False))
    assert not session.done
