"""The supervisor of workers: what a stop and a restart do when something goes wrong meanwhile."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ipv6 import can_bind
from tests.support.lone_broker import until
from tests.support.processes import DEADLINE_S
from tidelog.cli.up_child import Child
from tidelog.cli.up_files import ClusterPlan
from tidelog.cli.workers import Supervisor
from tidelog.model.configs.server import ServerConfigs, from_mapping

FAILED = "the restart one after another has failed"
SERVES = " serves"

SERVER = """#!{python}
import signal, sys
{more}
print("ready PLAINTEXT=127.0.0.1:1 CONTROLLER=127.0.0.1:2", flush=True)
signal.pause()
"""
"""As a server: it has its ready line, and runs until a signal ends it."""

STOPS_ONCE = """
def asked(*_):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    print("asked", file=sys.stderr, flush=True)
    open({pipe!r}, "rb", 0).read(1)
    sys.exit()
signal.signal(signal.SIGTERM, asked)
"""
"""Its first SIGTERM begins a clean stop, which here lasts until a byte comes by the pipe, and a
second one ends it at once."""


def python(folder: Path, more: str = "") -> Path:
    """The program that is run in place of Python."""
    path = folder / "python"
    path.write_text(SERVER.format(python=sys.executable, more=more))
    path.chmod(0o700)
    return path


def test_a_process_that_is_stopped_twice_gets_one_signal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The stop of all workers comes while a restart stops one of them."""
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    # Open for both, it waits for no other end.
    end = os.open(pipe, os.O_RDWR)
    monkeypatch.setattr(sys, "executable", str(python(tmp_path, STOPS_ONCE.format(pipe=pipe))))
    plan = ClusterPlan(folder=tmp_path, brokers=1, store="sqlite", port=0)

    async def scenario() -> None:
        child = Child(plan, plan.members()[0], stop_s=DEADLINE_S)
        await child.start(())
        first = asyncio.ensure_future(child.end())
        log = plan.log_of(child.member)
        await until(lambda: "asked" in log.read_text(), DEADLINE_S)
        second = asyncio.ensure_future(child.end())
        await asyncio.sleep(0)
        os.write(end, b"x")
        await asyncio.gather(first, second)
        assert "exited with status 0" in await child.death()

    try:
        asyncio.run(scenario())
    finally:
        os.close(end)


@pytest.fixture
def hangups() -> Iterator[None]:
    """SIGHUP counts, also for tests that run under ``nohup``."""
    former = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, former)


@pytest.mark.usefixtures("hangups")
def test_a_restart_that_fails_is_logged_and_the_next_signal_counts(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    host = "[::1]" if can_bind("::1") else "127.0.0.1"
    texts = {
        "node.id": "100",
        "log.dirs": str(tmp_path),
        "listeners": f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{port}",
        "metrics_port": f"{host}:0",
    }
    whole = from_mapping(texts)
    assert isinstance(whole, ServerConfigs), whole
    options = Namespace(
        file=str(tmp_path / "file"),
        workers=2,
        override=[],
        new_cluster=False,
        until_stdin_closes=False,
    )
    program = python(tmp_path)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(sys, "stdin", None)

    async def scenario() -> None:
        running = asyncio.ensure_future(Supervisor(whole, options).run())
        try:
            await until(lambda: caplog.text.count(SERVES) == 2 or running.done(), DEADLINE_S)
            # Python was replaced by an upgrade of the machine.
            program.unlink()
            for times in (1, 2):
                assert not running.done()
                os.kill(os.getpid(), signal.SIGHUP)
                await until(lambda: caplog.text.count(FAILED) >= times, DEADLINE_S)  # noqa: B023
            assert caplog.text.count(SERVES) == 2, "the workers run on"
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    ready = "ready workers=2 nodes=100,101 bootstrap=127.0.0.1:1,127.0.0.1:1 "
    assert f"{ready}metrics={host}:" in capsys.readouterr().out
