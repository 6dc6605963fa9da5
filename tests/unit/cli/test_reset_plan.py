"""Where a reset puts a group."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tidelog.cli.groups_reset import check, goal_of
from tidelog.cli.refusal import WrongUsage
from tidelog.cli.reset_plan import (
    Goal,
    OffsetFacts,
    new_offset,
    parse_datetime_ms,
    parse_duration_ms,
    parse_file,
    parse_topic,
    write_file,
)
from tidelog.model.topics import TopicPartition

LOG = OffsetFacts(earliest=10, latest=100, committed=50, at_time=70)
NEW = OffsetFacts(earliest=10, latest=100)


@pytest.mark.parametrize(
    ("goal", "facts", "number", "offset"),
    [
        (Goal.EARLIEST, LOG, 0, 10),
        (Goal.LATEST, LOG, 0, 100),
        (Goal.CURRENT, LOG, 0, 50),
        (Goal.CURRENT, NEW, 0, 100),
        (Goal.OFFSET, LOG, 60, 60),
        (Goal.OFFSET, LOG, 5, 10),
        (Goal.OFFSET, LOG, 500, 100),
        (Goal.FILE, LOG, 61, 61),
        (Goal.SHIFT, LOG, 7, 57),
        (Goal.SHIFT, LOG, -7, 43),
        (Goal.SHIFT, LOG, -1000, 10),
        (Goal.SHIFT, LOG, 1000, 100),
        (Goal.SHIFT, NEW, 1, None),
        (Goal.TIME, LOG, 0, 70),
        (Goal.TIME, NEW, 0, 100),
    ],
)
def test_new_offsets(goal: Goal, facts: OffsetFacts, number: int, offset: int | None) -> None:
    assert new_offset(goal, facts, number) == offset


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("PT1H30M", 5_400_000),
        ("P1D", 86_400_000),
        ("P1DT2H3M4.5S", 93_784_500),
        ("pt0.25s", 250),
    ],
)
def test_durations(text: str, ms: int) -> None:
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "P", "PT", "1H", "PT1X", "-PT1H", "P1M"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(WrongUsage):
        parse_duration_ms(text)


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Auckland"])
def test_times_are_utc_unless_they_say_otherwise(
    zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    noon = int(datetime(2024, 2, 29, 12, tzinfo=UTC).timestamp() * 1000)
    assert parse_datetime_ms("2024-02-29T12:00:00.000") == noon
    assert parse_datetime_ms("2024-02-29T13:00:00+01:00") == noon
    with pytest.raises(WrongUsage):
        parse_datetime_ms("yesterday")
    monkeypatch.undo()
    time.tzset()


def test_topics_with_partitions() -> None:
    assert parse_topic("t") == ("t", None)
    assert parse_topic("t:0, 2") == ("t", [0, 2])
    for text in ("t:", "t:a", ":1", "t:-1"):
        with pytest.raises(WrongUsage):
            parse_topic(text)


@pytest.mark.parametrize("groups", [["g"], ["g", "h"]])
def test_an_exported_plan_is_read_back(groups: list[str]) -> None:
    plan = {group: {TopicPartition("t", 0): 5, TopicPartition("u", 3): 0} for group in groups}
    assert parse_file(write_file(plan), groups) == plan


@pytest.mark.parametrize("text", ["t,0", "t,x,1", "t,0,-1", "t,0,²", "other,t,0,1", "g,t,0,1,2"])
def test_a_file_with_a_wrong_line_is_refused(text: str) -> None:
    with pytest.raises(WrongUsage, match="line 2"):
        parse_file(f"t,0,1\n{text}\n", ["g"])


@pytest.mark.parametrize(
    "given",
    [
        {"by_duration": "P30000D"},
        {"to_datetime": "1950-01-01T00:00:00"},
        # -1 and -2 are the end and the start on the wire.
        {"to_datetime": "1969-12-31T23:59:59.999"},
    ],
)
def test_a_time_before_1970_is_the_first_there_is(given: dict[str, str]) -> None:
    flags = dict.fromkeys(("to_earliest", "to_latest", "to_current"), False)
    others = ("to_offset", "shift_by", "by_duration", "to_datetime", "from_file")
    assert goal_of({**flags, **dict.fromkeys(others), **given}) == (Goal.TIME, 0)


def test_the_offsets_may_come_from_a_pipe() -> None:
    """It was read twice, and the second time it was empty: nothing was reset, with status 0."""
    reading, writing = os.pipe()
    os.write(writing, b"t,0,5\n")
    os.close(writing)
    flags: dict[str, Any] = dict.fromkeys(("to_earliest", "to_latest", "to_current", "execute"))
    flags |= dict.fromkeys(("to_offset", "shift_by", "by_duration", "to_datetime", "topic"))
    flags |= dict.fromkeys(("dry_run", "all_topics", "all_groups", "export"), False)
    check(flags := {**flags, "group": ("g",), "from_file": Path(f"/dev/fd/{reading}")})
    os.close(reading)
    assert parse_file(flags["from_file_text"], ["g"]) == {"g": {TopicPartition("t", 0): 5}}
