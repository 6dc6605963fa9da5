"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): credentials, and both sides of an exchange.

Owns the messages and their arithmetic; pure. Nonces come from the caller, and so does the salted
password, which takes milliseconds (``salted_password``: for a thread). Not where credentials are:
see the store; not SaslAuthenticate, which carries the messages: see `network`.

| step | server | client |
|---|---|---|
| 1 | | ``first()``: the name, a nonce |
| 2 | ``challenge(message, …)``: both nonces, salt, iterations | |
| 3 | | ``challenged(message)``, then ``answer(salted password)``: the proof |
| 4 | ``final(message)``: checks the proof; the signature | |
| 5 | | ``verify(message)``: checks the signature |

Each side takes each step once, and none after a failure: a message that is sent again, or comes too
early, fails. A user without a credential gets a challenge with a salt of its own, always the same,
and fails in step 4 as a wrong password does. Channel binding is not offered.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from enum import IntEnum
from typing import NamedTuple

MIN_ITERATIONS = 4096
"""RFC 7677 and Kafka's ScramMechanism."""

MAX_ITERATIONS = 16_384
"""Of a credential that is made here, as in Kafka (KIP-554)."""

MOST_ITERATIONS_ASKED = 100_000
"""Of a challenge that a client answers: a server may ask for work. Credentials that are older than
KIP-554 had no upper bound."""

MOST_MESSAGE_BYTES = 8_192
MOST_NAME_CHARACTERS = 1_000
MOST_NONCE_CHARACTERS = 256
MOST_SALT_BYTES = 256
SALT_BYTES = 26
"""Of a credential that is made here. Kafka's salts have as many characters."""


_ESCAPED = re.compile("(?:[^=]|=2C|=3D)+")


class ScramFailure(Exception):
    """An exchange that has failed; the sentence is for the log, and never for the other side."""


class Mechanism(NamedTuple):
    """One mechanism, with the number that requests 50 and 51 have for it."""

    name: str
    number: int
    hash_name: str
    size: int

    def hmac(self, key: bytes, message: bytes) -> bytes:
        """Return HMAC of a message."""
        return hmac.digest(key, message, self.hash_name)

    def hash(self, message: bytes) -> bytes:
        """Return the hash of a message."""
        return hashlib.new(self.hash_name, message).digest()


SHA_256 = Mechanism("SCRAM-SHA-256", 1, "sha256", 32)
SHA_512 = Mechanism("SCRAM-SHA-512", 2, "sha512", 64)
MECHANISMS = {each.name: each for each in (SHA_256, SHA_512)}


class Credential(NamedTuple):
    """What a server keeps of a password."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


def salted_password(mechanism: Mechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Return the salted password: 16,384 iterations take about 10 ms. As in Kafka, a password is
    its UTF-8 and not normalized."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def credential_of(mechanism: Mechanism, salted: bytes, salt: bytes, iterations: int) -> Credential:
    """Return the credential of a salted password, which is all that request 51 has."""
    client_key = mechanism.hmac(salted, b"Client Key")
    server_key = mechanism.hmac(salted, b"Server Key")
    return Credential(salt, mechanism.hash(client_key), server_key, iterations)


def decoy(mechanism: Mechanism, key: bytes, name: str, iterations: int) -> Credential:
    """Return the credential that a user without one is challenged with: always the same for a name,
    as far as ``key`` is, so that asking twice tells no client which names exist."""

    def drawn(what: bytes) -> bytes:
        return mechanism.hmac(key, what + name.encode())

    salt = drawn(b"salt ")[:SALT_BYTES]
    return Credential(salt, drawn(b"stored "), drawn(b"server "), iterations)


def to_text(credential: Credential) -> str:
    """Return a credential as Kafka's nodes of users have it."""
    return (
        f"salt={_base64(credential.salt)},stored_key={_base64(credential.stored_key)},"
        f"server_key={_base64(credential.server_key)},iterations={credential.iterations}"
    )


def from_text(mechanism: Mechanism, text: str) -> Credential:
    """Return the credential of a node. Raises ScramFailure, with no part of the text."""
    fields = dict(part.partition("=")[::2] for part in text.split(","))
    if fields.keys() != {"salt", "stored_key", "server_key", "iterations"} or text.count(",") != 3:
        raise ScramFailure("a credential does not have its four fields")
    found = Credential(
        _bytes(fields["salt"]),
        _bytes(fields["stored_key"]),
        _bytes(fields["server_key"]),
        _number(fields["iterations"]),
    )
    if not (0 < len(found.salt) <= MOST_SALT_BYTES) or found.iterations < MIN_ITERATIONS:
        raise ScramFailure("a credential has no salt, or too few iterations")
    if not len(found.stored_key) == len(found.server_key) == mechanism.size:
        raise ScramFailure(f"a credential has no keys of {mechanism.name}")
    return found


