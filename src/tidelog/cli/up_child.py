"""One child process of ``tidelog up`` or of ``--workers``: its start, ready line, errors and end.

Owns one ``tidelog server`` whose standard input this process holds open, so that it stops cleanly
even when this process is killed. Not the set of children and the effect of a death: see ``up`` and
``workers``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from tidelog.cli.output import note
from tidelog.cli.refusal import LAST_WORDS, Failed
from tidelog.cli.up_files import Address, ClusterProcess

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
LOG_LINES_SHOWN = 5
LOG_BYTES_READ = 65_536
"""How much of the end of a child's log is read; the log grows as long as the cluster runs."""

LAST_WORDS_S = 5.0
"""How long the last line of a child that has ended may take: a helper of it may have its output."""

COMPLAINT_BYTES_READ = 1_048_576
"""The same after a failed start: kazoo writes 60 kB a minute while it has no connection."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A child's ready line: its addresses as (host, port), and whether it serves yet."""

    broker: Address | None
    controller: Address | None
    metrics: Address | None
    serves: bool = True


class ChildPlan(Protocol):
    """The files of children, and how each is started."""

    def file_of(self, member: ClusterProcess) -> Path:
        """Return the properties file of a child."""

    def log_of(self, member: ClusterProcess) -> Path | None:
        """Return the file that takes its standard error; None: that of this process."""

    def lock_of(self, member: ClusterProcess) -> Path | None:
        """Return a lock file that names a process started by hand in its place, if one can be."""

    def write_file(
        self, member: ClusterProcess, controllers: Sequence[Address], controller_port: int
    ) -> None:
        """Write the file of its next start, if it is not the operator's own. Raises OSError."""

    def arguments(self, member: ClusterProcess) -> Sequence[str]:
        """Return the arguments of its ``tidelog server`` after the file."""


def parse_ready(line: str) -> Ready | None:
    """Parse a server's ready line; None for any other line."""
    words = line.split()
    if words[:1] not in (["ready"], ["waiting"]):
        return None
    fields = dict(word.partition("=")[::2] for word in words[1:])
    addresses = {}
    for name, text in fields.items():
        host, colon, port = text.rpartition(":")
        if colon and port.isdecimal():
            addresses[name] = (host, int(port))
    controller, metrics = addresses.pop("CONTROLLER", None), addresses.pop("metrics", None)
    broker = next(iter(addresses.values()), None)
    if broker is None and controller is None:
        return None
    return Ready(broker, controller, metrics, serves=words[0] == "ready")


def error_in(log: Path) -> str | None:
    """Return the error among the last lines of a log, without its "error: "; None for none."""
    for line in reversed(_last_lines(log, LOG_BYTES_READ)[-LOG_LINES_SHOWN:]):
        if line.startswith("error: "):
            return line.removeprefix("error: ")
    return None


def complaint_in(log: Path, begin: int = 0) -> str | None:
    """Return the last event at level error in a log's end, after byte ``begin``; None for none."""
    for line in reversed(_last_lines(log, COMPLAINT_BYTES_READ, begin)):
        if line.startswith('{"ts": ') and '"level": "error"' in line:
            with contextlib.suppress(ValueError, KeyError):
                return str(json.loads(line)["event"])
        if match := re.search(r' level=error .*?event="((?:[^"\\]|\\.)*)"', line):
            return re.sub(r"\\(.)", r"\1", match[1])
    return None


def _last_lines(log: Path, size: int, begin: int = 0) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(begin, file.seek(0, os.SEEK_END) - size))
            return file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []


