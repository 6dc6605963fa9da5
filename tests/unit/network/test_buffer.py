"""The receive buffer of a connection: how it grows with what its peer sends."""

from __future__ import annotations

import pytest

from tidelog.network.buffer import (
    FIRST_BYTES,
    SHRINK_AFTER,
    SMALL_BYTES,
    WIDE_BYTES,
    ReceiveBuffer,
)
from tidelog.network.limits import Account

FRAME = 16_100
BEGUN = 5
"""Bytes of a frame that is not whole."""


class Place:
    """A holder of memory, without a connection."""

    client_host = "a"


def comes(received: ReceiveBuffer) -> None:
    """Fill the buffer as a socket with much to read does, and serve what is whole."""
    received.end += len(received.free())
    while received.end - received.start >= FRAME:
        received.start += FRAME
    received.need = FRAME
    assert received.make_room()


def first_requests(received: ReceiveBuffer) -> None:
    """Fill a new buffer until its first whole request is accepted."""
    while received.capacity < FRAME:
        comes(received)
    received.accept()


def test_until_its_first_request_a_buffer_grows_with_it() -> None:
    received = ReceiveBuffer(Account(1 << 20), Place(), lambda: None)
    sizes = []
    while not sizes or sizes[-1] < FRAME:
        comes(received)
        sizes.append(received.capacity)
    assert sizes == [2 * SMALL_BYTES, 4 * SMALL_BYTES]


def test_a_peer_with_several_requests_in_flight_is_read_256_kib_at_a_time() -> None:
    """With the buffer that its first request happened to need, each read would bring one request:
    for Java's batches of 16 kB that was a seventh of the CPU; with 64 KiB, of its five in flight
    four."""
    account = Account(1 << 20)
    received = ReceiveBuffer(account, Place(), lambda: None)
    first_requests(received)
    sizes, counted = [], []
    for _ in range(5):
        comes(received)
        sizes.append(received.capacity)
        counted.append(account.used)
    assert sizes == [FIRST_BYTES, 2 * FIRST_BYTES, WIDE_BYTES, WIDE_BYTES, WIDE_BYTES]
    assert counted == [size - FIRST_BYTES for size in sizes], "what exceeds 64 KiB counts"


def test_a_buffer_is_not_widened_while_memory_is_short() -> None:
    account = Account(2 * FIRST_BYTES)
    received = ReceiveBuffer(account, Place(), lambda: None)
    first_requests(received)
    for _ in range(5):
        comes(received)
    assert received.capacity == 2 * FIRST_BYTES, "that is all the account has"
    assert not account.contended, "nothing waits for memory that is optional"


def test_a_wide_buffer_is_given_back_when_another_waits() -> None:
    account = Account(WIDE_BYTES - FIRST_BYTES)
    received = ReceiveBuffer(account, Place(), lambda: None)
    first_requests(received)
    for _ in range(3):
        comes(received)
    assert account.used == account.limit
    woken: list[bool] = []
    # The first in the queue may pass the limit, alone; the second waits.
    assert account.take(10, Place(), lambda: woken.append(True))
    assert not account.take(FIRST_BYTES, Place(), lambda: woken.append(True))
    received.start = received.end
    assert received.make_room()
    assert received.capacity == FIRST_BYTES
    assert account.used == 10


def test_a_wide_buffer_shrinks_when_reads_no_longer_fill_half_of_it() -> None:
    received = ReceiveBuffer(Account(1 << 20), Place(), lambda: None)
    first_requests(received)
    for _ in range(3):
        comes(received)
    received.start = received.end
    assert received.make_room()
    for _ in range(2 * SHRINK_AFTER):
        received.end = received.start = FRAME
        received.largest = max(received.largest, FRAME)
        assert received.make_room()
    assert received.capacity == FIRST_BYTES


def wide_with_a_begun_frame(account: Account) -> ReceiveBuffer:
    """A buffer that a burst has widened, and that then never runs empty."""
    received = ReceiveBuffer(account, Place(), lambda: None)
    first_requests(received)
    for _ in range(3):
        comes(received)
    received.view[received.end - BEGUN : received.end] = b"begun"
    received.start = received.end - BEGUN
    return received


@pytest.mark.parametrize("need", [0, FRAME, FIRST_BYTES])
def test_a_begun_frame_keeps_no_wide_buffer_while_another_waits(need: int) -> None:
    account = Account(WIDE_BYTES - FIRST_BYTES)
    received = wide_with_a_begun_frame(account)
    if not need:
        received.start = received.end - 3  # its length is not known yet
    pending = bytes(received.view[received.start : received.end])
    assert account.take(10, Place(), lambda: None), "by favour: the account is in use"
    received.need = need
    assert received.make_room()
    assert (received.capacity, account.used) == (FIRST_BYTES, 10)
    assert bytes(received.view[received.start : received.end]) == pending


def test_a_begun_frame_keeps_what_it_needs_itself() -> None:
    account = Account(WIDE_BYTES - FIRST_BYTES)
    received = wide_with_a_begun_frame(account)
    assert account.take(10, Place(), lambda: None)
    received.need = FIRST_BYTES + 1
    assert received.make_room()
    assert received.capacity == 2 * FIRST_BYTES
    received.need = 2 * FIRST_BYTES + 1
    assert received.make_room()
    assert received.capacity == 2 * FIRST_BYTES, "it grows when its bytes arrive"


def test_of_a_silent_client_only_a_begun_frame_is_kept() -> None:
    account = Account(1 << 20)
    received = wide_with_a_begun_frame(account)
    received.need = 0
    received.give_back()
    assert received.capacity == WIDE_BYTES, "whole requests wait in it, as far as it knows"
    received.need = FRAME
    received.give_back()
    assert (received.capacity, account.used) == (FIRST_BYTES, 0)
    assert bytes(received.view[received.start : received.end]) == b"begun"
    received.start = received.end
    assert received.make_room()
    received.give_back()
    assert received.capacity == 0
