"""Lazily loaded public names of a package: a module is imported when a name in it is first used.

Owns the look-up. Not the names: each package lists its own. A server imports ``tidelog`` as well,
and must not pay for the clients.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def loader(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package whose names live in these modules (PEP 562).

    It raises AttributeError for any other name.
    """

    def load(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(home), name)
        # The next use finds it without this function.
        setattr(sys.modules[package], name, found)
        return found

    return load
