"""One ``msgspec.Struct`` class per message and nested struct: the union of all its versions.

Owns the classes and the defaults. Not their encoding: see `compiler`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tidelog.protocol.primitives import NO_UUID
from tidelog.protocol.schema import FIXED, Field, Message, Struct


def default_of(field: Field, structs: dict[str, Struct]) -> Any:
    """Return the value of a field that a version does not carry. A fresh list for arrays."""
    if field.default == "null":
        return None
    if field.array:
        return []
    if field.type in structs:
        return None
    if field.default is not None:
        return _parse_default(field)
    zeros: dict[str, Any] = {
        "bool": False,
        "string": "",
        "bytes": b"",
        "records": b"",
        "uuid": NO_UUID,
        "float64": 0.0,
    }
    return zeros.get(field.type, 0)


def _parse_default(field: Field) -> Any:
    text = field.default
    assert text is not None
    if field.type == "bool":
        return text == "true"
    if field.type == "string":
        return text
    return float(text) if field.type == "float64" else int(text, 0)


def build(message: Message) -> dict[str, type[Any]]:
    """Make the classes of one message: its own under "", the nested ones under their names."""
    made: dict[str, type[Any]] = {}
    for struct in message.structs.values():
        made[struct.name] = _define(struct.name, struct.fields, message)
    made[""] = _define(message.name, message.fields, message, dict(made))
    return made


def _define(
    name: str, fields: list[Field], message: Message, nested: dict[str, Any] | None = None
) -> type[Any]:
    members: list[tuple[str, Any, Any]] = []
    for item in fields:
        default = default_of(item, message.structs)
        if isinstance(default, list):
            default = msgspec.field(default_factory=list)
        members.append((item.name, Any, default))
    made = msgspec.defstruct(
        name, members, gc=False, module="tidelog.protocol.messages", namespace=nested
    )
    if nested:
        for inner in nested.values():
            inner.__qualname__ = f"{name}.{inner.__name__}"
    return made


_STUB_TYPES = {
    "bool": "bool",
    "string": "str",
    "bytes": "Buffer",
    "records": "Records",
    "uuid": "UUID",
    "float64": "float",
}


def stub(message: Message) -> str:
    """Return the type stub of one message's classes, for mypy and editors."""
    lines = [f"class {message.name}(Struct):"]
    for struct in message.structs.values():
        lines += ["    " + line for line in _stub_class(struct.name, struct.fields, message)]
    lines += ["    " + line for line in _stub_init(message.fields, message)]
    return "\n".join(lines) + "\n\n"


def _stub_class(name: str, fields: list[Field], message: Message) -> list[str]:
    return [f"class {name}(Struct):", *("    " + line for line in _stub_init(fields, message))]


def _stub_init(fields: list[Field], message: Message) -> list[str]:
    lines: list[str] = []
    arguments: list[str] = []
    for item in fields:
        annotation = _STUB_TYPES.get(item.type, "int" if item.type in FIXED else "")
        annotation = annotation or f"{message.name}.{item.type}"
        if item.array:
            annotation = f"list[{annotation}]"
        if default_of(item, message.structs) is None or item.nullable is not None:
            annotation += " | None"
        lines.append(f"{item.name}: {annotation}")
        arguments.append(f"{item.name}: {annotation} = ...")
    signature = ", ".join(["self", *arguments])
    lines.append(f"def __init__({signature}) -> None: ...")
    return lines
