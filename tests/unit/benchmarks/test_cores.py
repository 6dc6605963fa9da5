"""The halves of the cores in a comparison, and what is said of the build of Python."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.cores import built_with, divided, machine, pinned


@pytest.mark.parametrize(
    ("cores", "servers", "clients"),
    [
        ([3], {3}, {3}),
        ([0, 1], {0}, {1}),
        ([5, 2, 9], {2}, {5, 9}),
        ([0, 1, 2, 3], {0, 1}, {2, 3}),
    ],
)
def test_servers_have_one_half_and_clients_the_other(
    cores: list[int], servers: set[int], clients: set[int]
) -> None:
    found = divided(cores)
    assert (found.servers, found.clients) == (servers, clients)


def test_nodes_of_both_sides_get_the_same_cores(tmp_path: Path) -> None:
    cores = divided([0, 1, 2, 3])

    def make(folder: Path) -> Any:
        return SimpleNamespace(folder=folder, cores=frozenset())

    made = [pinned(make, cores)(tmp_path / side) for side in ("ours", "theirs")]
    assert [node.cores for node in made] == [cores.servers] * 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("", "without PGO, without LTO"),
        ("'--enable-optimizations' '--with-lto'", "with PGO, with LTO"),
        ("--with-lto=thin --prefix=/x", "without PGO, with LTO"),
        ("--enable-optimizations --with-lto=no", "with PGO, without LTO"),
    ],
)
def test_the_build_is_named_by_the_options_of_configure(options: str, said: str) -> None:
    assert built_with(options) == said


def test_the_machine_is_named_in_one_line() -> None:
    assert "cores (" in machine()
    assert "\n" not in machine()
