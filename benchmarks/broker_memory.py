"""How far the memory of a broker grows under a thousand greedy connections.

Two attacks on a broker without a controller (a child process): every connection sends three
requests of 1 MB at once; then every connection asks for 8 MB five times and reads nothing.
Run: ``python benchmarks/broker_memory.py [CONNECTIONS]``. Result: docs/internals/broker.md.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.processes import resident_bytes

from benchmarks.broker_requests import fetch_frame, produce_frame


class Watch:
    """The greatest resident memory of a process while the block runs."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.peak = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._ended.wait(0.01):
            self.peak = max(self.peak, resident_bytes(self._pid))

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def send_all(port: int, payload: bytes, connections: int, answers: int) -> int:
    """Open connections that all send at once, then read so many answers each; bytes sent."""
    opened = [socket.create_connection(("127.0.0.1", port)) for _ in range(connections)]
    left = {each: memoryview(payload) for each in opened}
    for each in opened:
        each.setblocking(False)
    end = time.monotonic() + 60
    while left and time.monotonic() < end:
        for each, rest in list(left.items()):
            with contextlib.suppress(BlockingIOError):
                left[each] = rest = rest[each.send(rest[:262_144]) :]
            if not rest:
                del left[each]
        if not answers and all(len(rest) == len(payload) for rest in left.values()):
            break
    for each in opened if answers else ():
        each.settimeout(30)
        for _ in range(answers):
            size = int.from_bytes(each.recv(4, socket.MSG_WAITALL), "big")
            each.recv(size, socket.MSG_WAITALL)
    if not answers:
        time.sleep(3)
    for each in opened:
        each.close()
    return connections * len(payload) - sum(map(len, left.values()))


def main() -> None:
    connections = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    serve = [str(Path(__file__).with_name("broker_requests.py")), "serve"]
    with tempfile.TemporaryDirectory() as folder:
        child = subprocess.Popen(
            [sys.executable, *serve, folder, "-"], stdout=subprocess.PIPE, text=True
        )
        try:
            assert child.stdout is not None
            port = int(child.stdout.readline())
            print(f"idle: {resident_bytes(child.pid) / 1e6:.0f} MB")
            with Watch(child.pid) as watch:
                sent = send_all(port, produce_frame(1_000_000) * 3, connections, 3)
            print(f"{connections} x 3 Produce of 1 MB ({sent / 1e6:.0f} MB sent): ", end="")
            print(f"peak {watch.peak / 1e6:.0f} MB")
            with Watch(child.pid) as watch:
                send_all(port, fetch_frame(0, 8_000_000) * 5, connections, 0)
            print(f"{connections} x 5 Fetch of 8 MB, unread: peak {watch.peak / 1e6:.0f} MB")
            time.sleep(1)
            print(f"afterwards: {resident_bytes(child.pid) / 1e6:.0f} MB")
        finally:
            child.send_signal(signal.SIGTERM)
            child.wait(30)


if __name__ == "__main__":
    main()
