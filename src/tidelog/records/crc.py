"""CRC-32C, from the library crc32c's compiled module.

Owns how that module is loaded: without the library's package. To know its own version the package
imports importlib.metadata, and with that email, zipfile and calendar: 2 MB, and a tenth of a
server's start. Where the module is not found the package is imported after all.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Any

PACKAGE = "crc32c"
MODULE = "crc32c._crc32c"


def _compiled() -> Any:
    package = find_spec(PACKAGE)
    places = None if package is None else package.submodule_search_locations
    spec = None if places is None else PathFinder.find_spec(MODULE, places)
    if spec is None or spec.loader is None:
        return __import__(PACKAGE)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


crc32c: Callable[..., int] = _compiled().crc32c
"""``crc32c(data, value=0)``: the checksum of bytes that follow others of that value."""
