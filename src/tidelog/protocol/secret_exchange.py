"""TIDELOG-SECRET: the codes by which two processes prove to each other that they know the secret.

Owns the mechanism's name and its arithmetic (HMAC-SHA256 over both nonces); pure. The exchange, in
which the client is the process that opened the connection:

    client -> SaslHandshake(TIDELOG-SECRET), SaslAuthenticate(client nonce)
    server -> server nonce + HMAC(secret, "server" + client nonce + server nonce)
    client -> SaslAuthenticate(HMAC(secret, "client" + client nonce + server nonce))

The nonces are fresh for each connection, so a recorded exchange proves nothing later; the two
words differ, so that no side can send the other's code back. Comparisons take constant time.
Source: decision 0019.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable

MECHANISM = "TIDELOG-SECRET"

NONCE_BYTES = 32
CODE_BYTES = 32

_SERVER, _CLIENT = b"server", b"client"


class Exchange:
    """The server's state of one connection's exchange."""

    __slots__ = ("client_nonce", "done", "server_nonce")

    def __init__(self) -> None:
        self.client_nonce = b""
        self.server_nonce = b""
        self.done = False


def server_code(secret: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
    """Return the code by which the process that was connected to proves the secret."""
    return _code(secret, _SERVER, client_nonce, server_nonce)


def client_code(secret: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
    """Return the code by which the process that opened the connection proves the secret."""
    return _code(secret, _CLIENT, client_nonce, server_nonce)


def proves_server(
    code: bytes, secrets: Iterable[bytes], client_nonce: bytes, server_nonce: bytes
) -> bool:
    """Whether ``code`` is the server's for one of the accepted secrets."""
    return _matches(code, (server_code(each, client_nonce, server_nonce) for each in secrets))


def proves_client(
    code: bytes, secrets: Iterable[bytes], client_nonce: bytes, server_nonce: bytes
) -> bool:
    """Whether ``code`` is the client's for one of the accepted secrets."""
    return _matches(code, (client_code(each, client_nonce, server_nonce) for each in secrets))


def _code(secret: bytes, word: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
    return hmac.digest(secret, word + client_nonce + server_nonce, "sha256")


def _matches(code: bytes, expected: Iterable[bytes]) -> bool:
    # All are compared: how long it takes does not say which secret it was.
    found = [hmac.compare_digest(code, each) for each in expected]
    return True in found
