"""Problems in the condition of the cluster: their form as plain data, and brokers in a sentence.

Owns the form. Not the findings: see ``condition`` and ``moves_condition``.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tidelog.model.wording import named

NAMES_LISTED = 1_000
"""Partitions or brokers that a problem lists beside its sentence."""

BAD = "bad"
NOTICE = "notice"


def problem(
    kind: str,
    what: str,
    advice: str,
    level: str = BAD,
    *,
    partitions: Collection[str] = (),
    brokers: Collection[int] = (),
) -> dict[str, Any]:
    """Return a problem as plain data for JSON."""
    return {
        "kind": kind,
        "level": level,
        "what": what,
        "advice": advice,
        "partitions": list(partitions)[:NAMES_LISTED],
        "brokers": list(brokers)[:NAMES_LISTED],
    }


def names_of_brokers(brokers: Collection[int]) -> str:
    """Return brokers in a phrase."""
    if not brokers:
        return "the brokers that are missing"
    plural = "" if len(brokers) == 1 else "s"
    return f"broker{plural} {named(sorted(brokers))}"
