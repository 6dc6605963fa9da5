"""Addresses in a process's configuration: listeners, and ``HOST:PORT``.

Owns their forms. Not which of them a process needs: see `server`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Listener:
    """One address to listen on or to advertise. ``host`` "" is every interface; port 0 is any."""

    name: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def split_address(text: str) -> tuple[str, int] | None:
    """Split ``HOST:PORT`` (an IPv6 host in brackets, the host may be empty); None if it is not.

    No host has an ``@``: a voter of Kafka's ``controller.quorum.voters`` does.
    """
    host, colon, port = text.rpartition(":")
    if "@" in host:
        return None
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        return None
    if not colon or not (port.isascii() and port.isdigit()) or len(port) > 5:
        return None
    number = int(port)
    return (host, number) if number <= 65535 else None
