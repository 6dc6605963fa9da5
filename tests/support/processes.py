"""Real processes under test: started, watched, ended by their own id, never by name.

Does not know what runs in them: see `server.py` (tidelog), `kafka.py` (Apache Kafka), `java.py`.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

DEADLINE_S = 90.0
"""When a test gives up what should have come: far longer than a busy machine needs.

It says nothing of the product. How fast something must be is a bound of its own, which names its
promise, and is held against the best of several tries or with patience for a busy machine.
"""


def wait_until(
    condition: Callable[[], object],
    deadline_s: float,
    what: str | Callable[[], str],
    pause_s: float = 0.05,
) -> None:
    """Ask `condition` until it answers something true; AssertionError after `deadline_s`.

    It asks at least twice, and grows the pause no further than `pause_s`. A `what` that is called
    says how things stand at the failure; a text says how they stood when the wait began.
    """
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            if condition():
                return
            said = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {deadline_s} s: {said}")
        time.sleep(pause_s)


LOWEST_PORT = 10_240
EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_given_ports: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that were free a moment ago; this process is given none of them twice.

    They lie below those that the system gives to whoever asks for any, so that no outgoing
    connection takes one before its server has it. A port is its server's while that is down, too:
    processes that run side by side (pytest-xdist's gw0, gw1 ...) divide the ports, by pairs.
    """
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        while len(ports) < count:
            ports += _taken((_drawn_port(),), held)
    return ports


def free_pair() -> int:
    """The first of two ports in a row, both of them as those of `free_ports`."""
    with contextlib.ExitStack() as held:
        while True:
            even = _drawn_port() // 2 * 2
            if _taken((even, even + 1), held):
                return even


def _drawn_port() -> int:
    """A random port of this process' share: an even one and the next belong to the same."""
    share = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    shares = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    end = int(EPHEMERAL_PORTS.read_text().split()[0]) if EPHEMERAL_PORTS.exists() else 32_768
    pairs = range(LOWEST_PORT // 2, max(end, LOWEST_PORT + 10_000) // 2)
    chance = random.SystemRandom()
    while True:
        pair = chance.choice(pairs)
        if pair % shares == share:
            return 2 * pair + chance.randrange(2)


def _taken(ports: tuple[int, ...], held: contextlib.ExitStack) -> tuple[int, ...]:
    """`ports`, bound in `held` and given, or none where one of them was given or is in use."""
    if not _given_ports.isdisjoint(ports):
        return ()
    for port in ports:
        holder = held.enter_context(socket.socket())
        try:
            holder.bind(("127.0.0.1", port))
        except OSError:
            return ()
    _given_ports.update(ports)
    return ports


class Program:
    """One child process whose output goes to a file; used as a context it ends with the block."""

    def __init__(self, command: list[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.command = command
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_status(self) -> int | None:
        """The exit status (negative: the signal that ended it), or None while it runs."""
        return self._process.poll()

    def wait(self, deadline_s: float) -> int:
        """Wait for the end; subprocess.TimeoutExpired after `deadline_s`."""
        return self._process.wait(timeout=deadline_s)

    def output(self) -> str:
        """Everything it has printed so far."""
        return self.log.read_text(errors="replace")

    def send(self, signal_number: int) -> None:
        """Send a signal to this process alone."""
        self._process.send_signal(signal_number)

    def kill(self) -> None:
        """kill -9, and wait until the system has taken it away."""
        self._process.kill()
        self._process.wait(timeout=DEADLINE_S)

    def stop(self, deadline_s: float = DEADLINE_S) -> int:
        """SIGTERM and its exit status; kills it and raises when it does not end in time."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=deadline_s)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        return self._process.returncode

    def cpu_s(self) -> float:
        """CPU seconds, user and system, that the process itself has used (all its threads)."""
        return cpu_s(self.pid)

    def resident_bytes(self) -> int:
        """Resident memory now."""
        return resident_bytes(self.pid)

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.kill()


def cpu_s(pid: int) -> float:
    """CPU seconds of a process: utime + stime of /proc/PID/stat."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / CLOCK_TICKS_PER_S


def tree_cpu_s(pid: int) -> float:
    """CPU seconds of a process, its ended children, and its living descendants."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    total = sum(int(field) for field in after_name[11:15]) / CLOCK_TICKS_PER_S
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            total += tree_cpu_s(int(child))
    return total


def resident_bytes(pid: int) -> int:
    """Resident memory of a process: VmRSS of /proc/PID/status."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(f"process {pid} has no memory: it ended")


def tree_resident_bytes(pid: int) -> int:
    """Resident memory of a process and its living descendants, shared pages counted in each."""
    total = resident_bytes(pid)
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            total += tree_resident_bytes(int(child))
    return total


def tree_bytes(pid: int) -> tuple[int, int]:
    """Bytes that a process, its ended children, and its living descendants have read and written
    by system calls: rchar and wchar of /proc/PID/io."""
    said = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    read, written = int(said["rchar"]), int(said["wchar"])
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            of_child = tree_bytes(int(child))
            read, written = read + of_child[0], written + of_child[1]
    return read, written


SIGSTOP, SIGCONT = signal.SIGSTOP, signal.SIGCONT
