"""The rule of autoscaling: how many partitions a topic should have now, and why. Pure (KIP-253).

Owns the decision: from byte rates, the clock and the state of a topic to a count, a cause and a
sentence. Not where these come from, nor the resize: see ``autoscaled_topics``.

A count is the initial count times a power of two: one step doubles or halves it. At these counts
producers that know no counts hash as the others do.

| the topic | result |
|---|---|
| its mean rate per partition is above the target | it doubles, up to the maximum |
| it is below its minimum | it doubles, whatever its rate |
| the mean was below ``utilization`` of the target for a whole shrink cool-down | it halves |
| anything else | it stays, with the cause |

Hysteresis: ``utilization`` is below one half, so a topic that halves is below the target then.
Each resize of the topic, whoever wanted it, begins both cool-downs.

Rates may be wrong. One that is missing, negative, or above what a partition can take is unknown. A
topic with an unknown rate does not shrink, and grows if what is known is enough. A partition counts
for at most twice the target towards a growth: one hot key, or one broker that reports too much,
does not double a topic; a doubling would not help that key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum

from tidelog.model.wording import named
from tidelog.partitioning.lineage import level_of

MOST_BYTES_PER_SECOND = 1 << 36
"""The highest rate that is believed of one partition: 64 GiB a second, more than any disk takes."""

MOST_TARGETS = 2
"""A partition counts for so many times the target at most when a growth is decided."""


MOST_TIME_MS = 253_402_300_000_000
"""The last time that a sentence can name, in the year 9999."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The configurations of one topic, and how long its retired partitions stay.

    ``minimum`` -1 is the initial count. ``retired_ms`` is how long retired partitions keep the
    topic from growing: 0 for as long as its groups need (``retired.purge=drained``), None for ever.
    """

    initial_count: int
    target_bytes_per_second: int = 5_242_880
    minimum: int = -1
    maximum: int = 64
    grow_cooldown_ms: int = 60_000
    shrink_cooldown_ms: int = 600_000
    shrink_utilization: float = 0.4
    retired_ms: int | None = 0


@dataclass(frozen=True, slots=True)
class Observation:
    """What is known of a topic at one time.

    ``at_ms`` is the time of day. ``rates`` has the bytes per second of each partition that takes
    records, None where its leader has not reported one lately. ``listed`` counts retired partitions
    too. ``unaware`` says why writers without a partition count may be there, "" if none are.
    """

    at_ms: int
    count: int
    rates: tuple[int | None, ...]
    listed: int
    unaware: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """What one decision leaves to the next. The cool-downs are in the store, ``low_since_ms`` is
    not: with a new controller the time of a low rate begins again."""

    grow_after_ms: int = 0
    shrink_after_ms: int = 0
    low_since_ms: int | None = None


class Cause(StrEnum):
    """Why a topic gets another count, or keeps its own."""

    GROW = "grow"
    SHRINK = "shrink"
    FITS = "fits"
    UNKNOWN = "unknown rates"
    AT_MAXIMUM = "at the maximum"
    AT_MINIMUM = "at the minimum"
    COOLS_DOWN = "cool-down"
    LOW_TOO_BRIEFLY = "low too briefly"
    RETIRED = "retired partitions"
    UNAWARE = "unaware writers"
    NEVER_PURGED = "never purged"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The count that a topic should have now; its own if it stays. ``state`` is the next one."""

    count: int
    cause: Cause
    reason: str
    state: State


def decide(settings: Settings, seen: Observation, state: State) -> Verdict:
    """Decide about one topic. Never raises for whatever rates, times and counts it is given."""
    state = _believable(settings, state, seen.at_ms)
    rates = [rate if _is_rate(rate) else None for rate in seen.rates]
    known_rates = [rate for rate in rates if rate is not None]
    is_complete = len(known_rates) == seen.count == len(rates)
    target = settings.target_bytes_per_second
    capped = sum(min(rate, MOST_TARGETS * target) for rate in known_rates)
    low = settings.shrink_utilization * target * seen.count
    is_low = is_complete and sum(known_rates) < low
    low_since_ms = (
        (seen.at_ms if state.low_since_ms is None else state.low_since_ms) if is_low else None
    )
    state = replace(state, low_since_ms=low_since_ms)
    if seen.count < least(settings):
        why = f"it has fewer partitions than its minimum of {least(settings)}"
        return _grown(settings, seen, state, why)
    if capped > target * seen.count:
        why = f"its partitions take {_rate(capped / seen.count)} on average, above {_rate(target)}"
        return _grown(settings, seen, state, why)
    if not is_complete:
        return Verdict(seen.count, Cause.UNKNOWN, _why_unknown(seen, rates), state)
    if is_low:
        return _shrunk(settings, seen, state, sum(known_rates) / seen.count)
    why = (
        f"its partitions take {_rate(sum(known_rates) / max(1, seen.count))} on average: between "
        f"{_rate(settings.shrink_utilization * target)} and {_rate(target)}"
    )
    return Verdict(seen.count, Cause.FITS, why, state)


