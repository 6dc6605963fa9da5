"""The configurations of TLS: Kafka's ``ssl.*`` names -> what a listener or a client uses.

Owns the names, which of them go together, and the overrides of a listener
(``listener.name.NAME.ssl.…``). Not the files that they name: see `runtime.tls_files`; not the rules
of principals: see `principal_mapping`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tidelog.model.configs import principal_mapping
from tidelog.model.configs.rows import LIST, STRING, row, rows_of
from tidelog.model.configs.types import ConfigType

PASSWORD = ConfigType.PASSWORD

SSL = "SSL"
"""The security protocol of a listener with TLS and without SASL."""

JKS, PKCS12, PEM = STORE_TYPES = ("JKS", "PKCS12", "PEM")

NO_AUTH, REQUESTED, REQUIRED = CLIENT_AUTHS = ("none", "requested", "required")

VERSIONS = ("TLSv1.2", "TLSv1.3")

SUITES_OF_1_3 = frozenset(
    ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
)


@dataclass(frozen=True, kw_only=True)
class TlsRows:
    """TLS. ``listener.name.NAME.ssl.…`` overrides each of them for one listener."""

    ssl_keystore_type: str = row(
        STRING,
        JKS,
        "PEM or PKCS12; a file is recognized by its content.",
    )
    ssl_keystore_location: str | None = row(STRING, None, "The key with its certificates.")
    ssl_keystore_password: str | None = row(PASSWORD, None, "For PKCS12.")
    ssl_key_password: str | None = row(PASSWORD, None, "The key's, for PEM.")
    ssl_keystore_key: str | None = row(PASSWORD, None, "The key as text.")
    ssl_keystore_certificate_chain: str | None = row(PASSWORD, None, "Its certificates as text.")
    ssl_truststore_type: str = row(STRING, JKS, "PEM or PKCS12.")
    ssl_truststore_location: str | None = row(STRING, None, "The trusted certificates.")
    ssl_truststore_password: str | None = row(PASSWORD, None, "For PKCS12.")
    ssl_truststore_certificates: str | None = row(PASSWORD, None, "The same as text.")
    ssl_client_auth: str = row(
        STRING, NO_AUTH, "Certificates of clients: none, requested or required."
    )
    ssl_endpoint_identification_algorithm: str = row(
        STRING,
        "https",
        "https, or nothing: whether other processes must have their host's name.",
    )
    ssl_enabled_protocols: tuple[str, ...] = row(LIST, VERSIONS, "Versions of TLS.")
    ssl_cipher_suites: tuple[str, ...] = row(
        LIST, (), "By standard names; OpenSSL's default if empty."
    )
    ssl_principal_mapping_rules: str = row(
        STRING, "DEFAULT", "From a certificate's name to a principal's."
    )


NAMES = tuple(definition.name for definition in rows_of(TlsRows))
_DEFAULTS = {definition.name: definition.default or "" for definition in rows_of(TlsRows)}

CLASSES = ("ssl.engine.factory.class",)
"""Kafka's names of classes that would do the work of TLS."""

_OVERRIDE = re.compile(r"listener\.name\.([^.]+)\.(ssl\..+)")


@dataclass(frozen=True, slots=True)
class Store:
    """A store of certificates, and the key of the first one if it is a keystore. No sentence and no
    ``repr`` has a password or a key."""

    kind: str
    location: str
    password: str
    text: str
    """PEM that stands in the configuration itself."""
    key_password: str = ""

    def __repr__(self) -> str:
        return f"Store({self.kind}, {self.location or 'inline'})"

    @property
    def is_given(self) -> bool:
        """Whether there is one at all."""
        return bool(self.location or self.text)


@dataclass(frozen=True, slots=True)
class TlsConfigs:
    """What a listener, or a client, uses for TLS."""

    keys: Store
    trusted: Store
    client_auth: str
    checks_names: bool
    versions: tuple[str, ...]
    ciphers: str
    """OpenSSL's names with colons, "" for its defaults."""
    rules: tuple[principal_mapping.MappingRule, ...]


