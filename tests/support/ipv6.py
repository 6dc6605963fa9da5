"""Whether this machine has IPv6, found without the product's own check of addresses."""

from __future__ import annotations

import socket


def can_bind(host: str) -> bool:
    """Whether a socket for IPv6 can be bound to an address of this machine.

    The family may be missing, or be there without the address ``::1``.
    """
    try:
        with socket.socket(socket.AF_INET6) as one:
            one.bind((host, 0))
    except OSError:
        return False
    return True
