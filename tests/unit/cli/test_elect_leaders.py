"""What `tidelog elect-leaders` takes: its flags and Kafka's JSON of partitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.cli import main
from tidelog.cli.elect_leaders import read_partitions
from tidelog.cli.refusal import WrongUsage
from tidelog.model.topics import TopicPartition

BASE = ("elect-leaders", "--bootstrap-server", "127.0.0.1:1")
PREFERRED = (*BASE, "--election-type", "preferred")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (BASE, "--election-type"),
        ((*BASE, "--election-type", "any", "--all-topic-partitions"), "preferred"),
        (PREFERRED, "none was given"),
        ((*PREFERRED, "--topic", "t"), "--partition"),
        ((*PREFERRED, "--partition", "1"), "none was given"),
        ((*PREFERRED, "--topic", "t", "--partition", "-1"), "--partition"),
        ((*PREFERRED, "--all-topic-partitions", "--partition", "1"), "go together"),
        ((*PREFERRED, "--all-topic-partitions", "--topic", "t"), "together"),
        ((*PREFERRED, "--path-to-json-file", "/no/such/file"), "does not exist"),
    ],
)
def test_what_is_wrong_usage(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(list(words))
    error = capsys.readouterr().err
    assert ended.value.code == 2, error
    assert said in error and len(error.splitlines()) == 1


def test_the_type_is_taken_in_kafkas_capitals_too(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "partitions.json"
    file.write_text('{"partitions": [{"topic": "t", "partition": 0}]}')
    with pytest.raises(SystemExit) as ended:
        main.main([*BASE, "--election-type", "UNCLEAN", "--path-to-json-file", str(file)])
    assert ended.value.code == 1, "it got as far as the cluster, which is not there"
    assert "127.0.0.1:1 cannot be reached" in capsys.readouterr().err


def test_kafkas_json() -> None:
    text = '{"partitions": [{"topic": "a", "partition": 1}, {"topic": "b", "partition": 0}]}'
    assert read_partitions(text) == [TopicPartition("a", 1), TopicPartition("b", 0)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"partitions": []}',
        '{"partitions": [{"topic": "a"}]}',
        '{"partitions": [{"topic": "a", "partition": "x"}]}',
        '{"partitions": [{"topic": 1, "partition": 1}]}',
        '{"partitions": [{"topic": "a", "partition": 1}, {"topic": "a", "partition": 1}]}',
    ],
)
def test_json_that_is_no_list_of_partitions(text: str) -> None:
    with pytest.raises(WrongUsage, match="path-to-json-file"):
        read_partitions(text)
