"""The APIs that a broker serves: one module each, all loaded from this folder."""

from __future__ import annotations

import importlib
import pkgutil

from tidelog.network.router import Handler


def load() -> list[Handler]:
    """Return the ``HANDLER`` of every file here; AttributeError for a file that has none."""
    found = []
    for module in pkgutil.iter_modules(__path__):
        handler: Handler = importlib.import_module(f"{__name__}.{module.name}").HANDLER
        found.append(handler)
    return found