def why_not_iterations(iterations: int) -> str | None:
    """Return why a credential may not be made with so many iterations, or None."""
    if MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        return None
    return f"iterations must be {MIN_ITERATIONS} to {MAX_ITERATIONS}"


class _Step(IntEnum):
    FIRST = 1
    CHALLENGED = 2
    ANSWERED = 3
    PROVED = 4
    """Only of the client: the server has still to prove that it knows the credential."""

    DONE = 5
    FAILED = 6


class _Side:
    """What both sides have: which step comes next, and the messages so far."""

    __slots__ = ("_bare", "_mechanism", "_nonce", "_server_first", "_step")

    def __init__(self, mechanism: Mechanism) -> None:
        self._mechanism = mechanism
        self._step = _Step.FIRST
        self._bare = b""
        self._server_first = b""
        self._nonce = ""

    @property
    def done(self) -> bool:
        """Whether the exchange has succeeded."""
        return self._step is _Step.DONE

    def _begin(self, expected: _Step) -> None:
        """Take a step. Until it ends with another one the exchange has failed."""
        step, self._step = self._step, _Step.FAILED
        if step is not expected:
            raise ScramFailure("a message came twice, too early, or after a failure")

    def _signed(self, without_proof: bytes) -> bytes:
        return b",".join((self._bare, self._server_first, without_proof))


class ServerExchange(_Side):
    """The server's side of one exchange. ``name`` is the user that the client claims to be; that is
    proved once ``done``."""

    __slots__ = ("_credential", "_gs2", "name")

    def __init__(self, mechanism: Mechanism) -> None:
        super().__init__(mechanism)
        self.name = ""
        self._gs2 = b""
        self._credential: Credential | None = None

    def read_first(self, message: bytes) -> str:
        """Return the name in the client's first message: the caller finds its credential."""
        self._begin(_Step.FIRST)
        text = _text(message)
        flag, _, rest = text.partition(",")
        authzid, comma, bare = rest.partition(",")
        if flag not in ("n", "y") or not comma:
            raise ScramFailure("a client asked for channel binding, or sent no header")
        name, *others = bare.split(",")
        nonce = others[0] if others else ""
        if not name.startswith("n=") or not nonce.startswith("r="):
            raise ScramFailure("a first message has no name and nonce, or a mandatory extension")
        if any(each.startswith("tokenauth=") for each in others[1:]):
            raise ScramFailure("a client came with a delegation token: there are none")
        self.name = _unescaped(name[2:])
        if authzid and (authzid[:2] != "a=" or _unescaped(authzid[2:]) != self.name):
            raise ScramFailure("a client asked to be authorized as another user")
        self._nonce = _checked_nonce(nonce[2:])
        self._gs2 = f"{flag},{authzid},".encode()
        self._bare = bare.encode()
        self._step = _Step.CHALLENGED
        return self.name

    def challenge(self, credential: Credential, nonce: str) -> bytes:
        """Return the server's first message; ``nonce`` is fresh, and printable without commas.

        A user without a credential is challenged with a ``decoy``.
        """
        self._begin(_Step.CHALLENGED)
        self._credential = credential
        self._nonce += nonce
        self._server_first = (
            f"r={self._nonce},s={_base64(credential.salt)},i={credential.iterations}".encode()
        )
        self._step = _Step.ANSWERED
        return self._server_first

    def final(self, message: bytes) -> bytes:
        """Check the client's proof; return the server's final message. Raises ScramFailure."""
        self._begin(_Step.ANSWERED)
        credential, mechanism = self._credential, self._mechanism
        assert credential is not None, "a challenge has one"
        without_proof, mark, proof_text = _text(message).rpartition(",p=")
        binding, comma, nonce = without_proof.partition(",")
        if not mark or binding[:2] != "c=" or not comma:
            raise ScramFailure("a final message has no channel binding, nonce and proof")
        if _bytes(binding[2:]) != self._gs2:
            raise ScramFailure("a final message has another channel binding than the first")
        if nonce.partition(",")[0] != f"r={self._nonce}":
            raise ScramFailure("a final message has another nonce: it is of another exchange")
        proof = _bytes(proof_text)
        if len(proof) != mechanism.size:
            raise ScramFailure("a proof has the wrong length")
        signed = self._signed(without_proof.encode())
        signature = mechanism.hmac(credential.stored_key, signed)
        client_key = _xor(proof, signature)
        answer = b"v=" + _base64(mechanism.hmac(credential.server_key, signed)).encode()
        if not hmac.compare_digest(mechanism.hash(client_key), credential.stored_key):
            raise ScramFailure("a wrong password, or a user without credentials")
        self._step = _Step.DONE
        return answer


class Challenge(NamedTuple):
    """What a client needs for its salted password."""

    salt: bytes
    iterations: int


