"""`tidelog delete-records`: its flags, Kafka's JSON of offsets, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli_arguments import run_command, status_of
from tidelog.cli import delete_records
from tidelog.cli.delete_records import FORM, read_offsets
from tidelog.cli.refusal import WrongUsage
from tidelog.client.errors import ClientError, ConnectionLost, Refused
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

BASE = ["delete-records", "--bootstrap-server", "127.0.0.1:1"]
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "none was given"),
        ("--topic t", "go together"),
        ("--topic t --partition 1", "go together"),
        ("--partition 1 --offset 3", "none was given"),
        ("--topic t --partition 1 --offset -2", "--offset"),
        ("--topic t --partition -1 --offset 2", "--partition"),
        ("--offset-json-file /no/such/file", "does not exist"),
    ],
)
def test_what_is_wrong_usage(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = status_of([*BASE, *words.split()], capsys)
    assert status == 2 and said in err and len(err.splitlines()) == 1


def test_kafkas_json() -> None:
    assert read_offsets(FORM) == {TopicPartition("t", 0): 5}
    rows = [
        {"topic": "a", "partition": 1, "offset": -1},
        {"topic": "b", "partition": 0, "offset": 0},
    ]
    assert read_offsets(json.dumps({"partitions": rows})) == {A1: -1, B0: 0}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("not json", "of the form"),
        ("[]", "of the form"),
        ('{"partitions": []}', "of the form"),
        ('{"partitions": [{"topic": "a", "partition": 0}]}', "of the form"),
        ('{"partitions": [{"topic": 1, "partition": 0, "offset": 1}]}', "of the form"),
        ('{"partitions": [{"topic": "a", "partition": "0", "offset": 1}]}', "of the form"),
        ('{"partitions": [{"topic": "a", "partition": 0, "offset": true}]}', "of the form"),
        ('{"partitions": [{"topic": "a", "partition": 0, "offset": -2}]}', "a-0 has offset -2"),
        (FORM.replace('"version": 1', '"version": 2'), "version 2"),
        (
            json.dumps({"partitions": [{"topic": "a", "partition": 0, "offset": 1}] * 2}),
            "more than",
        ),
    ],
)
def test_another_form_is_refused_with_the_form(given: str, said: str) -> None:
    with pytest.raises(WrongUsage, match=said):
        read_offsets(given)


def test_each_partition_has_its_outcome_and_each_refusal_a_way_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    failed: dict[TopicPartition, ClientError] = {
        A1: Refused(ErrorCode.OFFSET_OUT_OF_RANGE, "a-1"),
        B0: ConnectionLost("h:1 closed the connection"),
    }

    def run(_server: str, _work: Any, **_: Any) -> dict[TopicPartition, int]:
        return {A0: 7}

    monkeypatch.setattr(delete_records, "run", run)
    given = ["--topic", "a", "--partition", "0", "--offset", "7"]
    good = run_command(delete_records.command, given, capsys)
    assert (good.status, good.err) == (0, "")
    assert [line.split() for line in good.out.splitlines()][1] == ["a", "0", "7"]

    def refused(server: str, work: Any, **_: Any) -> dict[TopicPartition, int]:
        # What ``ask_leaders`` collects.
        (cell,) = (x.cell_contents for x in work.__closure__ if x.cell_contents == {})
        cell.update(failed)
        return {A0: 7}

    monkeypatch.setattr(delete_records, "run", refused)
    ended = run_command(delete_records.command, [*given, "--json"], capsys)
    assert ended.status == 1
    first, second = ended.err.splitlines()
    assert "a-1: the offset is above the high watermark (OFFSET_OUT_OF_RANGE); name an" in first
    assert second == "error: b-0: h:1 closed the connection"
    shown = json.loads(ended.out)
    assert shown["deleted"] == [{"topic": "a", "partition": 0, "low_watermark": 7}]
    assert [each["error"] for each in shown["refused"]] == ["OFFSET_OUT_OF_RANGE", "ConnectionLost"]
