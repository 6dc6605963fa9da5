"""The configurations of TLS: what goes together, and how a listener overrides them."""

from __future__ import annotations

import pytest

from tidelog.model.configs import tls
from tidelog.model.configs.file_names import without_effect
from tidelog.model.configs.server import ServerConfigs, from_mapping

KEYS = {"ssl.keystore.type": "PEM", "ssl.keystore.location": "/keys.pem"}
TRUSTED = {"ssl.truststore.type": "PEM", "ssl.truststore.location": "/trusted.pem"}


def accepted(**texts: str) -> tls.TlsConfigs:
    found = tls.parse({name.replace("_", "."): text for name, text in texts.items()})
    assert not isinstance(found, str), found
    return found


def test_the_defaults_are_kafkas() -> None:
    found = accepted()
    assert (found.client_auth, found.checks_names) == ("none", True)
    assert found.versions == ("TLSv1.2", "TLSv1.3") and found.ciphers == ""
    assert not found.keys.is_given and not found.trusted.is_given


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ({"ssl.keystore.type": "BCFKS"}, "ssl.keystore.type must be one of JKS, PKCS12, PEM."),
        ({"ssl.keystore.key": "k"}, "ssl.keystore.key needs ssl.keystore.type=PEM."),
        (
            {"ssl.keystore.key": "k", "ssl.keystore.type": "pem"},
            "ssl.keystore.key and ssl.keystore.certificate.chain go together: one of them is "
            "missing.",
        ),
        (
            {**TRUSTED, "ssl.truststore.certificates": "c"},
            "ssl.truststore.certificates and ssl.truststore.location are both set: leave one of "
            "them out.",
        ),
        (
            {**KEYS, "ssl.keystore.password": "hidden"},
            "ssl.keystore.password has no meaning for PEM (ssl.key.password is the key's): leave "
            "it out.",
        ),
        ({"ssl.client.auth": "yes"}, "ssl.client.auth must be one of none, requested, required."),
        (
            {"ssl.endpoint.identification.algorithm": "LDAPS"},
            "ssl.endpoint.identification.algorithm must be https, or empty for no check.",
        ),
        (
            {"ssl.enabled.protocols": "TLSv1.1,TLSv1.2"},
            "ssl.enabled.protocols may have TLSv1.2 and TLSv1.3 alone.",
        ),
        (
            {"ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"},
            "ssl.cipher.suites has some of the suites of TLSv1.3, which cannot be chosen one by "
            "one: add TLS_AES_256_GCM_SHA384, TLS_CHACHA20_POLY1305_SHA256, or leave all of them "
            "out.",
        ),
        (
            {"ssl.cipher.suites": "TLS_RSA_WITH_NULL_MD5"},
            "ssl.cipher.suites: TLS_RSA_WITH_NULL_MD5 is not a suite that TLS may have.",
        ),
        (
            {"ssl.principal.mapping.rules": "RULE:x"},
            "ssl.principal.mapping.rules: rule 1 must be DEFAULT or RULE:PATTERN/REPLACEMENT/[LU], "
            "and there may be 100.",
        ),
        (
            {"ssl.engine.factory.class": "org.example.Own"},
            "ssl.engine.factory.class is refused: this version runs no Java, and would not ask "
            "this class.",
        ),
    ],
)
def test_each_refusal_is_one_line_without_a_secret(texts: dict[str, str], said: str) -> None:
    assert tls.parse(texts) == said
    assert "hidden" not in said


def test_no_password_stands_in_the_text_of_a_value() -> None:
    found = accepted(**{k.replace(".", "_"): v for k, v in KEYS.items()}, ssl_key_password="hidden")
    assert "hidden" not in repr(found) and "/keys.pem" in repr(found)


