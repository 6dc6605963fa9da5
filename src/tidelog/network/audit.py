"""Lines for the audit about refused requests: bounded by time, address and API; all are counted.

Owns which refusal gets a line of its own. A client can be refused a million times a second: at most
one line a second names the same address and API, and it says how many there were besides.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.model.api_keys import ApiKey

if TYPE_CHECKING:
    from tidelog.network.router import Peer

audit = logging.getLogger("tidelog.audit")

LINE_EVERY_S = 1.0

MAX_PLACES = 1024
"""Pairs of address and API that are told apart at a time; beyond it addresses are taken together
per API, so that somebody with many of them fills neither the memory nor the log."""

ELSEWHERE = "other addresses"


@dataclass(slots=True)
class _Said:
    # When the last line was, and how many refusals have come since, the last for which reason.
    at: float
    more: int = 0
    why: str = ""


class Audit:
    """What one server has refused."""

    def __init__(self, now: Callable[[], float]) -> None:
        """``now`` is a monotonic clock in seconds."""
        self._now = now
        self._said: dict[tuple[str, ApiKey], _Said] = {}
        self.refused_by_api: Counter[ApiKey] = Counter()
        """All refusals since the start: the metric."""

    def refused(self, connection: Peer, api_key: ApiKey, why: str) -> None:
        """Count a refusal, and say it unless the same was said within a second."""
        self.refused_by_api[api_key] += 1
        now = self._now()
        place = (connection.client_host, api_key)
        if place not in self._said and len(self._said) >= MAX_PLACES:
            self.say_rest()
            if len(self._said) >= MAX_PLACES:
                place = (ELSEWHERE, api_key)
        said = self._said.get(place)
        if said is not None and now - said.at < LINE_EVERY_S:
            said.more += 1
            said.why = why
            return
        more = 0 if said is None else said.more
        self._said[place] = _Said(now)
        _say(place, f"{why}, on {connection.listener_name}", more)

    def say_rest(self) -> None:
        """Say what was counted and not said more than a second ago, and forget the quiet ones."""
        now = self._now()
        for place, said in list(self._said.items()):
            if now - said.at < LINE_EVERY_S:
                continue
            if said.more:
                _say(place, said.why, said.more - 1)
                self._said[place] = _Said(now)
            else:
                del self._said[place]


def _say(place: tuple[str, ApiKey], why: str, more: int) -> None:
    host, api_key = place
    besides = f" (and {more} more since the last line)" if more else ""
    audit.warning(
        "refused %(request)s from %(address)s: %(why)s%(besides)s",
        {"request": api_key.name, "address": host, "why": why, "besides": besides},
    )
