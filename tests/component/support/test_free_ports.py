"""The ports that tests give to servers: a server that is down for a moment keeps its own."""

from __future__ import annotations

import pytest

from tests.support.processes import LOWEST_PORT, free_ports


def test_no_port_is_given_twice() -> None:
    given = [port for _ in range(20) for port in free_ports(20)]
    assert len(set(given)) == len(given)
    assert min(given) >= LOWEST_PORT


def test_processes_side_by_side_are_given_different_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    for share in range(3):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", f"gw{share}")
        monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "3")
        assert {port % 3 for port in free_ports(50)} == {share}
