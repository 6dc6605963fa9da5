"""Fetches of very many partitions: sessions begin, are read and sent in turns of the loop."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fetch_steps import Context, asked, finished
from tests.support.follower_fetches import LIFE, ask, session_of, told
from tests.support.led_partition import append, lead, running
from tests.support.session_client import Client
from tidelog.broker.fetching.client_sessions import FetchPlan, FetchSessions
from tidelog.broker.fetching.session_rules import FINAL_EPOCH
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.protocol.primitives import NO_UUID
from tidelog.runtime import pace

MANY = 60_000
LONGEST_S = 0.1
"""What one turn may take (docs/design/speed.md), in CPU seconds."""

Request = messages.FetchRequest


@pytest.fixture
def no_collection() -> Iterator[None]:
    """A collection of all objects belongs to no turn, and takes long beside other tests' data."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_a_follower_with_many_partitions_begins_a_session_in_turns(tmp_path: Path) -> None:
    """All of it was one turn of 200 ms and more, for a session of 200,000 partitions."""

    async def main() -> None:
        async with running(tmp_path) as lone:
            lead(lone, (1, 2), partitions=2)
            offsets = dict.fromkeys(range(MANY), 0)
            first, turns = await asked(lone, ask((0, 0), offsets))
            assert len(told(first)) == MANY and turns.longest_s < LONGEST_S
            # Its next registration: every partition is due again, and the request names none.
            next_life = ask((first.session_id, 1), life=LIFE + 1)
            answer, turns = await asked(lone, next_life)
            assert len(told(answer)) >= MANY - 2 and answer.error_code == 0
            assert turns.longest_s < LONGEST_S
            assert len(session_of(lone).entries) == MANY

    asyncio.run(main())


@pytest.mark.usefixtures("no_collection")
def test_a_consumer_with_many_partitions_is_answered_in_turns(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as lone:
            for epoch, session in ((0, 0), (FINAL_EPOCH, 0)):
                request = ask((session, epoch), dict.fromkeys(range(MANY), 0))
                request.replica_id = -1
                request.topics[0].follower_topic_id = NO_UUID
                answer, turns = await asked(lone, request)
                assert len(told(answer)) == MANY
                assert turns.longest_s < LONGEST_S

    asyncio.run(main())


def consumer(session: int, epoch: int, indexes: range, forgotten: range = range(0)) -> Any:
    """A Fetch of partitions of one topic."""
    parts = [Request.FetchPartition(partition=index) for index in indexes]
    return Request(
        session_id=session,
        session_epoch=epoch,
        topics=[Request.FetchTopic("t", partitions=parts)] if parts else [],
        forgotten_topics_data=[Request.ForgottenTopic("t", partitions=list(forgotten))]
        if forgotten
        else [],
    )


def one_session(count: int) -> tuple[FetchSessions, Client, FetchPlan]:
    """Sessions of which there is one, of a client with room for ``4 * count`` partitions."""
    sessions, client = FetchSessions(10, random.Random(1)), Client()
    client.account.limit *= 1000
    plan = finished(sessions.plan(consumer(0, 0, range(count)), 0, client))
    assert isinstance(plan, FetchPlan) and plan.session is not None
    return sessions, client, plan


def test_a_session_is_nobodys_while_a_request_is_taken_over() -> None:
    sessions, client, plan = one_session(10)
    assert plan.session is not None
    request = consumer(plan.session.id, 1, range(3 * pace.PART), range(5))
    steps = sessions.plan(request, 0, client)
    next(steps)
    for epoch in (1, 2):
        again = finished(sessions.plan(consumer(plan.session.id, epoch, range(1)), 0, client))
        assert again is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert sessions.held == client.account.used
    grown = finished(steps)
    assert isinstance(grown, FetchPlan) and len(grown.wanted) == 3 * pace.PART - 5
    assert sessions.held == client.account.used == plan.session.held
    assert isinstance(
        finished(sessions.plan(consumer(plan.session.id, 2, range(1)), 0, client)), FetchPlan
    )


@pytest.mark.parametrize("how", ["given up", "ended by its client", "gone by time"])
def test_a_session_that_ends_while_a_request_is_taken_over_holds_nothing(how: str) -> None:
    sessions, client, plan = one_session(10)
    assert plan.session is not None
    steps = sessions.plan(consumer(plan.session.id, 1, range(3 * pace.PART)), 0, client)
    next(steps)
    assert sessions.held > 0
    if how == "given up":
        steps.close()
    else:
        if how == "gone by time":
            sessions.expire(10**9)
        else:
            finished(sessions.plan(consumer(plan.session.id, FINAL_EPOCH, range(1)), 0, client))
        assert finished(steps) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(sessions) == sessions.held == client.account.used == 0


def test_what_moves_while_a_session_is_read_and_sent_is_sent_next(tmp_path: Path) -> None:
    """Between the read and the response its watermark moved: it was marked as sent."""

    async def main() -> None:
        async with running(tmp_path) as lone:
            told_now: list[int] = []
            for at in itertools.count():
                lead(lone, (1, 2, 3), partitions=at + 1)
                partition = lone.broker.partitions.get("t", at)
                assert partition is not None
                append(partition)
                # The response names unknown partitions, too: enough of them for several steps.
                offsets = {at: 1} | dict.fromkeys(range(10_000, 12_000), 0)
                context: Any = Context()
                steps = lone.broker.follower_sessions.handle(ask((0, 0), offsets), context)
                for _ in range(at):
                    next(steps, None)
                partition.follower_fetched(3, 1, LIFE, lone.broker.clock.monotonic_ms(), 0)
                answer = finished(steps)
                assert partition.high_watermark == 1
                if answer is None:
                    break
                mark = told(answer)[at].high_watermark
                told_now.append(mark)
                assert mark == 1 or at in {entry.index for entry in session_of(lone).dirty}
            assert {0, 1} == set(told_now), "at some steps it was read before, at some after"

    asyncio.run(main())
