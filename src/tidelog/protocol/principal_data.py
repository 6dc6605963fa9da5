"""Principals between processes: Kafka's DefaultPrincipalData v0, in the Envelope.

Owns the bytes: the version (int16), then the type and the name (compact strings), whether a
delegation token authenticated it (one byte), and tagged fields. There are no delegation tokens
here. Not which principal a request has: see `network.router`.
"""

from __future__ import annotations

from tidelog.model.principals import Principal, is_valid
from tidelog.protocol.record_fields import FieldReader, FieldWriter, Malformed

VERSION = 0


def encode(principal: Principal) -> bytes:
    """Return the bytes of a principal."""
    fields = FieldWriter().int16(VERSION)
    return (
        fields.compact_string(principal.type).compact_string(principal.name).int8(0).tags({}).done()
    )


def decode(data: bytes | memoryview) -> Principal:
    """Return the principal of these bytes; unknown tags are skipped. Raises Malformed."""
    fields = FieldReader(data)
    version = fields.int16()
    if version != VERSION:
        raise Malformed(f"a principal has version {version}")
    principal = Principal(fields.compact_string(), fields.compact_string())
    if fields.int8():
        raise Malformed("a principal has a delegation token")
    fields.tags()
    if fields.remaining:
        raise Malformed(f"{fields.remaining} bytes follow a principal")
    if not is_valid(principal):
        raise Malformed("a principal has no name, a control character, or too long a name")
    return principal
