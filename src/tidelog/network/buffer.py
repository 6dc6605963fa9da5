"""The receive buffer of one connection: bytes that have arrived and are not served yet.

Owns its growth (it doubles, so that a client that announces 100 MB gets them only as it sends
them), its shrinking, and its charge to the process's account. Not frames: ``need`` is the length of
the incomplete one.
"""

from __future__ import annotations

from collections.abc import Callable
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.network.limits import Account, Holder

FIRST_BYTES = 65_536
"""A connection's buffer while its requests are small; it is not counted in the account."""

WIDE_BYTES = 262_144
"""Up to here a buffer doubles when one read has filled it: a client with several requests in flight
is then read and answered in fewer system calls. These bytes are counted, and optional."""

SMALL_BYTES = 4096
"""Buffer of a new connection, and the part that is not counted before its first whole request."""

SHRINK_AFTER = 256
"""Times that a buffer ran empty, after which one that is much too large is made smaller."""


class ReceiveBuffer:
    """``view[start:end]`` has the bytes that are not served; the transport writes after ``end``."""

    __slots__ = (
        "_account",
        "_free_bytes",
        "_owner",
        "_until_shrink",
        "_when_room",
        "capacity",
        "end",
        "held",
        "largest",
        "need",
        "start",
        "view",
    )

    def __init__(self, account: Account, owner: Holder, when_room: Callable[[], None]) -> None:
        self._account = account
        self._free_bytes = SMALL_BYTES
        self._owner = owner
        self._when_room = when_room
        self._until_shrink = SHRINK_AFTER
        self.view = memoryview(bytearray(0))
        self.capacity = 0
        self.start = 0
        self.end = 0
        self.held = 0
        """Bytes taken from the account: all above ``SMALL_BYTES``, later above ``FIRST_BYTES``."""
        self.need = 0
        """Length of the frame that begins at ``start``, its size field included; 0 if unknown."""
        self.largest = 0
        """The longest frame since the last check for shrinking."""

    def free(self) -> memoryview:
        """Return the space for the next bytes; never empty."""
        if self.end == self.capacity:
            self._replace(max(SMALL_BYTES, 2 * self.capacity))
        return self.view[self.end :] if self.end else self.view

    def make_room(self) -> bool:
        """Make room for more of the incomplete frame; return False when there is no memory now.

        Then ``when_room`` will be called, once.
        """
        if self.end == self.capacity:
            self._widen()
        pending = self.end - self.start
        if not pending:
            self.start = self.end = 0
            if self.held and self._account.contended:
                self._replace(FIRST_BYTES)
            self._until_shrink -= 1
            if self._until_shrink <= 0:
                self._shrink()
            return True
        need = self.need or 4
        if self.held and self._account.contended:
            self._shrink_to(need)
        is_new = self._free_bytes == SMALL_BYTES
        has_room = self.end < self.capacity
        if has_room and (is_new or not self.start or self.start + need <= self.capacity):
            return True
        if pending < self.capacity:
            self.view[:pending] = self.view[self.start : self.end]
            self.start, self.end = 0, pending
            return True
        fitting = _rounded(need)
        if self._account.is_short_of(fitting - self.capacity):
            # Only this request fits: when it is served, the whole buffer is given back.
            fitting = max(need, self._free_bytes)
        return self._replace(min(max(2 * self.capacity, self._free_bytes), fitting))

    def accept(self) -> None:
        """The first whole request has arrived: ``FIRST_BYTES`` are not counted from now on."""
        self._free_bytes = FIRST_BYTES
        surplus = self.held - max(0, self.capacity - FIRST_BYTES)
        self.held -= surplus
        self._account.give(surplus, self._owner)

    def leave_account(self, outside: Account) -> None:
        """Count in ``outside`` from now on: the connection has proved the cluster secret."""
        self._account.forget(self._owner, self.held)
        self._account = outside
        outside.take(self.held, self._owner, self._when_room)

    def drop(self) -> None:
        """Give all memory back; the connection has ended."""
        held, self.held = self.held, 0
        self._account.forget(self._owner, held)
        self.view = memoryview(bytearray(0))
        self.capacity = self.start = self.end = 0

    def give_back(self) -> None:
        """Give an empty buffer back, and of one with a begun frame what exceeds the frame.

        Where whole frames wait, records of a request in steps may still be read in the buffer.
        """
        if not self.end:
            if self.capacity:
                self._replace(0)
        elif self.held and (self.need or self.end - self.start < 4):
            self._shrink_to(self.need)

    def _replace(self, capacity: int, make: Callable[[int], memoryview] | None = None) -> bool:
        extra = max(0, capacity - self._free_bytes) - self.held
        if extra > 0 and not self._account.take(extra, self._owner, self._when_room):
            return False
        self.held += extra
        pending = self.end - self.start
        fresh = make(capacity) if make is not None else memoryview(bytearray(capacity))
        fresh[:pending] = self.view[self.start : self.end]
        self.view = fresh
        self.capacity = capacity
        self.start, self.end = 0, pending
        if extra < 0:
            self._account.give(-extra, self._owner)
        return True

    def _widen(self) -> None:
        """Replace a buffer that one read has filled: the peer sends more at a time."""
        capacity = self.capacity
        make = _mapping if self.need <= WIDE_BYTES else None
        if capacity < self._free_bytes:
            self._replace(self._free_bytes, make)
        elif capacity < WIDE_BYTES and self._free_bytes == FIRST_BYTES:
            self.largest = max(self.largest, capacity)  # that much was used
            if not self._account.is_short_of(capacity):
                self._replace(2 * capacity, make)

    def _shrink_to(self, need: int) -> None:
        """Give back what is larger than a begun frame of ``need`` bytes takes."""
        fitting = _rounded(max(need, self.end - self.start))
        if fitting < self.capacity:
            self._replace(fitting, _mapping)

    def _shrink(self) -> None:
        self._until_shrink = SHRINK_AFTER
        fitting = _rounded(self.largest)
        self.largest = 0
        if self.capacity > 2 * fitting:
            self._replace(fitting)


def _mapping(capacity: int) -> memoryview:
    """Return a buffer of zeros that the system has back when it is dropped.

    What the allocator takes from its heap for many such buffers stays with the process. The pages
    of a mapping cost more: it is for peers that send many requests at a time, not for a long one.
    """
    try:
        return memoryview(mmap(-1, capacity, flags=MAP_PRIVATE | MAP_ANONYMOUS))
    except OSError:
        return memoryview(bytearray(capacity))  # too many mappings


def _rounded(need: int) -> int:
    """Round a capacity up so that frames of about the same size fit too."""
    if need <= 1_048_576:
        return max(FIRST_BYTES, 1 << max(0, need - 1).bit_length())
    return (need + 1_048_575) & ~1_048_575
