"""The rule of autoscaling: its table, its bounds, no flapping, wrong rates, a week of rates."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.controller.decisions.autoscaling import (
    MOST_BYTES_PER_SECOND,
    Cause,
    Observation,
    Settings,
    State,
    Verdict,
    cooling,
    decide,
    doubled,
    halved,
    least,
)
from tidelog.controller.decisions.autoscaling_replay import (
    BadLine,
    Recorded,
    Step,
    read_line,
    replayed,
    settings_in,
)
from tidelog.partitioning.lineage import level_of

NOW_MS = 1_700_000_000_000
TARGET = 1_000
TOPIC = Settings(4, TARGET, maximum=32)
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
RECORDING = Path(__file__).parents[2] / "fixtures" / "autoscaling" / "rates.jsonl"


def seen(count: int, rate: int | None, **changed: object) -> Observation:
    """A topic whose partitions have one rate."""
    one = Observation(NOW_MS, count, (rate,) * count, count)
    return replace(one, **changed)  # type: ignore[arg-type]


LOW_FOR_LONG = State(low_since_ms=NOW_MS - TOPIC.shrink_cooldown_ms)


@pytest.mark.parametrize(
    ("observation", "state", "count", "cause"),
    [
        (seen(4, TARGET), State(), 4, Cause.FITS),
        (seen(4, TARGET + 1), State(), 8, Cause.GROW),
        (seen(4, TARGET + 1), State(grow_after_ms=NOW_MS + 1), 4, Cause.COOLS_DOWN),
        (seen(4, TARGET + 1), State(grow_after_ms=NOW_MS), 8, Cause.GROW),
        (seen(32, 9 * TARGET), State(), 32, Cause.AT_MAXIMUM),
        (seen(12, TARGET + 1), State(), 16, Cause.GROW),
        (seen(4, TARGET + 1, listed=8), State(), 4, Cause.RETIRED),
        (seen(8, 400), LOW_FOR_LONG, 8, Cause.FITS),
        (seen(8, 399), LOW_FOR_LONG, 4, Cause.SHRINK),
        (seen(12, 0), LOW_FOR_LONG, 8, Cause.SHRINK),
        (seen(8, 399), State(), 8, Cause.LOW_TOO_BRIEFLY),
        (seen(8, 399), replace(LOW_FOR_LONG, shrink_after_ms=NOW_MS + 1), 8, Cause.COOLS_DOWN),
        (seen(8, 399, unaware="writers"), LOW_FOR_LONG, 8, Cause.UNAWARE),
        (seen(4, 0), LOW_FOR_LONG, 4, Cause.AT_MINIMUM),
        (seen(8, None), LOW_FOR_LONG, 8, Cause.UNKNOWN),
        # A leader of one partition is silent: what is known is not enough for either.
        (seen(4, 0, rates=(0, 0, None, 0)), LOW_FOR_LONG, 4, Cause.UNKNOWN),
        # It is enough for a growth.
        (seen(4, 0, rates=(2_000, 2_000, None, 1)), State(), 8, Cause.GROW),
        # One partition with a hot key, or a broker that reports too much of it.
        (seen(4, 0, rates=(10**9, 600, 600, 600)), State(), 4, Cause.FITS),
        (seen(4, 0, rates=(MOST_BYTES_PER_SECOND + 1, 0, 0, 0)), State(), 4, Cause.UNKNOWN),
        (seen(4, 0, rates=(-1, 0, 0, 0)), LOW_FOR_LONG, 4, Cause.UNKNOWN),
        (seen(8, 0, rates=(10**9, 0, 0, 0, 0, 0, 0, 0)), LOW_FOR_LONG, 8, Cause.FITS),
    ],
)  # fmt: skip
def test_the_table(observation: Observation, state: State, count: int, cause: Cause) -> None:
    verdict = decide(TOPIC, observation, state)
    assert (verdict.count, verdict.cause) == (count, cause), verdict.reason


@pytest.mark.parametrize(
    ("settings", "observation", "cause", "words"),
    [
        (replace(TOPIC, minimum=8), seen(4, 0), Cause.GROW, "fewer partitions than its minimum"),
        (replace(TOPIC, minimum=16), seen(16, 0), Cause.AT_MINIMUM, "smallest count is 16"),
        (replace(TOPIC, retired_ms=None), seen(8, 0), Cause.NEVER_PURGED, "could not grow again"),
        (replace(TOPIC, retired_ms=HOUR_MS), seen(8, 0), Cause.SHRINK,
         "it cannot grow again before 2023-11-14 23:13:20 UTC, when retention has emptied"),
        (replace(TOPIC, retired_ms=10**300), seen(8, 0), Cause.SHRINK, "before 9999-12-31"),
        (TOPIC, seen(8, 0), Cause.SHRINK, "when every group has read its retired partitions"),
        (replace(TOPIC, shrink_utilization=0.0), seen(8, 0), Cause.FITS, "between 0 bytes/s"),
        (TOPIC, seen(4, 1_500), Cause.GROW, "take 1,500 bytes/s on average, above 1,000 bytes/s"),
        (TOPIC, seen(4, 0, rates=(-5, 0, 0, 0)), Cause.UNKNOWN,
         "what brokers report of partition 0 is no rate: -5 bytes/s"),
        (TOPIC, seen(4, 0, rates=(None, 0, None, 0)), Cause.UNKNOWN,
         "no rate is known yet of partitions 0, 2"),
    ],
)  # fmt: skip
def test_the_sentence(
    settings: Settings, observation: Observation, cause: Cause, words: str
) -> None:
    verdict = decide(settings, observation, LOW_FOR_LONG)
    assert verdict.cause is cause
    assert words in verdict.reason


def test_a_clock_that_was_set_back_does_not_hold_a_topic_for_ever() -> None:
    """Cool-downs in the store are from a clock that was a year ahead."""
    ahead = State(*[NOW_MS + 365 * 24 * HOUR_MS] * 3)
    verdict = decide(TOPIC, seen(4, 2 * TARGET), ahead)
    assert verdict.cause is Cause.COOLS_DOWN
    assert verdict.state.grow_after_ms == NOW_MS + TOPIC.grow_cooldown_ms
    low = decide(TOPIC, seen(8, 0), ahead)
    assert low.state.shrink_after_ms == NOW_MS + TOPIC.shrink_cooldown_ms
    assert low.state.low_since_ms == NOW_MS


def test_a_new_controller_goes_on_with_the_cool_downs_of_the_former_one() -> None:
    """They are in the store; how long a rate has been low is not, and begins again."""
    grown = decide(TOPIC, seen(4, 2 * TARGET), State())
    assert grown.state == cooling(TOPIC, NOW_MS)
    later = replace(seen(8, 2 * TARGET), at_ms=NOW_MS + TOPIC.grow_cooldown_ms - 1)
    assert decide(TOPIC, later, grown.state).cause is Cause.COOLS_DOWN
    kept = replace(LOW_FOR_LONG, low_since_ms=None)
    assert decide(TOPIC, seen(8, 0), kept).cause is Cause.LOW_TOO_BRIEFLY


# -- what holds for whatever it is given

wild = st.integers(-(2**70), 2**70)
settings_drawn = st.builds(
    Settings,
    initial_count=st.integers(1, 40),
    target_bytes_per_second=st.integers(1, 2**63),
    minimum=st.one_of(st.just(-1), st.integers(1, 200)),
    maximum=st.integers(1, 4_000),
    grow_cooldown_ms=st.integers(0, 2**63),
    shrink_cooldown_ms=st.integers(0, 2**63),
    shrink_utilization=st.floats(0, 0.45),
    retired_ms=st.one_of(st.none(), st.integers(0, 2**63)),
)
states_drawn = st.builds(State, wild, wild, st.one_of(st.none(), wild))


@st.composite
def observations_drawn(draw: st.DrawFn, initial: int) -> Observation:
    count = draw(st.integers(initial, initial * 40))
    rates = draw(st.lists(st.one_of(st.none(), wild, st.integers(0, 2**30)), max_size=50))
    return Observation(
        draw(wild),
        count,
        tuple(rates),
        count + draw(st.integers(0, 9)),
        draw(st.sampled_from(["", "x"])),
    )


@given(st.data())
def test_every_result_is_within_the_bounds(data: st.DataObject) -> None:
    """Whatever brokers report and whatever the clock says."""
    settings = data.draw(settings_drawn)
    observation = data.draw(observations_drawn(settings.initial_count))
    state = data.draw(states_drawn)
    verdict = decide(settings, observation, state)
    count = observation.count
    assert verdict.reason
    if verdict.count == count:
        assert verdict.cause not in (Cause.GROW, Cause.SHRINK)
        return
    assert verdict.state == cooling(settings, observation.at_ms)
    assert verdict.count == level_of(settings.initial_count, verdict.count), "N times 2^k"
    assert count / 2 <= verdict.count <= count * 2
    if verdict.cause is Cause.GROW:
        assert count < verdict.count <= settings.maximum
        assert observation.listed == count
        assert observation.at_ms >= min(
            state.grow_after_ms, observation.at_ms + settings.grow_cooldown_ms
        )
    else:
        assert verdict.cause is Cause.SHRINK
        assert least(settings) <= verdict.count < count
        assert observation.unaware == "" and settings.retired_ms is not None
        assert None not in observation.rates and len(observation.rates) == count
        assert all(0 <= rate <= MOST_BYTES_PER_SECOND for rate in observation.rates if rate)


def run(
    settings: Settings,
    count: int,
    load: Callable[[int], float],
    duration_ms: int,
    step_ms: int,
) -> Iterator[Step]:
    """Decide again and again about a topic that takes ``load`` bytes/s in all; drained at once."""
    lines = (
        Recorded(at, [load(at) / count] * count)
        for at in range(NOW_MS, NOW_MS + duration_ms, step_ms)
    )
    return replayed(settings, lines, count)


def resizes(steps: Iterator[Step]) -> list[tuple[int, int, int]]:
    """When, from and to which count."""
    return [(x.at_ms, x.count, y.count) for x, y in steps if y.count != x.count]


@given(
    initial=st.integers(1, 8),
    doublings=st.integers(0, 4),
    load=st.integers(0, 200_000),
    utilization=st.floats(0, 0.45),
)
def test_a_steady_load_is_not_followed_by_flapping(
    initial: int, doublings: int, load: int, utilization: float
) -> None:
    """It goes one way, step by step, and ends at a count that fits or at a bound."""
    settings = Settings(
        initial, TARGET, maximum=initial << 4, grow_cooldown_ms=MINUTE_MS,
        shrink_cooldown_ms=2 * MINUTE_MS, shrink_utilization=utilization,
    )  # fmt: skip
    steps = list(run(settings, initial << doublings, lambda _: load, HOUR_MS, 20_000))
    done = resizes(iter(steps))
    assert len({to > count for _, count, to in done}) <= 1, done
    final = steps[-1].seen.count
    if load / final > TARGET + 1:
        assert doubled(settings, final) is None
    if load / final < utilization * TARGET - 1:
        assert halved(settings, final) is None


@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=400), st.integers(1, 4))
def test_resizes_keep_their_distance_whatever_the_load(loads: list[int], initial: int) -> None:
    """A growth comes a grow cool-down after any resize, a shrink a shrink cool-down after any."""
    settings = Settings(
        initial, TARGET, maximum=initial << 5, grow_cooldown_ms=MINUTE_MS,
        shrink_cooldown_ms=10 * MINUTE_MS,
    )  # fmt: skip
    step_ms = 15_000
    steps = run(
        settings, initial, lambda at: loads[(at - NOW_MS) // step_ms], step_ms * len(loads), step_ms
    )
    done = resizes(steps)
    for (before, _, _), (at, count, to) in pairwise(done):
        assert at - before >= (MINUTE_MS if to > count else 10 * MINUTE_MS)


def test_a_week_of_days_and_nights() -> None:
    """Busy days, quiet nights, a weekend, and noise: it follows the day, two steps each way."""
    noise = random.Random("a week")
    settings = Settings(
        4, 1_000_000, maximum=64, grow_cooldown_ms=MINUTE_MS, shrink_cooldown_ms=30 * MINUTE_MS
    )

    def load(at_ms: int) -> float:
        hours = (at_ms - NOW_MS) / HOUR_MS
        is_weekend = hours % 168 >= 120
        day = 0.5 - 0.5 * math.cos(2 * math.pi * hours / 24)
        bytes_per_second = 1.5e6 + (1.5e6 if is_weekend else 20e6) * day**2
        return bytes_per_second * noise.uniform(0.85, 1.15)

    steps = list(run(settings, 4, load, 7 * 24 * HOUR_MS, 30_000))
    done = resizes(iter(steps))
    counts = {seen.count for seen, _ in steps}
    assert counts == {4, 8, 16, 32}
    per_day = [
        sum(day * 24 * HOUR_MS <= at - NOW_MS < (day + 1) * 24 * HOUR_MS for at, _, _ in done)
        for day in range(7)
    ]
    assert per_day == [6, 6, 6, 6, 6, 0, 0], done
    # Above the target for the time of the cool-downs at most, and only while it grows.
    over = sum(x.rates[0] > settings.target_bytes_per_second * 1.15 for x, _ in steps if x.rates[0])
    assert over * 30_000 <= 15 * settings.grow_cooldown_ms
    # Never more than four times what the load needs, but for the time before a shrink.
    assert sum(v.cause is Cause.AT_MAXIMUM for _, v in steps) == 0


def test_bursts_do_not_make_it_flap() -> None:
    """A burst every five minutes, shorter than the shrink cool-down: it grows once and stays."""
    settings = Settings(4, TARGET, maximum=64)
    load: Callable[[int], float] = lambda at: 7_000 if (at - NOW_MS) % 300_000 < 20_000 else 100  # noqa: E731
    done = resizes(run(settings, 4, load, 24 * HOUR_MS, 5_000))
    assert [(count, to) for _, count, to in done] == [(4, 8)]


# -- recordings


def test_recorded_rates_give_the_decisions_of_the_run_that_they_are_from() -> None:
    """The lines that a controller logged while a real topic grew under load and shrank after it."""
    lines = [found for x in RECORDING.read_text().splitlines() if (found := read_line(x))]
    settings = settings_in(lines[0])
    assert settings is not None
    steps = list(replayed(settings, lines, settings.initial_count))
    assert [(x.count, y.count) for x, y in steps if x.count != y.count] == [
        (2, 4), (4, 8), (8, 4), (4, 2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "no JSON object"),
        ("[]", "no JSON object"),
        ('{"at_ms": 1}', "rates"),
        ('{"at_ms": "now", "rates": [1]}', "at_ms"),
        ('{"at_ms": 1, "rates": []}', "rates has 0 partitions"),
        ('{"at_ms": 1, "rates": ["fast"]}', "rates"),
        ('{"at_ms": 1e400, "rates": [1]}', "no JSON object"),
    ],
)
def test_a_bad_line_says_why(line: str, words: str) -> None:
    with pytest.raises(BadLine, match=words):
        read_line(line)


@pytest.mark.parametrize("line", ["", "  ", '{"event": "topic t created", "ts": "x"}'])
def test_other_lines_of_a_log_are_skipped(line: str) -> None:
    assert read_line(line) is None


@pytest.mark.parametrize(
    "settings",
    ['{"initial_count": 0}', '{"maximum": 4}', '{"initial_count": 1, "color": 3}',
     '{"initial_count": 1.5}', '{"initial_count": 1, "maximum": -7}'],
)  # fmt: skip
def test_bad_settings_of_a_line_are_refused(settings: str) -> None:
    one = read_line(f'{{"at_ms": 1, "rates": [1], "settings": {settings}}}')
    assert one is not None
    with pytest.raises(BadLine, match="settings must be numbers"):
        settings_in(one)


def test_a_replay_spreads_the_bytes_and_waits_for_retention() -> None:
    """After a shrink the retired partitions are listed until retention has emptied them."""
    settings = Settings(2, TARGET, maximum=8, grow_cooldown_ms=0, shrink_cooldown_ms=0,
                        retired_ms=HOUR_MS)  # fmt: skip
    times = [0, 1, 2, 3, 4, HOUR_MS + 5, HOUR_MS + 6]
    loads = [3_000, 3_000, 100, 100, 3_000, 3_000, None]
    lines = [
        Recorded(NOW_MS + at, [None if load is None else load / 2] * 2)
        for at, load in zip(times, loads, strict=True)
    ]
    found: list[tuple[int, Cause]] = [(x.count, y.cause) for x, y in replayed(settings, lines, 2)]
    assert found == [
        (2, Cause.GROW), (4, Cause.FITS), (4, Cause.SHRINK), (2, Cause.AT_MINIMUM),
        (2, Cause.RETIRED), (2, Cause.GROW), (4, Cause.UNKNOWN),
    ]  # fmt: skip


def test_a_verdict_holds_nothing_of_a_former_one() -> None:
    one: Verdict = decide(TOPIC, seen(4, 700), LOW_FOR_LONG)
    assert one.state.low_since_ms is None
