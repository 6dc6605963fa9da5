"""Every example runs as its first lines say."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import DEADLINE_S, free_ports, wait_until
from tests.support.target import TARGET
from tidelog.cli.connecting import SERVER_VARIABLE

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
    assert found == {
        "produce_consume.py", "resume_with_a_group.py", "state_per_key.py", "commands.sh",
        "three_brokers.sh", "consume_transform_produce.py",
    }  # fmt: skip


def test_consume_transform_produce_says_what_it_needs() -> None:
    # What it does is in test_exactly_once_kills.
    example = EXAMPLES / "consume_transform_produce.py"
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "SOURCE TARGET" in done.stderr


def test_produce_consume(bootstrap: str) -> None:
    out = output_of([sys.executable, str(EXAMPLES / "produce_consume.py"), bootstrap])
    read = [line.split() for line in out.splitlines() if line.startswith("read")]
    for key, numbers in (("even", "02468"), ("odd", "13579")):
        assert [words[1] for words in read if words[-1] == key] == list(numbers)


def test_resume_with_a_group(bootstrap: str) -> None:
    out = output_of([sys.executable, str(EXAMPLES / "resume_with_a_group.py"), bootstrap])
    assert "the first reader read [0, 1, 2, 3, 4]" in out
    assert "the second reader read [5, 6, 7, 8, 9]" in out


def test_state_per_key_goes_on_through_a_growth(
    bootstrap: str, topic_name: str, tmp_path: Path
) -> None:
    counts = tmp_path / "counts.db"
    run = [sys.executable, str(EXAMPLES / "state_per_key.py"), bootstrap, topic_name, str(counts)]
    topics = [sys.executable, "-m", "tidelog", "topics", "--topic", topic_name]
    produce = [sys.executable, "-m", "tidelog", "produce", "--topic", topic_name]
    produce += ["--bootstrap-server", bootstrap, "--property", "parse.key=true"]
    produce += ["--property", "key.separator=:"]
    names = [f"k{number}" for number in range(8)]
    for partitions in ("--create --partitions 2", "--alter --partitions 5 --force"):
        if TARGET == "kafka" and partitions.startswith("--alter"):
            return
        output_of([*topics, "--bootstrap-server", bootstrap, *partitions.split()])
        lines = "".join(f"{name}:x\n" for name in names * 3)
        subprocess.run(produce, input=lines, text=True, check=True, timeout=DEADLINE_S)
        output_of([*run, str(len(names) * 3)])
    with contextlib.closing(sqlite3.connect(counts)) as database:
        stored = dict(database.execute("SELECT key, count FROM counts"))
    assert stored == dict.fromkeys(names, 6)


def test_the_tour_of_the_commands(bootstrap: str) -> None:
    out = output_of(["sh", str(EXAMPLES / "commands.sh"), bootstrap])
    lines = out.splitlines()
    flights = [line for line in lines if line.startswith("N14228")]
    assert flights == ["N14228\tEWR-IAH", "N14228\tEWR-ORD"]
    assert any("cleanup.policy=compact" in line for line in lines)
    assert lines[-1].startswith("Deleted topic tour-")


def test_three_brokers_from_files(tmp_path: Path) -> None:
    ports = [str(port) for port in free_ports(4)]
    environment = {
        **os.environ,
        "TIDELOG": f"{sys.executable} -m tidelog",
        "PORTS": " ".join(ports),
        SERVER_VARIABLE: ",".join(f"127.0.0.1:{port}" for port in ports[:3]),
    }
    command = ["sh", str(EXAMPLES / "three_brokers.sh"), str(tmp_path / "three")]
    said = tmp_path / "said"
    with said.open("wb") as out, subprocess.Popen(command, stdout=out, env=environment) as example:
        try:
            wait_until(lambda: said.read_text().count("\n") == 3, DEADLINE_S, "all three serve")
            ready = sorted(line.split()[:2] for line in said.read_text().splitlines())
            assert ready == [["ready", f"node={node_id}"] for node_id in (1, 2, 3)]
            topic = [sys.executable, "-m", "tidelog", "topics", "--topic", "t"]
            for flags in (["--create"], ["--describe", "--json"]):
                done = subprocess.run(
                    [*topic, *flags], capture_output=True, text=True, env=environment,
                    timeout=DEADLINE_S,
                )  # fmt: skip
                assert done.returncode == 0, done
            (shown,) = json.loads(done.stdout)
            assert shown["replication_factor"] == 3
        finally:
            example.terminate()
            assert example.wait(DEADLINE_S) == 0


@pytest.mark.parametrize("name", ["produce_consume.py", "resume_with_a_group.py"])
def test_examples_say_how_they_are_run(name: str) -> None:
    assert f"python examples/{name} " in (EXAMPLES / name).read_text()
