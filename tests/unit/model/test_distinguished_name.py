"""Subjects of certificates as Java writes them: the texts are those of its own X500Principal."""

from __future__ import annotations

import contextlib
import random
from datetime import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.drawn_seed import drawn_seed
from tidelog.model.distinguished_name import Unreadable, subject_of

NAMES = [
    ([], ""),
    ([(NameOID.ORGANIZATION_NAME, "Example"), (NameOID.COMMON_NAME, "a")], "CN=a,O=Example"),
    ([(NameOID.ORGANIZATIONAL_UNIT_NAME, "a,b")], "OU=a\\,b"),
    (
        [(NameOID.ORGANIZATION_NAME, 'A, "B" <x>; = # c\\d')],
        'O=A\\, \\"B\\" \\<x\\>\\; \\= \\# c\\\\d',
    ),
    ([(NameOID.COMMON_NAME, "#Grün")], "CN=\\#Grün"),
    ([(NameOID.COMMON_NAME, "  x ")], "CN=\\ \\ x\\ "),
    ([(NameOID.EMAIL_ADDRESS, "a@b.c")], "1.2.840.113549.1.9.1=#16056140622e63"),
    (
        [
            (NameOID.USER_ID, "u"),
            (NameOID.DOMAIN_COMPONENT, "x"),
            (NameOID.STREET_ADDRESS, "S 1"),
            (NameOID.STATE_OR_PROVINCE_NAME, "T"),
            (NameOID.LOCALITY_NAME, "L"),
            (NameOID.COUNTRY_NAME, "DE"),
        ],
        "C=DE,L=L,ST=T,STREET=S 1,DC=x,UID=u",
    ),
]


def certificate(parts: list[tuple[x509.ObjectIdentifier, str]]) -> bytes:
    name = x509.Name([x509.NameAttribute(kind, value) for kind, value in parts])
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime(2026, 1, 1)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(x509.Name([]))
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now)
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.DER)


@pytest.mark.parametrize(("parts", "text"), NAMES)
def test_a_subject_is_written_as_java_does(
    parts: list[tuple[x509.ObjectIdentifier, str]], text: str
) -> None:
    assert subject_of(certificate(parts)) == text


def test_broken_bytes_are_refused_or_read_and_nothing_else() -> None:
    """No other exception leaves, whatever stands there."""
    whole = certificate(NAMES[1][0])
    drawn = random.Random(drawn_seed())
    for _ in range(2_000):
        broken = bytearray(whole[: drawn.randrange(len(whole) + 1)])
        for _ in range(drawn.randrange(4)):
            if broken:
                broken[drawn.randrange(len(broken))] = drawn.randrange(256)
        with contextlib.suppress(Unreadable):
            subject_of(bytes(broken))