def least(settings: Settings) -> int:
    """Return the smallest count: no topic shrinks below its initial count."""
    return max(settings.initial_count, settings.minimum)


def cooling(settings: Settings, now_ms: int) -> State:
    """Return the state after a resize that begins now."""
    return State(now_ms + settings.grow_cooldown_ms, now_ms + settings.shrink_cooldown_ms)


def doubled(settings: Settings, count: int) -> int | None:
    """Return the count of the next step up; None above the maximum."""
    next_count = 2 * level_of(settings.initial_count, max(count, settings.initial_count))
    return next_count if next_count <= settings.maximum else None


def halved(settings: Settings, count: int) -> int | None:
    """Return the count of the next step down; None below the minimum."""
    below = level_of(settings.initial_count, max(count, settings.initial_count))
    next_count = count // 2 if below == count else below
    return next_count if next_count >= least(settings) else None


def _grown(settings: Settings, seen: Observation, state: State, why: str) -> Verdict:
    count = doubled(settings, seen.count)
    if count is None:
        reason = f"{why}; the next count is above partitions.auto.max ({settings.maximum})"
        return Verdict(seen.count, Cause.AT_MAXIMUM, reason, state)
    if seen.listed > seen.count:
        reason = f"{why}; it cannot grow while retired partitions are listed"
        return Verdict(seen.count, Cause.RETIRED, reason, state)
    if seen.at_ms < state.grow_after_ms:
        reason = f"{why}; it does not grow before {_time(state.grow_after_ms)}"
        return Verdict(seen.count, Cause.COOLS_DOWN, reason, state)
    return Verdict(count, Cause.GROW, why, cooling(settings, seen.at_ms))


def _shrunk(settings: Settings, seen: Observation, state: State, mean: float) -> Verdict:
    share = settings.shrink_utilization * settings.target_bytes_per_second
    why = f"its partitions take {_rate(mean)} on average, below {_rate(share)}"
    count = halved(settings, seen.count)
    if count is None:
        reason = f"{why}; its smallest count is {least(settings)}"
        return Verdict(seen.count, Cause.AT_MINIMUM, reason, state)
    if settings.retired_ms is None:
        reason = f"{why}; its retired partitions would never go, so it could not grow again"
        return Verdict(seen.count, Cause.NEVER_PURGED, reason, state)
    if seen.at_ms < state.shrink_after_ms:
        reason = f"{why}; it does not shrink before {_time(state.shrink_after_ms)}"
        return Verdict(seen.count, Cause.COOLS_DOWN, reason, state)
    assert state.low_since_ms is not None
    due_ms = state.low_since_ms + settings.shrink_cooldown_ms
    if seen.at_ms < due_ms:
        since, due = _time(state.low_since_ms), _time(due_ms)
        reason = f"{why}, since {since}; it shrinks if that lasts until {due}"
        return Verdict(seen.count, Cause.LOW_TOO_BRIEFLY, reason, state)
    if seen.unaware:
        return Verdict(seen.count, Cause.UNAWARE, f"{why}; {seen.unaware}", state)
    until = (
        "it can grow again when every group has read its retired partitions"
        if settings.retired_ms == 0
        else f"it cannot grow again before {_time(seen.at_ms + settings.retired_ms)}, when "
        "retention has emptied its retired partitions"
    )
    return Verdict(count, Cause.SHRINK, f"{why}; {until}", cooling(settings, seen.at_ms))


def _believable(settings: Settings, state: State, now_ms: int) -> State:
    """Return a state whose times the clock and the cool-downs allow.

    Both may have changed since: a clock that was set back must not keep a topic as it is for ever.
    """
    since = state.low_since_ms
    return State(
        min(state.grow_after_ms, now_ms + settings.grow_cooldown_ms),
        min(state.shrink_after_ms, now_ms + settings.shrink_cooldown_ms),
        None if since is None else min(since, now_ms),
    )


def _is_rate(rate: int | None) -> bool:
    return rate is not None and 0 <= rate <= MOST_BYTES_PER_SECOND


def _why_unknown(seen: Observation, rates: Sequence[int | None]) -> str:
    wrong = [
        index for index, rate in enumerate(seen.rates) if rate is not None and not _is_rate(rate)
    ]
    if wrong:
        return f"what brokers report of {_named(wrong)} is no rate: {seen.rates[wrong[0]]} bytes/s"
    lacking = [index for index, rate in enumerate(rates) if rate is None]
    return f"no rate is known yet of {_named(lacking)}" if lacking else "it has no rates yet"


def _named(indexes: Sequence[int]) -> str:
    return f"partition{'' if len(indexes) == 1 else 's'} {named(indexes)}"


def _rate(bytes_per_second: float) -> str:
    return f"{round(bytes_per_second):,} bytes/s"


def _time(at_ms: int) -> str:
    moment = datetime.fromtimestamp(max(0, min(at_ms, MOST_TIME_MS)) / 1000, UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")
