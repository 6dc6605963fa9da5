"""Audit lines of refused requests: bounded by time, address and API; all refusals are counted.

Owns which refusal gets a line of its own. A client can be refused a million times a second: at most
one line a second has the same address and API, and it says how many more there were.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.model.api_keys import ApiKey, spoken

if TYPE_CHECKING:
    from tidelog.network.router import Peer

audit = logging.getLogger("tidelog.audit")

LINE_EVERY_S = 1.0

MAX_PLACES = 1024
"""Pairs of address and API that are counted separately; above it the addresses of an API are
counted together, so that a client with many addresses fills neither the memory nor the log."""

ELSEWHERE = "other addresses"


@dataclass(slots=True)
class _Said:
    # The time of the last line, the refusals since then, and the reason of the last of them.
    at: float
    more: int = 0
    why: str = ""


class Audit:
    """The refusals of one server."""

    def __init__(self, now: Callable[[], float]) -> None:
        """``now`` is a monotonic clock in seconds."""
        self._now = now
        self._said: dict[tuple[str, ApiKey], _Said] = {}
        self.refused_by_api: Counter[ApiKey] = Counter()
        """All refusals since the start: the metric."""

    def refused(self, connection: Peer, api_key: ApiKey, why: str) -> None:
        """Count a refusal, and log it unless there was such a line within the last second."""
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
        """Log the refusals counted since lines older than a second, and drop entries without
        any."""
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
        {"request": spoken(api_key), "address": host, "why": why, "besides": besides},
    )