def override_of(name: str) -> tuple[str, str] | None:
    """Return the listener and the name of ``listener.name.NAME.ssl.…``; None for any other."""
    match = _OVERRIDE.fullmatch(name)
    if match is None or match[2] not in (*NAMES, *CLASSES):
        return None
    return match[1], match[2]


def listeners_with_tls(texts: Mapping[str, str]) -> frozenset[str]:
    """Return the names, in small letters, of the listeners of a file that have SSL."""
    pairs = (entry.partition(":") for entry in _list(texts, "listener.security.protocol.map"))
    protocols = {name.strip(): protocol.strip() for name, _, protocol in pairs}
    names = [entry.partition("://")[0].strip() for entry in _list(texts, "listeners")]
    names += _list(texts, "controller.listener.names")
    return frozenset(name.lower() for name in names if protocols.get(name, name) == SSL)


def _list(texts: Mapping[str, str], name: str) -> list[str]:
    return [entry.strip() for entry in texts.get(name, "").split(",")]


def of_listener(texts: Mapping[str, str], listener: str) -> TlsConfigs | str:
    """Return what a listener uses, its overrides before the others; or why it is refused."""
    own = f"listener.name.{listener.lower()}."
    found = {name: texts.get(own + name, texts.get(name, "")) for name in (*NAMES, *CLASSES)}
    return parse(found)


def parse(texts: Mapping[str, str]) -> TlsConfigs | str:
    """Return what these texts say, by Kafka's names, or why they are refused, in one sentence."""
    for name in CLASSES:
        if texts.get(name, "").strip():
            return f"{name} is refused: this version runs no Java, and would not ask this class."
    given = {name: texts.get(name, "").strip() or _DEFAULTS[name] for name in NAMES}
    if "ssl.endpoint.identification.algorithm" in texts:
        # Empty is a value here.
        given["ssl.endpoint.identification.algorithm"] = texts[
            "ssl.endpoint.identification.algorithm"
        ].strip()
    for refusal in (_why_no_stores(given), _why_no_words(given)):
        if refusal is not None:
            return refusal
    versions = tuple(part.strip() for part in given["ssl.enabled.protocols"].split(","))
    ciphers = _ciphers(given["ssl.cipher.suites"], versions)
    if isinstance(ciphers, _Refusal):
        return ciphers
    rules = principal_mapping.parse(given["ssl.principal.mapping.rules"])
    if isinstance(rules, str):
        return f"{rules}."
    return TlsConfigs(
        keys=Store(
            given["ssl.keystore.type"].upper(),
            given["ssl.keystore.location"],
            given["ssl.keystore.password"],
            _pem(given["ssl.keystore.certificate.chain"] + "\n" + given["ssl.keystore.key"]),
            given["ssl.key.password"],
        ),
        trusted=Store(
            given["ssl.truststore.type"].upper(),
            given["ssl.truststore.location"],
            given["ssl.truststore.password"],
            _pem(given["ssl.truststore.certificates"]),
        ),
        client_auth=given["ssl.client.auth"].lower(),
        checks_names=bool(given["ssl.endpoint.identification.algorithm"]),
        versions=ciphers[1],
        ciphers=ciphers[0],
        rules=rules,
    )


def why_no_server(configs: TlsConfigs) -> str | None:
    """Return why these are not enough for a listener, which must show a certificate."""
    if not configs.keys.is_given:
        return (
            "it has no certificate: set ssl.keystore.location, or ssl.keystore.key with "
            "ssl.keystore.certificate.chain and ssl.keystore.type=PEM."
        )
    if configs.client_auth != NO_AUTH and not configs.trusted.is_given:
        return (
            f"ssl.client.auth={configs.client_auth} needs ssl.truststore.location or "
            "ssl.truststore.certificates: the authorities whose certificates clients may show."
        )
    return None


