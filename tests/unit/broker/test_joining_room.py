"""The limits of batches of transactions that wait."""

from __future__ import annotations

import pytest

from tidelog.broker.partitions import joining_room
from tidelog.broker.partitions.joining_room import JoiningRoom


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining_room, "MOST_BATCHES", 5)
    monkeypatch.setattr(joining_room, "MOST_OF_PARTITION", 3)
    monkeypatch.setattr(joining_room, "MOST_BYTES_OF_PARTITION", 100)


def test_each_limit_is_met_and_free_again() -> None:
    room = JoiningRoom()
    assert [room.enter("p", 10) for _ in range(4)] == [True, True, True, False]
    room.leave("p", 10)
    assert room.enter("p", 81) is False
    assert room.enter("p", 80) is True
    assert [room.enter("q", 10) for _ in range(3)] == [True, True, False]
    room.leave("p", 80)
    assert room.enter("q", 10) is True


def test_a_large_batch_waits_alone() -> None:
    room = JoiningRoom()
    assert room.enter("p", 1000)
    assert not room.enter("p", 1)
    assert room.enter("q", 1000)
    room.leave("p", 1000)
    assert room.enter("p", 1)
    assert not room.enter("p", 1000)
