"""``tidelog autoscale --dry-run --replay``: decisions over recorded rates, without a cluster."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli_arguments import run_command
from tidelog.cli.autoscale import command

RECORDING = Path(__file__).parents[2] / "fixtures" / "autoscaling" / "rates.jsonl"
NOW_MS = 1_700_000_000_000


def recorded(folder: Path, *lines: object) -> str:
    file = folder / "rates.jsonl"
    file.write_text("".join(f"{x if isinstance(x, str) else json.dumps(x)}\n" for x in lines))
    return str(file)


def rows(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def at(minute: int, *rates: float | None) -> dict[str, object]:
    return {"at_ms": NOW_MS + 60_000 * minute, "rates": list(rates)}


def test_a_recording_of_a_controller_is_decided_again(capsys: pytest.CaptureFixture[str]) -> None:
    ended = run_command(command, ["--dry-run", "--replay", str(RECORDING)], capsys)
    assert (ended.status, ended.err) == (0, "")
    heading, *lines = ended.out.splitlines()
    assert heading.split() == ["Time", "Partitions", "Bytes/s", "each", "Decision", "Why"]
    found = [each for line in lines for each in re.findall(r"(\d+) -> (\d+)", line)]
    assert found == [("2", "4"), ("4", "8"), ("8", "4"), ("4", "2")]


def test_other_configurations_can_be_tried_on_a_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = recorded(tmp_path, at(0, 3e6, 3e6), at(2, 3e6, 3e6), at(4, 1e5, 1e5), at(40, 1e5, 1e5))
    words = ["--dry-run", "--replay", file, "--json"]
    (_, out, _) = run_command(command, words, capsys)
    assert [x["decided"] for x in rows(out)] == [2, 2, 2, 2]
    target = "partitions.auto.target.bytes.per.second=1000000"
    tried = [*words, "--config", target, "--config", "partitions.auto.max=4"]
    (_, out, _) = run_command(command, tried, capsys)
    steps = rows(out)
    assert [(x["decided"], x["cause"]) for x in steps] == [
        (4, "grow"), (4, "at the maximum"), (4, "cool-down"), (2, "shrink"),
    ]  # fmt: skip
    assert "cannot grow again before 2023-11-21 22:53:20 UTC" in steps[3]["reason"]
    (_, out, _) = run_command(command, [*tried, "--config", "retired.purge=drained"], capsys)
    assert "when every group has read its retired partitions" in rows(out)[3]["reason"]


def test_lines_of_other_topics_and_of_the_log_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = {**at(1, 9e9), "topic": "u"}
    logged = {
        "event": "autoscaling of topic t",
        "observation": json.dumps({**at(2, 1), "topic": "t"}),
    }
    file = recorded(tmp_path, {"event": "started"}, {**at(0, 1), "topic": "t"}, other, "", logged)
    for more in ([], ["--topic", "t"]):
        words = ["--dry-run", "--replay", file, "--json", *more]
        found = rows(run_command(command, words, capsys).out)
        assert [x["at_ms"] for x in found] == [NOW_MS, NOW_MS + 120_000]


@pytest.mark.parametrize(
    ("lines", "more", "status", "said"),
    [
        (["{}"], [], 2, "line 1: is no JSON object with at_ms and rates"),
        ([at(0, 1), '{"at_ms": 1, "rates": []}'], [], 2, "line 2: rates has 0 partitions"),
        ([], [], 2, "has no recorded rates"),
        ([at(0, 1)], ["--config", "partitions.auto.max=0"], 2, "at least 1"),
        ([at(0, 1)], ["--config", "partitions.atuo.max=4"], 2, "partitions.auto.max"),
        ([{**at(0, 1), "settings": {"initial_count": 0}}], [], 2, "settings must be numbers"),
    ],
)
def test_a_bad_recording_or_option_is_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    lines: list[object],
    more: list[str],
    status: int,
    said: str,
) -> None:
    words = ["--dry-run", "--replay", recorded(tmp_path, *lines), *more]
    ended = run_command(command, words, capsys)
    assert (ended.status, ended.out) == (status, "")
    assert said in ended.err and ended.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [([], "--dry-run prints"), (["--dry-run", "--partitions", "2"], "go with --replay")],
)
def test_wrong_usage(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    ended = run_command(command, words, capsys)
    assert ended.status == 2 and said in ended.err
