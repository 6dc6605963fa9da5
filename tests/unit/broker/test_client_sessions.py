"""Fetch sessions of clients: their number, what they remember together, and their end by time."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.support.session_client import EACH, Client
from tidelog.broker.fetching.client_sessions import (
    EVICTION_MS,
    EXPIRY_MS,
    MAX_BYTES,
    FetchPlan,
    FetchSessions,
    bytes_of,
)
from tidelog.model.errors import ErrorCode
from tidelog.network.limits import Account
from tidelog.protocol import messages

Request = messages.FetchRequest


class Sessions(FetchSessions):
    """Sessions of one client, counted in partitions of the topic "t"."""

    def __init__(self, slots: int = 1000) -> None:
        super().__init__(slots, random.Random(1))
        self.client = Client()

    def of(self, request: Any, now_ms: int) -> FetchPlan | ErrorCode:
        """As ``plan``; the account has what the sessions say that they take."""
        plan = whole(self.plan(request, now_ms, self.client))
        assert self.client.account.used == self.held
        assert self.held == sum(each.held for each in self._sessions.values())
        return plan

    @property
    def partitions(self) -> float:
        """What they take."""
        return self.held / EACH


def whole(steps: Any) -> Any:
    """Do all steps; return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def ask(session: int, epoch: int, *indexes: int) -> Any:
    """A Fetch of partitions of one topic."""
    parts = [Request.FetchPartition(partition=index) for index in indexes]
    topic = Request.FetchTopic(topic="t", partitions=parts)
    return Request(session_id=session, session_epoch=epoch, topics=[topic])


def begun(sessions: Sessions, now_ms: int, size: int, first: int = 0) -> FetchPlan:
    """Begin a session of so many partitions."""
    plan = sessions.of(ask(0, 0, *range(first, first + size)), now_ms)
    assert isinstance(plan, FetchPlan)
    return plan


@pytest.fixture
def sessions() -> Sessions:
    """1,000 slots, and 100 partitions in all."""
    return Sessions()


def test_an_unused_session_ends_by_time(sessions: Sessions) -> None:
    """It was kept for ever: 100,000 partitions held 30 MB long after their connection was gone."""
    plan = begun(sessions, 0, 50)
    assert plan.session is not None and sessions.partitions == 50
    sessions.expire(EXPIRY_MS - 1)
    assert len(sessions) == 1
    sessions.expire(EXPIRY_MS)
    assert len(sessions) == 0 == sessions.partitions
    assert sessions.of(ask(plan.session.id, 1), EXPIRY_MS) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_use_keeps_a_session(sessions: Sessions) -> None:
    session = begun(sessions, 0, 1).session
    assert session is not None
    for epoch in range(1, 5):
        assert isinstance(sessions.of(ask(session.id, epoch), epoch * (EXPIRY_MS - 1)), FetchPlan)
    assert len(sessions) == 1


def test_the_sum_over_all_sessions_is_bounded(sessions: Sessions) -> None:
    assert begun(sessions, 0, 60).session is not None
    refused = begun(sessions, 0, 41)
    assert refused.session is None and refused.full and len(refused.wanted) == 41
    assert begun(sessions, 0, 40).session is not None
    assert sessions.partitions == 100


def test_the_largest_gives_way_to_one_less_than_half_its_size(sessions: Sessions) -> None:
    """One client with very many partitions must not keep all others without a session."""
    assert begun(sessions, 0, 80).session is not None
    small = [begun(sessions, 1, 5).session for _ in range(5)]
    assert all(small) and sessions.partitions == 25 and sessions.evicted == 1
    assert begun(sessions, 2, 76).session is None, "smaller ones do not give way to a larger one"
    assert len(sessions) == 5


def test_an_unused_one_gives_way_to_any(sessions: Sessions) -> None:
    begun(sessions, 0, 30)
    begun(sessions, 1, 30)
    assert begun(sessions, EVICTION_MS, 60).session is not None
    assert sessions.partitions == 90 and sessions.evicted == 1


def test_a_session_that_would_grow_beyond_the_sum_ends(sessions: Sessions) -> None:
    begun(sessions, 0, 60)
    session = begun(sessions, 0, 30).session
    assert session is not None
    grown = sessions.of(ask(session.id, 1, *range(100, 111)), 1)
    assert grown is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.partitions == 60 and len(sessions) == 1


