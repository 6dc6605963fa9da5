"""What ``tidelog doctor restored`` asks the controller, and what it does not (U1)."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli_arguments import Ended, run_command
from tidelog.cli import doctor_restored

REPORT: dict[str, Any] = {
    "went_back": "The metadata store has gone back in time.",
    "brokers_missing": [],
    "partitions": [],
    "unknown": [],
}
Asked = list[tuple[bool, tuple[str, ...]]]


def restored(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    report: dict[str, Any],
    *words: str,
) -> tuple[Ended, Asked]:
    """Run the command against a controller that answers with ``report``; return what was asked."""
    asked: Asked = []

    async def answer(
        _cluster: None, *, accept: bool, without: list[int], drop_unknown: tuple[str, ...]
    ) -> dict[str, Any]:
        asked.append((accept, tuple(drop_unknown)))
        return report

    def run(_server: str, work: Callable[[None], Awaitable[Any]], **_: Any) -> Any:
        async def awaited() -> Any:
            return await work(None)

        return asyncio.run(awaited())

    monkeypatch.setattr(doctor_restored, "restored_store", answer)
    monkeypatch.setattr(doctor_restored, "run", run)
    given = ["--bootstrap-server", "localhost:1", *words]
    return run_command(doctor_restored.command, given, capsys), asked


def test_a_controller_that_would_give_up_what_is_unknown_is_not_asked_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of an older version takes --accept for leave to delete what its store does not know."""
    ended, asked = restored(monkeypatch, capsys, REPORT, "--accept")
    assert asked == [(False, ())]
    assert ended.status == 1 and "older than this command" in ended.err
    ended, asked = restored(monkeypatch, capsys, REPORT | {"unknown_comes_back": True}, "--accept")
    assert asked == [(False, ()), (True, ())]
    assert ended.status == 0, ended


def test_nothing_is_given_up_without_leave_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = REPORT | {"unknown_comes_back": True}
    ended, asked = restored(monkeypatch, capsys, report, "--drop-unknown", "t")
    assert (ended.status, asked) == (2, [])
    assert "--drop-unknown goes with --accept" in ended.err
    ended, asked = restored(monkeypatch, capsys, report, "--drop-unknown", "t", "--accept")
    assert asked == [(False, ()), (True, ("t",))]


def test_to_look_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended, asked = restored(monkeypatch, capsys, REPORT | {"unknown_comes_back": True})
    assert (ended.status, asked) == (1, [(False, ())])


