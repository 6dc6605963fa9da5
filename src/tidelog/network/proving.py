"""SaslHandshake v1 and SaslAuthenticate v0-2: the proof of the cluster secret by a connection.

Served on every listener of a process that has a secret, once for each connection; after its proof a
connection may act as a process of the cluster (``Peer.trust``). A wrong proof closes the connection
after one audit line. Not the codes: see `protocol.secret_exchange`.

| state | request | response |
|---|---|---|
| not begun | SaslHandshake, TIDELOG-SECRET | the mechanism |
| not begun | SaslHandshake, any other | UNSUPPORTED_SASL_MECHANISM |
| chosen | SaslAuthenticate, a nonce | the server's nonce and code |
| challenged | SaslAuthenticate, the right code | done: trusted |
| chosen, challenged | any other SaslAuthenticate | none: closed |
| any other | either | ILLEGAL_SASL_STATE |
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages
from tidelog.protocol.secret_exchange import (
    CODE_BYTES,
    MECHANISM,
    NONCE_BYTES,
    Exchange,
    proves_client,
    server_code,
)
from tidelog.runtime.cluster_secret import ClusterSecret

KEYS = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
STEPS = 3
"""Requests of one exchange."""

WRONG = "a wrong proof of the cluster secret"


def _handshake(_: Any, request: messages.SaslHandshakeRequest, context: RequestContext) -> Any:
    connection = context.connection
    error = ErrorCode.NONE
    if request.mechanism != MECHANISM:
        error = ErrorCode.UNSUPPORTED_SASL_MECHANISM
    elif connection.exchange is not None:
        error = ErrorCode.ILLEGAL_SASL_STATE
    else:
        connection.exchange = Exchange()
    return messages.SaslHandshakeResponse(error_code=error, mechanisms=[MECHANISM])


def _authenticate(
    secret: ClusterSecret,
    _: Any,
    request: messages.SaslAuthenticateRequest,
    context: RequestContext,
) -> Any:
    connection = context.connection
    exchange = connection.exchange
    if exchange is None or exchange.done:
        return messages.SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="SaslHandshake comes first, once for a connection.",
        )
    if len(request.auth_bytes) != (CODE_BYTES if exchange.client_nonce else NONCE_BYTES):
        # Not copied first: it may have a hundred megabytes.
        return _wrong(context)
    secrets, said = secret.current(), bytes(request.auth_bytes)
    if not exchange.client_nonce:
        exchange.client_nonce = said
        exchange.server_nonce = nonce = secret.nonce(NONCE_BYTES)
        return messages.SaslAuthenticateResponse(
            auth_bytes=nonce + server_code(secrets[0], said, nonce)
        )
    if not proves_client(said, secrets, exchange.client_nonce, exchange.server_nonce):
        return _wrong(context)
    exchange.done = True
    connection.trust()
    return messages.SaslAuthenticateResponse()


def _wrong(context: RequestContext) -> None:
    context.connection.refused(ApiKey.SASL_AUTHENTICATE, WRONG)
    context.connection.close(None)


def handlers(secret: ClusterSecret) -> tuple[Handler, ...]:
    """Return the handlers by which connections prove this secret."""
    authenticate = partial(_authenticate, secret)
    return (
        Handler(ApiKey.SASL_HANDSHAKE, Scope.CLIENT, _handshake),
        Handler(ApiKey.SASL_AUTHENTICATE, Scope.CLIENT, authenticate),
    )
