"""Lines into records and back, by the properties of Kafka's console tools."""

from __future__ import annotations

import pytest

from tidelog.cli.failures import WrongUsage
from tidelog.cli.record_lines import (
    LineFormat,
    NotARecord,
    ParsedLine,
    RecordFormat,
    format_record,
    parse_line,
    record_as_json,
    unescape,
)
from tidelog.records.record import Record


def lines(**properties: str) -> LineFormat:
    return LineFormat.from_properties(
        {name.replace("__", "_").replace("_", "."): value for name, value in properties.items()}
    )


@pytest.mark.parametrize(
    ("form", "line", "parsed"),
    [
        (lines(), b"a\tb", ParsedLine(None, b"a\tb", [])),
        (lines(), b"", ParsedLine(None, b"", [])),
        (lines(parse_key="true"), b"k\tv\tw", ParsedLine(b"k", b"v\tw", [])),
        (lines(parse_key="true", key_separator="::"), b"k::v", ParsedLine(b"k", b"v", [])),
        (
            lines(parse_key="true", parse_headers="true"),
            b"a:1,b:\tk\tv",
            ParsedLine(b"k", b"v", [("a", b"1"), ("b", b"")]),
        ),
        (lines(parse_headers="true"), b"\tv", ParsedLine(None, b"v", [])),
        (
            lines(parse_key="true", null_marker="NULL"),
            b"NULL\tNULL",
            ParsedLine(None, None, []),
        ),
    ],
)
def test_lines(form: LineFormat, line: bytes, parsed: ParsedLine) -> None:
    assert parse_line(line, form) == parsed


def test_a_line_without_its_separator_is_no_record() -> None:
    with pytest.raises(NotARecord, match=r"key\.separator"):
        parse_line(b"no key", lines(parse_key="true"))
    with pytest.raises(NotARecord, match=r"headers\.delimiter"):
        parse_line(b"no headers", lines(parse_headers="true"))


@pytest.mark.parametrize(
    "properties",
    [{"parse.keys": "true"}, {"parse.key": "yes"}, {"key.separator": ""}],
)
def test_wrong_properties(properties: dict[str, str]) -> None:
    with pytest.raises(WrongUsage):
        LineFormat.from_properties(properties)


def test_separators_from_a_command_line() -> None:
    assert unescape(r"\t") == b"\t"
    assert unescape(r"\x01") == b"\x01"
    assert unescape("ü") == "ü".encode()
    assert unescape("|") == b"|"


RECORD = Record(7, 1000, b"k", None, [("h", b"1"), ("n", None)])


def test_records_as_lines() -> None:
    every = {
        f"print.{name}": "true"
        for name in ("timestamp", "partition", "offset", "epoch", "headers", "key", "value")
    }
    form = RecordFormat.from_properties({**every, "key.separator": "|"})
    assert (
        format_record(RECORD, 3, 9, form, append_time=False)
        == b"CreateTime:1000|Partition:3|Offset:7|Epoch:9|h:1,n:null|k|null\n"
    )
    late = format_record(RECORD, 3, 9, form, append_time=True)
    assert late.startswith(b"LogAppendTime:1000|")
    bare = Record(0, -1, None, b"v")
    assert format_record(bare, 0, 0, form, append_time=False) == (
        b"NO_TIMESTAMP|Partition:0|Offset:0|Epoch:0|NO_HEADERS|null|v\n"
    )
    assert format_record(bare, 0, 0, RecordFormat(), append_time=False) == b"v\n"


def test_records_as_json() -> None:
    shown = record_as_json(RECORD._replace(value=b"\xff"), "t", 3)
    assert shown == {
        "topic": "t",
        "partition": 3,
        "offset": 7,
        "timestamp": 1000,
        "key": "k",
        "value": {"base64": "/w=="},
        "headers": [["h", "1"], ["n", None]],
    }
