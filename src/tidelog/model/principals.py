"""Principals: in whose name a request is made, in Kafka's form ``TYPE:NAME``.

Owns the value, the principals that this project makes itself, and what a name may be. Not how a
connection gets one: see `network.connection`; not its rights: see `authorization`.
"""

from __future__ import annotations

from typing import NamedTuple

USER = "User"

MOST_NAME_CHARACTERS = 1_000
"""Of a principal's name. The longest that are in use are the distinguished names of certificates;
KafkaPrincipal has no bound."""


class Principal(NamedTuple):
    """One principal. Two are the same when both parts are, byte for byte, as in Kafka."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS = Principal(USER, "ANONYMOUS")
"""Every client of a listener that authenticates none, as in Kafka."""

PROCESS = Principal("Process", "cluster-secret")
"""A process of the cluster, or an operator with its secret. No client gets this type: those of
SASL and TLS are users."""


def parse(text: str) -> Principal | None:
    """Return the principal of ``TYPE:NAME``, or None; a name may have colons.

    Control characters are refused: they would forge lines of the audit log.
    """
    kind, colon, name = text.partition(":")
    principal = Principal(kind, name)
    return principal if colon and is_valid(principal) else None


def is_valid(principal: Principal) -> bool:
    """Whether a principal may stand in a rule, a request or a line of the audit log."""
    return all(map(_is_valid_part, principal))


def _is_valid_part(text: str) -> bool:
    return 0 < len(text) <= MOST_NAME_CHARACTERS and text.isprintable()
