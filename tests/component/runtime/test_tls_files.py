"""Files of keys and certificates: each form that is accepted, and the line for each that is not."""

from __future__ import annotations

import contextlib
import re
import ssl
from pathlib import Path

import pytest

from tests.support.certificates import Authority, files_of
from tidelog.model.configs import tls
from tidelog.runtime.tls_files import TlsFiles, TlsRefused


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def shaken(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Shake hands in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        server.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
    ]
    for _ in range(3):
        for end in reversed(ends):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()


FORMS = ["pem", "pem with a password", "inline", "inline in one line", "pkcs12", "jks of today"]


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_a_keystore_serves(authority: Authority, form: str) -> None:
    texts = authority.texts(authority.issue("k.pem"))
    if form == "pem with a password":
        texts = authority.texts(authority.issue("k.pem", password="pass"))
        texts["ssl.key.password"] = "pass"
    elif form.startswith("inline"):
        content = Path(texts.pop("ssl.keystore.location")).read_text()
        key, *certificates = re.split(r"(?=-----BEGIN CERT)", content)
        chain = "".join(certificates)
        if "one" in form:
            key, chain = " ".join(key.split("\n")), " ".join(chain.split("\n"))
        texts |= {"ssl.keystore.key": key, "ssl.keystore.certificate.chain": chain}
    elif form != "pem":
        name = "k.jks" if "jks" in form else "k.p12"
        path = authority.issue(name, password="pass")
        texts = authority.texts(path, ssl_keystore_password="pass")
        texts["ssl.keystore.type"] = "JKS" if "jks" in form else "PKCS12"
    files = files_of(texts)
    shaken(files.server, authority.files(None).client)


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("missing", "the keystore {path} cannot be read: No such file or directory"),
        ("a real JKS", "the keystore {path} is a JKS file, which only Java reads: keytool "),
        ("nonsense", "the keystore {path} is neither PEM nor PKCS12"),
        ("no password", "the key of {path} needs a password: set ssl.key.password"),
        ("a wrong password", "the keystore {path} cannot be used: "),
        ("a wrong password of PKCS12", "the keystore {path} cannot be opened: its password is "),
        ("certificates alone", "the keystore {path} cannot be used: "),
        ("the key of another", "the keystore {path} cannot be used: the key is not that of its "),
        ("too long", "the keystore {path} is larger than 4194304 bytes"),
    ],
)
def test_each_refusal_is_one_line(authority: Authority, case: str, said: str) -> None:
    path = authority.issue("k.pem", password="pass" if "password" in case else "")
    texts = authority.texts(path)
    if case == "missing":
        path.unlink()
    elif case == "a real JKS":
        path.write_bytes(b"\xfe\xed\xfe\xed" + bytes(50))
    elif case == "nonsense":
        path.write_bytes(b"nothing")
    elif case == "a wrong password":
        texts["ssl.key.password"] = "hidden"
    elif case == "a wrong password of PKCS12":
        path = authority.issue("k.p12", password="pass")
        texts |= {"ssl.keystore.location": str(path), "ssl.keystore.type": "PKCS12"}
        texts["ssl.keystore.password"] = "hidden"
    elif case == "certificates alone":
        path.write_bytes(authority.trusted.read_bytes())
    elif case == "the key of another":
        key = path.read_text().split("-----BEGIN CERT")[0]
        other = authority.issue("other.pem").read_text()
        path.write_text(key + "-----BEGIN CERT" + other.split("-----BEGIN CERT", 1)[1])
    elif case == "too long":
        path.write_bytes(bytes(4_194_305))
    with pytest.raises(TlsRefused) as caught:
        files_of(texts)
    line = str(caught.value)
    assert line.startswith(said.format(path=path)) and "\n" not in line and "hidden" not in line


def test_no_key_is_written_to_disk(authority: Authority, tmp_path: Path) -> None:
    path = authority.issue("k.p12", password="pass")
    before = {each: each.stat().st_mtime_ns for each in tmp_path.rglob("*")}
    texts = authority.texts(path, ssl_keystore_password="pass")
    files_of(texts | {"ssl.keystore.type": "PKCS12"})
    assert {each: each.stat().st_mtime_ns for each in tmp_path.rglob("*")} == before


def test_what_a_context_allows(authority: Authority) -> None:
    files = authority.files(
        authority.issue("k.pem"),
        ssl_enabled_protocols="TLSv1.2",
        ssl_cipher_suites="TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        ssl_endpoint_identification_algorithm="",
    )
    assert files.server.maximum_version == ssl.TLSVersion.TLSv1_2
    named = {each["name"] for each in files.server.get_ciphers()}
    assert {name for name in named if not name.startswith("TLS_")} == {
        "ECDHE-ECDSA-AES256-GCM-SHA384"
    }
    assert files.server.options & ssl.OP_NO_RENEGOTIATION
    assert files.client.verify_mode == ssl.CERT_REQUIRED and not files.client.check_hostname


def test_without_a_truststore_a_client_trusts_what_its_machine_does() -> None:
    parsed = tls.parse({})
    assert not isinstance(parsed, str)
    assert TlsFiles(parsed).client.verify_mode == ssl.CERT_REQUIRED
