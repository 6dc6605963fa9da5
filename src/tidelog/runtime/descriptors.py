"""File descriptors of a process: its limit, and the shares of logs and connections.

Owns the split between logs and connections, so that neither starves the other: a thousand clients
must not keep a segment from being opened, nor ten thousand partitions a client from connecting.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass

RESERVED = 64
"""Descriptors for the loop, the store, logs of the process, pipes to helpers."""


PER_CONNECTION = 2
"""A connection to which parts of files are sent has a second one (``network.sending``)."""


@dataclass(frozen=True, slots=True)
class Descriptors:
    """The shares: ``log_files`` of all log directories together, ``connections`` of clients, of
    which each may need ``PER_CONNECTION``."""

    log_files: int
    connections: int


def share(limit: int) -> Descriptors:
    """Split a limit: a quarter for logs, the rest for connections, each with two."""
    usable = max(limit - RESERVED, 8)
    return Descriptors(usable // 4, (usable - usable // 4) // PER_CONNECTION)


def raise_limit() -> int:
    """Raise this process's soft limit to its hard limit; return the limit that holds now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = max(soft, 1_048_576)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
