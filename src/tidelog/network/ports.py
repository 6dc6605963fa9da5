"""Check that an address can be listened on, before a process does anything else.

Owns the check and its error message. A free address may be taken a moment later: then listening
itself fails.
"""

from __future__ import annotations

import contextlib
import errno
import socket

from tidelog.model.configs.addresses import Listener


def why_not(host: str, port: int) -> OSError | None:
    """Return the error of listening on an address; None if there is none.

    ``host`` "" is every interface; port 0 is always free. May wait for the lookup of a name.
    """
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, address in found:
            try:
                bound = socket.socket(family, kind, protocol)
            except OSError:
                # As asyncio does: a family that this machine does not have.
                continue
            with contextlib.closing(bound):
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                bound.bind(address)
    except OSError as error:
        return error
    return None


def sentence(name: str, host: str, port: int, error: OSError) -> str:
    """Return why a listener cannot be opened, in one line."""
    where = Listener(name, host, port)
    if error.errno == errno.EADDRINUSE:
        return f"cannot listen on {where}: the port is in use by another process"
    return f"cannot listen on {where}: {error.strerror or error}"
