"""Replays of autoscaling: the rule over recorded rates, with the counts that it decides. Pure.

Owns the lines of a recording, and how recorded rates become those of a topic with another count.
Not the rule: see ``autoscaling``.

A recording has one JSON object per line: ``at_ms`` (time of day) and ``rates`` (bytes per second by
partition, null where unknown), which is enough; ``count``, ``listed``, ``unaware`` and ``settings``
as a controller logs them; or a controller's log line in JSON, with all of that in ``observation``.
Other lines of a log in JSON are skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

import msgspec

from tidelog.controller.decisions.autoscaling import (
    Cause,
    Observation,
    Settings,
    State,
    Verdict,
    decide,
)

MOST_RATES = 100_000
"""The most partitions of one line."""


class BadLine(Exception):
    """A line of a recording is not one; the text is a clause that says why."""


class Recorded(msgspec.Struct, frozen=True):
    """One line of a recording."""

    at_ms: int
    rates: list[int | float | None]
    topic: str = ""
    unaware: str = ""
    settings: dict[str, int | float | None] = {}


class Step(NamedTuple):
    """One replayed decision."""

    seen: Observation
    verdict: Verdict


def read_line(line: str) -> Recorded | None:
    """Return what a line has; None for an empty one, or another line of a log. Raises BadLine."""
    if not line.strip():
        return None
    try:
        content: Any = msgspec.json.decode(line)
        if isinstance(content, dict) and isinstance(content.get("observation"), str):
            content = msgspec.json.decode(content["observation"])
        elif isinstance(content, dict) and "event" in content and "rates" not in content:
            return None
        one: Recorded = msgspec.convert(content, Recorded)
    except msgspec.DecodeError as error:
        raise BadLine(f"is no JSON object with at_ms and rates: {error}") from None
    if not 0 < len(one.rates) <= MOST_RATES:
        raise BadLine(f"rates has {len(one.rates)} partitions: there must be 1 to {MOST_RATES}")
    return one


def settings_in(one: Recorded) -> Settings | None:
    """Return the settings that a line has; None without any. Raises BadLine."""
    if not one.settings:
        return None
    names = {field.name for field in fields(Settings)}
    given: Mapping[str, Any] = one.settings
    whole = all(x is None or isinstance(x, int) for n, x in given.items() if "util" not in n)
    is_fit = all(x is None or x >= -1 for x in given.values()) and given.get("initial_count", 0)
    if not given.keys() <= names or not whole or not is_fit or given["initial_count"] < 1:
        raise BadLine(f"settings must be numbers of {', '.join(sorted(names))}")
    return Settings(**given)


def replayed(settings: Settings, lines: Iterable[Recorded], count: int) -> Iterator[Step]:
    """Decide at each line, beginning with ``count`` partitions; what was decided holds at once.

    A topic that has another count than was recorded gets the same bytes in all, each partition an
    equal share; one unknown rate makes them unknown. Retired partitions are listed until retention
    has emptied them; with ``retired.purge=drained`` they are gone at the next line.
    """
    state = State()
    retired, gone_ms = 0, 0
    for one in lines:
        if one.at_ms >= gone_ms:
            retired = 0
        rates = rates_for(one, count)
        seen = Observation(one.at_ms, count, rates, count + retired, one.unaware)
        verdict = decide(settings, seen, state)
        yield Step(seen, verdict)
        if verdict.cause is Cause.SHRINK:
            retired += count - verdict.count
            gone_ms = one.at_ms + (settings.retired_ms or 0)
        count, state = verdict.count, verdict.state


def rates_for(one: Recorded, count: int) -> tuple[int | None, ...]:
    """Return the recorded rates as those of so many partitions."""
    rates = [None if rate is None else round(rate) for rate in one.rates]
    if len(rates) == count:
        return tuple(rates)
    known_rates = [rate for rate in rates if rate is not None]
    share = sum(known_rates) // count if len(known_rates) == len(rates) else None
    return (share,) * count
