"""The name of a certificate's subject: the bytes of the certificate -> text, as Kafka has it.

Owns the form of RFC 2253 that Java writes (``CN=alice,OU=users,O=Example``), on which the rules of
``ssl.principal.mapping.rules`` are tried. Reads certificates that OpenSSL has verified, and of them
only what is needed: it checks nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_SEQUENCE, _OBJECT_ID, _VERSION = 0x30, 0x06, 0xA0

_CODECS = {
    0x0C: "utf-8",
    0x13: "ascii",
    0x14: "latin-1",
    0x16: "ascii",
    0x1C: "utf-32-be",
    0x1E: "utf-16-be",
}
"""By the tag of a text: UTF8, Printable, Teletex, IA5, Universal and BMP strings."""

_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
"""Those of RFC 2253; every other type is its number, with the value in hexadecimal digits."""

_ESCAPED = frozenset(',=+<>#;"\\')


class Unreadable(ValueError):
    """These bytes are no certificate."""


class _Element(NamedTuple):
    tag: int
    content: bytes
    whole: bytes


def subject_of(certificate: bytes) -> str:
    """Return the subject of a certificate (DER), the most special part first; "" for none.

    Raises Unreadable.
    """
    try:
        (outer,) = _elements(certificate)
        parts = list(_elements(next(_elements(outer.content)).content))
        # Version, serial number, algorithm, issuer, validity, subject; old ones have no version.
        subject = parts[5 if parts[0].tag == _VERSION else 4]
        names = [_attributes(each.content) for each in _elements(subject.content)]
    except (ValueError, IndexError, StopIteration) as error:
        raise Unreadable("the certificate of the client cannot be read") from error
    return ",".join(reversed(names))


def _elements(data: bytes) -> Iterator[_Element]:
    position = 0
    while position < len(data):
        start, tag, size = position, data[position], data[position + 1]
        position += 2
        if size & 0x80:
            digits = size & 0x7F
            size = int.from_bytes(data[position : position + digits])
            position += digits
        end = position + size
        if end > len(data):
            raise ValueError("an element ends after its data")
        yield _Element(tag, data[position:end], data[start:end])
        position = end


def _attributes(data: bytes) -> str:
    """Return one relative name: usually one attribute, sometimes several joined by ``+``."""
    found = []
    for pair in _elements(data):
        kind, value = _elements(pair.content)
        if kind.tag != _OBJECT_ID or pair.tag != _SEQUENCE:
            raise ValueError("an attribute has no type")
        found.append(_attribute(_number(kind.content), value))
    return "+".join(found)


def _attribute(number: str, value: _Element) -> str:
    keyword, codec = _KEYWORDS.get(number), _CODECS.get(value.tag)
    if keyword is None or codec is None:
        return f"{keyword or number}=#{value.whole.hex()}"
    return f"{keyword}={_escaped(value.content.decode(codec))}"


def _escaped(text: str) -> str:
    body = text.strip(" ")
    before = len(text) - len(text.lstrip(" ")) if body else len(text)
    after = len(text) - before - len(body)
    middle = "".join(f"\\{x}" if x in _ESCAPED else "\\00" if x == "\0" else x for x in body)
    return "\\ " * before + middle + "\\ " * after


def _number(content: bytes) -> str:
    """Return the number of a type, with dots."""
    numbers, value = [], 0
    for byte in content:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))
