"""What a command says on stderr while it waits: what is waited for, and for how long at most."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.cli_arguments import run_command, status_of
from tests.support.processes import DEADLINE_S, wait_until
from tidelog.cli import (
    autoscale,
    configs,
    connecting,
    doctor,
    doctor_restored,
    elect_leaders,
    groups,
    main,
    reassign_partitions,
    topics,
)
from tidelog.client.errors import ClusterUnreachable


def _until_said() -> str:
    """Return what standard error has got, once there is something."""
    found: list[str] = []

    def look() -> bool:
        found.append(Silent.capsys.readouterr().err)
        # A command that asks several brokers at once says it once.
        return bool(found[-1] or Silent.said)

    wait_until(look, DEADLINE_S, "it says that it waits", 0.005)
    return "".join(found)


class Silent:
    """A cluster whose brokers answer, and nothing else does, until the command has said so."""

    said: str
    capsys: pytest.CaptureFixture[str]
    view = SimpleNamespace(brokers={1: None}, topics={}, controller_id=1)
    _bootstrap = (("h", 1),)

    def __init__(self, _bootstrap: str, settings: Any) -> None:
        self.settings = settings

    async def open(self, _timeout_ms: int | None = None) -> None:
        return

    async def close(self) -> None:
        return

    def __getattr__(self, _name: str) -> Any:
        async def never(*_: Any, **__: Any) -> Any:
            async with asyncio.timeout(DEADLINE_S):
                said = await asyncio.to_thread(_until_said)
            Silent.said = Silent.said or said
            raise ClusterUnreachable("the test has seen enough")

        return never


class Unreached(Silent):
    """A cluster of which no broker responds, until the command has said so."""

    async def open(self, _timeout_ms: int | None = None) -> None:
        await self.__getattr__("open")()


CHANGES: list[tuple[Any, str]] = [
    (topics.command, "--create --topic t"),
    (topics.command, "--alter --topic t --partitions 4"),
    (topics.command, "--delete --topic t"),
    (topics.command, "--decommission 1 --undo"),
    (configs.command, "--alter --topic t --add-config retention.ms=1"),
    (elect_leaders.command, "--election-type preferred --all-topic-partitions"),
    (reassign_partitions.command, "--cancel-all"),
    (doctor_restored.command, ""),
    (autoscale.command, "--dry-run"),
    (doctor.command, ""),
    (groups.command, "--delete --group g"),
    (groups.command, "--delete-offsets --group g --topic t"),
    (groups.command, "--reset-offsets --group g --topic t --to-earliest --execute"),
]


@pytest.mark.parametrize(("command", "words"), CHANGES, ids=lambda x: getattr(x, "name", x))
def test_a_command_that_waits_names_what_it_waits_for_and_the_bound(
    command: Any, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They waited 30 s for a controller without a sign, where stderr was no terminal."""
    monkeypatch.setattr(connecting, "NOTICE_AFTER_S", 0.01)
    monkeypatch.setattr(connecting, "Cluster", Silent)
    Silent.capsys, Silent.said = capsys, ""
    run_command(command, ["--bootstrap-server", "h:1", *words.split()], capsys)
    named = "the coordinators of the groups" if command is groups.command else "the controller"
    assert Silent.said.startswith(f"waiting for {named}"), Silent.said
    limit = {doctor.command: 3.5, autoscale.command: 5}.get(command, 30)
    assert Silent.said.endswith(f", through h:1, at most {limit} s …\n"), Silent.said


TO_T = "--topic t"
EVERYTHING: dict[str, list[str]] = {
    "topics": ["--list", "--describe", f"--create {TO_T}", "--rebalance", "--decommission 1"],
    "groups": ["--list", "--describe --group g", "--describe --all-groups"],
    "configs": ["--describe --broker 1", f"--alter {TO_T} --add-config a=1"],
    "autoscale": ["--dry-run"],
    "reassign-partitions": ["--list", "--watch", "--cancel-all"],
    "elect-leaders": ["--election-type preferred --all-topic-partitions"],
    "delete-records": [f"{TO_T} --partition 0 --offset 1"],
    "produce": [TO_T],
    "consume": [TO_T, f"{TO_T} --group g", "--include t.*"],
    "audit": [TO_T],
    "doctor": ["", "replicas", "unclean", "restored"],
    "transactions": [
        "list",
        "describe --transactional-id a",
        f"describe-producers {TO_T} --partition 0",
        "find-hanging",
        f"abort {TO_T} --partition 0 --start-offset 0",
        "force-terminate --transactional-id a",
    ],
}
"""Words of every command that needs a cluster."""


def test_every_command_that_needs_a_cluster_is_here() -> None:
    assert set(EVERYTHING) == set(main.COMMANDS) - {"server", "up"}


@pytest.mark.parametrize("cluster", [Unreached, Silent])
@pytest.mark.parametrize(
    "words", [f"{name} {some}" for name, each in EVERYTHING.items() for some in each]
)
def test_no_command_is_silent_for_longer_than_two_seconds(
    words: str,
    cluster: type[Silent],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Most said nothing for 5 s about addresses that accept and do not respond, and those that
    read a cluster nothing at all."""
    assert connecting.NOTICE_AFTER_S == 2.0
    monkeypatch.setattr(connecting, "NOTICE_AFTER_S", 0.01)
    monkeypatch.setattr(connecting, "Cluster", cluster)
    Silent.capsys, Silent.said = capsys, ""
    command, *rest = words.split()
    status, out, _ = status_of([command, *rest, "--bootstrap-server", "h:1", "--json"], capsys)
    assert status == (2 if command == "audit" else 1) and "waiting" not in out
    asks_at_once = command == "doctor" and "replicas" not in words and "unclean" not in words
    if cluster is Unreached and not asks_at_once:
        assert Silent.said == "waiting for h:1, which does not respond …\n"
    else:
        assert Silent.said.endswith(" …\n") and Silent.said.count("\n") == 1
