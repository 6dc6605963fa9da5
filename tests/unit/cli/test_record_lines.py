"""Lines into records and back, by the properties of Kafka's console tools."""

from __future__ import annotations

import pytest

from tidelog.cli.record_lines import (
    LineFormat,
    NotARecord,
    ParsedLine,
    RecordFormat,
    fill_template,
    format_record,
    format_values,
    one_by_one,
    parse_line,
    parse_lines,
    parse_template,
    record_as_json,
    unescape,
)
from tidelog.cli.refusal import WrongUsage
from tidelog.model.topics import TopicPartition
from tidelog.records.builder import Columns
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


def test_lines_are_cut_into_columns_up_to_the_first_bad_one() -> None:
    """U4: what was written around a bad line depended on the chunks that were read."""
    assert parse_lines([b"a", b"b"], lines()) == (Columns([b"a", b"b"]), [])
    whole = parse_lines([b"k\tv\tx", b"\t"], lines(parse_key="true"))
    assert whole == (Columns([b"v\tx", b""], [b"k", b""]), [])
    keyed = parse_lines([b"k\tv", b"bad", b"k\tw"], lines(parse_key="true"))
    assert keyed.records == Columns([b"v"], [b"k"])
    ((index, error),) = keyed.bad
    assert (index, "key.separator" in str(error)) == (1, True)
    on = parse_lines([b"k\tv", b"bad", b"k\tw"], lines(parse_key="true", ignore_error="true"))
    assert on.records == Columns([b"v", b"w"], [b"k", b"k"])
    assert [each for each, _ in on.bad] == [1]
    assert list(one_by_one(on.records)) == [Columns([b"v"], [b"k"]), Columns([b"w"], [b"k"])]


def test_values_alone_are_printed_as_each_record_would_be() -> None:
    for form in (RecordFormat(), RecordFormat(line_separator=b";", null_literal=b"-")):
        assert form.only_values
        for values in ([b"a", b"", b"b"], [b"a", None], []):
            records = [Record(index, 0, None, value, []) for index, value in enumerate(values)]
            each = [format_record(record, 0, 0, form, append_time=False) for record in records]
            assert format_values(values, form) == b"".join(each)
    assert not RecordFormat(print_key=True).only_values
    assert not RecordFormat(print_value=False).only_values


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("%t-%p %o %T\\n", b"t-3 7 99\n"),
        ("%k=%s", b"k=null"),
        ("%K %S 100%%%h\\x00", b"1 -1 100%h=v,i=null\0"),
        ("", b""),
        ("é%o", "é7".encode()),
    ],
)
def test_a_format_string_is_filled_as_kcat_does(text: str, printed: bytes) -> None:
    form = RecordFormat(template=parse_template(text))
    record = Record(7, 99, b"k", None, [("h", b"v"), ("i", None)])
    assert fill_template(form, record, TopicPartition("t", 3)) == printed
    assert not form.only_values


@pytest.mark.parametrize("text", ["%x", "%", "%s%"])
def test_a_field_that_no_format_has_is_refused(text: str) -> None:
    with pytest.raises(WrongUsage, match="--format has no field"):
        parse_template(text)
