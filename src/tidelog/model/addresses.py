"""Loopback addresses, and the refusal of other listeners without a cluster secret."""

from __future__ import annotations

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Whether only processes of this machine reach a listener on ``host``.

    "" is every interface. A name other than ``localhost`` counts as reachable from elsewhere,
    whatever it stands for today.
    """
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return False


def why_secret_first(name: str, host: str, port: int) -> str:
    """Return the line that refuses a listener because there is no cluster secret."""
    return (
        f"the listener {name}://{host}:{port} can be reached from other machines, and this process "
        "has no cluster secret: set cluster.secret.file to the file that all processes of the "
        "cluster share, or listen on 127.0.0.1"
    )
