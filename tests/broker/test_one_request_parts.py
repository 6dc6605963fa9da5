"""The benchmark of one request's parts runs: it calls the broker's inside, which changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import one_request_parts

from tidelog.runtime.loop import run


def test_every_part_has_a_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("ROUNDS", "CALLS", "COLD_ROUNDS", "COLD_CALLS"):
        monkeypatch.setattr(one_request_parts, name, 1)
    monkeypatch.setattr(one_request_parts, "BATCHES", 150)
    monkeypatch.setattr(one_request_parts, "ELSEWHERE", b"elsewhere")
    run(one_request_parts.measure(tmp_path))
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split() == ["us", "warm", "cold"]
    assert len(lines) == 13
    assert all(float(line.split()[-1]) > 0 for line in lines)