def test_the_brokers_that_have_registered_are_named_before_and_with_the_acceptance(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty store knows no broker: one that was late had all its replicas removed."""
    report = REPORT | {"unknown_comes_back": True, "brokers_heard": [1, 3]}
    for words in ((), ("--accept",)):
        ended, _ = restored(monkeypatch, capsys, report, *words)
        assert "Registered: brokers 1, 3. Start every other broker" in ended.out


def test_a_topic_without_an_id_shows_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was shown as AAAAAAAAAAAAAAAAAAAAAA, which reads like one."""
    held = {"partition": 0, "broker": 1, "leader_epoch": 3, "end_offset": 7}
    topic = {"topic": "old", "topic_id": None, "is_being_deleted": False, "configs": {}}
    report = REPORT | {"unknown_comes_back": True, "unknown": [topic | {"replicas": [held]}]}
    ended, _ = restored(monkeypatch, capsys, report)
    (row,) = (line for line in ended.out.splitlines() if line.endswith(" 7"))
    assert row.split() == ["old", "-", "0", "1", "3", "7"]


def test_an_empty_replica_shows_no_epoch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was shown as -1, beside the epochs of others."""
    empty = {"partition": 0, "broker": 1, "leader_epoch": -1, "end_offset": 0}
    full = {"partition": 1, "broker": 1, "leader_epoch": 0, "end_offset": 7}
    topic: dict[str, Any] = {
        "topic": "t",
        "topic_id": None,
        "is_being_deleted": False,
        "configs": {},
    }
    report = REPORT | {"unknown_comes_back": True, "unknown": [topic | {"replicas": [empty, full]}]}
    ended, _ = restored(monkeypatch, capsys, report)
    said = [line.split()[-4:] for line in ended.out.splitlines() if line.startswith("t  ")]
    assert said == [["0", "1", "-", "0"], ["1", "1", "0", "7"]]
    late = {"fate": "rejoins", "is_known": True, "configs": {}}
    rows = [{**topic, **late, **one} for one in (empty, full)]
    ended, _ = restored(monkeypatch, capsys, REPORT | {"went_back": None, "late": rows})
    said = [line.split()[-5:] for line in ended.out.splitlines() if line.startswith("t  ")]
    assert said == [["0", "1", "-", "0", "rejoins"], ["1", "1", "0", "7", "rejoins"]]


def test_lost_and_retired_partitions_of_resized_topics_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    resized = {
        "topic": "t",
        "count": 4,
        "resize_epoch": 2,
        "newest_resize_epoch": 3,
        "retired": [4, 5],
        "lost": [5],
    }
    ended, _ = restored(monkeypatch, capsys, REPORT | {"resized": [resized]})
    assert "t will have 4 partitions, as after its resize 2; the newest one" in ended.out
    assert "Retired partitions of t: 4, 5." in ended.out
    assert "LOST partitions of t, no broker reports a replica: 5." in ended.out


def late(topic: str, fate: str, **more: Any) -> dict[str, Any]:
    held = {"partition": 0, "broker": 3, "leader_epoch": 5, "end_offset": 7, "configs": {}}
    known = {"topic": topic, "topic_id": "I" * 22, "is_known": True, "fate": fate, "why": ""}
    return {**held, **known, **more}


def test_what_a_store_did_not_know_when_it_was_accepted_is_listed_with_what_becomes_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The replicas of a broker that was late were removed, and the doctor said nothing."""
    found = [
        late("t", "rejoins"),
        late("u", "comes_back", is_known=False, configs={"retention.ms": "-1"}),
        late("v", "ahead", why="v-0 went on from offset 3 of leader epoch 5"),
        late("w", "in_conflict", is_known=False, why="another topic has the name since"),
    ]
    accepted = REPORT | {"went_back": None, "unknown_comes_back": True}
    ended, asked = restored(monkeypatch, capsys, accepted | {"late": found})
    assert (ended.status, asked) == (1, [(False, ())])
    rows = {line.split()[0]: line for line in ended.out.splitlines() if " 3 " in line}
    assert [rows[x].split(" 7  ")[1].strip() for x in "tuvw"] == [
        "rejoins",
        "comes back",
        "stays: more records",
        "stays: conflict",
    ]
    assert "v-0 went on from offset 3 of leader epoch 5; --drop-unknown v-0 dis" in ended.out
    assert f"--drop-unknown {'I' * 22} discards it" in ended.out
    assert "u will be restored with retention.ms=-1." in ended.out
    assert "To take back the others: tidelog doctor restored --accept --boot" in ended.out
    ended, asked = restored(monkeypatch, capsys, accepted | {"late": found}, "--accept")
    assert (ended.status, asked) == (0, [(False, ()), (True, ())])
    assert "Accepted" in ended.out
    ended, asked = restored(monkeypatch, capsys, accepted | {"late": []})
    assert (ended.status, ended.out) == (0, "The metadata store has not gone back in time.\n")


def test_peoples_topics_come_first_and_an_internal_one_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fifty empty partitions of the offsets topic stood before the one that was looked for."""

    def topic(name: str, partitions: int, end: int) -> dict[str, Any]:
        replicas = [
            {"partition": x, "broker": 1 + x % 2, "leader_epoch": 0, "end_offset": end if x else 0}
            for x in range(partitions)
        ]
        given = {"topic": name, "topic_id": "id", "is_being_deleted": False, "configs": {}}
        return {**given, "replicas": replicas}

    unknown = [topic("__consumer_offsets", 50, 9), topic("flights", 2, 7)]
    report = REPORT | {"unknown_comes_back": True, "unknown": unknown}
    ended, _ = restored(monkeypatch, capsys, report)
    lines = ended.out.splitlines()
    (row,) = (at for at, line in enumerate(lines) if line.endswith(" 7"))
    internal = [at for at, line in enumerate(lines) if "__consumer_offsets" in line]
    assert len(internal) == 1 and internal[0] > row
    assert "50 partitions, 49 with records, on brokers 1, 2; --json lists" in lines[internal[0]]


def test_the_command_that_goes_on_is_named_with_the_options_of_this_call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Without the secret it was refused, and asked another cluster without the address."""
    secret = tmp_path / "the secret"
    secret.write_text("x" * 32)
    words = ["--cluster-secret-file", str(secret), "--without", "2,3"]
    ended, _ = restored(monkeypatch, capsys, REPORT | {"unknown_comes_back": True}, *words)
    (line,) = (line for line in ended.out.splitlines() if line.startswith("To continue"))
    assert shlex.split(line.partition(": ")[2]) == [
        "tidelog", "doctor", "restored", "--accept", "--bootstrap-server", "localhost:1", *words,
    ]  # fmt: skip


@pytest.mark.parametrize("width", [80, 120, 200])
def test_what_is_unknown_and_late_is_whole_in_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(width))
    name = "payments.orders.settled.europe-west.v2"
    held = {"partition": 117, "broker": 1003, "leader_epoch": 7, "end_offset": 1_234_567_890}
    given = {"topic": name, "topic_id": "Q0MfCIQuS2OsUswai6hYIQ", "is_being_deleted": False}
    unknown = [{**given, "configs": {}, "replicas": [held, held]}]
    report = REPORT | {"unknown_comes_back": True, "unknown": unknown}
    ended, _ = restored(monkeypatch, capsys, report)
    whole = (name, given["topic_id"], "117", "1003", "1234567890")
    assert all(str(text) in ended.out for text in whole), ended
    one = late(name, "ahead", why="it went on from offset 3", partition=117, end_offset=1_234_567)
    ended, _ = restored(
        monkeypatch,
        capsys,
        REPORT | {"went_back": None, "late": [one, one], "unknown_comes_back": True},
    )
    assert all(text in ended.out for text in (name, "117", "1234567", "stays: more records"))