def test_forgotten_partitions_make_room(sessions: Sessions) -> None:
    session = begun(sessions, 0, 100).session
    assert session is not None
    less = ask(session.id, 1)
    less.forgotten_topics_data = [Request.ForgottenTopic(topic="t", partitions=list(range(90)))]
    assert isinstance(sessions.of(less, 1), FetchPlan)
    assert sessions.partitions == 10
    rest = ask(session.id, 2)
    rest.forgotten_topics_data = [Request.ForgottenTopic(topic="t", partitions=list(range(100)))]
    assert isinstance(sessions.of(rest, 2), FetchPlan)
    assert sessions.partitions == 0 == len(sessions)


@pytest.mark.parametrize("epoch", [0, -1])
def test_a_partition_that_is_named_twice_is_read_once(sessions: Sessions, epoch: int) -> None:
    plan = sessions.of(ask(0, epoch, *[3] * 1000), 0)
    assert isinstance(plan, FetchPlan) and [each.index for each in plan.wanted] == [3]
    assert sessions.partitions == (1 if epoch == 0 else 0)


def test_the_names_of_topics_are_charged(sessions: Sessions) -> None:
    """100 sessions of 900 kB of names each took 90 MB beyond the limit."""
    name = "n" * (50 * EACH)
    for epoch, each in enumerate(["one", "two", "three"]):
        parts = [Request.FetchPartition(partition=0)]
        long = Request(
            session_id=0,
            session_epoch=0,
            topics=[Request.FetchTopic(topic=name[: -len(each)] + each, partitions=parts)],
        )
        plan = sessions.of(long, epoch)
        assert isinstance(plan, FetchPlan) and plan.full
        assert (plan.session is not None) == (epoch == 0), "the second would be above the bound"
    assert len(sessions) == 1 and sessions.held == bytes_of(name)


def test_no_session_is_begun_while_requests_have_all_of_the_account(sessions: Sessions) -> None:
    """Nor does another one end for it: that would not help."""
    kept = begun(sessions, 0, 10).session
    assert kept is not None
    account, other = sessions.client.account, Client()
    held = account.limit - account.used
    assert account.take(held, other, lambda: None)
    assert whole(sessions.plan(ask(0, 0, 1), EVICTION_MS, sessions.client)).session is None
    assert len(sessions) == 1
    account.give(held, other)
    assert begun(sessions, EVICTION_MS, 1).session is not None


def test_asking_again_for_what_it_has_takes_nothing(sessions: Sessions) -> None:
    """A request names each partition whose position has changed: with more than half of the room
    taken, the session ended for partitions that it had."""
    session = begun(sessions, 0, 90).session
    assert session is not None
    assert isinstance(sessions.of(ask(session.id, 1, *range(90)), 1), FetchPlan)
    assert sessions.partitions == 90


def test_the_bound_holds_without_a_limit_of_the_account() -> None:
    sessions = Sessions()
    sessions.client.account = Account(-1)
    half = MAX_BYTES // 2 // EACH
    assert [begun(sessions, 0, half).session is not None for _ in range(3)] == [True, True, False]


def test_random_sessions_keep_the_account_exact() -> None:
    """Of several clients, with names of several lengths; the seed is in the message."""
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    sessions = Sessions(slots=6)
    names = ["t", "topic", "ü" * 20]
    now_ms = 0
    for step in range(2000):
        now_ms += rng.choice([0, 1, 1000, EVICTION_MS])
        known = list(sessions._sessions.values())
        session = rng.choice(known) if known and rng.random() < 0.8 else None
        parts = [
            Request.FetchPartition(partition=rng.randrange(40)) for _ in range(rng.randrange(30))
        ]
        request = Request(
            session_id=session.id if session else 0,
            session_epoch=session.epoch if session and rng.random() < 0.9 else 0,
            topics=[Request.FetchTopic(topic=rng.choice(names), partitions=parts)],
            forgotten_topics_data=[
                Request.ForgottenTopic(
                    topic=rng.choice(names), partitions=[rng.randrange(40) for _ in range(10)]
                )
            ],
        )
        sessions.of(request, now_ms)
        for each in sessions._sessions.values():
            held = sum(bytes_of(topic) for topic, _ in each.wanted)
            assert each.held == held, f"seed {seed}, step {step}"
    sessions.expire(now_ms + EXPIRY_MS)
    assert sessions.held == 0 == sessions.client.account.used, f"seed {seed}"
