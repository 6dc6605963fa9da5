"""The messages as classes: ``messages.FetchRequest``; nested: ``messages.FetchRequest.FetchTopic``.

Classes are made from the schema files on first use. ``python -m tidelog.protocol.stubs`` writes
the type stub that mypy and editors read (``make check`` does; it is not committed).
"""

from __future__ import annotations

from typing import Any

from tidelog.protocol import schema, structs

_made: dict[str, dict[str, type[Any]]] = {}


def classes_of(message: schema.Message) -> dict[str, type[Any]]:
    """Return the classes of one message: its own under "", nested ones under their names."""
    found = _made.get(message.name)
    if found is None:
        found = _made[message.name] = structs.build(message)
    return found


def __getattr__(name: str) -> Any:
    for suffix in ("Request", "Response"):
        if name.endswith(suffix):
            try:
                api = schema.load(schema.file_name_of(name.removesuffix(suffix)))
            except FileNotFoundError:
                break
            message = api.request if suffix == "Request" else api.response
            made = globals()[name] = classes_of(message)[""]
            return made
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
