"""A broker offers transactions by the level that its controller sends with UpdateConfigs."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.support.controlled_broker import ControlledBroker, commanded, open_channel
from tests.support.lone_broker import Peer, until
from tidelog.broker.handlers import end_txn
from tidelog.broker.metadata import cluster_level
from tidelog.broker.metadata.cluster_level import NO_TRANSACTIONS, ClusterLevel
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Handler, Router
from tidelog.protocol import messages
from tidelog.runtime.loop import run


class LevelBroker(ControlledBroker):
    """Serves one API that only transactions need, and has just started."""

    level = None

    def router(self, extra: Iterable[Handler] = ()) -> Router:
        return super().router([end_txn.HANDLER, *extra])


def said(level: str, *entities: Any, epoch: int = 1) -> Any:
    """UpdateConfigs of a controller at this level; "" is one that does not say any."""
    return messages.UpdateConfigsRequest(1, epoch, 7, 9, list(entities), level=level)


async def shown(port: int) -> bool:
    """Whether a new client is shown EndTxn."""
    peer = await Peer.connect(port)
    answer = await peer.ask(messages.ApiVersionsRequest(), 0)
    peer.writer.close()
    return ApiKey.END_TXN in {each.api_key for each in answer.api_keys}


def test_transactions_are_offered_while_the_controller_is_at_their_level(tmp_path: Path) -> None:
    async def story() -> None:
        async with commanded(LevelBroker(tmp_path)) as (lone, channel):
            assert await shown(lone.port) and not lone.broker.offered_transactions
            for level, offered in (
                ("1.5", False),
                ("1.6", True),
                ("1.6", True),
                ("1.7", True),
                ("1.5", False),
                ("2.0", True),
                ("", False),
            ):
                assert (await channel.ask(said(level), 0)).error_code == ErrorCode.NONE
                assert await shown(lone.port) is lone.broker.offered_transactions is offered, level

    run(story())


def test_they_are_offered_on_while_no_controller_is_there(tmp_path: Path) -> None:
    async def story() -> None:
        async with commanded(LevelBroker(tmp_path)) as (lone, channel):
            assert (await channel.ask(said("1.6"), 0)).error_code == ErrorCode.NONE
            present = lone.broker.channel.present
            assert present is not None
            channel.writer.close()
            await until(lambda: present.connection.is_closing)
            assert await shown(lone.port)
            # The first configurations of the next controller say its level.
            second = await Peer.connect(lone.port)
            assert await open_channel(second, 2, 1) is ErrorCode.NONE
            assert await shown(lone.port)
            assert (await second.ask(said("1.5", epoch=2), 0)).error_code == ErrorCode.NONE
            assert not await shown(lone.port)

    run(story())


def test_the_level_of_a_deposed_controller_does_not_count(tmp_path: Path) -> None:
    async def story() -> None:
        async with commanded(LevelBroker(tmp_path)) as (lone, channel):
            stray = await Peer.connect(lone.port)
            answer = await stray.ask(said("1.6"), 0)
            assert answer.error_code == ErrorCode.STALE_CONTROLLER_EPOCH
            answer = await channel.ask(said("1.6", epoch=0), 0)
            assert answer.error_code == ErrorCode.STALE_CONTROLLER_EPOCH
            assert not lone.broker.offered_transactions

    run(story())


def refused(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines about clients that were refused since the last call."""
    lines = [each.getMessage() for each in caplog.records if "is refused" in each.getMessage()]
    caplog.clear()
    return lines


def test_each_client_that_is_refused_has_one_line_until_the_level_changes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    level = ClusterLevel()
    level.take("1.5")
    for _ in range(3):
        level.refused("app", "10.0.0.1")
        level.refused("app", "10.0.0.2")
        level.refused(None, "10.0.0.1")
    assert refused(caplog) == [
        f"client app of 10.0.0.1 is refused: {NO_TRANSACTIONS}",
        f"client app of 10.0.0.2 is refused: {NO_TRANSACTIONS}",
        f"client  of 10.0.0.1 is refused: {NO_TRANSACTIONS}",
    ]
    level.take("1.6")
    level.take("1.5")
    level.refused("app", "10.0.0.1")
    assert len(refused(caplog)) == 1


def test_so_many_refused_clients_are_remembered_by_so_much_of_their_names(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(cluster_level, "MOST_REFUSED", 2)
    level = ClusterLevel()
    level.take("1.5")
    # The one that was refused longest ago is forgotten.
    for name, lines in (("a", 1), ("b", 1), ("a", 0), ("c", 1), ("a", 0), ("b", 1)):
        level.refused(name, "h")
        assert len(refused(caplog)) == lines, name
    level.refused("x" * 100_000 + "1", "h")
    level.refused("x" * 100_000 + "2", "h")
    (line,) = refused(caplog)
    assert len(line) < 500
