"""Callbacks for the state of keys, in the order that a reader's poll gives them.

Owns calling back, and that nothing counts that a callback did not end. Not which callbacks are due:
see ``held_keys``. Without such a listener positions count as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidelog.client.groups.gating import Gating
from tidelog.client.groups.group_member import GroupMember
from tidelog.client.groups.held_keys import HeldKeys
from tidelog.client.groups.reader_hooks import ReaderHooks
from tidelog.client.groups.self_assigned import SelfAssigned
from tidelog.model.topics import TopicPartition

Positions = dict[TopicPartition, int]

MOST_ROUNDS = 32
"""Rounds of callbacks in one poll: each opens gates for the next, but one that seeks to and fro
would go on for ever. The next poll continues."""


class KeyTurns:
    """The callbacks of one reader; a callback that raises ends the turn, and is repeated."""

    def __init__(
        self,
        keys: HeldKeys | None,
        member: GroupMember | SelfAssigned,
        gating: Gating,
        hooks: ReaderHooks,
        positions: Callable[[], Positions],
    ) -> None:
        self._keys = keys
        self._member = member
        self._gating = gating
        self._hooks = hooks
        self._positions = positions
        self._loaded_late: list[TopicPartition] = []
        """What the application has loaded for a generation that was over when it had."""

    def done_with(self) -> Positions:
        """Return up to where the application is done, and its state flushed."""
        positions = self._positions()
        return positions if self._keys is None else self._keys.done_with(positions)

    def begin_again(self) -> None:
        """Begin another generation, in which nothing is loaded."""
        if self._keys is not None:
            self._keys.begin_again()
            self._gating.apply()

    async def flush_received(self) -> None:
        """Let the application flush what it received since the last flush."""
        if self._keys is not None:
            await self._flush(self._keys, self._keys.received(self._positions()))

    async def flush_loaded(self) -> None:
        """Let the application flush everything: its partitions are given up."""
        if self._keys is not None:
            await self._flush(self._keys, self._keys.loaded)

    async def lose_loaded(self) -> None:
        """Let the application forget everything: the generation is over, and others have it."""
        keys = self._keys
        if keys is not None and (lost := [*keys.loaded, *self._loaded_late]):
            await self._hooks.keys_lost(lost)
            keys.begin_again()
            self._loaded_late = []

    async def turn(self) -> None:
        """Call back until nothing is due, or the member is not what it was."""
        keys, gating = self._keys, self._gating
        if keys is None:
            return
        for _ in range(MOST_ROUNDS):
            due = keys.to_flush(self._positions(), gating.ends, gating.fences())
            if not await self._flush(keys, due):
                return
            gating.delivered(self._positions())
            # A gate that opens while the application loads is another callback.
            ends, membership = gating.ends, self._member.membership
            to_load = keys.to_load(self._positions(), ends)
            if to_load:
                await self._hooks.keys_assigned(to_load, membership)
                if self._member.membership != membership:
                    # It took too long: meanwhile another member may have had these keys.
                    self._loaded_late = to_load
                    return
                keys.were_loaded(to_load, ends)
                gating.apply()
            if not due and not to_load:
                return

    async def _flush(self, keys: HeldKeys, partitions: Sequence[TopicPartition]) -> bool:
        """The application is done with everything before the present positions; False if the
        generation ended meanwhile: then it is not known whose the written state is."""
        if not partitions:
            return True
        before, membership = self._positions(), self._member.membership
        await self._hooks.keys_maybe_revoked(partitions, membership)
        if self._member.membership != membership:
            return False
        # The callback may have gone back.
        now = self._positions()
        done = {tp: min(before[tp], now.get(tp, 0)) for tp in partitions if tp in before}
        keys.flushed(done)
        self._gating.apply()
        return True