def _why_no_stores(given: Mapping[str, str]) -> str | None:
    for store, inline in (
        ("keystore", ("ssl.keystore.key", "ssl.keystore.certificate.chain")),
        ("truststore", ("ssl.truststore.certificates",)),
    ):
        kind, named = given[f"ssl.{store}.type"].upper(), [x for x in inline if given[x]]
        if kind not in STORE_TYPES:
            return f"ssl.{store}.type must be one of {', '.join(STORE_TYPES)}."
        if named and kind != PEM:
            return f"{named[0]} needs ssl.{store}.type=PEM."
        if named and given[f"ssl.{store}.location"]:
            return f"{named[0]} and ssl.{store}.location are both set: leave one of them out."
        if named and len(named) < len(inline):
            return f"{' and '.join(inline)} go together: one of them is missing."
        if kind == PEM and given[f"ssl.{store}.password"]:
            hint = " (ssl.key.password is the key's)" if store == "keystore" else ""
            return f"ssl.{store}.password has no meaning for PEM{hint}: leave it out."
    return None


def _why_no_words(given: Mapping[str, str]) -> str | None:
    if given["ssl.client.auth"].lower() not in CLIENT_AUTHS:
        return f"ssl.client.auth must be one of {', '.join(CLIENT_AUTHS)}."
    if given["ssl.endpoint.identification.algorithm"].lower() not in ("https", ""):
        return "ssl.endpoint.identification.algorithm must be https, or empty for no check."
    versions = [part.strip() for part in given["ssl.enabled.protocols"].split(",")]
    if not set(versions) <= set(VERSIONS):
        return f"ssl.enabled.protocols may have {' and '.join(VERSIONS)} alone."
    return None


class _Refusal(str):
    __slots__ = ()


def _ciphers(text: str, versions: tuple[str, ...]) -> tuple[str, tuple[str, ...]] | _Refusal:
    """Return OpenSSL's names and the versions that they leave, or why they are refused."""
    named = [part.strip() for part in text.split(",") if part.strip()]
    if not named:
        return "", versions
    newest = SUITES_OF_1_3.intersection(named)
    if newest and newest != SUITES_OF_1_3 and VERSIONS[1] in versions:
        missing = ", ".join(sorted(SUITES_OF_1_3 - newest))
        return _Refusal(
            "ssl.cipher.suites has some of the suites of TLSv1.3, which cannot be chosen one by "
            f"one: add {missing}, or leave all of them out."
        )
    older = [name for name in named if name not in SUITES_OF_1_3]
    names = [_openssl_name(name) for name in older]
    for name, translated in zip(older, names, strict=True):
        if translated is None:
            return _Refusal(f"ssl.cipher.suites: {name[:100]} is not a suite that TLS may have.")
    left = tuple(version for version in versions if (newest if version == VERSIONS[1] else older))
    if not left:
        return _Refusal("ssl.cipher.suites has no suite for ssl.enabled.protocols.")
    return ":".join(filter(None, names)), left


_SUITE = re.compile(r"TLS_(?:(ECDHE|DHE)_(RSA|ECDSA)|RSA)_WITH_(.+)_(SHA(?:256|384)?)")
_BLOCK = re.compile(r"AES_(128|256)_(GCM|CBC)")


def _openssl_name(name: str) -> str | None:
    """Return OpenSSL's name of a suite of TLSv1.2 with a standard name."""
    match = _SUITE.fullmatch(name)
    if match is None:
        return None
    first = f"{match[1]}-{match[2]}-" if match[1] else ""
    if match[3] == "CHACHA20_POLY1305":
        return f"{first}CHACHA20-POLY1305"
    block = _BLOCK.fullmatch(match[3])
    if block is None:
        return None
    mode = "-GCM" if block[2] == "GCM" else ""
    return f"{first}AES{block[1]}{mode}-{match[4]}"


_ONE_LINE = re.compile(r"\s*(-----BEGIN [^-]+-----)\s*([^-]*?)\s*(-----END [^-]+-----)")


def _pem(text: str) -> str:
    """Return PEM with lines: a properties file often has it in one line, with blanks."""

    def lines(match: re.Match[str]) -> str:
        words = match[2].split("\n\n") if "\n\n" in match[2] else ["", match[2]]
        body = "".join(words[-1].split())
        head = f"{words[0]}\n\n" if words[0] else ""
        folded = "\n".join(body[i : i + 64] for i in range(0, len(body), 64))
        return f"{match[1]}\n{head}{folded}\n{match[3]}\n"

    return _ONE_LINE.sub(lines, text).strip()
