"""Keys and certificates of TLS: the files of a configuration -> contexts of OpenSSL, and again when
they change.

Owns the forms of the files (PEM, PKCS12), and the rule that no key is written to disk: the ``ssl``
module reads keys from a file alone, so it gets one in memory that has no name (``memfd_create``).
When changed files cannot be used, what was read last stays in use, and a log line says so. Not the
names: see `model.configs.tls`. No password and no key is ever logged.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from tidelog.model.configs import principal_mapping
from tidelog.model.configs.server import ServerConfigs
from tidelog.model.configs.tls import (
    NO_AUTH,
    REQUIRED,
    SSL,
    VERSIONS,
    Store,
    TlsConfigs,
    of_listener,
)
from tidelog.model.distinguished_name import Unreadable, subject_of
from tidelog.model.principals import USER, Principal, is_valid

logger = logging.getLogger(__name__)

MOST_FILE_BYTES = 4_194_304
"""Of one store: the certificates of every authority of the web take a twentieth."""

_JKS_MAGIC = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_DER_SEQUENCE = b"\x30"
_PEM_MARK = b"-----BEGIN "


class TlsRefused(Exception):
    """Keys or certificates cannot be used: one line that says why and what to do."""


class CertificateRefused(Exception):
    """A client's certificate gives no principal: one clause that says why."""


class _Loaded(NamedTuple):
    server: ssl.SSLContext | None
    client: ssl.SSLContext
    signs: tuple[Any, ...]


class TlsFiles:
    """The contexts of one configuration. ``refresh`` may be called by any thread."""

    def __init__(self, configs: TlsConfigs, *, checks_names: bool | None = None) -> None:
        """Read the files. Raises TlsRefused. ``checks_names``: in place of the configuration's."""
        self.configs = configs
        self._checks_names = configs.checks_names if checks_names is None else checks_names
        self._lock = threading.Lock()
        self._said = ""
        self._loaded = self._load()

    @property
    def server(self) -> ssl.SSLContext:
        """The context of a listener."""
        assert self._loaded.server is not None, "a listener has keys: see why_no_server"
        return self._loaded.server

    @property
    def client(self) -> ssl.SSLContext:
        """The context of connections that this side opens."""
        return self._loaded.client

    def principal(self, certificate: bytes) -> Principal:
        """Return the principal of a client's certificate (DER). Raises CertificateRefused."""
        try:
            subject = subject_of(certificate)
        except Unreadable as error:
            raise CertificateRefused(str(error)) from error
        name = principal_mapping.mapped(self.configs.rules, subject)
        if name is None:
            shown = subject[:200]
            raise CertificateRefused(
                f"no rule of ssl.principal.mapping.rules is about its certificate {shown!r}"
            )
        principal = Principal(USER, name)
        if not is_valid(principal):
            raise CertificateRefused(f"its certificate names no valid principal: {name[:200]!r}")
        return principal

    def have_changed(self) -> bool:
        """Whether a file is not the one that was read. Costs one system call for each."""
        return self._signs() != self._loaded.signs

    def refresh(self) -> None:
        """Read the files again if they have changed; keep what is in use where they are unfit."""
        with self._lock:
            if not self.have_changed():
                return
            try:
                self._loaded = self._load()
            except TlsRefused as error:
                if str(error) != self._said:
                    self._said = str(error)
                    logger.error("%s; what was read before stays in use", error)
                return
            self._said = ""
            logger.info("keys and certificates were read again: %s", ", ".join(self._paths()))

    def _paths(self) -> list[str]:
        return [x.location for x in (self.configs.keys, self.configs.trusted) if x.location]

    def _signs(self) -> tuple[Any, ...]:
        return tuple(map(_sign, self._paths()))

    def _load(self) -> _Loaded:
        # Before the content: a change meanwhile is then seen at the next comparison.
        signs = self._signs()
        configs = self.configs
        keys = _keys(configs.keys) if configs.keys.is_given else None
        trusted = _trusted(configs.trusted) if configs.trusted.is_given else None
        server = None
        if keys is not None:
            server = self._context(ssl.PROTOCOL_TLS_SERVER, keys, trusted)
            server.num_tickets = 0  # sessions would outlive the trust in their certificate
            if configs.client_auth != NO_AUTH:
                required = configs.client_auth == REQUIRED
                server.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        client = self._context(ssl.PROTOCOL_TLS_CLIENT, keys, trusted)
        client.check_hostname = self._checks_names
        if trusted is None:
            client.load_default_certs()
        return _Loaded(server, client, signs)

    def _context(self, role: int, keys: _Keys | None, trusted: str | None) -> ssl.SSLContext:
        configs = self.configs
        context = ssl.SSLContext(role)
        lowest, highest = sorted(configs.versions)[0], sorted(configs.versions)[-1]
        numbers = dict(zip(VERSIONS, (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3), strict=True))
        context.minimum_version, context.maximum_version = numbers[lowest], numbers[highest]
        context.options |= ssl.OP_NO_RENEGOTIATION
        # As Java does: an authority below a root may be trusted alone.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            if configs.ciphers:
                context.set_ciphers(configs.ciphers)
        except ssl.SSLError:
            raise TlsRefused(
                "ssl.cipher.suites has no suite that this machine's OpenSSL allows"
            ) from None
        if keys is not None:
            keys.load_into(context)
        if trusted is not None:
            _trust(context, trusted, configs.trusted)
        return context


class ProcessTls(NamedTuple):
    """The keys of one process: of its listeners, and for the connections that it opens."""

    listeners: Mapping[str, TlsFiles]
    """By the listener's name; only those with TLS."""

    to_brokers: TlsFiles | None = None
    """For connections to other brokers; None where their listener has no TLS."""

    to_controllers: TlsFiles | None = None
    """For connections to controllers."""


