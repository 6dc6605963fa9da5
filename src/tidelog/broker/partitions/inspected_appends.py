"""Produced batches that wait before the append, in order: until a thread has inspected them, until
a segment is closed with a sync, for the durable note that a producer sends no partition count, or
for the coordinator of their transaction.

Owns one queue per partition, while it has batches: later batches for the partition wait after them,
so that the batches of a producer keep their order. Batches of transactions have a queue for each
producer of a partition, so that a coordinator that does not answer holds up no other producer
(decision 0129). The bytes are copied, because the receive buffer is reused; the connection handles
no further request before the response (its handler returns a task), and all queues together are
bounded. Leadership, ISR, the count of an aware producer, and its place in a transaction are checked
right before the append.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tidelog.broker.partitions.in_sync import is_too_small, why_too_few
from tidelog.broker.partitions.joining_room import JoiningRoom
from tidelog.broker.partitions.resize_checks import why_not_appended
from tidelog.model.errors import ErrorCode
from tidelog.network.limits import Account, Holder
from tidelog.records.batch import Buffer, Rejected
from tidelog.replication.resize_rules import NOT_NAMED, Named
from tidelog.runtime.tasks import call_off
from tidelog.storage.log.inspecting import InspectionAllowance
from tidelog.storage.log.producers import RESUMES
from tidelog.storage.log.results import Appended
from tidelog.storage.log.retention import ROLL_WAITS

if TYPE_CHECKING:
    from tidelog.broker.partitions.joining import Joining
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.broker.partitions.resuming_producers import ResumingProducers
    from tidelog.broker.partitions.unaware_writers import UnawareWriters
    from tidelog.broker.partitions.verifier import Verifier
    from tidelog.runtime import pace
    from tidelog.runtime.clock import Clock

logger = logging.getLogger(__name__)

MOST_BYTES = 64 * 1024 * 1024
"""Maximum size of the batches that wait, in bytes; a larger batch waits alone. Each client address
may use its share, whatever the others use: so the total is at most twice as much."""

Outcome = asyncio.Future[Appended | Rejected]

_Key = tuple["HostedPartition", int]
"""A partition, and the producer of a transaction, or ``_ALL``."""

_ALL = -1


@dataclass(slots=True)
class _Entry:
    records: bytes
    allowance: InspectionAllowance
    named: Named
    in_sync: bool
    deadline: float
    outcome: Outcome
    owner: Holder
    client_id: str | None
    joining: Joining | None


class InspectedAppends:
    """The queues of one broker."""

    def __init__(
        self,
        clock: Clock,
        background: pace.Background,
        unaware: UnawareWriters,
        resuming: ResumingProducers,
        verifier: Verifier,
    ) -> None:
        """Must be called on the broker's event loop. ``unaware`` notes batches without a count."""
        self.unaware = unaware
        self.verifier = verifier
        self._resuming = resuming
        self._clock = clock
        self._background = background
        self._loop = asyncio.get_running_loop()
        self._queues: dict[_Key, deque[_Entry]] = {}
        self._room = JoiningRoom()
        self._tasks: set[asyncio.Task[None]] = set()
        self._account = Account(MOST_BYTES)

    @property
    def bytes(self) -> int:
        """Size of the batches in the queues."""
        return self._account.used

    def waits(self, partition: HostedPartition, producer_id: int) -> bool:
        """Return whether batches of a producer's transaction wait for their append."""
        return (partition, producer_id) in self._queues

    def add(
        self,
        partition: HostedPartition,
        records: Buffer,
        allowance: InspectionAllowance,
        owner: Holder,
        *,
        named: Named = NOT_NAMED,
        client_id: str | None = None,
        joining: Joining | None = None,
        in_sync: bool,
        timeout_ms: int,
    ) -> Outcome:
        """Append a batch of ``owner`` after those before it. ``in_sync`` (acks=all): only if then
        the ISR has its minimum and the timeout is not over. ``joining``: of a transaction."""
        loop = self._loop
        outcome: Outcome = loop.create_future()
        size, account = len(records), self._account
        fits = not account.used or account.used + size <= account.limit
        fits = fits or account.in_share(owner, size)
        if not fits or not (joining is None or self._room.enter(partition, size)):
            sentence = f"{account.used} bytes wait for inspection: send it again later"
            if fits:
                sentence = "too many batches wait for their coordinators: send it again later"
            result = Rejected(ErrorCode.REQUEST_TIMED_OUT, sentence)
            self._resuming.note_refusal(partition, records, result.error)
            outcome.set_result(result)
            return outcome
        account.charge(size, owner)
        deadline = loop.time() + max(0, timeout_ms) / 1000
        entry = _Entry(
            bytes(records), allowance, named, in_sync, deadline, outcome, owner, client_id, joining
        )
        key = partition, _ALL if joining is None else joining.claim.producer_id
        queue = self._queues.get(key)
        if queue is not None:
            queue.append(entry)
            return outcome
        queue = self._queues[key] = deque((entry,))
        if joining is None:
            partition.has_uninspected = True
        task = loop.create_task(self._work_off(key, queue), name="inspected-appends")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return outcome

    async def stop(self) -> None:
        """Stop; the batches that wait are refused."""
        await call_off(self._tasks)
        await self.verifier.stop()
        await self.unaware.stop()

    async def _work_off(self, key: _Key, queue: deque[_Entry]) -> None:
        partition = key[0]
        try:
            while queue:
                entry = queue[0]
                result = await self._append(partition, entry)
                if isinstance(result, Rejected):
                    self._resuming.note_refusal(partition, entry.records, result.error)
                self._done(partition, queue, result)
        finally:
            if key[1] == _ALL:
                partition.has_uninspected = False
            del self._queues[key]
            while queue:
                reason = "this broker stops"
                self._done(partition, queue, Rejected(ErrorCode.NOT_LEADER_OR_FOLLOWER, reason))

    def _done(
        self, partition: HostedPartition, queue: deque[_Entry], result: Appended | Rejected
    ) -> None:
        entry = queue.popleft()
        if entry.joining is not None:
            self._room.leave(partition, len(entry.records))
        self._account.charge(-len(entry.records), entry.owner)
        if not entry.outcome.done():
            entry.outcome.set_result(result)

    async def _append(self, partition: HostedPartition, entry: _Entry) -> Appended | Rejected:
        clock, background = self._clock, self._background
        if entry.in_sync and self._loop.time() >= entry.deadline:
            sentence = "its records could not be inspected in time"
            return Rejected(ErrorCode.REQUEST_TIMED_OUT, sentence)
        joining = entry.joining
        try:
            if joining is not None:
                refused = await joining.confirmed(entry.records, entry.deadline)
                if refused is not None:
                    return refused
            pieces = partition.log.inspect(
                entry.records,
                clock.wall_ms(),
                entry.allowance,
                in_transaction=joining is not None,
            )
            inspected = await background.run(pieces)
            if isinstance(inspected, Rejected):
                return inspected
            while True:
                if entry.in_sync and is_too_small(partition):
                    return Rejected(ErrorCode.NOT_ENOUGH_REPLICAS, why_too_few(partition))
                refused = why_not_appended(partition, entry.named, entry.records)
                if refused is not None:
                    return refused
                now_ms = clock.wall_ms()
                if not self.unaware.may_append(partition, entry.named, now_ms):
                    refused = await self.unaware.noting(partition, now_ms, entry.client_id)
                    if refused is not None:
                        partition.check_disk()
                        return refused
                    continue
                if joining is not None:
                    refused = joining.why_not(entry.records)
                    if refused is not None:
                        return refused
                append = partial(partition.append, entry.records, now_ms, inspected=inspected)
                result = append()
                if result is RESUMES:
                    again = partial(append, resumes=True)
                    result = self._resuming.append(partition, entry.records, again)
                if result is not ROLL_WAITS:
                    if isinstance(result, Appended) and not result.duplicate:
                        self.unaware.note(
                            partition, entry.named, entry.records, now_ms, entry.client_id
                        )
                    return result
                log = partition.log
                refused = await background.run(log.syncing_before_roll())
                if refused is not None and log is partition.log:
                    partition.check_disk()
                    return refused
        except Exception:
            logger.exception("a batch for %s could not be inspected", partition.key)
            return Rejected(ErrorCode.UNKNOWN_SERVER_ERROR, "the broker failed: see its log")
