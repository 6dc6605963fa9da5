"""Every command at three widths of a terminal, and its ``--json`` (U1), on one real broker.

Each place in the code that prints a table is listed by reading the code: one that no command here
reaches names the test that does.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import confluent_kafka
import pytest

import tidelog.cli
from tests.support.clients import create_topic
from tests.support.command_runs import said_by
from tests.support.repository import ROOT
from tests.support.server import run_tidelog
from tests.support.target import TARGET
from tidelog.cli import output
from tidelog.cli.table_layout import TableLayout

pytestmark = pytest.mark.skipif(TARGET != "tidelog", reason="Kafka has no resizes to show")

WIDTHS = (80, 120, 200)
TOPIC = "payments.orders.settled.europe-west.v2"
GROUP = "nightly-archive-of-settlements-in-europe"
RECORDS = 2_000

IN_OTHER_TESTS = {
    "tidelog.cli.reassigning.tables.print_copies": "tests/unit/cli/test_output.py",
    "tidelog.cli.reassigning.tables.print_loads": "tests/unit/cli/test_output.py",
    "tidelog.cli.doctor_unclean.print_elections": "tests/unit/cli/test_output.py",
    "tidelog.cli.transactions.describe_command": "tests/cluster/test_cli_transactions.py",
    "tidelog.cli.transactions._show_hanging": "tests/cluster/test_cli_transactions.py",
    "tidelog.cli.doctor_restored._print_late": "tests/component/cli/test_doctor_restored.py",
    "tidelog.cli.doctor_restored._print_unknown": "tests/component/cli/test_doctor_restored.py",
}
"""The functions whose tables need a fault, a long move or level 1.6, and the tests of these."""

SHOWN: dict[str, list[str]] = {
    "topics --describe --topic TOPIC": ["4", "1", "fence 1 at"],
    "topics --alter --topic TOPIC --partitions 16 --dry-run": ["15"],
    "topics --rebalance": [],
    "configs --describe --topic TOPIC": ["retention.ms", "86400000"],
    "configs --describe --broker 1 --all": ["log.dirs", "offsets.topic.replication.factor"],
    "groups --list --state": [GROUP, "Empty"],
    "groups --describe --group GROUP": [GROUP, TOPIC],
    "groups --describe --group GROUP --members": [],
    "groups --describe --group GROUP --state": [GROUP, "Empty"],
    "groups --reset-offsets --group GROUP --topic TOPIC --to-earliest": [GROUP, TOPIC],
    "reassign-partitions --dry-run --reassignment-json-file PLAN": [f"{TOPIC}-0"],
    "autoscale --dry-run": [TOPIC, "stays"],
    "autoscale --dry-run --replay RATES": [],
    "delete-records --topic TOPIC --partition 0 --offset 1": [TOPIC],
    "audit --topic TOPIC": ["RIGHT"],
    "transactions list": ["TransactionState"],
    "transactions describe-producers --topic TOPIC --partition 0": ["ProducerEpoch"],
    "doctor": ["alive", "127.0.0.1"],
    "doctor replicas --topic TOPIC": [f"{TOPIC}-7", "same"],
    "groups --delete-offsets --group GROUP --topic TOPIC:0": [TOPIC],
}
"""What prints a table, and texts that it has to show whole."""

NO_TABLE = [
    "topics --list",
    "topics --create --topic other --partitions 2",
    "topics --alter --topic other --partitions 3",
    "topics --describe --under-replicated-partitions",
    "configs --alter --topic other --add-config retention.ms=1000000",
    "elect-leaders --election-type preferred --all-topic-partitions",
    "reassign-partitions --generate --topics-to-move-json-file TOPICS --broker-list 1",
    "reassign-partitions --execute --reassignment-json-file PLAN",
    "reassign-partitions --verify --reassignment-json-file PLAN",
    "reassign-partitions --list",
    "reassign-partitions --cancel-all",
    "reassign-partitions --revert",
    "topics --rebalance --execute",
    "topics --decommission 1 --undo",
    "transactions find-hanging",
    "doctor unclean",
    "groups --delete --group GROUP",
    "topics --delete --topic other",
]
"""Other commands with ``--json``."""

LINES = [
    "autoscale --dry-run",
    "consume --topic TOPIC --from-beginning --max-messages 3",
    "reassign-partitions --watch",
]
"""Commands whose ``--json`` is one document in each line."""


@pytest.fixture
def filled(bootstrap: str, tmp_path: Path) -> Iterator[dict[str, str]]:
    """A topic that has grown, with a group that has read some; the words of commands."""
    config = {"retention_ms": 86_400_000, "retired_purge": "drained", "partitions_auto": "true"}
    create_topic(bootstrap, TOPIC, partitions=4, **config)
    at = ("--bootstrap-server", bootstrap, "--topic", TOPIC)
    lines = "".join(f"k{number}:v\n" for number in range(RECORDS))
    with_keys = ("--property", "parse.key=true", "--property", "key.separator=:")
    assert run_tidelog("topics", "--alter", *at, "--partitions", "8").returncode == 0
    assert run_tidelog("produce", *at, *with_keys, stdin=lines).returncode == 0
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    offsets = [confluent_kafka.TopicPartition(TOPIC, index, 1) for index in range(8)]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()
    files: dict[str, Any] = {
        "PLAN": {"partitions": [{"topic": TOPIC, "partition": 0, "replicas": [1]}]},
        "TOPICS": {"topics": [{"topic": TOPIC}]},
        "RATES": {"at_ms": 1_000, "rates": [1.0] * 8},
    }
    words = {"TOPIC": TOPIC, "GROUP": GROUP}
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
        words[name] = str(tmp_path / name)
    yield words
    run_tidelog("topics", "--delete", *at)


def words_of(line: str, words: dict[str, str]) -> list[str]:
    return [words.get(word) or word.replace("TOPIC:", f"{TOPIC}:") for word in line.split()]


def places_of_tables() -> set[str]:
    """The functions that print a table."""
    (root,) = map(Path, tidelog.cli.__path__)
    places = set()
    for file in root.rglob("*.py"):
        module = ".".join(("tidelog", "cli", *file.relative_to(root).with_suffix("").parts))
        for function in ast.walk(ast.parse(file.read_text())):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            calls = [each for each in ast.walk(function) if isinstance(each, ast.Call)]
            names = [each.func.id for each in calls if isinstance(each.func, ast.Name)]
            places |= {f"{module}.{function.name}"} if "print_table" in names else set()
    return places


def test_every_table_at_three_widths_and_all_json(
    bootstrap: str,
    filled: dict[str, str],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reached: set[str] = set()
    arrange: Callable[..., TableLayout] = output.arrange

    def noted(*arguments: Any) -> TableLayout:
        caller = sys._getframe(2)
        reached.add(f"{caller.f_globals['__name__']}.{caller.f_code.co_name}")
        return arrange(*arguments)

    monkeypatch.setattr(output, "arrange", noted)
    for line, texts in SHOWN.items():
        command = words_of(line, filled)
        for width in WIDTHS:
            with pytest.MonkeyPatch.context() as terminal:
                terminal.setattr("sys.stdout.isatty", lambda: True, raising=False)
                terminal.setenv("COLUMNS", str(width))
                shown = click.unstyle(said_by(bootstrap, capfd, *command).good())
            assert "…" not in shown, (line, width, shown)
            assert all(text in shown for text in texts), (line, width, shown)
    assert reached | IN_OTHER_TESTS.keys() == places_of_tables()
    assert not reached & IN_OTHER_TESTS.keys()
    assert all((ROOT / file).is_file() for file in IN_OTHER_TESTS.values())
    for line in (*SHOWN, *NO_TABLE):
        if line in LINES or "RATES" in line:
            continue
        said = said_by(bootstrap, capfd, *words_of(line, filled), "--json")
        assert said.status == 0 or "--delete-offsets" in line, (line, said)
        json.loads(said.out)
    for line in LINES:
        said = said_by(bootstrap, capfd, *words_of(line, filled), "--json")
        assert said.status == 0 and said.out, (line, said)
        assert all(isinstance(json.loads(each), dict) for each in said.out.splitlines()), said
