"""The text format of records, as Kafka's console tools write and read it.

Owns its properties (``parse.key``, ``print.key`` and so on) and both directions. Pure. Names and
defaults are those of kafka-console-producer and kafka-console-consumer.
"""

from __future__ import annotations

import base64
import codecs
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from typing import Any, NamedTuple

from tidelog.cli.refusal import WrongUsage
from tidelog.model.topics import TopicPartition
from tidelog.records.builder import Columns
from tidelog.records.record import Header, Record


class NotARecord(ValueError):
    """A line that cannot be parsed with these properties; the text is one clause."""


class ParsedLine(NamedTuple):
    """The record in a line."""

    key: bytes | None
    value: bytes | None
    headers: list[Header]


@dataclass(frozen=True, slots=True)
class LineFormat:
    """How ``produce`` parses lines."""

    parse_key: bool = False
    key_separator: bytes = b"\t"
    parse_headers: bool = False
    headers_delimiter: bytes = b"\t"
    headers_separator: bytes = b","
    headers_key_separator: bytes = b":"
    null_marker: bytes | None = None
    ignore_error: bool = False

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> LineFormat:
        """Read Kafka's names. Raises WrongUsage for an unknown one or an empty separator."""
        return cls(**_values(properties, fields(cls)))


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """How ``consume`` prints records."""

    print_timestamp: bool = False
    print_partition: bool = False
    print_offset: bool = False
    print_epoch: bool = False
    print_headers: bool = False
    print_key: bool = False
    print_value: bool = True
    key_separator: bytes = b"\t"
    line_separator: bytes = b"\n"
    headers_separator: bytes = b","
    null_literal: bytes = b"null"
    template: tuple[bytes | str, ...] | None = None
    """Text (bytes) and fields (str) of ``--format``, which overrides the other properties."""

    @property
    def only_values(self) -> bool:
        """Whether a record is printed as its value and nothing else."""
        return (
            self.template is None
            and self.print_value
            and not (
                self.print_timestamp
                or self.print_partition
                or self.print_offset
                or self.print_epoch
                or self.print_headers
                or self.print_key
            )
        )

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> RecordFormat:
        """Read Kafka's names. Raises WrongUsage for an unknown one."""
        # The template is of --format alone.
        named = [field for field in fields(cls) if field.name != "template"]
        return cls(**_values(properties, named))


def _values(properties: Mapping[str, str], named: Iterable[Field[Any]]) -> dict[str, Any]:
    """Return the values of Kafka's properties, which are named as the fields, with dots."""
    names = {field.name.replace("_", "."): field.name for field in named}
    values: dict[str, Any] = {}
    for name, text in properties.items():
        if name not in names:
            raise WrongUsage(f"the property {name!r} is unknown; use one of {', '.join(names)}")
        if name.startswith(("parse.", "print.", "ignore.")):
            if text.lower() not in ("true", "false"):
                raise WrongUsage(f"{name} must be true or false, not {text!r}")
            values[names[name]] = text.lower() == "true"
        else:
            value = unescape(text)
            if not value and name.startswith(("key.sep", "headers.")):
                raise WrongUsage(f"{name} must not be empty")
            values[names[name]] = value
    return values


def unescape(text: str) -> bytes:
    r"""Return a separator as it is meant on a command line: ``\t``, ``\n``, ``\x01``."""
    if "\\" not in text:
        return text.encode()
    try:
        return codecs.decode(text, "unicode_escape").encode("latin-1")
    except UnicodeError:
        return text.encode()


def parse_line(line: bytes, form: LineFormat) -> ParsedLine:
    """Parse a line (without its end) into headers, key and value. Raises NotARecord."""
    headers: list[Header] = []
    rest = line
    if form.parse_headers:
        text, rest = _cut(rest, form.headers_delimiter, "headers.delimiter")
        for piece in text.split(form.headers_separator) if text else ():
            name, content = _cut(piece, form.headers_key_separator, "headers.key.separator")
            headers.append((name.decode("utf-8", "replace"), _or_null(content, form)))
    key = None
    if form.parse_key:
        text, rest = _cut(rest, form.key_separator, "key.separator")
        key = _or_null(text, form)
    return ParsedLine(key, _or_null(rest, form), headers)


class ParsedLines(NamedTuple):
    """The records in lines, as columns, and (index, reason) of each line that is not a record."""

    records: Columns
    bad: list[tuple[int, NotARecord]]


