"""The APIs that a broker serves: one handler per file, and those that it forwards.

Owns no list: the directory is the list, and the router derives the ApiVersions response from it.
"""

from __future__ import annotations

from tidelog.broker.control_plane.forwarding import forwarded
from tidelog.network.forwarded import FORWARDED
from tidelog.network.router import Handler, handlers_of

HANDLERS: tuple[Handler, ...] = (
    *handlers_of(__name__, __path__),
    *(forwarded(key) for key, row in FORWARDED.items() if row.is_whole),
)
