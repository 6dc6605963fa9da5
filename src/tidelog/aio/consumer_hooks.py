"""The hooks of a consumer: its listeners, and the queue of records that it has not returned.

Owns the calls of the user's callbacks. Not when they are due: see ``client.groups.group_reader``.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from tidelog.aio.consumer_types import PartitionKeyRebalanceListener
from tidelog.client.errors import WrongState
from tidelog.client.fetching.record_queue import QueuePlace, RecordQueue
from tidelog.client.groups.committed_offsets import Membership
from tidelog.client.groups.reader_hooks import ReaderHooks
from tidelog.model.topics import TopicPartition

Call = Callable[..., Awaitable[None]]
"""Calls a function of the user with its arguments, and returns when it has ended."""


async def call_here(function: Callable[..., Any], *args: Any) -> None:
    """Call a function or coroutine function on this loop."""
    result = function(*args)
    if inspect.isawaitable(result):
        await result


class _Calls:
    """The callbacks of one consumer, one at a time, whatever subscription they are of."""

    def __init__(self) -> None:
        self.one = asyncio.Lock()
        self.calling: asyncio.Task[Any] | None = None
        """The task in which a callback runs now."""


class ConsumerHooks(ReaderHooks):
    """The hooks of one consumer, with the listeners of its present subscription."""

    def __init__(
        self,
        queue: RecordQueue,
        call: Call,
        listener: Any = None,
        key_listener: PartitionKeyRebalanceListener | None = None,
    ) -> None:
        self.follows_keys = key_listener is not None
        self.rebalances = 0
        self.read_as = Membership()
        """The generation in which the last records were taken, for transactions."""
        self._calls = _Calls()
        self._queue = queue
        self._call = call
        self._listener = listener
        self._keys = key_listener

    def followed_by(
        self, listener: Any, key_listener: PartitionKeyRebalanceListener | None
    ) -> ConsumerHooks:
        """Return the hooks of the next subscription, with other listeners."""
        hooks = ConsumerHooks(self._queue, self._call, listener, key_listener)
        hooks._calls, hooks.rebalances = self._calls, self.rebalances
        # Without a generation the group would take what another member has read since.
        hooks.read_as = self.read_as
        return hooks

    def took_as(self, member: Membership) -> None:
        """Note in which generation records were taken; one that has none keeps the last."""
        if member.generation >= 0:
            self.read_as = member

    def has(self, listener: Any, key_listener: PartitionKeyRebalanceListener | None) -> bool:
        """Whether these are its listeners."""
        return listener is self._listener and key_listener is self._keys

    async def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Call ``on_partitions_revoked``."""
        await self._notify("on_partitions_revoked", partitions)

    async def lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Call ``on_partitions_lost``; a listener without it gets a revocation."""
        has_it = hasattr(self._listener, "on_partitions_lost")
        await self._notify("on_partitions_lost" if has_it else "on_partitions_revoked", partitions)

    async def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Call ``on_partitions_assigned``."""
        self.rebalances += 1
        await self._notify("on_partitions_assigned", partitions)

    async def keys_maybe_revoked(
        self, partitions: Sequence[TopicPartition], membership: Membership
    ) -> None:
        """Call ``on_partition_key_maybe_revoked``."""
        if self._keys is not None:
            await self._called(
                self._keys.on_partition_key_maybe_revoked,
                set(partitions),
                membership.generation,
                membership.member_id,
            )

    async def keys_assigned(
        self, partitions: Sequence[TopicPartition], membership: Membership
    ) -> None:
        """Call ``on_partition_key_assigned``."""
        if self._keys is not None:
            await self._called(
                self._keys.on_partition_key_assigned,
                set(partitions),
                membership.generation,
                membership.member_id,
            )

    async def keys_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Call ``on_partition_key_lost``, which a listener need not have."""
        if self._keys is not None and hasattr(self._keys, "on_partition_key_lost"):
            await self._called(self._keys.on_partition_key_lost, set(partitions))

    def undelivered(self) -> Mapping[TopicPartition, QueuePlace]:
        """Return the positions within what was fetched and not returned."""
        return self._queue.positions()

    def epoch_before(self, partition: TopicPartition, offset: int) -> int:
        """Return the leader epoch of the record before a position; -1 where it is not known."""
        return self._queue.epoch_before(partition, offset)

    def drop(self, partitions: Collection[TopicPartition] | None) -> None:
        """Forget records that were not returned."""
        self._queue.drop(partitions)

    async def _notify(self, method: str, partitions: Sequence[TopicPartition]) -> None:
        if self._listener is not None:
            await self._called(getattr(self._listener, method), set(partitions))

    @property
    def is_in_callback(self) -> bool:
        """Whether the task that asks is in a callback."""
        calling = self._calls.calling
        return calling is not None and calling is asyncio.current_task()

    def refuse_in_callback(self, what: str) -> None:
        """Raise WrongState in a callback: there the consumer is in the middle of ``poll``."""
        if self.is_in_callback:
            raise WrongState(f"{what} was called in a callback: call it when poll has returned")

    async def _called(self, function: Callable[..., Any], *args: Any) -> None:
        """Call back, one at a time: ``close`` of another task waits for a callback of ``poll``."""
        async with self._calls.one:
            self._calls.calling = asyncio.current_task()
            try:
                await self._call(function, *args)
            finally:
                self._calls.calling = None