def parse_lines(lines: Sequence[bytes], form: LineFormat) -> ParsedLines:
    """Parse lines into columns, up to the first bad one; with ``ignore.error`` skip bad ones."""
    if not form.parse_headers and not form.parse_key and form.null_marker is None:
        return ParsedLines(Columns(lines), [])
    bad: list[tuple[int, NotARecord]] = []
    if form.parse_key and not form.parse_headers and form.null_marker is None:
        cut = [line.partition(form.key_separator) for line in lines]
        if all(separator for _, separator, _ in cut):
            return ParsedLines(Columns([line[2] for line in cut], [line[0] for line in cut]), bad)
    parsed: list[ParsedLine] = []
    for index, line in enumerate(lines):
        try:
            parsed.append(parse_line(line, form))
        except NotARecord as error:
            bad.append((index, error))
            if not form.ignore_error:
                break
    return ParsedLines(
        Columns(
            [line.value for line in parsed],
            [line.key for line in parsed] if form.parse_key else None,
            [line.headers for line in parsed] if form.parse_headers else None,
        ),
        bad,
    )


def one_by_one(records: Columns) -> Iterator[Columns]:
    """Yield each record as columns of its own."""
    values, keys, headers = records
    for index in range(len(values)):
        yield Columns(
            values[index : index + 1],
            keys and keys[index : index + 1],
            headers and headers[index : index + 1],
        )


def _cut(text: bytes, separator: bytes, name: str) -> tuple[bytes, bytes]:
    before, sign, after = text.partition(separator)
    if not sign:
        raise NotARecord(f"it has no {name} ({separator.decode('utf-8', 'replace')!r})")
    return before, after


def _or_null(content: bytes, form: LineFormat) -> bytes | None:
    return None if form.null_marker is not None and content == form.null_marker else content


FIELDS = "tpoTksKSh"
"""The letters after % in ``--format``; %% is a percent sign."""


def parse_template(text: str) -> tuple[bytes | str, ...]:
    """Parse ``--format`` into text and fields. Raises WrongUsage for an unknown field."""
    parts: list[bytes | str] = []
    before, *pieces = re.split(r"%(.|\Z)", text, flags=re.DOTALL)
    literal = before
    for field, after in zip(pieces[::2], pieces[1::2], strict=True):
        if field == "%":
            literal += "%" + after
            continue
        if not field or field not in FIELDS:
            names = ", ".join(f"%{letter}" for letter in FIELDS)
            raise WrongUsage(f"--format has no field '%{field}': use {names} or %%")
        parts += [unescape(literal), field]
        literal = after
    return tuple(piece for piece in [*parts, unescape(literal)] if piece)


def fill_template(form: RecordFormat, record: Record, tp: TopicPartition) -> bytes:
    """Format a record with ``--format``; no line end is added."""
    null = form.null_literal
    values: dict[str, Callable[[], bytes]] = {
        "t": tp.topic.encode,
        "p": lambda: b"%d" % tp.partition,
        "o": lambda: b"%d" % record.offset,
        "T": lambda: b"%d" % record.timestamp,
        "k": lambda: null if record.key is None else record.key,
        "s": lambda: null if record.value is None else record.value,
        "K": lambda: b"%d" % (-1 if record.key is None else len(record.key)),
        "S": lambda: b"%d" % (-1 if record.value is None else len(record.value)),
        "h": lambda: form.headers_separator.join(
            name.encode() + b"=" + (null if content is None else content)
            for name, content in record.headers
        ),
    }
    pieces = form.template or ()
    return b"".join(values[piece]() if isinstance(piece, str) else piece for piece in pieces)


def format_values(values: list[bytes | None], form: RecordFormat) -> bytes:
    """Format records of which only the values are printed, as ``format_record`` does."""
    if not values:
        return b""
    end = form.line_separator
    if None in values:
        return b"".join((form.null_literal if value is None else value) + end for value in values)
    return end.join(values) + end  # type: ignore[arg-type]


def format_record(
    record: Record, partition: int, epoch: int, form: RecordFormat, *, append_time: bool
) -> bytes:
    """Return a record as kafka-console-consumer prints it, its line's end included."""
    pieces: list[bytes] = []
    if form.print_timestamp:
        kind = "LogAppendTime" if append_time else "CreateTime"
        has_time = record.timestamp >= 0
        pieces.append(f"{kind}:{record.timestamp}".encode() if has_time else b"NO_TIMESTAMP")
    if form.print_partition:
        pieces.append(b"Partition:%d" % partition)
    if form.print_offset:
        pieces.append(b"Offset:%d" % record.offset)
    if form.print_epoch:
        pieces.append(b"Epoch:%d" % epoch)
    if form.print_headers:
        shown = (
            name.encode() + b":" + (form.null_literal if content is None else content)
            for name, content in record.headers
        )
        pieces.append(form.headers_separator.join(shown) if record.headers else b"NO_HEADERS")
    if form.print_key:
        pieces.append(form.null_literal if record.key is None else record.key)
    if form.print_value:
        pieces.append(form.null_literal if record.value is None else record.value)
    return form.key_separator.join(pieces) + form.line_separator


def record_as_json(record: Record, topic: str, partition: int) -> dict[str, Any]:
    """Return a record for ``--json``; bytes that are not UTF-8 become {"base64": …}."""
    return {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [[name, _text(content)] for name, content in record.headers],
    }


def _text(content: bytes | None) -> Any:
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}
