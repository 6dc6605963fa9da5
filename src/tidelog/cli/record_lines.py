"""Lines of text <-> records, as the console tools of Kafka write and read them.

Owns the properties that say how (``parse.key``, ``print.key`` and so on) and both directions.
Pure. Names and defaults are those of kafka-console-producer and kafka-console-consumer.
"""

from __future__ import annotations

import base64
import codecs
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tidelog.cli.failures import WrongUsage
from tidelog.records.record import Header, Record


class NotARecord(ValueError):
    """A line that cannot be cut as the properties say: one clause."""


class ParsedLine(NamedTuple):
    """What a line holds."""

    key: bytes | None
    value: bytes | None
    headers: list[Header]


@dataclass(frozen=True, slots=True)
class LineFormat:
    """How ``produce`` cuts lines."""

    parse_key: bool = False
    key_separator: bytes = b"\t"
    parse_headers: bool = False
    headers_delimiter: bytes = b"\t"
    headers_separator: bytes = b","
    headers_key_separator: bytes = b":"
    null_marker: bytes | None = None
    ignore_errors: bool = False

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> LineFormat:
        """Read Kafka's names. Raises WrongUsage for an unknown one or an empty separator."""
        names = {
            "parse.key": "parse_key",
            "key.separator": "key_separator",
            "parse.headers": "parse_headers",
            "headers.delimiter": "headers_delimiter",
            "headers.separator": "headers_separator",
            "headers.key.separator": "headers_key_separator",
            "null.marker": "null_marker",
            "ignore.error": "ignore_errors",
        }
        return cls(**_values(properties, names))


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

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> RecordFormat:
        """Read Kafka's names. Raises WrongUsage for an unknown one."""
        names = {
            "print.timestamp": "print_timestamp",
            "print.partition": "print_partition",
            "print.offset": "print_offset",
            "print.epoch": "print_epoch",
            "print.headers": "print_headers",
            "print.key": "print_key",
            "print.value": "print_value",
            "key.separator": "key_separator",
            "line.separator": "line_separator",
            "headers.separator": "headers_separator",
            "null.literal": "null_literal",
        }
        return cls(**_values(properties, names))


def _values(properties: Mapping[str, str], names: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, text in properties.items():
        if name not in names:
            raise WrongUsage(f"the property {name!r} is unknown; known are {', '.join(names)}")
        if name.startswith(("parse.", "print.", "ignore.")):
            if text.lower() not in ("true", "false"):
                raise WrongUsage(f"{name} must be true or false, not {text!r}")
            found[names[name]] = text.lower() == "true"
        else:
            value = unescape(text)
            if not value and name.startswith(("key.sep", "headers.")):
                raise WrongUsage(f"{name} must not be empty")
            found[names[name]] = value
    return found


def unescape(text: str) -> bytes:
    r"""Return a separator as it is meant on a command line: ``\t``, ``\n``, ``\x01``."""
    if "\\" not in text:
        return text.encode()
    try:
        return codecs.decode(text, "unicode_escape").encode("latin-1")
    except UnicodeError:
        return text.encode()


def parse_line(line: bytes, form: LineFormat) -> ParsedLine:
    """Cut a line (without its end) into headers, key and value. Raises NotARecord."""
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


def _cut(text: bytes, separator: bytes, name: str) -> tuple[bytes, bytes]:
    before, found, after = text.partition(separator)
    if not found:
        raise NotARecord(f"there is no {name} ({separator.decode('utf-8', 'replace')!r}) in it")
    return before, after


def _or_null(content: bytes, form: LineFormat) -> bytes | None:
    return None if form.null_marker is not None and content == form.null_marker else content


def format_record(
    record: Record, partition: int, epoch: int, form: RecordFormat, *, append_time: bool
) -> bytes:
    """Return a record as kafka-console-consumer prints it, its line's end included."""
    pieces: list[bytes] = []
    if form.print_timestamp:
        kind = "LogAppendTime" if append_time else "CreateTime"
        known = record.timestamp >= 0
        pieces.append(f"{kind}:{record.timestamp}".encode() if known else b"NO_TIMESTAMP")
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
    """Return a record for ``--json``; bytes that are no UTF-8 become {"base64": …}."""
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
