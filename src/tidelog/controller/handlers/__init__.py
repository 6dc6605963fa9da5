"""The APIs that a controller serves: one handler per file.

Owns no list: the directory is the list, and the router derives the ApiVersions response from it.
Handlers import ``controller.controller``, never ``controller.process``.
"""

from __future__ import annotations

from tidelog.network.router import Handler, handlers_of

HANDLERS: tuple[Handler, ...] = tuple(handlers_of(__name__, __path__))
