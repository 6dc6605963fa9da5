"""Questions to any broker: which one is asked, and when the next one is."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.freezable_brokers import FreezableBrokers
from tests.support.network_server import until
from tests.support.stories import story
from tidelog.client.cluster import Cluster, ClusterSettings
from tidelog.client.connecting import first_answer as asking
from tidelog.client.connecting.connection import ClientConnection
from tidelog.client.connecting.first_answer import (
    PeerAddress,
    first_answer,
    in_turn,
    several_answers,
)
from tidelog.client.errors import ClusterUnreachable, ConnectionLost, Refused, RequestTimedOut
from tidelog.client.producing.producer_identity import next_identity
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.runtime.backoff import Backoff

SILENT_S = 0.2


async def never() -> str:
    await asyncio.get_running_loop().create_future()
    raise AssertionError


async def fine() -> str:
    return "fine"


async def gone() -> str:
    raise ConnectionLost("gone")


async def refused() -> str:
    raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "t")


async def ask(*attempts: Callable[[], Awaitable[str]]) -> tuple[str, list[int]]:
    silent: list[int] = []
    found = await first_answer(attempts, silent_s=SILENT_S, passed_over=silent.append)
    return found, silent


def test_the_next_one_is_asked_when_one_is_silent_and_at_once_when_it_failed() -> None:
    async def of() -> None:
        assert await ask(fine, never) == ("fine", [])
        assert await ask(never, fine) == ("fine", [0])
        assert await ask(gone, never, gone, fine) == ("fine", [1])
        with pytest.raises(ConnectionLost, match="gone"):
            await ask(gone, gone)
        with pytest.raises(ConnectionLost, match="no broker to ask"):
            await ask()
        with pytest.raises(Refused):
            await ask(never, refused, fine)
        # What was not needed any more is cancelled.
        assert asyncio.all_tasks() == {asyncio.current_task()}

    story(of)


def test_an_error_that_comes_with_the_answer_is_not_logged_as_never_retrieved() -> None:
    """The event loop logged "exception was never retrieved" of the attempt that came second."""

    async def of() -> None:
        logged: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: logged.append(context))
        both_end = asyncio.Event()

        async def slow() -> str:
            await both_end.wait()
            return "slow"

        async def slowly_gone() -> str:
            both_end.set()
            await both_end.wait()
            raise ConnectionLost("gone")

        assert await ask(slow, slowly_gone) == ("slow", [0])
        assert await several_answers((slow, slowly_gone), len, fewest=1) == ["slow"]
        gc.collect()
        assert logged == []

    story(of)


def test_one_that_was_passed_over_may_still_answer_first() -> None:
    async def of() -> None:
        late = asyncio.get_running_loop().create_future()

        async def slow() -> str:
            return str(await late)

        asking = asyncio.ensure_future(ask(slow, never))
        await until(lambda: len(asyncio.all_tasks()) == 4)
        late.set_result("late")
        assert (await asking)[0] == "late"

    story(of)


def test_several_answers_are_awaited_of_those_that_respond() -> None:
    async def of() -> None:
        silent: list[int] = []

        async def asked(enough: int, fewest: int, *attempts: Any) -> list[str]:
            silent.clear()
            return await several_answers(
                attempts,
                lambda found: len(found) == enough,
                fewest=fewest,
                passed_over=silent.append,
            )

        assert await asked(2, 2, fine, gone, fine, never) == ["fine"] * 2
        assert silent == [], "only as many are asked as are needed"
        assert await asked(2, 2, never, fine, refused, fine) == ["fine"] * 2
        assert silent == [0]
        # Not enough for a conclusion, and yet all that there is to wait for.
        assert await asked(9, 1, fine, never, fine) == ["fine"] * 2
        assert silent == [1]
        assert await asked(2, 2, gone, fine) == ["fine"]
        assert await asked(1, 1) == []
        # The fewest are waited for, however long one is silent.
        late = asyncio.get_running_loop().create_future()
        late_one = asyncio.ensure_future(asked(2, 2, lambda: late, fine))
        await until(lambda: silent == [0])
        late.set_result("late")
        assert sorted(await late_one) == ["fine", "late"]
        with pytest.raises(ValueError, match="no error of a client"):
            await asked(1, 1, broken)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    async def broken() -> str:
        raise ValueError("no error of a client")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asking, "SILENT_S", SILENT_S)
        story(of)


def test_each_address_is_asked_once_on_a_connection_that_is_open() -> None:
    brokers = [PeerAddress(1, "a", 1), PeerAddress(2, "b", 2), PeerAddress(3, "c", 3)]
    known = [*brokers, PeerAddress("bootstrap", "c", 3), PeerAddress("bootstrap", "d", 4)]
    found = in_turn(known, {"d:4": "bootstrap", "c:3": "first", "b:2": 2}, {"b:2"})
    assert found == [("first", "c", 3), ("bootstrap", "d", 4), (1, "a", 1), (2, "b", 2)]


KINDS = ["METADATA", "INIT_PRODUCER_ID"]


async def asked(cluster: Cluster, kind: str) -> None:
    if kind == "METADATA":
        await cluster.refresh()
    else:
        assert (await next_identity(cluster, None)).producer_id == 7


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "SILENT_S", SILENT_S)


def settings() -> ClusterSettings:
    return ClusterSettings(backoff=Backoff(1, 2, random.Random(0)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_broker_that_stops_answering_holds_no_question_up(kind: str, soon: None) -> None:
    """Each of them answered before, so its connection is open and is the first that is used."""

    async def of() -> None:
        async with FreezableBrokers() as brokers, Cluster(brokers.bootstrap, settings()) as cluster:
            for _ in brokers.ports:
                await asked(cluster, kind)
                brokers.freeze(brokers.asked[-1][0])
                await asked(cluster, kind)
                assert brokers.asked[-1][0] not in brokers.frozen
                before = len(brokers.asked)
                await asked(cluster, kind)
                assert len(brokers.asked) == before + 1, "it is not asked first again"

    story(of)


@pytest.mark.parametrize("kind", KINDS)
def test_a_broker_that_accepts_and_does_not_greet_holds_no_question_up(
    kind: str, soon: None
) -> None:
    async def of() -> None:
        for index in range(3):
            async with FreezableBrokers() as brokers:
                brokers.freeze(*{0, 1, 2} - {index})
                async with Cluster(brokers.bootstrap, settings()) as cluster:
                    await asked(cluster, kind)
                    assert brokers.asked[-1][0] == index

    story(of)


def test_one_that_was_silent_is_asked_again_when_the_others_are_gone(soon: None) -> None:
    async def of() -> None:
        async with FreezableBrokers() as brokers, Cluster(brokers.bootstrap, settings()) as cluster:
            first = brokers.asked[-1][0]
            brokers.freeze(first)
            await cluster.refresh()
            brokers.freeze(*{0, 1, 2} - {first})
            await cluster.refresh()
            assert brokers.asked[-1][0] == first

    story(of)


def test_the_error_names_all_brokers_where_none_can_be_reached() -> None:
    async def of() -> None:
        async with FreezableBrokers() as brokers:
            bootstrap = brokers.bootstrap
        cluster = Cluster(bootstrap, settings())
        with pytest.raises(ClusterUnreachable) as raised:
            await cluster.refresh()
        assert all(each in str(raised.value) for each in bootstrap)
        await cluster.close()

    story(of)


def test_where_all_are_silent_the_request_timeout_ends_the_question(soon: None) -> None:
    async def of() -> None:
        async with FreezableBrokers() as brokers:
            quick = replace(settings(), request_timeout_ms=50)
            async with Cluster(brokers.bootstrap, quick) as cluster:
                await cluster.refresh()
                brokers.freeze(0, 1, 2)
                with pytest.raises(RequestTimedOut):
                    await cluster.refresh()

    story(of)


def test_an_answer_is_first_asked_of_the_broker_that_is_named() -> None:
    async def of() -> None:
        async with FreezableBrokers() as brokers, Cluster(brokers.bootstrap, settings()) as cluster:
            for index in range(3):
                found = await cluster.ask_any(ask_peer, first=index)
                assert found == brokers.bootstrap[index]

    story(of)


def test_metadata_are_asked_of_another_broker_when_the_one_that_refused_a_batch_is_silent(
    soon: None,
) -> None:
    """It knows the newer resize epoch best; any other knows it soon."""

    async def of() -> None:
        async with FreezableBrokers() as brokers, Cluster(brokers.bootstrap, settings()) as cluster:
            for index in range(3):
                await cluster.describe(["t"], first=index)
                assert brokers.asked[-1] == (index, ApiKey.METADATA)
            brokers.freeze(1)
            await cluster.describe(["t"], first=1)
            assert [index for index, _ in brokers.asked[-2:]] != [1, 1]
            assert brokers.asked[-1][0] != 1

    story(of)


async def ask_peer(connection: ClientConnection) -> str:
    return connection.peer
