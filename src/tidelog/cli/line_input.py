"""The lines of standard input, read ahead in a thread.

Owns reading, splitting into lines, and how much is read ahead. Not the format of a line: see
``record_lines``.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import deque

from tidelog.cli.refusal import Failed

CHUNK_BYTES = 262_144
MAX_LINE_BYTES = 64 * 1024 * 1024
"""Longest line taken into memory; far above any max.message.bytes."""

WAITING_CHUNKS = 16
"""Chunks of input read ahead of the sending."""


class LineInput:
    """The lines of standard input, read in a thread, at most some chunks ahead."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._chunks: deque[list[bytes] | OSError | None] = deque()
        self._came = asyncio.Event()
        self._ended = False
        self._room = threading.Semaphore(WAITING_CHUNKS)
        # A daemon thread: a read of a terminal cannot be interrupted, and must not delay the exit.
        threading.Thread(target=self._read, daemon=True).start()

    def end(self) -> None:
        """Make ``next`` return None from now on, even if lines are left."""
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
        chunk = self._chunks.popleft()
        if isinstance(chunk, OSError):
            raise Failed(f"standard input cannot be read: {chunk.strerror}")
        return chunk

    def _read(self) -> None:
        rest = b""
        prompt = sys.stdin.isatty()
        while True:
            if prompt:
                print(">", end="", file=sys.stderr, flush=True)
            try:
                data = os.read(sys.stdin.fileno(), CHUNK_BYTES)
            except OSError as error:
                # The terminal is gone (EIO): pass the error on, it would be lost in the thread.
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

    def _hand_over(self, chunk: list[bytes] | OSError | None) -> None:
        if chunk == []:
            return
        self._room.acquire()
        self._loop.call_soon_threadsafe(self._put, chunk)

    def _put(self, chunk: list[bytes] | OSError | None) -> None:
        self._chunks.append(chunk)
        self._came.set()
