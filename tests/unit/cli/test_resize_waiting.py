"""The end of a resize that a command waits for, and its line of progress."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tidelog.cli.resizing.waiting import _say, outcome_of, progress_line
from tidelog.client.admin.resizes import DescribedResize, TopicResize
from tidelog.model.errors import ErrorCode as E

PLAN = DescribedResize("grow", 4, 8, 3, False, (1,), 1, "no leader has reported partition 1", 6_000)
QUIET = TopicResize(4, 4, 2, None, None, {}, ())
BEGUN = replace(QUIET, resize_epoch=3, plan=PLAN)
NOW = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("state", "code", "words"),
    [
        (replace(QUIET, partition_count=8, resize_epoch=3), None, ""),
        (None, E.UNKNOWN_TOPIC_OR_PARTITION, "deleted"),
        (replace(QUIET, resize_epoch=4, last_undo=(3, "It was undone.")), E.NOT_ENOUGH_REPLICAS,
         "It was undone."),
        # A new controller does not remember why.
        (replace(QUIET, resize_epoch=4), E.NOT_ENOUGH_REPLICAS, "it has 4 partitions"),
        # An undo of before, and a request that did not arrive.
        (replace(QUIET, last_undo=(1, "It was undone.")), E.REQUEST_TIMED_OUT, "send it again"),
        (replace(QUIET, last_undo=(2, "It was undone.")), E.REQUEST_TIMED_OUT, "send it again"),
        (QUIET, E.REQUEST_TIMED_OUT, "send it again"),
        # It had the count before: the request began nothing.
        (replace(QUIET, partition_count=8), E.REQUEST_TIMED_OUT, "send it again"),
    ],
)  # fmt: skip
def test_how_a_resize_ended(state: TopicResize | None, code: E | None, words: str) -> None:
    outcome = outcome_of("t", state, 2, 8)
    assert (None if outcome is None else outcome.code) == code
    assert outcome is None or words in str(outcome)


def test_the_line_says_what_is_awaited_and_when_the_resize_is_undone() -> None:
    assert progress_line("t", None) == progress_line("t", QUIET) == ""
    assert progress_line("t", BEGUN, NOW) == (
        "t grows from 4 to 8 partitions: no leader has reported partition 1 (undone at 12:00:06 if "
        "that stays so)"
    )
    forward = replace(BEGUN, plan=replace(PLAN, undone_in_ms=None, why=None, kind="undo"))
    assert progress_line("t", forward, NOW) == (
        "t goes back from 4 to 8 partitions: the controller writes its steps"
    )
    published = replace(BEGUN, plan=replace(PLAN, published=True, kind="shrink"))
    assert progress_line("t", published, NOW) == (
        "t shrinks from 4 to 8 partitions: published, not every broker has been sent it"
    )


def test_a_line_is_printed_when_something_else_is_awaited(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The time at which a resize is undone is no change."""
    said: dict[str, str] = {}
    later = replace(BEGUN, plan=replace(PLAN, undone_in_ms=60_000))
    other = replace(BEGUN, plan=replace(PLAN, why="no leader has reported partition 2"))
    for state in (None, QUIET, BEGUN, later, other, QUIET, other):
        _say({"t": state}, said)
    _say(None, said)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("reported ")[1][:11] for line in lines] == ["partition 1", "partition 2"]