NO_TLS = ProcessTls({})


def tls_of(configs: ServerConfigs) -> ProcessTls:
    """Read all keys and certificates that a process needs. Raises TlsRefused."""
    made: dict[str, TlsFiles] = {}

    def files(name: str) -> TlsFiles:
        if name not in made:
            found = of_listener(configs.texts, name)
            if isinstance(found, str):
                raise TlsRefused(f"{name} (SSL): {found}")
            made[name] = TlsFiles(found)
        return made[name]

    own = [x.name for x in configs.listeners if x.security_protocol == SSL]
    listeners = {name: files(name) for name in own}
    brokers = controllers = None
    if configs.security_inter_broker_protocol == SSL:
        brokers = files(configs.inter_broker_listener_name)
    first = configs.controller_listener_names[0]
    if first in configs.tls_listeners:
        controllers = files(first)
        if not configs.controller_quorum_bootstrap_servers:
            # Its own controller, by a loopback address: no certificate has that name.
            controllers = TlsFiles(controllers.configs, checks_names=False)
    return ProcessTls(listeners, brokers, controllers)


def _sign(path: str) -> Any:
    """Return what changes when a file does; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _read(store: Store, what: str) -> bytes:
    if not store.location:
        return store.text.encode()
    try:
        with open(store.location, "rb") as file:
            content = file.read(MOST_FILE_BYTES + 1)
    except OSError as error:
        raise TlsRefused(
            f"{what} {store.location} cannot be read: {error.strerror or error}"
        ) from None
    if len(content) > MOST_FILE_BYTES:
        raise TlsRefused(f"{what} {store.location} is larger than {MOST_FILE_BYTES} bytes")
    if content.startswith(_JKS_MAGIC):
        path = store.location
        raise TlsRefused(
            f"{what} {path} is a JKS file, which only Java reads: keytool -importkeystore "
            f"-srckeystore {path} -destkeystore {path}.p12 -deststoretype PKCS12"
        )
    return content


class _Keys(NamedTuple):
    """A key with its chain, as PEM."""

    pem: bytes
    password: str
    path: str

    def load_into(self, context: ssl.SSLContext) -> None:
        """Have a context use them. Raises TlsRefused."""

        def password() -> str:
            if not self.password:
                raise TlsRefused(f"the key of {self.path} needs a password: set ssl.key.password")
            return self.password

        try:
            with _nameless_file(self.pem) as path:
                context.load_cert_chain(path, password=password)
        except (ssl.SSLError, ValueError) as error:
            why = getattr(error, "reason", None) or str(error)
            if "PEM lib" in why:
                why = "NO_START_LINE"
            said = {
                "KEY_VALUES_MISMATCH": "the key is not that of its first certificate",
                "BAD_DECRYPT": "ssl.key.password is wrong",
                "BAD_PASSWORD_READ": "ssl.key.password is wrong",
                "NO_START_LINE": "it needs a key and its certificates",
            }
            why = said.get(why, str(why).lower().replace("_", " "))
            raise TlsRefused(f"the keystore {self.path} cannot be used: {why}") from None


@contextmanager
def _nameless_file(content: bytes) -> Iterator[str]:
    """Give a path to bytes that are on no disk."""
    make: Callable[[str], int] | None = getattr(os, "memfd_create", None)
    if make is None:
        raise TlsRefused("keys of TLS need a system with memfd_create (Linux)")
    descriptor = make("tidelog-tls")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _keys(store: Store) -> _Keys:
    path = store.location or "in ssl.keystore.key"
    content = _read(store, "the keystore")
    if _PEM_MARK in content:
        return _Keys(content, store.key_password, path)
    if not content.startswith(_DER_SEQUENCE):
        raise TlsRefused(f"the keystore {path} is neither PEM nor PKCS12")
    return _Keys(_pem_of(content, store, path), "", path)


def _pem_of(content: bytes, store: Store, path: str) -> bytes:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.serialization import pkcs12

    try:
        bundle = pkcs12.load_pkcs12(content, store.password.encode() or None)
    except ValueError as error:
        raise TlsRefused(f"the keystore {path} cannot be opened: {_said(error)}") from None
    if bundle.key is None or bundle.cert is None:
        raise TlsRefused(f"the keystore {path} has no key with a certificate")
    pem = serialization.Encoding.PEM
    key = bundle.key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    chain = [bundle.cert, *bundle.additional_certs]
    return key + b"".join(each.certificate.public_bytes(pem) for each in chain)


def _trusted(store: Store) -> str:
    """Return the certificates of a store as PEM."""
    path = store.location or "ssl.truststore.certificates"
    content = _read(store, "the truststore")
    if _PEM_MARK in content:
        return content.decode("ascii", "replace")
    if not content.startswith(_DER_SEQUENCE):
        raise TlsRefused(f"the truststore {path} is neither PEM nor PKCS12")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.serialization import pkcs12

    try:
        bundle = pkcs12.load_pkcs12(content, store.password.encode() or None)
    except ValueError as error:
        raise TlsRefused(f"the truststore {path} cannot be opened: {_said(error)}") from None
    found = [bundle.cert, *bundle.additional_certs]
    pem = serialization.Encoding.PEM
    return b"".join(x.certificate.public_bytes(pem) for x in found if x is not None).decode()


def _said(error: ValueError) -> str:
    text = str(error)
    return "its password is wrong, or missing" if "password" in text.lower() else text[:200]


def _trust(context: ssl.SSLContext, pem: str, store: Store) -> None:
    path = store.location or "ssl.truststore.certificates"
    try:
        context.load_verify_locations(cadata=pem)
    except (ssl.SSLError, ValueError, OSError):
        raise TlsRefused(f"the truststore {path} has no certificate that can be read") from None
