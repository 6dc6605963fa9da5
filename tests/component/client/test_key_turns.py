"""The callbacks of one turn: they end, whatever the application does in them."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from tidelog.client.groups.committed_offsets import Membership
from tidelog.client.groups.held_keys import HeldKeys
from tidelog.client.groups.key_turns import MOST_ROUNDS, KeyTurns
from tidelog.client.groups.reader_hooks import ReaderHooks
from tidelog.model.topics import TopicPartition

WHERE = TopicPartition("t", 0)
FENCE = 5


class OneFence:
    """Gates of others wait for a fence; no gate of this member is shut."""

    ends: dict[TopicPartition, int] = {}

    def fences(self) -> dict[TopicPartition, list[int]]:
        return {WHERE: [FENCE]}

    def delivered(self, positions: dict[TopicPartition, int]) -> None:
        pass

    def apply(self) -> None:
        pass


class Member:
    def __init__(self) -> None:
        self.membership = Membership(1, "m")


class Application(ReaderHooks):
    """Seeks in its callbacks; ``on_load`` runs in the one that loads."""

    follows_keys = True

    def __init__(self, flush_at: int | None, load_at: int | None, on_load: Any = None) -> None:
        self.position = 0
        self.calls: list[str] = []
        self.seeks = {"flush": flush_at, "load": load_at}
        self.on_load = on_load

    def called(self, what: str) -> None:
        self.calls.append(what)
        at = self.seeks[what]
        if at is not None:
            self.position = at

    async def keys_maybe_revoked(
        self, partitions: Sequence[TopicPartition], membership: Membership
    ) -> None:
        self.called("flush")

    async def keys_assigned(
        self, partitions: Sequence[TopicPartition], membership: Membership
    ) -> None:
        self.called("load")
        if self.on_load is not None:
            self.on_load()


def turned(application: Application, member: Member, keys: HeldKeys) -> None:
    gating: Any = OneFence()
    turns = KeyTurns(keys, member, gating, application, lambda: {WHERE: application.position})  # type: ignore[arg-type]
    with pytest.raises(StopIteration):
        turns.turn().send(None)


def test_an_application_that_seeks_to_and_fro_gets_the_loop_back() -> None:
    application = Application(flush_at=0, load_at=FENCE + 1)
    turned(application, Member(), HeldKeys())
    assert application.calls.count("load") == MOST_ROUNDS
    assert application.calls.count("flush") == MOST_ROUNDS - 1


def test_an_application_that_seeks_past_a_fence_flushes_once() -> None:
    application = Application(flush_at=None, load_at=FENCE + 1)
    turned(application, Member(), HeldKeys())
    assert application.calls == ["load", "flush", "load"]


def test_state_that_was_loaded_too_late_opens_nothing() -> None:
    member, keys = Member(), HeldKeys()

    def lose() -> None:
        member.membership = Membership()

    application = Application(None, None, lose)
    turned(application, member, keys)
    assert application.calls == ["load"] and keys.loaded == []


class Watched(OneFence):
    """Notes what may be delivered at each change of it."""

    def __init__(self, keys: HeldKeys, ends: dict[TopicPartition, int]) -> None:
        self.keys, self.ends = keys, ends
        self.limits: list[dict[TopicPartition, int]] = []

    def fences(self) -> dict[TopicPartition, list[int]]:
        return {}

    def apply(self) -> None:
        self.limits.append(self.keys.limits(self.ends, [WHERE]))


def done(work: Coroutine[Any, Any, None]) -> None:
    with pytest.raises(StopIteration):
        work.send(None)


def test_a_gate_that_opens_while_the_application_loads_lets_it_load_again() -> None:
    """It has read the state of the keys that were there: others come in with the gate."""
    keys, member = HeldKeys(), Member()
    gating: Any = Watched(keys, {WHERE: FENCE})

    def opens() -> None:
        gating.ends = {}

    application = Application(None, None, opens)
    turns = KeyTurns(keys, member, gating, application, lambda: {WHERE: 0})  # type: ignore[arg-type]
    done(turns.turn())
    assert application.calls == ["load", "flush", "load"]
    assert gating.limits[-1] == {}


def test_after_a_flush_before_a_commit_nothing_is_delivered_until_state_is_loaded() -> None:
    keys, member = HeldKeys(), Member()
    gating: Any = Watched(keys, {})
    application = Application(None, None)
    turns = KeyTurns(keys, member, gating, application, lambda: {WHERE: application.position})  # type: ignore[arg-type]
    done(turns.turn())
    assert gating.limits == [{}]
    application.position = 3
    done(turns.flush_received())
    assert application.calls == ["load", "flush"]
    assert gating.limits == [{}, {WHERE: 0}]
