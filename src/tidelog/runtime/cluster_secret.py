"""The cluster secret of one process: read from its file, and again when the file changes.

Owns the file's format and the nonces of the exchange. The file has one secret, or two while the
secret is changed, one in each line; the first proves, both are accepted. When the file becomes
unreadable or invalid, the secrets that were read last stay in use, and a log line says so. No
secret is ever logged (promise 32).
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

from tidelog.runtime.clock import Clock
from tidelog.runtime.disk import Disk

logger = logging.getLogger(__name__)

MIN_SECRET_BYTES = 16
MAX_FILE_BYTES = 4096
MAX_SECRETS = 2

READ_AGAIN_MS = 1_000
"""Greatest age of the content when it is used: the file is read at most once in this time."""

LINE_EVERY_MS = 1_000
"""Time between two log lines of a peer with another secret, which connects many times a second."""

MAX_PEERS = 1_024
"""Peers that are counted separately; above it all counts are dropped, and each logs again."""


class SecretRefused(Exception):
    """The secret's file cannot be used: one line that says why and what to do."""


class ClusterSecret:
    """What a process proves, and accepts as a proof."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        clock: Clock,
        entropy: random.Random,
        optional: bool = False,
        why_unfit: Callable[[str], str | None] | None = None,
    ) -> None:
        """Read the file. Raises SecretRefused.

        ``optional`` is ``cluster.secret.optional``: others need no proof (during a roll).
        ``why_unfit`` is called with the path before each read: it checks the file's mode, for
        instance.
        """
        self.path = path
        self.optional = optional
        self._disk = disk
        self._clock = clock
        self._entropy = entropy
        self._read_at_ms = clock.monotonic_ms()
        self._why_unfit = why_unfit
        self._said = ""
        self._wrong: dict[str, tuple[int, int]] = {}
        """Peer -> time of its last log line, and the wrong proofs since then."""
        self._secrets = self._read()

    def current(self) -> tuple[bytes, ...]:
        """Return one or two secrets: the first proves, each is accepted."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._read_at_ms >= READ_AGAIN_MS:
            self._read_at_ms = now_ms
            self._read_again()
        return self._secrets

    def nonce(self, size: int) -> bytes:
        """Return random bytes that were never used before."""
        return self._entropy.randbytes(size)

    def others_wrong_proof(self, peer: str) -> int | None:
        """Count a wrong proof of ``peer``; return None unless a log line may report it now.

        Then it returns the number of wrong proofs since the last line. Audit lines are bounded: at
        most one a second for an address.
        """
        now_ms = self._clock.monotonic_ms()
        said_ms, more = self._wrong.get(peer, (now_ms - LINE_EVERY_MS, 0))
        if now_ms - said_ms < LINE_EVERY_MS:
            self._wrong[peer] = said_ms, more + 1
            return None
        if len(self._wrong) >= MAX_PEERS:
            self._wrong.clear()
        self._wrong[peer] = now_ms, 0
        return more

    def _read_again(self) -> None:
        try:
            found = self._read()
        except SecretRefused as error:
            if str(error) != self._said:
                self._said = str(error)
                logger.error("%s; the secret that was read before stays in use", error)
            return
        self._said = ""
        if found != self._secrets:
            self._secrets = found
            secrets = "one secret" if len(found) == 1 else f"{len(found)} secrets"
            logger.info("%s has changed: it holds %s now", self.path, secrets)

    def _read(self) -> tuple[bytes, ...]:
        if self._why_unfit is not None and (open_to := self._why_unfit(self.path)):
            raise SecretRefused(open_to)
        try:
            if self._disk.size(self.path) > MAX_FILE_BYTES:
                raise SecretRefused(f"{self.path} is larger than {MAX_FILE_BYTES} bytes")
            content = self._disk.read(self.path)
        except OSError as error:
            why = error.strerror or error
            raise SecretRefused(f"the cluster secret {self.path} cannot be read: {why}") from error
        return secrets_in(content, self.path)


def secrets_in(content: bytes, path: str) -> tuple[bytes, ...]:
    """Return the secrets of a file, without white space around them. Raises SecretRefused."""
    lines = [line.strip() for line in content.splitlines()]
    secrets = tuple(line for line in lines if line)
    if not secrets:
        raise SecretRefused(f"{path} is empty: a cluster secret is one line of random characters")
    if len(secrets) > MAX_SECRETS:
        raise SecretRefused(
            f"{path} has {len(secrets)} lines: a cluster has one secret, or two while it is changed"
        )
    if any(len(each) < MIN_SECRET_BYTES for each in secrets):
        raise SecretRefused(
            f"{path} has a secret of fewer than {MIN_SECRET_BYTES} characters: take random ones "
            "(`openssl rand -hex 32`)"
        )
    return secrets
