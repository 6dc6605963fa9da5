"""Compiler of a message in one version to straight-line Python, on first use.

Owns the shape of the generated code: fixed-size neighbours are read and written by one ``struct``
call, nested arrays become nested loops in the same function. Not what all generated codecs call:
see `primitives`; not the slow codec that checks this one: see `reference`. Cost: some milliseconds
once per message and version; after that each field costs one or two bytecodes.
"""

from __future__ import annotations

import struct as _struct
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from tidelog.protocol import primitives
from tidelog.protocol.primitives import Buffer
from tidelog.protocol.schema import FIXED, Field, Message, Struct
from tidelog.protocol.structs import default_of

Decoder = Callable[[memoryview, int], tuple[Any, int]]
"""(frame, position) -> (message, position after it)."""

Encoder = Callable[[Any, list[Buffer], bytearray], bytearray]
"""(message, chunks, current buffer) -> current buffer; full buffers are appended to chunks."""


"""A decoder or encoder that yields 0 every ``STEP`` elements and returns what the other returns."""

STEP = 64
"""Elements between two yields: a tenth of a millisecond, or some ms where tags are added."""


class Joined(NamedTuple):
    """An array of structs that are encoded already, in place of a list of them."""

    length: int
    parts: Sequence[Buffer]


class _Code:
    """Lines of a function being generated, and the names it uses."""

    def __init__(self, message: Message, version: int, flexible: bool) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {
            "UUID": UUID,
            "bad": _bad,
            "too_many": primitives.TooManyElements,
            "uv": primitives.read_uvarint,
            "uvb": primitives.uvarint,
            "skip_tags": primitives.skip_tags,
            "write_tags": primitives.write_tags,
            "put_records": primitives.put_records,
            "records_size": primitives.records_size,
            "Joined": Joined,
            "unpack_from": _struct.unpack_from,
            "pack": _struct.pack,
        }
        self.message = message
        self.version = version
        self.flexible = flexible
        self.in_steps = False
        self.joined: Collection[str] = ()
        self.allowed = primitives.MAX_ELEMENTS
        self.numbers = 1
        self._count = 0

    def begin_steps(self) -> None:
        """Make the function a generator."""
        self.in_steps = True
        self.put(1, f"left = {STEP}")
        self.put(1, "if not left: yield 0")

    def step(self, depth: int) -> None:
        """Emit the yield to the event loop, at the start of each round of a loop."""
        if self.in_steps:
            self.put(depth, "left -= 1")
            self.put(depth, "if not left:")
            self.put(depth + 1, f"left = {STEP}")
            self.put(depth + 1, "yield 0")

    def spend(self, depth: int, count: str, each: int) -> None:
        """Emit the subtraction of elements from those that the message may still have."""
        self.put(depth, f"budget -= {count} * {each}" if each > 1 else f"budget -= {count}")

    def fresh(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def put(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def fixed(self, codes: str, method: str) -> tuple[str, int]:
        """Name a bound method of ``struct.Struct('>' + codes)``; (name, size in bytes)."""
        made = _struct.Struct(">" + codes)
        name = {"unpack_from": "U_", "pack": "P_"}[method] + codes.replace("?", "t")
        self.names[name] = getattr(made, method)
        return name, made.size

    def present(self, fields: list[Field], *, tagged: bool) -> list[Field]:
        """Return the fields of this version, in order (tagged ones by tag)."""
        found = [f for f in fields if self.version in f.versions and (f.tag is not None) == tagged]
        return sorted(found, key=lambda f: f.tag or 0) if tagged else found

    def nullable(self, field: Field) -> bool:
        return field.nullable is not None and self.version in field.nullable

    def struct(self, name: str) -> Struct:
        return self.message.structs[name]

    def default(self, field: Field) -> str:
        """Return an expression of the field's default; immutable ones become names."""
        value = default_of(field, self.message.structs)
        if isinstance(value, list):
            return "[]"
        if value is None or isinstance(value, (bool, int, float, str, bytes)):
            return repr(value)
        name = f"D_{field.name}"
        self.names[name] = value
        return name

    def compile(self, name: str) -> Any:
        source = "\n".join(self.lines)
        exec(compile(source, f"<{self.message.name} v{self.version} {name}>", "exec"), self.names)
        return self.names[name]


def _bad(what: str) -> primitives.DecodeError:
    return primitives.DecodeError(what)


def decoder(
    message: Message,
    classes: dict[str, type[Any]],
    version: int,
    flexible: bool,
    most: int | None = None,
    numbers: int = 1,
    *,
    in_steps: bool = False,
) -> Decoder:
    """Generate the decoder of ``message`` in ``version``; ``in_steps``: one that returns ``Work``.

    ``most``: elements of arrays and unknown tags that one message may have; so many ``numbers`` of
    an array count as one.
    """
    code = _Code(message, version, flexible)
    for name, made in classes.items():
        code.names[f"C_{name}"] = made
    code.put(0, "def decode(b, p):")
    code.put(1, "end = len(b)")
    allowed = primitives.MAX_ELEMENTS if most is None else min(most, primitives.MAX_ELEMENTS)
    # In numbers: so an array of three costs less than an element, and is not free.
    code.put(1, f"budget = {allowed * numbers}")
    code.allowed, code.numbers = allowed, numbers
    if in_steps:
        code.begin_steps()
    result = _decode_struct(code, 1, "", message.fields)
    code.put(1, f"return {result}, p")
    made_decoder: Decoder = code.compile("decode")
    return made_decoder


def _decode_struct(code: _Code, depth: int, class_name: str, fields: list[Field]) -> str:
    """Emit the reading of a struct; return the name of the variable that holds it."""
    values: dict[str, str] = {}
    run: list[tuple[Field, str]] = []

    def flush() -> None:
        if not run:
            return
        name, size = code.fixed("".join(FIXED[f.type] for f, _ in run), "unpack_from")
        code.put(depth, ", ".join(v for _, v in run) + f", = {name}(b, p); p += {size}")
        run.clear()

    for field in code.present(fields, tagged=False):
        value = code.fresh("v")
        values[field.name] = value
        if field.type in FIXED and not field.array:
            run.append((field, value))
            continue
        flush()
        _decode_value(code, depth, field, value)
    flush()
    if code.flexible:
        _decode_tags(code, depth, fields, values)
    result = code.fresh("s")
    arguments = ", ".join(values.get(f.name) or code.default(f) for f in fields)
    code.put(depth, f"{result} = C_{class_name}({arguments})")
    return result


def _decode_length(code: _Code, depth: int, variable: str, classic: str) -> None:
    if code.flexible:
        code.put(depth, f"{variable} = b[p]; p += 1")
        code.put(depth, f"if {variable} > 127: {variable}, p = uv(b, p, {variable})")
        code.put(depth, f"{variable} -= 1")
    else:
        name, size = code.fixed(classic, "unpack_from")
        code.put(depth, f"{variable}, = {name}(b, p); p += {size}")


def _decode_null(code: _Code, depth: int, field: Field, length: str, value: str) -> int:
    """Emit the null check; return the depth at which the value itself is read."""
    if code.nullable(field):
        code.put(depth, f"if {length} < 0:")
        code.put(depth + 1, f"if {length} != -1: raise bad('{field.name}: a negative length')")
        code.put(depth + 1, f"{value} = None")
        code.put(depth, "else:")
        return depth + 1
    code.put(depth, f"if {length} < 0: raise bad('{field.name} must not be null')")
    return depth


def _decode_value(code: _Code, depth: int, field: Field, value: str) -> None:
    if field.array:
        _decode_array(code, depth, field, value)
    elif field.type in FIXED:
        name, size = code.fixed(FIXED[field.type], "unpack_from")
        code.put(depth, f"{value}, = {name}(b, p); p += {size}")
    elif field.type == "uuid":
        code.put(depth, "if p + 16 > end: raise bad('the message is cut')")
        code.put(depth, f"{value} = UUID(bytes=bytes(b[p:p + 16])); p += 16")
    elif field.type in code.message.structs:
        depth = _decode_presence(code, depth, field, value)
        inner = _decode_struct(code, depth, field.type, code.struct(field.type).fields)
        code.put(depth, f"{value} = {inner}")
    else:
        length = code.fresh("n")
        _decode_length(code, depth, length, "h" if field.type == "string" else "i")
        depth = _decode_null(code, depth, field, length, value)
        stop = code.fresh("q")
        code.put(depth, f"{stop} = p + {length}")
        code.put(depth, f"if {stop} > end: raise bad('{field.name} ends after the message')")
        read = {
            "string": f"str(b[p:{stop}], 'utf-8')",
            "bytes": f"bytes(b[p:{stop}])",
            "records": f"b[p:{stop}]",
        }[field.type]
        code.put(depth, f"{value} = {read}; p = {stop}")


def _decode_presence(code: _Code, depth: int, field: Field, value: str) -> int:
    """Emit the byte before a struct that may be null; return the depth at which it is read."""
    if not code.nullable(field):
        return depth
    name, size = code.fixed("b", "unpack_from")
    there = code.fresh("n")
    code.put(depth, f"{there}, = {name}(b, p); p += {size}")
    code.put(depth, f"if {there} not in (-1, 1): raise bad('{field.name}: neither null nor there')")
    code.put(depth, f"if {there} < 0: {value} = None")
    code.put(depth, "else:")
    return depth + 1


def _decode_array(code: _Code, depth: int, field: Field, value: str) -> None:
    length = code.fresh("n")
    _decode_length(code, depth, length, "i")
    depth = _decode_null(code, depth, field, length, value)
    least = _least_size(code, field, set())
    code.put(
        depth, f"if {length} * {least} > end - p: raise bad('{field.name}: too many elements')"
    )
    code.spend(depth, length, 1 if field.type in FIXED else code.numbers)
    many = f"{field.name}: more than {code.allowed} elements in one message"
    code.put(depth, f"if budget < 0: raise too_many('{many}')")
    if field.type in FIXED:
        _, size = code.fixed(FIXED[field.type], "unpack_from")
        codes = FIXED[field.type]
        code.put(depth, f"{value} = list(unpack_from(f'>{{{length}}}{codes}', b, p))")
        code.put(depth, f"p += {length} * {size}")
        return
    code.put(depth, f"{value} = []")
    code.put(depth, f"for _ in range({length}):")
    code.step(depth + 1)
    if field.type in code.message.structs:
        inner = _decode_struct(code, depth + 1, field.type, code.struct(field.type).fields)
    else:
        inner = code.fresh("v")
        _decode_value(code, depth + 1, _element(field), inner)
    code.put(depth + 1, f"{value}.append({inner})")


def _element(field: Field) -> Field:
    return Field(field.name, field.type, False, field.versions, None, None, None)


def _decode_tags(code: _Code, depth: int, fields: list[Field], values: dict[str, str]) -> None:
    known = code.present(fields, tagged=True)
    count = code.fresh("n")
    for field in known:
        values[field.name] = code.fresh("v")
        code.put(depth, f"{values[field.name]} = {code.default(field)}")
    code.put(depth, f"{count} = b[p]; p += 1")
    code.put(depth, f"if {count}:")
    code.put(depth + 1, f"if {count} > 127: {count}, p = uv(b, p, {count})")
    code.spend(depth + 1, count, code.numbers)
    many = f"more than {code.allowed} tagged fields and elements in one message"
    code.put(depth + 1, f"if budget < 0: raise too_many('{many}')")
    if not known:
        code.put(depth + 1, f"p = skip_tags(b, p, {count}, end)")
        return
    tag, size, stop = code.fresh("t"), code.fresh("z"), code.fresh("q")
    code.put(depth + 1, f"if {count} > {primitives.MAX_TAGS}: raise bad('too many tagged fields')")
    code.put(depth + 1, f"for _ in range({count}):")
    inside = depth + 2
    for variable in (tag, size):
        code.put(inside, f"{variable} = b[p]; p += 1")
        code.put(inside, f"if {variable} > 127: {variable}, p = uv(b, p, {variable})")
    code.put(inside, f"{stop} = p + {size}")
    code.put(inside, f"if {stop} > end: raise bad('a tagged field ends after the message')")
    for number, field in enumerate(known):
        code.put(inside, f"{'el' if number else ''}if {tag} == {field.tag}:")
        _decode_value(code, inside + 1, field, values[field.name])
        code.put(inside + 1, f"if p != {stop}: raise bad('{field.name}: wrong size of a tag')")
    code.put(inside, f"p = {stop}")


def _least_size(code: _Code, field: Field, seen: set[str]) -> int:
    """Return the fewest bytes that one element of an array can have; at least 1."""
    if field.type in FIXED:
        return _struct.calcsize(">" + FIXED[field.type])
    if field.type == "uuid":
        return 16
    if field.type not in code.message.structs:
        if code.flexible:
            return 1
        return 2 if field.type == "string" else 4
    if code.nullable(field) and not field.array:
        return 1
    total = 1 if code.flexible else 0
    for inner in code.present(code.struct(field.type).fields, tagged=False):
        if inner.array:
            total += 1 if code.flexible else 4
        else:
            total += _least_size(code, inner, seen)
    return max(total, 1)


def encoder(
    message: Message,
    version: int,
    flexible: bool,
    *,
    in_steps: bool = False,
    element: str | None = None,
    joined: Collection[str] = (),
) -> Encoder:
    """Generate the encoder of ``message`` in ``version``; ``in_steps``: it returns ``Work``.

    ``element``: of one struct of it alone. Arrays of the ``joined`` structs may be ``Joined``.
    """
    code = _Code(message, version, flexible)
    code.joined = joined
    code.put(0, "def encode(m, chunks, w):")
    if in_steps:
        code.begin_steps()
    fields = message.fields if element is None else code.struct(element).fields
    _encode_struct(code, 1, "m", fields, "w")
    code.put(1, "return w")
    made: Encoder = code.compile("encode")
    return made


def _encode_struct(code: _Code, depth: int, source: str, fields: list[Field], out: str) -> None:
    run: list[Field] = []

    def flush() -> None:
        if not run:
            return
        name, _ = code.fixed("".join(FIXED[f.type] for f in run), "pack")
        code.put(depth, f"{out} += {name}({', '.join(f'{source}.{f.name}' for f in run)})")
        run.clear()

    for field in code.present(fields, tagged=False):
        if field.type in FIXED and not field.array:
            run.append(field)
            continue
        flush()
        _encode_value(code, depth, field, f"{source}.{field.name}", out)
    flush()
    if code.flexible:
        _encode_tags(code, depth, source, fields, out)


def _encode_length(code: _Code, depth: int, expression: str, classic: str, out: str) -> None:
    if code.flexible and expression == "-1":
        code.put(depth, f"{out}.append(0)")
    elif code.flexible:
        # Most lengths fit one byte: no call then.
        length = code.fresh("n")
        code.put(depth, f"{length} = {expression} + 1")
        code.put(depth, f"if {length} < 128: {out}.append({length})")
        code.put(depth, f"else: {out} += uvb({length})")
    else:
        name, _ = code.fixed(classic, "pack")
        code.put(depth, f"{out} += {name}({expression})")


def _encode_value(code: _Code, depth: int, field: Field, source: str, out: str) -> None:
    if not field.array and field.type in FIXED:
        name, _ = code.fixed(FIXED[field.type], "pack")
        code.put(depth, f"{out} += {name}({source})")
        return
    if not field.array and field.type == "uuid":
        code.put(depth, f"{out} += {source}.bytes")
        return
    if not field.array and field.type in code.message.structs:
        value = code.fresh("x")
        code.put(depth, f"{value} = {source}")
        if code.nullable(field):
            code.put(depth, f"if {value} is None: {out}.append(255)")
            code.put(depth, "else:")
            depth += 1
            code.put(depth, f"{out}.append(1)")
        _encode_struct(code, depth, value, code.struct(field.type).fields, out)
        return
    value = code.fresh("x")
    code.put(depth, f"{value} = {source}")
    classic = "h" if field.type == "string" and not field.array else "i"
    if code.nullable(field):
        code.put(depth, f"if {value} is None:")
        _encode_length(code, depth + 1, "-1", classic, out)
        code.put(depth, "else:")
        depth += 1
    if field.array:
        _encode_array(code, depth, field, value, out)
    elif field.type == "string":
        code.put(depth, f"{value} = {value}.encode()")
        _encode_length(code, depth, f"len({value})", "h", out)
        code.put(depth, f"{out} += {value}")
    elif field.type == "bytes":
        _encode_length(code, depth, f"len({value})", "i", out)
        code.put(depth, f"{out} += {value}")
    else:
        _encode_length(code, depth, f"records_size({value})", "i", out)
        code.put(depth, f"{out} = put_records(chunks, {out}, {value})")


def _encode_array(code: _Code, depth: int, field: Field, value: str, out: str) -> None:
    if field.type in code.joined:
        code.put(depth, f"if {value}.__class__ is Joined:")
        _encode_length(code, depth + 1, f"{value}.length", "i", out)
        code.put(depth + 1, f"{out} += b''.join({value}.parts)")
        code.put(depth, "else:")
        depth += 1
    _encode_length(code, depth, f"len({value})", "i", out)
    if field.type in FIXED:
        codes = FIXED[field.type]
        code.put(depth, f"if {value}: {out} += pack(f'>{{len({value})}}{codes}', *{value})")
        return
    item = code.fresh("e")
    code.put(depth, f"for {item} in {value}:")
    code.step(depth + 1)
    if field.type in code.message.structs:
        _encode_struct(code, depth + 1, item, code.struct(field.type).fields, out)
    else:
        _encode_value(code, depth + 1, _element(field), item, out)


def _encode_tags(code: _Code, depth: int, source: str, fields: list[Field], out: str) -> None:
    known = code.present(fields, tagged=True)
    if not known:
        code.put(depth, f"{out}.append(0)")
        return
    tags, content = code.fresh("t"), code.fresh("w")
    code.put(depth, f"{tags} = None")
    for field in known:
        value = code.fresh("x")
        code.put(depth, f"{value} = {source}.{field.name}")
        if field.array:
            test = f"{value} is not None" if code.nullable(field) else value
        elif default_of(field, code.message.structs) is None:
            test = f"{value} is not None"
        else:
            test = f"{value} != {code.default(field)}"
        code.put(depth, f"if {test}:")
        code.put(depth + 1, f"if {tags} is None: {tags} = []")
        code.put(depth + 1, f"{content} = bytearray()")
        _encode_value(code, depth + 1, field, value, content)
        code.put(depth + 1, f"{tags}.append(({field.tag}, {content}))")
    code.put(depth, f"if {tags} is None: {out}.append(0)")
    code.put(depth, f"else: {out} += write_tags({tags})")
