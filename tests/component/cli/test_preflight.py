"""What a server checks before it starts (U12), and the address that clients receive (U5)."""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.cli import preflight
from tidelog.cli.refusal import Failed
from tidelog.model.configs.addresses import Listener
from tidelog.model.configs.server import ServerConfigs, from_mapping
from tidelog.runtime.disk import RealDisk
from tidelog.storage import names
from tidelog.storage.checkpoints import MetaProperties, encode_meta_properties

DISK = RealDisk()


def configs_of(folder: Path, **texts: str) -> ServerConfigs:
    given = {
        "node.id": "1",
        "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        "log.dirs": str(folder / "a"),
        **{name.replace("_", "."): text for name, text in texts.items()},
    }
    found = from_mapping(given)
    assert isinstance(found, ServerConfigs), found
    return found


def refused(configs: ServerConfigs) -> str:
    with pytest.raises(Failed) as why:
        preflight.check(configs, DISK)
    assert "\n" not in str(why.value)
    return str(why.value)


def mark(folder: Path, cluster_id: str, node_id: int = 1) -> None:
    folder.mkdir(parents=True)
    meta = MetaProperties(cluster_id, node_id, uuid.UUID(int=7))
    (folder / names.META_PROPERTIES).write_bytes(encode_meta_properties(meta))


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_what_is_fresh_or_ours_is_let_go_of_again(tmp_path: Path) -> None:
    configs = configs_of(tmp_path)
    assert preflight.check(configs, DISK) is None
    assert preflight.check(configs, DISK) is None
    assert not (tmp_path / "a" / names.META_PROPERTIES).exists(), "nothing was claimed"
    mark(tmp_path / "b", "cluster-1")
    assert preflight.check(configs_of(tmp_path, log_dirs=str(tmp_path / "b")), DISK) == "cluster-1"


def test_a_directory_of_another_server_is_named_with_its_pid(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    held = DISK.lock(f"{tmp_path}/a/{names.LOCK}")
    assert held is not None
    said = refused(configs_of(tmp_path))
    held.close()
    assert f"{tmp_path}/a is in use by another server (pid {os.getpid()}): " in said
    assert f"`kill {os.getpid()}`" in said


def test_a_store_of_another_controller_is_named_with_its_pid(tmp_path: Path) -> None:
    store = tmp_path / "m.sqlite"
    held = DISK.lock(f"{store}.lock")
    assert held is not None
    said = refused(configs_of(tmp_path, metadata_store=f"sqlite:{store}"))
    held.close()
    assert f"Another controller has {store} open (pid {os.getpid()})" in said
    assert f"`kill {os.getpid()}`" in said
    assert not store.exists()


def test_whose_a_directory_is(tmp_path: Path) -> None:
    mark(tmp_path / "a", "cluster-1", node_id=2)
    assert "belongs to node 2, this server is node 1" in refused(configs_of(tmp_path))
    mark(tmp_path / "b", "cluster-1")
    mark(tmp_path / "c", "cluster-2")
    both = configs_of(tmp_path, log_dirs=f"{tmp_path}/b,{tmp_path}/c")
    said = refused(both)
    assert "/b belongs to cluster cluster-1" in said and "/c belongs to cluster cluster-2" in said


def test_a_directory_that_cannot_be_is_blamed_and_no_store(tmp_path: Path) -> None:
    """The store's default place is in it, and it was the store that was blamed."""
    said = refused(configs_of(tmp_path, log_dirs="/proc/nope"))
    assert said == "log directory /proc/nope cannot be used: No such file or directory"
    (tmp_path / "file").write_text("")
    one_works = configs_of(tmp_path, log_dirs=f"{tmp_path}/file,{tmp_path}/a")
    assert preflight.check(one_works, DISK) is None


@pytest.mark.parametrize("which", ["PLAINTEXT", "CONTROLLER", "metrics_port"])
def test_a_port_in_use_is_named(tmp_path: Path, taken: int, which: str) -> None:
    ports = {name: taken if name == which else 0 for name in ("PLAINTEXT", "CONTROLLER")}
    texts = {"listeners": ",".join(f"{x}://127.0.0.1:{port}" for x, port in ports.items())}
    if which == "metrics_port":
        found = from_mapping({**configs_of(tmp_path, **texts).texts, "metrics_port": str(taken)})
        assert isinstance(found, ServerConfigs)
    else:
        found = configs_of(tmp_path, **texts)
    said = refused(found)
    assert which in said and f"127.0.0.1:{taken}" in said and "in use" in said


def told(configs: ServerConfigs) -> tuple[tuple[Listener, ...], str | None]:
    found, name = asyncio.run(preflight.with_host_name(configs))
    return found.advertised_listeners, name


def test_for_every_interface_this_machines_name_is_advertised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U5: they received localhost."""
    everywhere = configs_of(tmp_path, listeners="PLAINTEXT://0.0.0.0:9092,CONTROLLER://:9093")
    monkeypatch.setattr(socket, "gethostname", lambda: "127.0.0.7")
    assert told(everywhere) == ((Listener("PLAINTEXT", "127.0.0.7", 9092),), "127.0.0.7")
    # A name that leads nowhere would be worse than none.
    monkeypatch.setattr(socket, "gethostname", lambda: "x" * 300)
    assert told(everywhere) == ((Listener("PLAINTEXT", "localhost", 9092),), "localhost")
    named = configs_of(tmp_path)
    assert told(named) == ((Listener("PLAINTEXT", "127.0.0.1", 0),), None)
