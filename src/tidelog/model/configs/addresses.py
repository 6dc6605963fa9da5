"""Addresses in a process's configuration: listeners, and ``HOST:PORT``.

Owns their forms. Not which of them a process needs: see `server`.
"""

from __future__ import annotations

from dataclasses import dataclass

LOOPBACKS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
"""The loopback address of each address that stands for every interface."""

LOCALHOST = "localhost"


@dataclass(frozen=True, slots=True)
class Listener:
    """One address to listen on or to advertise. ``host`` "" is every interface; port 0 is any."""

    name: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"

    def __str__(self) -> str:
        return f"{self.name}://{joined(self.host, self.port)}"

    @property
    def near_host(self) -> str:
        """The host by which a process of the same machine connects to it."""
        return LOOPBACKS.get(self.host, self.host)


def is_shared(one: str, other: str) -> bool:
    """Whether listeners on these two hosts cannot have the same port.

    Kafka refuses one port for two listeners on whatever hosts; on two addresses of a machine it
    works. A socket on every IPv6 address takes none of IPv4 here.
    """
    hosts = one.lower(), other.lower()
    if hosts[0] == hosts[1] or "" in hosts:
        return True
    for host, beside in (hosts, hosts[::-1]):
        if host == "0.0.0.0" and ":" not in beside:
            return True
        if host == "::" and (":" in beside or beside == LOCALHOST):
            return True
        if host == LOCALHOST and beside in LOOPBACKS.values():
            return True
    return False


def joined(host: str, port: int) -> str:
    """Return ``HOST:PORT``, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


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