@pytest.mark.parametrize(
    ("suites", "ciphers", "versions"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384", ("TLSv1.2",)),
        ("TLS_RSA_WITH_AES_128_CBC_SHA", "AES128-SHA", ("TLSv1.2",)),
        (
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256," + ",".join(sorted(tls.SUITES_OF_1_3)),
            "ECDHE-ECDSA-CHACHA20-POLY1305",
            ("TLSv1.2", "TLSv1.3"),
        ),
        (",".join(sorted(tls.SUITES_OF_1_3)), "", ("TLSv1.3",)),
    ],
)
def test_cipher_suites_have_their_standard_names(
    suites: str, ciphers: str, versions: tuple[str, ...]
) -> None:
    found = accepted(ssl_cipher_suites=suites)
    assert (found.ciphers, found.versions) == (ciphers, versions)


def test_a_key_in_one_line_gets_its_lines() -> None:
    body = "A" * 70
    pem = f"-----BEGIN CERTIFICATE----- {body} -----END CERTIFICATE-----"
    found = accepted(ssl_truststore_type="PEM", ssl_truststore_certificates=pem)
    assert found.trusted.text.splitlines()[1:3] == ["A" * 64, "A" * 6]


def file(**texts: str) -> dict[str, str]:
    return {"node.id": "1", **{name.replace("__", "."): text for name, text in texts.items()}}


def test_a_listener_has_its_own() -> None:
    texts = {**KEYS, "listener.name.inside.ssl.keystore.location": "/inside.pem"}
    inside, outside = tls.of_listener(texts, "INSIDE"), tls.of_listener(texts, "OUTSIDE")
    assert not isinstance(inside, str) and not isinstance(outside, str)
    assert (inside.keys.location, outside.keys.location) == ("/inside.pem", "/keys.pem")


LISTENERS = "SSL://h:9092,PLAINTEXT://h:9093,CONTROLLER://h:9094"


def test_several_listeners_have_their_protocols() -> None:
    found = from_mapping(
        file(listeners=LISTENERS, **{"security.inter.broker.protocol": "SSL"}, **KEYS)
    )
    assert isinstance(found, ServerConfigs), found
    assert {x.name: x.security_protocol for x in found.advertised_listeners} == {
        "SSL": "SSL",
        "PLAINTEXT": "PLAINTEXT",
    }
    assert (found.inter_broker_listener_name, found.tls_listeners) == ("SSL", frozenset({"SSL"}))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"ssl.client.auth": "none"}, "listeners: SSL (SSL): it has no certificate: set "),
        (
            {**KEYS, "ssl.client.auth": "required"},
            "listeners: SSL (SSL): ssl.client.auth=required needs ssl.truststore.location or ",
        ),
        (
            {**KEYS, "security.inter.broker.protocol": "SASL_SSL"},
            "security.inter.broker.protocol is refused: SASL_SSL is none of PLAINTEXT and SSL; ",
        ),
        (
            {
                **KEYS,
                "security.inter.broker.protocol": "SSL",
                "inter.broker.listener.name": "PLAINTEXT",
            },
            "security.inter.broker.protocol is SSL, and PLAINTEXT is no such listener: ",
        ),
    ],
)
def test_a_listener_that_could_not_be_served_ends_the_start(
    more: dict[str, str], said: str
) -> None:
    (refused,) = from_mapping(file(listeners=LISTENERS, **more))  # type: ignore[misc]
    assert refused.sentence.startswith(said)


def test_keys_that_no_listener_uses_are_named() -> None:
    assert without_effect(file(**KEYS)) == [
        "ssl.keystore.type, ssl.keystore.location (no listener uses SSL)"
    ]
    own = {"listener.name.other.ssl.client.auth": "required"}
    assert without_effect(file(listeners=LISTENERS, **KEYS, **own)) == [
        "listener.name.other.ssl.client.auth (no listener other uses SSL)"
    ]
    assert without_effect(file(listeners=LISTENERS, **KEYS)) == []
    # And its values are not judged: such a file has always started.
    assert isinstance(from_mapping(file(**{"ssl.keystore.type": "BCFKS"})), ServerConfigs)
