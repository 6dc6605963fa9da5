"""The ports that tests give to servers: a server that is down for a moment keeps its own."""

from __future__ import annotations

import socket

import pytest

from tests.support import processes
from tests.support.processes import LOWEST_PORT, free_pair, free_ports


def test_no_port_is_given_twice() -> None:
    given = [port for _ in range(20) for port in free_ports(20)]
    assert len(set(given)) == len(given)
    assert min(given) >= LOWEST_PORT


def test_processes_side_by_side_are_given_different_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    for share in range(3):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", f"gw{share}")
        monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "3")
        assert {port // 2 % 3 for port in free_ports(50)} == {share}
        assert {free_pair() // 2 % 3 for _ in range(50)} == {share}


def test_both_ports_of_a_pair_are_free_and_given_once() -> None:
    given = [port for _ in range(100) for first in (free_pair(),) for port in (first, first + 1)]
    assert not {*given}.intersection(free_ports(200))
    assert len(set(given)) == len(given)


def test_a_pair_whose_second_port_is_in_use_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    used, free = free_pair(), free_pair()
    monkeypatch.setattr(processes, "_given_ports", set())
    drawn = iter((used, free))
    monkeypatch.setattr(processes, "_drawn_port", lambda: next(drawn))
    with socket.create_server(("127.0.0.1", used + 1)):
        assert free_pair() == free
