"""Every example runs as its first lines say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.processes import DEADLINE_S

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def output_of(command: list[str]) -> str:
    environment = {**os.environ, "TIDELOG": f"{sys.executable} -m tidelog.cli.main"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment
    )
    assert done.returncode == 0, done
    return done.stdout


def test_every_example_is_tested_here() -> None:
    found = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh")}
    assert found == {"produce_consume.py", "resume_with_a_group.py", "commands.sh"}


def test_produce_consume(bootstrap: str) -> None:
    out = output_of([sys.executable, str(EXAMPLES / "produce_consume.py"), bootstrap])
    read = [line.split() for line in out.splitlines() if line.startswith("read")]
    for key, numbers in (("even", "02468"), ("odd", "13579")):
        assert [words[1] for words in read if words[-1] == key] == list(numbers)


def test_resume_with_a_group(bootstrap: str) -> None:
    out = output_of([sys.executable, str(EXAMPLES / "resume_with_a_group.py"), bootstrap])
    assert "the first reader read [0, 1, 2, 3, 4]" in out
    assert "the second reader read [5, 6, 7, 8, 9]" in out


def test_the_tour_of_the_commands(bootstrap: str) -> None:
    out = output_of(["sh", str(EXAMPLES / "commands.sh"), bootstrap])
    lines = out.splitlines()
    flights = [line for line in lines if line.startswith("N14228")]
    assert flights == ["N14228\tEWR-IAH", "N14228\tEWR-ORD"]
    assert any("cleanup.policy=compact" in line for line in lines)
    assert lines[-1].startswith("Deleted topic tour-")


@pytest.mark.parametrize("name", ["produce_consume.py", "resume_with_a_group.py"])
def test_examples_say_how_they_are_run(name: str) -> None:
    assert f"python examples/{name} " in (EXAMPLES / name).read_text()
