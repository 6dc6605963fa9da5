"""The client's half of TIDELOG-SECRET, the mutual proof of the cluster secret.

Owns the exchange, once per connection and before any other request. A connection to a peer that
proves no secret, or another one, is not used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from tidelog.client.errors import ConnectionLost, ProofFailed, RequestTimedOut, error_code
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.protocol.secret_exchange import (
    CODE_BYTES,
    MECHANISM,
    NONCE_BYTES,
    client_code,
    proves_server,
)

if TYPE_CHECKING:
    from tidelog.runtime.cluster_secret import ClusterSecret

audit = logging.getLogger("tidelog.audit")

HANDSHAKE_VERSION, AUTHENTICATE_VERSION = 1, 2


class ProvingPeer(Protocol):
    """The part of a connection that the exchange uses."""

    @property
    def peer(self) -> str:
        """The address, for messages."""

    def speaks(self, api_key: int) -> bool:
        """Return whether both sides share a version of an API."""

    async def send(self, request: Any, version: int | None, timeout_ms: int) -> Any:
        """Send a request and return its decoded response."""


async def prove(connection: ProvingPeer, secret: ClusterSecret, left_ms: Callable[[], int]) -> None:
    """Prove the secret, and check the peer's proof. Raises ProofFailed, ConnectionLost.

    ``left_ms`` returns the time left for the exchange.

    When the secret is optional, a peer that does not offer the mechanism is accepted without a
    proof; versions must have been negotiated before.
    """
    if secret.optional and not connection.speaks(ApiKey.SASL_HANDSHAKE):
        return
    peer = connection.peer
    try:
        handshake = messages.SaslHandshakeRequest(mechanism=MECHANISM)
        chosen = await connection.send(handshake, HANDSHAKE_VERSION, left_ms())
    except RequestTimedOut:
        raise
    except ConnectionLost as error:
        raise ProofFailed(
            f"{peer} does not prove a cluster secret: give that process this cluster.secret.file, "
            f"or set cluster.secret.optional=true here until it has one ({error})"
        ) from None
    if chosen.error_code != ErrorCode.NONE:
        code = error_code(chosen.error_code).name
        raise ProofFailed(f"{peer} does not accept {MECHANISM}: {code}")
    secrets = secret.current()
    nonce = secret.nonce(NONCE_BYTES)
    answer = await _step(connection, nonce, left_ms())
    theirs, code_bytes = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
    if len(code_bytes) != CODE_BYTES or not proves_server(code_bytes, secrets, nonce, theirs):
        more = secret.others_wrong_proof(peer)
        if more is not None:
            besides = f" (and {more} more since the last line)" if more else ""
            audit.warning("%s gave a wrong proof of the cluster secret%s", peer, besides)
        raise ProofFailed(
            f"{peer} has another cluster secret than {secret.path}: all processes of a cluster "
            "have the same one"
        )
    try:
        await _step(connection, client_code(secrets[0], nonce, theirs), left_ms())
    except RequestTimedOut:
        raise
    except ConnectionLost as error:
        raise ProofFailed(
            f"{peer} did not accept this process's proof of the cluster secret ({error})"
        ) from None


async def _step(connection: ProvingPeer, message: bytes, timeout_ms: int) -> bytes:
    request = messages.SaslAuthenticateRequest(auth_bytes=message)
    answer = await connection.send(request, AUTHENTICATE_VERSION, timeout_ms)
    if answer.error_code != ErrorCode.NONE:
        code, why = error_code(answer.error_code).name, answer.error_message
        raise ProofFailed(
            f"{connection.peer} refused the proof of the cluster secret: {code} {why}"
        )
    return bytes(answer.auth_bytes)
