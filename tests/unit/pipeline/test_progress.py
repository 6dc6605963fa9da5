"""What the jobs say while they run: a bar on a terminal, lines elsewhere, JSON for programs."""

from __future__ import annotations

import io
import json

import pytest

from tidelog.pipeline.progress import Bar, JsonLines
from tidelog.pipeline.spark_errors import one_line


def test_a_bar_on_a_terminal_counts_and_its_goal_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = io.StringIO()
    with Bar("archived", out) as bar:
        bar.update(5, 10)
        bar.update(15, 20, lag=5)
    said = out.getvalue()
    assert "archived" in said and "15/20" in said


def test_without_a_terminal_a_line_per_tenth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    out = io.StringIO()
    with Bar("archived", out) as bar:
        for done in range(101):
            bar.update(done, 100)
        bar.say("done [in brackets]")
    lines = out.getvalue().splitlines()
    assert lines == [f"archived: {tenth * 10} of 100" for tenth in range(11)] + [
        "done [in brackets]"
    ]


def test_the_last_line_is_where_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    out = io.StringIO()
    with Bar("archived", out) as bar:
        for done in (1000, 3000, 6000):
            bar.update(done, done)
    assert out.getvalue().splitlines() == ["archived: 1,000 of 1,000", "archived: 6,000 of 6,000"]


@pytest.mark.parametrize(
    ("last", "line"),
    [
        ("tidelog.pipeline.errors.DataLost: t-0: gone", "t-0: gone"),
        ("OSError: [Errno 28] No space left: '/x'", "OSError: [Errno 28] No space left: '/x'"),
        ("PermissionError: [Errno 13] x", "PermissionError: [Errno 13] x"),
        ("a.b.OddError: x", "OddError: x"),
        (
            "",
            "[STREAM_FAILED] Query x ended: Traceback (most recent call last):",
        ),
    ],
)
def test_the_line_that_matters_of_what_spark_says(last: str, line: str) -> None:
    trace = "Traceback (most recent call last):"
    text = f"[STREAM_FAILED] Query x ended: {trace}\n  File x\n{last}\n\tat y"
    assert one_line(Exception(text)) == line


def test_a_line_of_json_per_change(capsys: pytest.CaptureFixture[str]) -> None:
    with JsonLines("archive") as lines:
        lines.update(1, 4, lag=3, batch=0)
        lines.update(1, 4, lag=3, batch=0)
        lines.update(4, 4, lag=0, batch=1)
        lines.say("for people")
    out, err = capsys.readouterr()
    assert [json.loads(line) for line in out.splitlines()] == [
        {"job": "archive", "done": 1, "total": 4, "lag": 3, "batch": 0},
        {"job": "archive", "done": 4, "total": 4, "lag": 0, "batch": 1},
    ]
    assert err == "for people\n"
