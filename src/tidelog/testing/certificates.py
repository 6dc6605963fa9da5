"""The authority and the certificates of a test's cluster with TLS, made at its start.

Owns their files, in the folder of the cluster: they end with it. Not for any other use: the key of
the authority is forgotten at once, and all certificates end after ``DAYS``.
"""

from __future__ import annotations

import datetime
import os
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

FOLDER = "tls"
AUTHORITY, NODE, CLIENT = "authority.pem", "node.pem", "client.pem"
DAYS = 30
HOST = "127.0.0.1"

_PEM = serialization.Encoding.PEM


def make_certificates(folder: Path) -> Path:
    """Write the authority, and the keys of nodes and of clients; return their folder."""
    made = folder / FOLDER
    made.mkdir(mode=0o700)
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("tidelog.testing")
    basic = x509.BasicConstraints(ca=True, path_length=0)
    authority = _builder(name, name, key.public_key()).add_extension(basic, critical=True)
    trusted = authority.sign(key, hashes.SHA256()).public_bytes(_PEM)
    (made / AUTHORITY).write_bytes(trusted)
    for file, subject in ((NODE, "node"), (CLIENT, "client")):
        own = ec.generate_private_key(ec.SECP256R1())
        hosts = x509.SubjectAlternativeName(
            [x509.DNSName("localhost"), x509.IPAddress(ip_address(HOST))]
        )
        builder = _builder(_name(subject), name, own.public_key()).add_extension(hosts, False)
        pem = own.private_bytes(
            _PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        certificate = builder.sign(key, hashes.SHA256()).public_bytes(_PEM)
        with open(os.open(made / file, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as output:
            output.write(pem + certificate)
    return made


def configs_of_nodes(made: Path) -> dict[str, str]:
    """Return the configurations of nodes: everything that travels is encrypted."""
    return {
        "listener.security.protocol.map": "PLAINTEXT:SSL,CONTROLLER:SSL",
        "security.inter.broker.protocol": "SSL",
        **_stores(made, NODE),
    }


def configs_of_clients(made: Path) -> dict[str, str]:
    """Return the configurations of a client, by Kafka's names."""
    return {"security.protocol": "SSL", **_stores(made, CLIENT)}


def _stores(made: Path, keys: str) -> dict[str, str]:
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(made / keys),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(made / AUTHORITY),
    }


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )
