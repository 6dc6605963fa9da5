"""Bytes of a connection -> frames: size in front, then that many bytes.

Owns the buffers that a ``BufferedProtocol`` reads into. Large frames are received in place, in a
buffer of their own that is never used again: what points into it (record batches) stays valid.
Does not know what is in a frame. Memory: 64 KiB and the one frame under way.
"""

from __future__ import annotations

SHARED_BYTES = 64 * 1024
"""Size of the buffer for small frames: what one read of a socket commonly brings."""

RELEASED_BYTES = 16
"""What is left of it when a connection has ended: never nothing, for a loop may still ask."""

MAX_FRAME_BYTES = 256 * 1024 * 1024
"""Largest answer accepted; a fetch of 50 MiB (Kafka's default maximum) is far below."""


class OversizedFrame(ValueError):
    """A size in front of a frame that no answer can have; the peer speaks something else."""


class FrameReader:
    """Receives into ``buffer()``; ``received(n)`` returns the frames that became complete."""

    __slots__ = ("_end", "_filled", "_frame", "_limit", "_shared", "_view")

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self._limit = limit
        self._shared = bytearray(SHARED_BYTES)
        self._view = memoryview(self._shared)
        self._end = 0
        self._frame: memoryview | None = None
        self._filled = 0

    def buffer(self) -> memoryview:
        """Return where the next bytes go; never empty."""
        if self._frame is not None:
            return self._frame[self._filled :]
        return self._view[self._end :]

    @property
    def has_begun(self) -> bool:
        """Whether some of a frame is here and not all of it."""
        return self._frame is not None or self._end > 0

    def release(self) -> None:
        """Give the memory back: nothing comes any more. What was received stays valid.

        Connection, protocol and transport know each other, and a server collects such circles
        seldom: a thousand that ended would hold 64 MiB.
        """
        self._shared = bytearray(RELEASED_BYTES)
        self._view = memoryview(self._shared)
        self._frame = None
        self._end = self._filled = 0

    def received(self, count: int) -> list[memoryview]:
        """Take ``count`` bytes that were written into ``buffer()``; return complete frames.

        Raises OversizedFrame. Grows with the number of frames in one read.
        """
        if self._frame is not None:
            self._filled += count
            if self._filled < len(self._frame):
                return []
            frame, self._frame = self._frame, None
            return [frame]
        self._end += count
        return self._split()

    def _split(self) -> list[memoryview]:
        frames: list[memoryview] = []
        position = 0
        while self._end - position >= 4:
            size = int.from_bytes(self._view[position : position + 4], "big", signed=True)
            if not 4 <= size <= self._limit:
                raise OversizedFrame(f"a frame of {size} bytes")
            start = position + 4
            if start + size > self._end:
                self._begin_large(start, size)
                return frames
            # A copy, because the shared buffer is used again and records point into the frame.
            frames.append(memoryview(bytes(self._view[start : start + size])))
            position = start + size
        rest = self._end - position
        self._shared[:rest] = self._shared[position : self._end]
        self._end = rest
        return frames

    def _begin_large(self, start: int, size: int) -> None:
        self._frame = memoryview(bytearray(size))
        self._filled = self._end - start
        self._frame[: self._filled] = self._view[start : self._end]
        self._end = 0
