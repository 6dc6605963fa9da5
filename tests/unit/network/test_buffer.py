"""The receive buffer of a connection: how it grows with what its peer sends."""

from __future__ import annotations

from tidelog.network.buffer import FIRST_BYTES, SMALL_BYTES, ReceiveBuffer
from tidelog.network.limits import Account

FRAME = 16_100


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


def test_a_peer_that_sends_request_after_request_is_read_64_kib_at_a_time() -> None:
    """With the buffer that its first request happened to need, each read would bring one request:
    for Java's batches of 16 kB that was a seventh of the CPU."""
    account = Account(1 << 20)
    received = ReceiveBuffer(account, Place(), lambda: None)
    sizes = []
    while not sizes or sizes[-1] < FRAME:
        comes(received)
        sizes.append(received.capacity)
    received.accept()
    assert sizes == [2 * SMALL_BYTES, 4 * SMALL_BYTES], "until its first request it grows with it"
    for _ in range(3):
        comes(received)
    assert received.capacity == FIRST_BYTES
    assert account.used == 0, "nothing of it counts"
