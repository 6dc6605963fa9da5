"""The cluster secret in tests: files of it, and a `Peer` that proves it, or a wrong one."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from tests.support.lone_broker import Peer
from tidelog.protocol import messages
from tidelog.protocol.secret_exchange import (
    MECHANISM,
    NONCE_BYTES,
    client_code,
    proves_server,
)


def write_secret(folder: Path, *found: str) -> Path:
    """Write a file of secrets (a random one by default) that only its owner can read."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "cluster.secret"
    lines = found or (secrets.token_hex(32),)
    # Aside and renamed: a process that reads it again never finds half of it.
    temporary = folder / "cluster.secret.tmp"
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(file, "w") as stream:
        stream.write("\n".join(lines) + "\n")
    os.replace(temporary, path)
    return path


def secret_in(path: Path) -> bytes:
    """The secret that a process with this file proves."""
    return path.read_bytes().split()[0]


async def proven(port: int, secret: bytes) -> Peer:
    """A connection to a process of this machine that has proved the secret."""
    peer = await Peer.connect(port)
    await prove(peer, secret)
    return peer


async def prove(peer: Peer, secret: bytes) -> None:
    """Prove a secret; ConnectionError where it is not the server's. AssertionError for its code."""
    ours, said = await begin(peer)
    theirs, code = said[:NONCE_BYTES], said[NONCE_BYTES:]
    assert (await peer.ask(step(client_code(secret, ours, theirs)), 2)).error_code == 0
    assert proves_server(code, [secret], ours, theirs)


async def begin(peer: Peer, nonce: bytes | None = None) -> tuple[bytes, bytes]:
    """Go as far as the server's answer: our nonce, and its nonce and code."""
    chosen = await peer.ask(messages.SaslHandshakeRequest(mechanism=MECHANISM), 1)
    assert chosen.error_code == 0
    ours = secrets.token_bytes(NONCE_BYTES) if nonce is None else nonce
    return ours, bytes((await peer.ask(step(ours), 2)).auth_bytes)


def step(said: bytes) -> messages.SaslAuthenticateRequest:
    """One SaslAuthenticate."""
    return messages.SaslAuthenticateRequest(auth_bytes=said)
