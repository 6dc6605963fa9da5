"""Requests made from their schemas, to be refused: each field has a value of its own."""

from __future__ import annotations

import uuid
from itertools import count
from typing import Any

from tidelog.model.api_keys import ApiKey
from tidelog.protocol import codec, messages
from tidelog.protocol.schema import Field, Message


def samples(api_key: ApiKey, version: int) -> dict[str, Any]:
    """Return requests of a version by what they are: full, and one that names no element."""
    message = codec.api_of(api_key).request
    return {name: _made(message, version, name) for name in ("full", "empty")}


def _made(message: Message, version: int, name: str) -> Any:
    classes = messages.classes_of(message)
    numbers = count(1)

    def struct(name_of_it: str, fields: list[Field]) -> Any:
        made = classes[name_of_it]()
        for field in fields:
            if version in field.versions:
                setattr(made, field.name, value(field))
        return made

    def value(field: Field) -> Any:
        if field.array:
            if name == "empty":
                return None if field.nullable and version in field.nullable else []
            return [single(field) for _ in range(2)]
        return single(field)

    def single(field: Field) -> Any:
        if field.type in message.structs:
            return struct(field.type, message.structs[field.type].fields)
        number = next(numbers)
        if field.type == "bool":
            return True
        if field.type == "uuid":
            return uuid.UUID(int=number)
        if field.type == "string":
            return f"{field.name}-{number}"
        if field.type in ("bytes", "records"):
            return b"bytes"
        return number

    return struct("", message.fields)
