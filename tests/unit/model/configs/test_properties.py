"""Java's properties syntax."""

from __future__ import annotations

import pytest

from tidelog.model.configs.properties import parse_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("a = b ", {"a": "b "}),
        ("a:b", {"a": "b"}),
        ("a b", {"a": "b"}),
        ("a\tb c", {"a": "b c"}),
        ("a", {"a": ""}),
        ("a==b", {"a": "=b"}),
        ("a = : b", {"a": ": b"}),
        ("# a=b\n! c=d\n  # e=f\ng=h", {"g": "h"}),
        ("a=b\\\n   c", {"a": "bc"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\\n# no comment", {"a": "b# no comment"}),
        ("a\\ b=c", {"a b": "c"}),
        ("a\\:b\\=c=d", {"a:b=c": "d"}),
        ("a=\\u0041\\t\\n\\x", {"a": "A\t\nx"}),
        ("a=\\u00zz", {"a": "u00zz"}),
        ("a=1\r\na=2\rb=3", {"a": "2", "b": "3"}),
        ("a=b\\", {"a": "b"}),
        ("\n\n", {}),
        ("=x", {"": "x"}),
        ("listeners=PLAINTEXT://:9092", {"listeners": "PLAINTEXT://:9092"}),
    ],
)
def test_the_syntax_of_properties(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected
