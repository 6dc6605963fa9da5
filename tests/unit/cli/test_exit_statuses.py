"""One rule of exit statuses for all commands (docs/operating/commands.md).

2: the words, or a file that they name, are wrong; nothing was requested and nothing has started.
1: the cluster, a disk or the network refused what was right.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli_arguments import status_of
from tidelog.cli import connecting, main

NOWHERE = ["-b", "127.0.0.1:1"]

WRONG = {
    "server": [
        ["FILE:node.id=1\nnum.partitions=many"],
        ["FILE:node.id=1\nbogus=1", "--check"],
        ["FILE:node.id=1\nlisteners=PLAINTEXT://:9092,CONTROLLER://:9092", "--check"],
        ["FILE:node.id=1\nprocess.roles=controller"],
        ["FILE:node.id=1\nprocess.roles=controller", "--check"],
        ["FILE:node.id=1\nprocess.roles=controller\nlisteners=CONTROLLER://:9093", "--check"],
        ["FILE:node.id=1", "--override", "num.partitions"],
        ["FILE:node.id=1\nprocess.roles=controller", "--workers", "2", "--check"],
    ],
    "up": [["--config", "bogus=1"], ["--config", "num.partitions=x"], ["--store", "postgres:x"]],
    "topics": [
        ["--create", "--topic", "no such name"],
        ["--describe", "--command-config", "FILE:bogus=1"],
        ["--list", "--command-config", "FILE:security.protocol=SASL_SSL"],
        ["--list", "--command-config", "FILE:request.timeout.ms=soon"],
        ["--list", "--command-config", "/nowhere/client.properties"],
        ["--list", "--command-config", "FILE:cluster.secret.file=/nowhere/secret"],
    ],
    "groups": [
        ["--reset-offsets", "--group", "g", "--from-file", "FILE:not offsets", "--dry-run"],
        ["--reset-offsets", "--group", "g", "--topic", "t", "--to-earliest", "--export", "--json"],
        ["--list", "--state", "Sleepy"],
    ],
    "transactions": [
        ["list", "--transactional-id-pattern", "[a"],
        ["list", "--duration-filter", "-1"],
        ["describe"],
        ["find-hanging", "--partition", "0"],
        ["describe-producers", "--topic", "t"],
        ["force-terminate"],
        ["abort", "--topic", "t", "--partition", "0"],
        ["abort", "--topic", "t", "--partition", "0", "--producer-id", "1"],
        ["abort", "--topic", "t", "--partition", "0", "--start-offset", "1", "--producer-epoch=1"],
    ],
    "configs": [
        ["--alter", "--topic", "t", "--add-config", "[a"],
        ["--alter", "--topic", "t", "--add-config-file", "/nowhere/file"],
    ],
    "autoscale": [
        ["--dry-run", "--replay", "FILE:{}"],
        ["--dry-run", "--replay", "FILE:"],
        ["--dry-run", "--replay", "FILE:{}", "--config", "partitions.auto.max=0"],
    ],
    "reassign-partitions": [["--execute", "--reassignment-json-file", "FILE:{}"]],
    "elect-leaders": [["--election-type", "preferred", "--path-to-json-file", "FILE:{}"]],
    "delete-records": [["--offset-json-file", "FILE:{}"]],
    "produce": [
        ["--topic", "t", "--producer-property", "transactional.id=x"],
        ["--topic", "t", "--producer.config", "FILE:linger.ms=soon"],
    ],
    "consume": [
        ["--topic", "t", "--consumer-property", "auto.offset.reset=x"],
        ["--topic", "t", "--consumer.config", "FILE:bogus=1"],
    ],
    "audit": [["--topic", "t", "--sequence", "n", "--placement-only"]],
    "doctor": [["--command-config", "FILE:bogus=1"], ["backup", "b", "--store", "zookeeper://z:1"]],
}
"""Words of each command that are refused; ``FILE:`` begins the content of a file."""

RIGHT = {
    "server": [["/nowhere/server.properties"], ["/nowhere/server.properties", "--check"]],
    "up": [["--data", "FILE:a file/data"]],
    "topics": [["--create", "--topic", "t", *NOWHERE], ["--list", *NOWHERE]],
    "groups": [["--describe", "--group", "g", *NOWHERE]],
    "transactions": [
        ["list", *NOWHERE],
        ["describe", "--transactional-id", "x", *NOWHERE],
        ["describe-producers", "--topic", "t", "--partition", "0", *NOWHERE],
        ["find-hanging", *NOWHERE],
        ["force-terminate", "--transactional-id", "x", *NOWHERE],
        ["abort", "--topic", "t", "--partition", "0", "--start-offset", "1", *NOWHERE],
    ],
    "configs": [["--alter", "--topic", "t", "--add-config", "bogus=1", *NOWHERE]],
    "autoscale": [["--dry-run", *NOWHERE]],
    "reassign-partitions": [["--list", *NOWHERE]],
    "elect-leaders": [["--election-type", "preferred", "--all-topic-partitions", *NOWHERE]],
    "delete-records": [["--topic", "t", "--partition", "0", "--offset", "1", *NOWHERE]],
    "produce": [["--topic", "t", *NOWHERE]],
    "consume": [["--topic", "t", *NOWHERE]],
    "doctor": [
        [*NOWHERE],
        ["replicas", *NOWHERE],
        ["unclean", *NOWHERE],
        ["restored", *NOWHERE],
        ["backup", "b", "--store", "sqlite:/nowhere/metadata.sqlite"],
    ],
}
"""Words of each command that are right, where no cluster, file or folder is."""

NO_VERDICT = ["audit", "--topic", "t", *NOWHERE]
"""1 is its verdict of a topic, as with ``diff``: what could not be judged is 2."""


def written(words: list[str], folder: Path) -> list[str]:
    """Write the files that are given by their content; return the words with their paths."""
    made = []
    for number, word in enumerate(words):
        content = word.removeprefix("FILE:")
        if content == word:
            made.append(word)
            continue
        file = folder / f"file-{number}"
        content, _, below = content.partition("/data")
        file.write_text(content)
        made.append(f"{file}/data{below}" if word.endswith("/data") else str(file))
    return made


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command gives a cluster up soon."""
    monkeypatch.setattr(connecting, "OPEN_TIMEOUT_MS", 50)


def test_every_command_is_here() -> None:
    assert set(WRONG) == {*RIGHT, NO_VERDICT[0]} == set(main.COMMANDS)


@pytest.mark.parametrize(
    "words", [[name, *each] for name, some in WRONG.items() for each in some], ids=" ".join
)
def test_wrong_words_and_refused_configurations_are_2(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = status_of(written(words, tmp_path), capsys)
    assert (status, out) == (2, ""), err
    assert all(line.startswith("error: ") for line in err.splitlines()), err


@pytest.mark.parametrize(
    "words", [[name, *each] for name, some in RIGHT.items() for each in some], ids=" ".join
)
def test_what_the_cluster_or_the_machine_refuses_is_1(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = status_of(written(words, tmp_path), capsys)
    assert (status, out) == (1, ""), err
    *before, last = err.splitlines()
    assert last.startswith("error: "), err
    assert all(line.startswith("waiting for ") for line in before), err


def test_an_audit_that_cannot_be_made_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = status_of(NO_VERDICT, capsys)
    assert (status, out) == (2, "") and err.startswith("error: ")