class ClientExchange(_Side):
    """The client's side of one exchange."""

    __slots__ = ("_expected", "_name")

    def __init__(self, mechanism: Mechanism, name: str, nonce: str) -> None:
        """``nonce`` is fresh, and printable without commas."""
        super().__init__(mechanism)
        self._name = name
        self._nonce = nonce
        self._expected = b""

    def first(self) -> bytes:
        """Return the client's first message."""
        self._begin(_Step.FIRST)
        name = self._name.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={self._nonce}".encode()
        self._step = _Step.CHALLENGED
        return b"n,," + self._bare

    def challenged(self, message: bytes) -> Challenge:
        """Return what the server's first message asks for. Raises ScramFailure, too, for less work
        than is safe and for more than a server may ask."""
        self._begin(_Step.CHALLENGED)
        parts = _text(message).split(",")
        if parts[0].startswith("e="):
            raise ScramFailure("the server refused the exchange")
        if len(parts) < 3 or [part[:2] for part in parts[:3]] != ["r=", "s=", "i="]:
            raise ScramFailure("a challenge has no nonce, salt and iterations")
        nonce, salt, iterations = parts[0][2:], _bytes(parts[1][2:]), _number(parts[2][2:])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramFailure("a challenge has another nonce: it is of another exchange")
        if not MIN_ITERATIONS <= iterations <= MOST_ITERATIONS_ASKED:
            raise ScramFailure(
                f"the server asks for {iterations} iterations; {MIN_ITERATIONS} to "
                f"{MOST_ITERATIONS_ASKED} are accepted"
            )
        if not 0 < len(salt) <= MOST_SALT_BYTES:
            raise ScramFailure("a challenge has no salt, or a very long one")
        self._nonce = _checked_nonce(nonce, 2)
        self._server_first = bytes(message)
        self._step = _Step.ANSWERED
        return Challenge(salt, iterations)

    def answer(self, salted: bytes) -> bytes:
        """Return the client's final message, with the proof of the salted password."""
        self._begin(_Step.ANSWERED)
        mechanism = self._mechanism
        without_proof = b"c=biws,r=" + self._nonce.encode()
        signed = self._signed(without_proof)
        client_key = mechanism.hmac(salted, b"Client Key")
        proof = _xor(client_key, mechanism.hmac(mechanism.hash(client_key), signed))
        self._expected = mechanism.hmac(mechanism.hmac(salted, b"Server Key"), signed)
        self._step = _Step.PROVED
        return without_proof + b",p=" + _base64(proof).encode()

    def verify(self, message: bytes) -> None:
        """Check the server's signature: it knows the credential. Raises ScramFailure."""
        self._begin(_Step.PROVED)
        text = _text(message)
        if not text.startswith("v="):
            raise ScramFailure("the server refused the proof, or sent no signature")
        if not hmac.compare_digest(_bytes(text[2:].partition(",")[0]), self._expected):
            raise ScramFailure("the server's signature is wrong: it does not know the password")
        self._step = _Step.DONE


def _text(message: bytes) -> str:
    if len(message) > MOST_MESSAGE_BYTES:
        raise ScramFailure(f"a message has {len(message)} bytes, over {MOST_MESSAGE_BYTES}")
    try:
        text = bytes(message).decode()
    except UnicodeDecodeError:
        raise ScramFailure("a message is not UTF-8") from None
    if "\0" in text:
        raise ScramFailure("a message has a zero")
    return text


def _unescaped(name: str) -> str:
    """Return a name without its escapes: ``=2C`` is a comma, ``=3D`` is ``=``."""
    found = name.replace("=2C", ",").replace("=3D", "=")
    is_escaped = _ESCAPED.fullmatch(name) is not None
    if not is_escaped or len(found) > MOST_NAME_CHARACTERS or not found.isprintable():
        raise ScramFailure("a name is empty, too long, or has characters that names do not have")
    return found


def _checked_nonce(nonce: str, times: int = 1) -> str:
    if not 0 < len(nonce) <= times * MOST_NONCE_CHARACTERS or not (
        nonce.isascii() and nonce.isprintable() and " " not in nonce
    ):
        raise ScramFailure("a nonce is empty, too long, or not printable")
    return nonce


def _bytes(text: str) -> bytes:
    try:
        found = base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError, ValueError):
        raise ScramFailure("a field is not base64") from None
    if _base64(found) != text:
        # One proof has one text: unused bits would make others of it.
        raise ScramFailure("a field is not base64")
    return found


def _number(text: str) -> int:
    if not (0 < len(text) <= 9 and text.isascii() and text.isdecimal()):
        raise ScramFailure("the iterations are not a number")
    return int(text)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _xor(one: bytes, other: bytes) -> bytes:
    size = len(one)
    number = int.from_bytes(one, "big") ^ int.from_bytes(other, "big")
    return number.to_bytes(size, "big")
