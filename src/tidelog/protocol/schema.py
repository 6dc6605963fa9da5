"""The notation of the schema files and its parser: text -> a tree of fields.

Owns the notation; compiling it to code is ``compiler``, interpreting it ``reference``.

A file describes one API::

    api Fetch 1                       name and key
    versions 4-12 flexible 12+        versions that are served; the flexible ones
    struct Name                       a struct that several fields share
    request | response                the two messages

A field is ``name: type [versions] tag N = default``. ``[]T`` is an array, ``T?`` may be null (in
the versions that follow the mark, ``T?7+``; without any, in all). Versions are ``3``, ``3+`` or
``0-2``; without them a field has those of its parent. The fields of a nested struct follow it,
indented by four.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
}
"""Primitive types of a fixed size and their ``struct`` codes (big-endian)."""

VARIABLE = frozenset({"string", "bytes", "records", "uuid"})


@dataclass(frozen=True, slots=True)
class Versions:
    """A closed range of versions; ``last`` is None when it is open."""

    first: int
    last: int | None

    def __contains__(self, version: int) -> bool:
        return version >= self.first and (self.last is None or version <= self.last)


@dataclass(frozen=True, slots=True)
class Field:
    """One field: ``type`` is a primitive's name or a struct's."""

    name: str
    type: str
    array: bool
    versions: Versions
    nullable: Versions | None
    tag: int | None
    default: str | None


@dataclass(slots=True)
class Struct:
    """A named list of fields."""

    name: str
    fields: list[Field] = field(default_factory=list)


@dataclass(slots=True)
class Message:
    """A request or a response: its fields and the structs they use, by name."""

    name: str
    fields: list[Field]
    structs: dict[str, Struct]


@dataclass(slots=True)
class Api:
    """One schema file."""

    name: str
    key: int
    versions: Versions
    flexible_from: int | None
    request: Message
    response: Message

    def is_flexible(self, version: int) -> bool:
        """Return whether ``version`` uses compact types and tagged fields (KIP-482)."""
        return self.flexible_from is not None and version >= self.flexible_from

    def all_versions(self) -> range:
        """Return every version that the schema describes."""
        assert self.versions.last is not None
        return range(self.versions.first, self.versions.last + 1)


class SchemaError(Exception):
    """A schema file that cannot be read: file, line and what is wrong."""


_FIELD = re.compile(
    r"(?P<name>[a-z_0-9]+): (?P<array>\[\])?(?P<type>\w+)(?P<null>\?(?P<nullv>\d+(?:\+|-\d+)?)?)?"
    r"(?: \[(?P<versions>\d+(?:\+|-\d+)?)\])?(?: tag (?P<tag>\d+))?(?: = (?P<default>\S+))?$"
)
_INDENT = 4


def parse_versions(text: str) -> Versions:
    """Parse ``3``, ``3+`` or ``0-2``."""
    if text.endswith("+"):
        return Versions(int(text[:-1]), None)
    first, _, last = text.partition("-")
    return Versions(int(first), int(last or first))


def parse(text: str, where: str = "schema") -> Api:
    """Parse one schema file's text. Raises SchemaError with the line's number."""
    head: dict[str, str] = {}
    shared: dict[str, Struct] = {}
    messages: dict[str, Message] = {}
    stack: list[list[Field]] = []
    structs: dict[str, Struct] = {}
    ranges: list[Versions] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("#", 1)[0].rstrip()
        if not line:
            continue
        words = line.split()
        depth = (len(line) - len(line.lstrip())) // _INDENT
        if depth == 0:
            if words[0] in ("api", "versions"):
                head[words[0]] = line
                continue
            fields: list[Field] = []
            if words[0] == "struct":
                shared[words[1]] = Struct(words[1], fields)
                structs = shared
            elif words[0] in ("request", "response"):
                structs = dict(shared)
                name = head["api"].split()[1] + words[0].capitalize()
                messages[words[0]] = Message(name, fields, structs)
            else:
                raise SchemaError(f"{where}:{number}: unknown section {words[0]!r}")
            stack, ranges = [fields], [Versions(0, None)]
            continue
        if depth > len(stack):
            raise SchemaError(f"{where}:{number}: indented too far")
        del stack[depth:], ranges[depth:]
        found = _parse_field(line.strip(), ranges[-1], f"{where}:{number}")
        stack[-1].append(found)
        if found.type not in FIXED and found.type not in VARIABLE:
            inner = structs.setdefault(found.type, Struct(found.type))
            stack.append(inner.fields)
            ranges.append(found.versions)
    return _assemble(head, messages, where)


def _parse_field(line: str, inherited: Versions, where: str) -> Field:
    match = _FIELD.match(line)
    if match is None:
        raise SchemaError(f"{where}: not a field: {line!r}")
    versions = parse_versions(match["versions"]) if match["versions"] else inherited
    nullable = None
    if match["null"]:
        nullable = parse_versions(match["nullv"]) if match["nullv"] else versions
    return Field(
        name=match["name"],
        type=match["type"],
        array=match["array"] is not None,
        versions=versions,
        nullable=nullable,
        tag=int(match["tag"]) if match["tag"] else None,
        default=match["default"],
    )


def _assemble(head: dict[str, str], messages: dict[str, Message], where: str) -> Api:
    _, name, key = head["api"].split()
    words = head["versions"].split()
    flexible = parse_versions(words[3]).first if len(words) > 2 else None
    for message in messages.values():
        for struct in message.structs.values():
            if not struct.fields:
                raise SchemaError(f"{where}: struct {struct.name} has no fields")
    return Api(
        name=name,
        key=int(key),
        versions=parse_versions(words[1]),
        flexible_from=flexible,
        request=messages["request"],
        response=messages["response"],
    )


def file_names() -> list[str]:
    """Return the sorted names of all schema files."""
    folder = resources.files("tidelog.protocol") / "schemas"
    return sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".txt"))


@cache
def load(file_name: str) -> Api:
    """Parse the schema file ``file_name``; each is read once."""
    path = resources.files("tidelog.protocol") / "schemas" / file_name
    return parse(path.read_text(), file_name)


def file_name_of(api_name: str) -> str:
    """Return the schema file of an API by its name (``ListOffsets`` -> ``list_offsets.txt``)."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", api_name).lower() + ".txt"
