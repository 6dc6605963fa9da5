"""`tidelog up` on a folder of which another process holds a part: refused before any child runs."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import pytest

from tidelog.cli import failures
from tidelog.cli.up import command
from tidelog.cli.up_files import ClusterPlan
from tidelog.cli.up_held import why_held, why_not_folder
from tidelog.runtime.disk import RealDisk
from tidelog.storage.names import LOCK

DISK = RealDisk()


def lock(stack: contextlib.ExitStack, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    held = DISK.lock(str(path))
    assert held is not None
    stack.callback(held.close)


def test_a_folder_that_a_process_holds_is_named_before_any_child_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two of three children had been started, and the line came after the third one's end."""
    folder = tmp_path / "data"
    with contextlib.ExitStack() as stack:
        lock(stack, folder / "broker-3" / LOCK)
        words = ["--data", str(folder), "--brokers", "3", "--port", "0"]
        assert failures.run(command, words) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: in use outside this `tidelog up`: {folder}/broker-3 by process")
    assert f"`kill {os.getpid()}`" in line
    assert not list(folder.glob("node-*")), "no child was started"
    assert not (folder / "broker-1").exists(), "nothing was created"


def test_all_that_is_held_is_in_one_line_and_each_process_once(tmp_path: Path) -> None:
    plan = ClusterPlan(tmp_path, brokers=2)
    assert why_held(plan, DISK) is None
    with contextlib.ExitStack() as stack:
        for path in ("broker-1/.lock", "broker-2/.lock", "metadata.sqlite.lock"):
            lock(stack, tmp_path / path)
        said = why_held(plan, DISK)
        assert said is not None and "\n" not in said
        for name in ("broker-1", "broker-2", "metadata.sqlite"):
            assert f"{tmp_path}/{name} by process {os.getpid()}" in said
        assert f"`kill {os.getpid()}`" in said
        elsewhere = ClusterPlan(tmp_path, brokers=0, store="zookeeper://h:1/x")
        assert why_held(elsewhere, DISK) is None, "its store is not in the folder"
    assert why_held(plan, DISK) is None, "what is unlocked again is free"


def test_a_port_in_use_is_named_with_its_broker(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = why_held(ClusterPlan(tmp_path, port=port), DISK)
    assert said is not None and f"127.0.0.1:{port}: " in said
    assert "broker 1" in said and "--port" in said


@pytest.mark.parametrize("kept", ["meta.properties", "orders-0/00000000000000000000.log"])
def test_a_servers_log_directory_is_no_folder_of_a_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kept: str
) -> None:
    """Its next start would have found the folder `broker-1` among its partitions."""
    (tmp_path / kept).parent.mkdir(exist_ok=True)
    (tmp_path / kept).write_text("")
    before = sorted(tmp_path.rglob("*"))
    assert failures.run(command, ["--data", str(tmp_path), "--port", "0"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    said = f"it has {kept.partition('/')[0]}; use another --data"
    assert line == f"error: {tmp_path} is the log directory of a server: {said}"
    assert sorted(tmp_path.rglob("*")) == before


def test_the_folder_of_an_earlier_up_is_taken_again(tmp_path: Path) -> None:
    for file in ("cluster.json", "up.lock", "metadata.sqlite", "node-1.properties", "broker-2/x"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("")
    for file in ("meta.properties", "orders-0/00000000000000000000.log"):
        (tmp_path / "broker-1" / file).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / "broker-1" / file).write_text("")
    (tmp_path / "broker-3").mkdir()
    assert why_not_folder(tmp_path, DISK) is None
