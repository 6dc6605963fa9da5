"""What `tidelog reassign-partitions` refuses and prints, by what it has read: flags that no small
cluster can show."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tidelog.cli.reassigning import actions
from tidelog.cli.reassigning.plan_file import PlanFile
from tidelog.cli.reassigning.situation import NOTHING_KNOWN, Situation
from tidelog.cli.refusal import Failed
from tidelog.client.admin.nodes import LogDir, Placements
from tidelog.client.metadata import Partition
from tidelog.model.topics import TopicPartition

T0 = TopicPartition("t", 0)
CLUSTER: Any = None
"""No request is sent."""


def seen(
    monkeypatch: pytest.MonkeyPatch,
    racks: dict[int, str | None],
    free: int = 0,
    placements: Placements = NOTHING_KNOWN,
) -> None:
    """Let the actions read this: t-0 of 100 bytes on broker 1, broker 2 with free bytes."""
    dirs = {
        1: [LogDir("/a", None, {T0: 100}, 1000, 500)],
        2: [LogDir("/b", None, {}, 1000, free)],
    }
    now = Situation(racks, {T0: Partition(0, 1, 5, (1,), (1,), ())}, {}, dirs, placements)

    async def look(*_: object, **__: object) -> Situation:
        return now

    async def note_limits(*_: object) -> None:
        """There is no throttle."""

    monkeypatch.setattr(actions, "check", look)
    monkeypatch.setattr(actions, "note_limits", note_limits)


def test_a_target_without_room_is_refused_unless_forced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen(monkeypatch, {1: None, 2: None}, free=99)
    said = "there is no room for the copies: broker 2 /b lacks 1 B"
    with pytest.raises(
        Failed, match=f"^{said}; --force begins nevertheless: a full disk then takes"
    ):
        asyncio.run(actions.dry_run(CLUSTER, PlanFile({T0: (2,)}), force=False, as_json=True))
    shown = json.loads(capsys.readouterr().out)
    assert (shown["has_room"], shown["log_dirs"][0]["free_bytes_afterwards"]) == (False, -1)
    options = actions.Options(additional=False, force=False, throttle=None, as_json=True)
    with pytest.raises(Failed, match=said):
        asyncio.run(actions.execute(CLUSTER, PlanFile({T0: (2,)}), options))
    assert capsys.readouterr().out == "", "nothing has started"
    asyncio.run(actions.dry_run(CLUSTER, PlanFile({T0: (2,)}), force=True, as_json=False))
    printed = capsys.readouterr()
    assert "lacks 1 B" in printed.out and said in printed.err


def test_a_proposal_looks_at_racks_unless_it_must_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen(monkeypatch, {1: "a", 2: None})
    with pytest.raises(Failed, match="others have one: 2; set broker"):
        asyncio.run(actions.generate(CLUSTER, ["t"], [1, 2], aware=True, as_json=True))
    asyncio.run(actions.generate(CLUSTER, ["t"], [2], aware=False, as_json=True))
    (row,) = json.loads(capsys.readouterr().out)["proposed"]["partitions"]
    assert row["replicas"] == [2]


@pytest.mark.parametrize(
    ("topics", "brokers", "said"),
    [
        (["t", "none"], [1], "topics that do not exist: none"),
        (["t"], [1, 7], "--broker-list names brokers that are not alive: 7"),
        (["t"], [1, 2], "--broker-list names broker 2, which gets no new replicas: cordoned.log"),
    ],
)
def test_proposals_that_are_refused(
    monkeypatch: pytest.MonkeyPatch, topics: list[str], brokers: list[int], said: str
) -> None:
    closed = Placements({}, {2: ("*",)}, frozenset({2}))
    seen(monkeypatch, {1: None, 2: None}, placements=closed)
    with pytest.raises(Failed, match=said):
        asyncio.run(actions.generate(CLUSTER, topics, brokers, aware=True, as_json=True))
