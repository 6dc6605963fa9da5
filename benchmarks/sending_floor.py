"""What does it cost to send 1 MB of a file over loopback, and nothing else?

A child process asks with 8 bytes and takes 1 MB, again and again; CPU (user + system) is that of
the process that sends: with ``sendfile``, from a mapping of the file, and read into memory first. A
broker cannot be cheaper than the least of them. Run: ``python benchmarks/sending_floor.py``.
Result: benchmarks/NOTES.md.
"""

from __future__ import annotations

import mmap
import os
import resource
import socket
import sys
import tempfile
from collections.abc import Callable

PIECE = 1 << 20
PIECES = 256
ROUNDS = 2000
QUESTION = b"question"

Send = Callable[[socket.socket, int], None]


def ask(port: int) -> None:
    """Ask for pieces and take them."""
    taken = memoryview(bytearray(PIECE))
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(ROUNDS):
            connection.sendall(QUESTION)
            got = 0
            while got < PIECE:
                got += connection.recv_into(taken[got:])


def cost_s_per_gb(send: Send) -> float:
    """CPU of this process for each GB that it sends to a child."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        child = os.fork()
        if not child:
            ask(listener.getsockname()[1])
            os._exit(0)
        connection, _ = listener.accept()
    before = resource.getrusage(resource.RUSAGE_SELF)
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(ROUNDS):
            connection.recv(len(QUESTION), socket.MSG_WAITALL)
            send(connection, number % PIECES * PIECE)
    after = resource.getrusage(resource.RUSAGE_SELF)
    os.waitpid(child, 0)
    took_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return took_s / (ROUNDS * PIECE / 1e9)


def main() -> None:
    """Measure the three ways, twice in turn."""
    with tempfile.TemporaryFile() as file:
        for _ in range(PIECES):
            file.write(os.urandom(PIECE))
        file.flush()
        fileno = file.fileno()
        mapped = memoryview(mmap.mmap(fileno, 0, prot=mmap.PROT_READ))
        read = bytearray(PIECE)

        def by_sendfile(connection: socket.socket, at: int) -> None:
            end = at + PIECE
            while at < end:
                at += os.sendfile(connection.fileno(), fileno, at, end - at)

        def from_mapping(connection: socket.socket, at: int) -> None:
            connection.sendall(mapped[at : at + PIECE])

        def read_first(connection: socket.socket, at: int) -> None:
            os.preadv(fileno, [read], at)
            connection.sendall(read)

        for _ in range(2):
            for send in (by_sendfile, from_mapping, read_first):
                cost = cost_s_per_gb(send)
                print(f"{send.__name__:14} {cost:.3f} s of CPU per GB")


if __name__ == "__main__":
    sys.exit(main())
