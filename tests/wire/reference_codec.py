"""The slow, generic codec: reads and writes any message by walking its schema.

It shares the parsed schemas with the compiled codec and nothing else, so that each is a check of
the other. Only tests use it.
"""

from __future__ import annotations

import random
import struct
from typing import Any
from uuid import UUID

from tidelog.protocol import messages
from tidelog.protocol.schema import FIXED, Api, Field, Message
from tidelog.protocol.structs import default_of


class Writer:
    def __init__(self, message: Message, version: int, flexible: bool) -> None:
        self.message, self.version, self.flexible = message, version, flexible

    def varint(self, value: int) -> bytes:
        out = b""
        while value >= 0x80:
            out += bytes([value & 0x7F | 0x80])
            value >>= 7
        return out + bytes([value])

    def length(self, value: int, code: str) -> bytes:
        return self.varint(value + 1) if self.flexible else struct.pack(code, value)

    def fields(self, value: Any, fields: list[Field]) -> bytes:
        out = b""
        tags: list[tuple[int, bytes]] = []
        for field in fields:
            if self.version not in field.versions:
                continue
            item = getattr(value, field.name)
            if field.tag is None:
                out += self.value(field, item)
            elif item != default_of(field, self.message.structs):
                tags.append((field.tag, self.value(field, item)))
        if self.flexible:
            out += self.varint(len(tags))
            for tag, content in sorted(tags):
                out += self.varint(tag) + self.varint(len(content)) + content
        return out

    def value(self, field: Field, value: Any) -> bytes:
        if field.array:
            if value is None:
                return self.length(-1, ">i")
            return self.length(len(value), ">i") + b"".join(self.one(field, v) for v in value)
        return self.one(field, value)

    def one(self, field: Field, value: Any) -> bytes:
        kind = field.type
        if kind in FIXED:
            return struct.pack(">" + FIXED[kind], value)
        if kind == "uuid":
            return bytes(value.bytes)
        if kind in self.message.structs:
            if field.nullable is None or field.array or self.version not in field.nullable:
                return self.fields(value, self.message.structs[kind].fields)
            if value is None:
                return b"\xff"
            return b"\x01" + self.fields(value, self.message.structs[kind].fields)
        code = ">h" if kind == "string" else ">i"
        if value is None:
            return self.length(-1, code)
        content = value.encode() if kind == "string" else bytes(value)
        return self.length(len(content), code) + content


class Reader:
    def __init__(self, message: Message, version: int, flexible: bool, data: bytes) -> None:
        self.message, self.version, self.flexible = message, version, flexible
        self.data, self.position = data, 0
        self.classes = messages.classes_of(message)

    def take(self, size: int) -> bytes:
        content = self.data[self.position : self.position + size]
        if len(content) != size:
            raise ValueError("cut")
        self.position += size
        return content

    def varint(self) -> int:
        value = shift = 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def length(self, code: str) -> int:
        if self.flexible:
            return self.varint() - 1
        (value,) = struct.unpack(code, self.take(struct.calcsize(code)))
        return int(value)

    def struct(self, name: str, fields: list[Field]) -> Any:
        made = self.classes[name]()
        present = [f for f in fields if self.version in f.versions]
        for field in present:
            if field.tag is None:
                setattr(made, field.name, self.value(field))
        if self.flexible:
            by_tag = {f.tag: f for f in present if f.tag is not None}
            for _ in range(self.varint()):
                tag, size = self.varint(), self.varint()
                stop = self.position + size
                if tag in by_tag:
                    setattr(made, by_tag[tag].name, self.value(by_tag[tag]))
                self.position = stop
        return made

    def value(self, field: Field) -> Any:
        if field.array:
            count = self.length(">i")
            return None if count < 0 else [self.one(field) for _ in range(count)]
        return self.one(field)

    def one(self, field: Field) -> Any:
        kind = field.type
        if kind in FIXED:
            size = struct.calcsize(">" + FIXED[kind])
            return struct.unpack(">" + FIXED[kind], self.take(size))[0]
        if kind == "uuid":
            return UUID(bytes=self.take(16))
        if kind in self.message.structs:
            optional = field.nullable is not None and self.version in field.nullable
            if optional and not field.array and self.take(1) == b"\xff":
                return None
            return self.struct(kind, self.message.structs[kind].fields)
        size = self.length(">h" if kind == "string" else ">i")
        if size < 0:
            return None
        content = self.take(size)
        return content.decode() if kind == "string" else content


def encode(api: Api, message: Message, version: int, value: Any) -> bytes:
    """Return the body of ``value`` in ``version``."""
    return Writer(message, version, api.is_flexible(version)).fields(value, message.fields)


def decode(api: Api, message: Message, version: int, data: bytes) -> Any:
    """Read a whole body; ValueError when bytes are missing or left."""
    reader = Reader(message, version, api.is_flexible(version), data)
    made = reader.struct("", message.fields)
    if reader.position != len(data):
        raise ValueError("bytes are left")
    return made


RANGES = {
    "int8": 7,
    "int16": 15,
    "uint16": 16,
    "int32": 31,
    "uint32": 32,
    "int64": 63,
}


class Generator:
    """Random messages of a version: every field that it has, also null and at its bounds.

    ``tame`` keeps values to those that other libraries accept: known error codes, times that are
    not negative, no tags of our own.
    """

    def __init__(self, rng: random.Random, message: Message, version: int, tame: bool) -> None:
        self.rng, self.message, self.version, self.tame = rng, message, version, tame
        self.classes = messages.classes_of(message)

    def make(self) -> Any:
        return self.struct("", self.message.fields)

    def struct(self, name: str, fields: list[Field]) -> Any:
        made = self.classes[name]()
        for field in fields:
            if self.version not in field.versions:
                continue
            if field.tag is not None and (
                self.rng.random() < 0.3 or (self.tame and field.tag > 9999)
            ):
                continue
            setattr(made, field.name, self.value(field))
        return made

    def value(self, field: Field) -> Any:
        nullable = field.nullable is not None and self.version in field.nullable
        if nullable and self.rng.random() < 0.2:
            return None
        if field.array:
            return [self.one(field) for _ in range(self.rng.choice((0, 1, 1, 2, 5)))]
        return self.one(field)

    def one(self, field: Field) -> Any:
        kind, rng = field.type, self.rng
        if kind in RANGES:
            if self.tame and field.name == "error_code":
                return rng.choice((0, 1, 3, 6, 15, 27, 74, 83))
            if self.tame and (field.name.endswith("_ms") or "timestamp" in field.name):
                return rng.randrange(0, 2**30)
            bits = RANGES[kind]
            low = 0 if kind.startswith("u") else -(2**bits)
            return rng.choice((low, 0, 1, 2**bits - 1, rng.randrange(low, 2**bits)))
        if kind == "bool":
            return rng.random() < 0.5
        if kind == "float64":
            return rng.uniform(-1e9, 1e9)
        if kind == "uuid":
            return UUID(int=rng.getrandbits(128), version=4)
        if kind in self.message.structs:
            return self.struct(kind, self.message.structs[kind].fields)
        if kind == "string":
            return "".join(rng.choice("abcé-_.漢🙂") for _ in range(rng.choice((0, 1, 7, 150))))
        return rng.randbytes(rng.choice((0, 1, 100, 5000)))


def everything() -> list[tuple[Api, Message, int]]:
    """Return every (api, message, version) that there is."""
    from tidelog.protocol import schema

    return [
        (api, message, version)
        for api in map(schema.load, schema.file_names())
        for message in (api.request, api.response)
        for version in api.all_versions()
    ]
