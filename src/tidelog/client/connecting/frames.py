"""Frames in the bytes of a connection: a size, then that many bytes.

Owns the buffers that a ``BufferedProtocol`` reads into. A large frame is received in place, in a
buffer that is never reused, so that record batches that point into it stay valid. Not the content
of a frame: see ``connection``. Memory: 64 KiB and the one frame that is arriving, while the
connection is open.
"""

from __future__ import annotations

SHARED_BYTES = 64 * 1024
"""Size of the buffer for small frames: the usual amount of one socket read."""

RELEASED_BYTES = 16
"""Its size after the connection has ended: not empty, because the loop may still request it."""

MAX_FRAME_BYTES = 256 * 1024 * 1024
"""Largest response accepted; a fetch of 50 MiB (Kafka's default maximum) is far below."""


class OversizedFrame(ValueError):
    """A frame size that no response can have: the peer does not speak Kafka's protocol."""


class FrameReader:
    """Receives into ``buffer()``; ``received(n)`` returns the frames that are now complete."""

    __slots__ = ("_end", "_filled", "_frame", "_limit", "_shared", "_view")

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self._limit = limit
        self._shared = bytearray()
        self._view = memoryview(self._shared)
        self._end = 0
        self._frame: memoryview | None = None
        self._filled = 0

    def buffer(self) -> memoryview:
        """Return the buffer for the next bytes; never empty."""
        if self._frame is not None:
            return self._frame[self._filled :]
        if not self._view:
            # Not before: a process whose peer is down makes connections that never open, in
            # reference cycles as those of ``release``.
            self._shared = bytearray(SHARED_BYTES)
            self._view = memoryview(self._shared)
        return self._view[self._end :]

    @property
    def has_begun(self) -> bool:
        """Whether a part of a frame has arrived, but not all of it."""
        return self._frame is not None or self._end > 0

    def release(self) -> None:
        """Release the memory at the end of the connection. Received frames stay valid.

        Connection, protocol and transport form a reference cycle, and a server rarely collects
        cycles: a thousand ended connections would hold 64 MiB.
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
            # A copy, because the shared buffer is reused and records point into the frame.
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
