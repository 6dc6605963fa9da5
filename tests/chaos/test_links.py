"""The links of the chaos tests: bytes are held, late, or reset as a test says."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.links import Network
from tests.support.processes import DEADLINE_S, wait_until

STILL_S = 0.2
"""How long nothing must come to count as nothing."""


@pytest.fixture
def network() -> Iterator[Network]:
    with Network() as made:
        yield made


class Echo:
    """A server that answers each piece with itself in upper case."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self.ended = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._server.accept()
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                while piece := connection.recv(1024):
                    connection.sendall(piece.upper())
            except OSError:
                pass
        self.ended.set()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), DEADLINE_S)


def nothing_comes(connection: socket.socket) -> bool:
    connection.settimeout(STILL_S)
    try:
        connection.recv(1)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(DEADLINE_S)
    return False


def test_bytes_flow_both_ways_and_so_does_the_end(network: Network) -> None:
    echo = Echo()
    with connect(network.link("a", "b", echo.port)) as connection:
        connection.sendall(b"hello")
        assert connection.recv(100) == b"HELLO"
    assert echo.ended.wait(DEADLINE_S)


@pytest.mark.parametrize("way", [("a", "b"), ("b", "a")])
def test_what_is_cut_stands_still_and_arrives_later(network: Network, way: tuple[str, str]) -> None:
    echo = Echo()
    with connect(network.link("a", "b", echo.port)) as connection:
        connection.sendall(b"x")
        assert connection.recv(1) == b"X"
        network.cut(*way)
        connection.sendall(b"late")
        assert nothing_comes(connection)
        network.heal("a", ["b"])
        assert connection.recv(100) == b"LATE"


def test_no_process_beyond_a_cut_learns_of_a_death(network: Network) -> None:
    echo = Echo()
    connection = connect(network.link("a", "b", echo.port))
    connection.sendall(b"x")
    assert connection.recv(1) == b"X"
    network.cut("a", "b")
    connection.close()
    assert not echo.ended.wait(STILL_S)
    network.heal("a", ["b"])
    assert echo.ended.wait(DEADLINE_S)


def test_a_connection_over_a_cut_is_refused_in_the_end(network: Network) -> None:
    echo = Echo()
    port = network.link("a", "b", echo.port)
    network.cut("b", "a")
    with connect(port) as connection:
        connection.sendall(b"from the past")
        # Where the link does not know of it when it heals, it is one from after the cut.
        wait_until(lambda: network.count("b") > 0, DEADLINE_S, "the link has the connection")
        assert nothing_comes(connection)
        network.heal("a", ["b"])
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with connect(port) as connection:
        connection.sendall(b"now")
        assert connection.recv(10) == b"NOW"


def test_a_slow_link_delivers_late_and_whole(network: Network) -> None:
    echo = Echo()
    with connect(network.link("a", "b", echo.port)) as connection:
        network.delay("a", "b", 0.1)
        begun = time.monotonic()
        connection.sendall(b"slowly")
        assert connection.recv(100) == b"SLOWLY"
        assert time.monotonic() - begun >= 0.1


def test_a_reset_meets_the_connections_of_one_end(network: Network) -> None:
    echo = Echo()
    with (
        connect(network.link("a", "b", echo.port)) as one,
        connect(network.link("c", "d", echo.port)) as other,
    ):
        for each in (one, other):
            each.sendall(b"x")
            assert each.recv(1) == b"X"
        wait_until(lambda: network.reset("b") > 0, DEADLINE_S, "a connection of b")
        with pytest.raises(ConnectionResetError):
            one.recv(1)
        other.sendall(b"y")
        assert other.recv(1) == b"Y"
