"""Callbacks for the state of keys when the generation ends while they run, or ended before."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from tidelog.client.groups.committed_offsets import Membership
from tidelog.client.groups.held_keys import HeldKeys
from tidelog.client.groups.key_turns import KeyTurns
from tidelog.client.groups.reader_hooks import ReaderHooks
from tidelog.model.topics import TopicPartition

PARENT = TopicPartition("t", 0)
FENCE = 10


class Group(ReaderHooks):
    """A member of one partition with its gates, and what its application was called with."""

    def __init__(self) -> None:
        self.membership = Membership(1, "m", None)
        self.ends: dict[TopicPartition, int] = {}
        self.position = 3
        self.is_removed_by_flush = self.is_removed_by_load = False
        self.calls: list[str] = []
        where: Any = self
        self.turns = KeyTurns(HeldKeys(), where, where, self, lambda: {PARENT: self.position})

    def fences(self) -> dict[TopicPartition, list[int]]:
        return {PARENT: [FENCE]}

    def delivered(self, positions: object) -> None:
        pass

    def apply(self) -> None:
        pass

    async def keys_maybe_revoked(
        self, partitions: Sequence[TopicPartition], membership: Membership
    ) -> None:
        self.calls.append("flush")
        if self.is_removed_by_flush:
            self.membership = Membership(-1, "", None)

    async def keys_assigned(
        self, partitions: Sequence[TopicPartition], membership: Membership
    ) -> None:
        self.calls.append("load")
        if self.is_removed_by_load:
            self.membership = Membership(-1, "", None)

    async def keys_lost(self, partitions: Sequence[TopicPartition]) -> None:
        assert [*partitions] == [PARENT]
        self.calls.append("lose")


def ended(work: Coroutine[Any, Any, Any]) -> None:
    """Run what never waits."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")


def test_what_a_removed_member_has_loaded_is_lost_once_and_then_loaded_again() -> None:
    group = Group()
    ended(group.turns.lose_loaded())
    assert not group.calls, "nothing was loaded"
    ended(group.turns.turn())
    ended(group.turns.lose_loaded())
    ended(group.turns.lose_loaded())
    assert group.calls == ["load", "lose"]
    group.turns.begin_again()
    ended(group.turns.turn())
    assert group.calls == ["load", "lose", "load"]


def test_a_flush_during_which_the_generation_ends_counts_for_nothing_and_ends_the_turn() -> None:
    group = Group()
    ended(group.turns.turn())
    group.position, group.is_removed_by_flush = FENCE + 1, True
    ended(group.turns.turn())
    assert group.calls == ["load", "flush"], "it is not called for a generation that is over"
    assert group.turns.done_with() == {PARENT: 3}
    ended(group.turns.lose_loaded())
    assert group.calls == ["load", "flush", "lose"]


def test_what_was_loaded_too_late_is_lost_as_well() -> None:
    group = Group()
    group.is_removed_by_load = True
    ended(group.turns.turn())
    ended(group.turns.lose_loaded())
    ended(group.turns.lose_loaded())
    assert group.calls == ["load", "lose"]
