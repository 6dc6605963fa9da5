"""A real server on two log directories, of whose calls to the disk one at a time fails.

What a round is says `disk_course.py`. A few rounds in `make test`; `make chaos`
(`TIDELOG_CHAOS=long`) strikes each kind of call that a start, a life and a stop make, on each kind
of file, with each error. `TIDELOG_SEED` repeats a run, `TIDELOG_DISK_ROUNDS` bounds it.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from tests.chaos.disk_course import KEYED, STREAM, Books, Course, Strike, sample, seed_of_run
from tests.support.target import TARGET

pytestmark = [
    pytest.mark.kill,
    pytest.mark.long(30),
    pytest.mark.skipif(TARGET != "tidelog", reason="its own server of tidelog"),
]

LONG = os.environ.get("TIDELOG_CHAOS") == "long"
ROUNDS = int(os.environ.get("TIDELOG_DISK_ROUNDS", "100000" if LONG else "2"))
SEED = 1
"""Of the few rounds in `make test`, which so strike the same calls each time."""

EACH_LIFE = 3
"""Calls that fail while one life works."""


@pytest.mark.parametrize("durability", ["replicated", "sync"] if LONG else ["sync"])
def test_one_call_to_the_disk_fails(tmp_path: Path, durability: str) -> None:
    seed = seed_of_run(fixed=None if LONG else SEED)
    print(f"TIDELOG_SEED={seed}")
    course = Course(tmp_path, seed, durability)
    try:
        asyncio.run(strike_all(course, random.Random(seed)))
    finally:
        course.node.__exit__()
    assert not course.failures, f"seed {seed}:\n" + "\n\n".join(course.failures)


async def strike_all(course: Course, chance: random.Random) -> None:
    sites = await course.survey()
    strikes = sample(sites, chance, 1_000_000)
    by_phase: dict[str, list[Strike]] = {"start": [], "work": [], "stop": []}
    for each in strikes:
        by_phase[each.site.phase].append(each)
    print({phase: len(each) for phase, each in by_phase.items()})
    met = rounds = 0
    while any(by_phase.values()) and rounds < ROUNDS:
        start, stop = (by_phase[x].pop() if by_phase[x] else None for x in ("start", "stop"))
        work = [by_phase["work"].pop() for _ in range(EACH_LIFE) if by_phase["work"]]
        # After an error that is final the other calls of that directory are not made any more.
        work.sort(key=lambda x: x.error == 5)
        met += await course.round(start, work, stop)
        rounds += 1
        if LONG:
            print(f"{rounds} rounds, {met} met: {start} | {work} | {stop}", flush=True)
            for failure in course.failures[-1:]:
                print(failure, flush=True)
    assert met, "no call failed"


def test_the_books_tell_what_is_wrong() -> None:
    books = Books()
    first, second, third, later = (books.next_value() for _ in range(4))
    stream, keyed = (STREAM, 0), (KEYED, 0)
    books.sent = {stream: {first, second, third}, keyed: {first, later}}
    books.acked = {stream: {0: first, 2: third}, keyed: {0: first}}
    whole = {0: first, 1: second, 2: third}
    assert books.why_wrong(stream, whole) == []
    assert books.why_wrong(stream, {0: first, 2: third}) == [], "the second had no answer"
    assert books.why_wrong(stream, {0: first}) == [f"{stream}: 2 was acknowledged and is not there"]
    assert len(books.why_wrong(stream, {0: first, 1: third, 2: second})) == 1
    assert books.why_wrong(stream, {**whole, 3: later}) == [f"{stream}: 3 was never sent"]
    assert len(books.why_wrong(stream, {**whole, 3: third})) == 1, "twice"
    assert books.why_wrong(keyed, {0: first}) == []
    assert len(books.why_wrong(keyed, {})) == 1
