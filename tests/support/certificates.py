"""Certificate authorities, keys and certificates of tests, made when they are asked for."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

from tidelog.model.configs import tls
from tidelog.runtime.tls_files import TlsFiles

HOSTS = ("127.0.0.1", "localhost")
_PEM = serialization.Encoding.PEM


def name_of(**parts: str) -> x509.Name:
    """A name such as ``name_of(O="Example", CN="alice")``, in this order."""
    kinds = {"CN": NameOID.COMMON_NAME, "O": NameOID.ORGANIZATION_NAME}
    kinds |= {"OU": NameOID.ORGANIZATIONAL_UNIT_NAME, "EMAIL": NameOID.EMAIL_ADDRESS}
    return x509.Name([x509.NameAttribute(kinds[kind], value) for kind, value in parts.items()])


class Authority:
    """One authority, whose files are in a folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._name = name_of(CN=name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(self._name, self._key.public_key(), 30)
        builder = builder.add_extension(x509.BasicConstraints(True, None), True)
        self.certificate = builder.sign(self._key, hashes.SHA256())
        self.trusted = folder / f"{name}.pem"
        self.trusted.write_bytes(self.certificate.public_bytes(_PEM))

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, days: float
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=20))
            .not_valid_after(now + datetime.timedelta(days=days))
        )

    def issue(
        self,
        file: str,
        subject: x509.Name | None = None,
        hosts: Sequence[str] = HOSTS,
        days: float = 10,
        password: str = "",
    ) -> Path:
        """Write a key with its certificate: PEM, or PKCS12 if the file's name ends so."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(subject or name_of(CN=file), key.public_key(), days)
        if hosts:
            names = [
                x509.DNSName(host) if host[0].isalpha() else x509.IPAddress(ip_address(host))
                for host in hosts
            ]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), False)
        certificate = builder.sign(self._key, hashes.SHA256())
        secret: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password:
            secret = serialization.BestAvailableEncryption(password.encode())
        path = self.folder / file
        fresh = self.folder / f"{file}.new"
        if file.endswith((".p12", ".jks")):
            store = pkcs12.serialize_key_and_certificates(
                b"key", key, certificate, [self.certificate], secret
            )
            fresh.write_bytes(store)
        else:
            form = serialization.PrivateFormat.PKCS8
            fresh.write_bytes(
                key.private_bytes(_PEM, form, secret)
                + certificate.public_bytes(_PEM)
                + self.certificate.public_bytes(_PEM)
            )
        return fresh.replace(path)

    def texts(self, keys: Path | None, **more: str) -> dict[str, str]:
        """Kafka's configurations of a side with these keys that trusts this authority."""
        texts = {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.trusted),
        }
        if keys is not None:
            texts |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(keys)}
        return texts | {name.replace("_", "."): value for name, value in more.items()}

    def files(self, keys: Path | None, **more: str) -> TlsFiles:
        """The contexts of the same."""
        return files_of(self.texts(keys, **more))


def files_of(texts: dict[str, str]) -> TlsFiles:
    """The contexts of configurations that are accepted."""
    parsed = tls.parse(texts)
    assert not isinstance(parsed, str), parsed
    return TlsFiles(parsed)
