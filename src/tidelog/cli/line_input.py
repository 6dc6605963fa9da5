"""The lines of the standard input, read ahead in a thread.

Owns the reading and cutting at line ends, and how much is read ahead; what a line means is
``record_lines``'s.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import deque

from tidelog.cli.failures import Failed

CHUNK_BYTES = 262_144
MAX_LINE_BYTES = 64 * 1024 * 1024
"""Longest line taken into memory; far above any max.message.bytes."""

WAITING_CHUNKS = 16
"""Chunks of input read ahead of the sending."""


class LineInput:
    """The lines of the standard input, read in a thread, at most some chunks ahead."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._chunks: deque[list[bytes] | OSError | None] = deque()
        self._came = asyncio.Event()
        self._ended = False
        self._room = threading.Semaphore(WAITING_CHUNKS)
        # A daemon: a read of a terminal cannot be interrupted, and must not hold the end up.
        threading.Thread(target=self._read, daemon=True).start()

    def end(self) -> None:
        """Let ``next`` return None from now on, whatever is still read."""
        self._ended = True
        self._came.set()

    async def next(self) -> list[bytes] | None:
        """Return the next lines without their ends, or None at the end. Raises Failed."""
        while not self._chunks and not self._ended:
            self._came.clear()
            await self._came.wait()
        if self._ended:
            return None
        self._room.release()
        found = self._chunks.popleft()
        if isinstance(found, OSError):
            raise Failed(f"the standard input cannot be read: {found.strerror}")
        return found

    def _read(self) -> None:
        rest = b""
        prompt = sys.stdin.isatty()
        while True:
            if prompt:
                print(">", end="", file=sys.stderr, flush=True)
            try:
                data = os.read(sys.stdin.fileno(), CHUNK_BYTES)
            except OSError as error:
                # A terminal that has gone (EIO): said, for nobody sees what a thread raises.
                self._hand_over(error)
                return
            data_of_lines = rest + data
            *lines, rest = data_of_lines.split(b"\n")
            if not data or len(rest) > MAX_LINE_BYTES:
                if rest:
                    lines.append(rest)
                rest = b""
            if b"\r" in data_of_lines:
                lines = [line.removesuffix(b"\r") for line in lines]
            self._hand_over(lines)
            if not data:
                self._hand_over(None)
                return

    def _hand_over(self, found: list[bytes] | OSError | None) -> None:
        if found == []:
            return
        self._room.acquire()
        self._loop.call_soon_threadsafe(self._put, found)

    def _put(self, found: list[bytes] | OSError | None) -> None:
        self._chunks.append(found)
        self._came.set()