class Child:
    """One process of the plan. Its addresses stay the same after a restart."""

    def __init__(
        self,
        plan: ChildPlan,
        member: ClusterProcess,
        *,
        start_s: float | None = START_TIMEOUT_S,
        stop_s: float = STOP_TIMEOUT_S,
    ) -> None:
        """``start_s`` is None for a start that may recover large logs, however long that takes."""
        self.member = member
        self._start_s, self._stop_s = start_s, stop_s
        self.ready: Ready | None = None
        """Its last ready line."""
        self.is_started = False
        """Whether that line is of its last start."""
        self.reason: str | None = None
        """Why its last start failed by itself; None when it did not, or was killed meanwhile."""
        self._plan = plan
        self.log = plan.log_of(member)
        self._log_begin = 0
        self._process: asyncio.subprocess.Process | None = None
        self._asked_to_end: asyncio.subprocess.Process | None = None
        """The process that has its SIGTERM: a second one would end it at once."""
        self._said: str | None = None
        """Why it ends, by its own words on standard output."""

    @property
    def pid(self) -> int | None:
        """The id of the running process, None when there is none."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    @property
    def pid_by_hand(self) -> int | None:
        """The id of a process that a user started in this child's place, None without one.

        Such a process holds the lock of the child's log directory.
        """
        lock = self._plan.lock_of(self.member)
        if self.pid is not None or lock is None:
            return None
        try:
            pid = int(lock.read_text())
            os.kill(pid, 0)
        except (OSError, ValueError):
            return None
        return None if self._process is not None and pid == self._process.pid else pid

    @property
    def file(self) -> Path:
        """The properties file of its last start; a user can start it by hand with this file."""
        return self._plan.file_of(self.member)

    def write_file(self, controllers: Sequence[Address]) -> None:
        """Write the file of its next start, with the port that clients know. Raises OSError."""
        former = self.ready.controller if self.ready is not None else None
        position = former[1] if former is not None else 0
        self._plan.write_file(self.member, controllers, position)

    async def start(self, controllers: Sequence[Address], *, is_new: bool = False) -> None:
        """Start it and wait for its ready line, whether it serves or waits for metadata.

        ``is_new``: no process of this cluster ran before. Raises Failed with the child's own error
        when there is no such line in time.
        """
        self.reason = self._said = None
        self.is_started = False
        self.write_file(controllers)
        with contextlib.ExitStack() as opened:
            log = None if self.log is None else opened.enter_context(self.log.open("ab"))
            self._log_begin = 0 if log is None else log.tell()
            process = self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                # A module of the working folder must not take the place of one of Python's.
                "-P",
                "-m",
                "tidelog.cli.main",
                "server",
                str(self.file),
                "--until-stdin-closes",
                *self._plan.arguments(self.member),
                *(("--new-cluster",) if is_new else ()),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                # Ctrl-C reaches only `tidelog up`, which then stops its children.
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(self._start_s):
                ready = await self._next_ready(process)
        except TimeoutError:
            self.reason = f"not ready within {self._start_s:.0f} s; {self._last_words()}"
            raise Failed(self.reason) from None
        if ready is None:
            how = await self.death()
            if (process.returncode or 0) >= 0:
                self.reason = self._last_words()
            raise Failed(how)
        self.ready, self.is_started = ready, True
        if ready.broker is not None:
            # A restart must use the port that clients know.
            self.member = replace(self.member, port=ready.broker[1])

    async def until_it_serves(self) -> None:
        """Wait without a limit until a child that waits for metadata serves. Raises Failed."""
        while self.ready is not None and not self.ready.serves:
            assert self._process is not None
            ready = await self._next_ready(self._process)
            if ready is None:
                raise Failed(await self.death())
            self.ready = ready

    async def death(self) -> str:
        """Wait until it has ended; return a sentence that says how."""
        assert self._process is not None
        status = await self._process.wait()
        how = f"{self.member} (pid {self._process.pid}) {_ending(status)}"
        if self.log is None and status <= 0:
            # A signal, or a stop: it had no reason of its own.
            return how
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                while await self._next_ready(self._process) is not None:
                    pass
        return f"{how}; {self._last_words()}"

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal. Raises Failed when it does not run."""
        process = self._process
        if process is None or process.returncode is not None:
            raise Failed(f"{self.member} does not run")
        process.send_signal(number)

    async def kill(self) -> None:
        """Kill it and wait until it has ended; does nothing when it does not run."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()

    async def end(self) -> None:
        """Stop it cleanly, or kill it when that takes too long. May be called by several tasks."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        if process is not self._asked_to_end:
            self._asked_to_end = process
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        try:
            async with asyncio.timeout(self._stop_s):
                await process.wait()
        except TimeoutError:
            note(f"{self.member} did not stop within {self._stop_s:.0f} s: killing it")
            await self.kill()

    def complaint(self) -> str | None:
        """The last error of its log since its start, prefixed with its name; None without one."""
        complaint = None if self.log is None else complaint_in(self.log, self._log_begin)
        return None if complaint is None else f"{self.member}: {complaint}"

    async def _next_ready(self, process: asyncio.subprocess.Process) -> Ready | None:
        """Return the next ready line; None when the output has ended."""
        assert process.stdout is not None
        while line := await process.stdout.readline():
            text = line.decode("utf-8", "replace")
            ready = parse_ready(text)
            if ready is not None:
                return ready
            if text.startswith(LAST_WORDS):
                self._said = text.removeprefix(LAST_WORDS).strip()
        return None

    def _last_words(self) -> str:
        """Return the child's own error line, or the path of its log."""
        if self.log is None:
            return self._said or "its reason is in the lines above"
        return error_in(self.log) or f"see {self.log}"


def _ending(status: int | None) -> str:
    if status is not None and status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"exited with status {status}"
