"""The transactions of one sender: the shell around ``transaction``.

Owns what follows from its decisions: requests to the coordinator, batches that are given up, the
identity, the tombstones that wait for a commit. Not the decisions: see ``transaction``. Not the
fields of requests: see ``transaction_requests``.

Bound: each call lasts ``max_block_ms`` at most, and says then what to call next. A record costs
nothing here: all checks are of a batch or of a round of ``delivery``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Protocol

from tidelog.client.cluster import Cluster
from tidelog.client.errors import AbortTransaction, ClientError, GaveUp, WrongState
from tidelog.client.groups.committed_offsets import Membership, Position
from tidelog.client.producing.ancestor_tombstones import AncestorTombstones
from tidelog.client.producing.delivery import BatchDelivery
from tidelog.client.producing.send_queue import SendQueue
from tidelog.client.producing.settings import SendSettings
from tidelog.client.producing.topic_follower import TOMBSTONES
from tidelog.client.producing.transaction import (
    Phase,
    PreparedTransaction,
    ProducerTransaction,
    TxnEvent,
    is_final,
)
from tidelog.client.producing.transaction_requests import TransactionRequests
from tidelog.client.producing.turning import TopicTurning
from tidelog.client.retries import is_worth_retrying
from tidelog.model.topics import TopicPartition

ADDING = "transaction"
"""The task that adds partitions to the transaction."""

ADD_MS = 5_000
"""How long partitions are asked to be added, before the trouble is shown and it begins again."""


class SendingParts(Protocol):
    """The part of a sender that this needs."""

    settings: SendSettings
    delivery: BatchDelivery
    turning: TopicTurning
    tombstones: AncestorTombstones
    refuses: Callable[[], ClientError] | None

    @property
    def is_closing(self) -> bool:
        """Whether ``close`` has begun."""

    async def flush(self) -> None:
        """Send all records now, and wait for their outcomes."""


class SenderTransactions:
    """The transactions of one sender, one after another."""

    def __init__(self, cluster: Cluster, sender: SendingParts, transactional_id: str) -> None:
        self.rules = ProducerTransaction(transactional_id, sender.settings.transaction_timeout_ms)
        self._cluster = cluster
        self._sender = sender
        self._delivery = sender.delivery
        self._requests = TransactionRequests(cluster, transactional_id)
        self._running = ""
        """The call that runs; one at a time."""
        self._offsets = 0
        """How many calls send offsets."""
        self._follow()

    # What the delivery asks for

    def check(self) -> None:
        """Fail what is never sent, because the transaction is given up."""
        rules = self.rules
        if not rules.gives_up or not self._has_some():
            return
        if rules.phase is Phase.ABORTING:
            why: ClientError = AbortTransaction("the transaction was aborted before this was sent")
        else:
            why = rules.why_not(TxnEvent.WRITE)
        self._delivery.fail_all(why)

    def _has_some(self) -> bool:
        return any(queue.waiting for queue in self._delivery.queues) or bool(
            self._sender.turning.held_bytes()
        )

    def wants(self, partition: TopicPartition) -> None:
        """Let a partition be added to the transaction: it has a batch."""
        if not self.rules.may_send(partition) and self.rules.must_add:
            self._delivery.work.run(ADDING, self._add)

    def may_send(self, queue: SendQueue) -> bool:
        """Whether batches of a queue may go out: its partition is in the transaction."""
        if not self.rules.may_send(queue.partition):
            if self.rules.must_add:
                self._delivery.work.run(ADDING, self._add)
            return False
        if queue.needs_identity(self._delivery.identity):
            # Its topic became ordered, or ceased to be: sequence numbers begin again.
            self.lost(GaveUp(f"{queue.partition} needs another producer epoch"))
            return False
        return True

    def lost(self, error: ClientError) -> None:
        """Note that records have failed: the transaction cannot be committed."""
        self.rules.failed(error)
        self._follow()
        if self.rules.gives_up:
            # What waits fails in the next round.
            self._delivery.timer.set(0.0)

    async def _add(self) -> None:
        identity = self._delivery.identity
        # A batch may be in no partition, or in another one by now: its topic was resized.
        partitions = self.rules.to_add(
            {queue.partition for queue in self._delivery.queues if queue.waiting}
        )
        if not partitions or identity is None:
            return
        try:
            await self._requests.add_partitions(identity, partitions, ADD_MS)
        except ClientError as error:
            if is_worth_retrying(error) and not is_final(error):
                raise
            self.lost(error)
        else:
            self.rules.added(partitions)

    # Calls

    async def init(self) -> None:
        """Get a producer id; other producers of the id are fenced, their transaction is aborted."""
        async with self._call("init_transactions"):
            self.rules.step(TxnEvent.INIT)
            try:
                self._delivery.identity = await self._requests.initialize(
                    None, self.rules.timeout_ms, self._block_ms
                )
            except ClientError as error:
                refusal = self._explained(error)
                raise refusal from _cause(refusal, error)
            self.rules.step(TxnEvent.STARTED)

    async def begin(self) -> None:
        """Open a transaction; after a prepared one in the next epoch."""
        if self._running:
            raise self._not_now("begin_transaction")
        if self.rules.begins_with_epoch:
            async with self._call("begin_transaction"):
                await self._raise_epoch()
                self.rules.epoch_given()
        self.rules.step(TxnEvent.BEGIN)
        self._sender.tombstones.hold()
        self._follow()

    async def send_offsets(
        self, group: str, member: Membership, positions: Mapping[TopicPartition, Position]
    ) -> None:
        """Let offsets of a group be committed with the transaction."""
        if self._running:
            raise self._not_now("send_offsets_to_transaction")
        self.rules.step(TxnEvent.WRITE)
        if not positions:
            return
        self.rules.adds_group()
        identity = self._delivery.identity
        assert identity is not None, "a transaction is open"
        self._offsets += 1
        now_s = asyncio.get_running_loop().time
        deadline_s = now_s() + self._block_ms / 1000
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._requests.add_group(identity, group, self._block_ms)
                left_ms = max(1, int((deadline_s - now_s()) * 1000))
                await self._requests.commit_offsets(identity, group, member, positions, left_ms)
        except TimeoutError:
            late = GaveUp(f"send_offsets_to_transaction did not end within {self._block_ms} ms")
            raise self._without_offsets(late) from late
        except ClientError as error:
            refusal = self._without_offsets(error)
            raise refusal from _cause(refusal, error)
        except asyncio.CancelledError:
            self.lost(WrongState("send_offsets_to_transaction was cancelled"))
            raise
        finally:
            self._offsets -= 1

    def _without_offsets(self, error: ClientError) -> ClientError:
        """Offsets are not in the transaction; return what the caller is to know."""
        refusal = self.rules.failed(error)
        self.lost(error)
        return refusal

    async def commit(self) -> None:
        """Wait for the outcome of every record, and commit."""
        async with self._call("commit_transaction"):
            self.rules.step(TxnEvent.COMMIT)
            await self._flushed()
            self.rules.step(TxnEvent.FLUSHED)
            await self._end()

    async def abort(self) -> None:
        """Give up what has no outcome, and abort."""
        async with self._call("abort_transaction"):
            self.rules.step(TxnEvent.ABORT)
            await self._give_up()
            await self._end()

    async def prepare(self) -> PreparedTransaction | None:
        """Wait for the outcome of every record; any process may end the transaction then.

        None: nothing was written, and there is nothing to end.
        """
        async with self._call("prepare"):
            self.rules.step(TxnEvent.PREPARE)
            await self._flushed()
            identity = self._delivery.identity
            assert identity is not None, "a transaction is open"
            if self.rules.is_empty:
                self.rules.step(TxnEvent.FLUSHED)
                await self._end()
                return None
            self.rules.step(TxnEvent.SET_ASIDE)
            return self._prepared()

    def has_prepared(self, one: PreparedTransaction) -> bool:
        """Whether this is the transaction that this sender has prepared and not ended."""
        is_ending = self.rules.phase in (Phase.PREPARED, Phase.COMMITTING, Phase.ABORTING)
        return is_ending and one == self._prepared()

    async def close(self) -> None:
        """Abort what is open, as far as the coordinator answers; its time-out does it otherwise."""
        with contextlib.suppress(ClientError):
            if self.rules.phase in (Phase.OPEN, Phase.FAILED, Phase.FLUSHING):
                self.rules.step(TxnEvent.ABORT)
                await self._give_up()
            identity, end = self._delivery.identity, self.rules.ends()
            if self.rules.phase is Phase.ABORTING and end.is_open and identity is not None:
                await self._requests.end(identity, commits=False, timeout_ms=self._block_ms)

    def _prepared(self) -> PreparedTransaction | None:
        identity = self._delivery.identity
        if identity is None:
            return None
        return PreparedTransaction(
            self.rules.transactional_id, identity.producer_id, identity.epoch
        )

    @contextlib.asynccontextmanager
    async def _call(self, name: str) -> AsyncIterator[None]:
        """One call at a time, which lasts ``max_block_ms`` at most."""
        if self._running or self._offsets:
            raise self._not_now(name)
        self._running = name
        try:
            async with asyncio.timeout(self._block_ms / 1000):
                yield
        except TimeoutError:
            why = self._delivery.waits_for
            text = f"{name} did not end within {self._block_ms} ms{f'; {why}' if why else ''}"
            raise GaveUp(f"{text}: call it again") from None
        finally:
            self._running = ""
            self._follow()

    def _not_now(self, name: str) -> WrongState:
        runs = self._running or "send_offsets_to_transaction"
        return WrongState(f"{name} was called while {runs} runs: await it first")

    @property
    def _block_ms(self) -> int:
        return self._sender.settings.max_block_ms

    def _follow(self) -> None:
        """Let the sender accept records while a transaction is open."""
        if self._sender.is_closing:
            return
        takes = self.rules.takes_records
        self._sender.refuses = None if takes else partial(self.rules.why_not, TxnEvent.WRITE)

    def _explained(self, error: ClientError) -> ClientError:
        """Return what a caller is to know of an error of the coordinator."""
        if is_worth_retrying(error) and not is_final(error):
            # A broker's own sentence may have a full stop at its end.
            return GaveUp(f"{str(error).rstrip('.')}: call {self._running} again")
        return self.rules.failed(error)

    # The end

    async def _flushed(self) -> None:
        """Wait until every batch has its outcome. Raises AbortTransaction if any has failed."""
        self._follow()
        if self.rules.phase is Phase.FLUSHING:
            await self._sender.flush()
        if self.rules.phase in (Phase.FAILED, Phase.CLOSED):
            raise self.rules.why_not(TxnEvent.WRITE)

    async def _give_up(self) -> None:
        """Fail what was not sent, and wait for the outcome of what was."""
        self._follow()
        if (adding := self._delivery.work.task(ADDING)) is not None:
            adding.cancel()
            await asyncio.wait([adding])
        await self._sender.flush()

    async def _end(self) -> None:
        """Let the coordinator end the transaction, and give the next epoch where it is needed."""
        rules, end = self.rules, self.rules.ends()
        identity = self._delivery.identity
        assert identity is not None, "a transaction is open"
        if end.is_open:
            try:
                await self._requests.end(identity, commits=end.commits, timeout_ms=self._block_ms)
            except ClientError as error:
                is_open = is_worth_retrying(error) and not is_final(error)
                refusal = self._explained(error) if is_open else rules.refused_end(error)
                if refusal is not None:
                    raise refusal from _cause(refusal, error)
            rules.end_answered()
        if self._sender.tombstones.release(committed=end.commits):
            self._delivery.work.run(TOMBSTONES, self._sender.tombstones.send)
        if end.raises_epoch:
            await self._raise_epoch()
        rules.ended()

    async def _raise_epoch(self) -> None:
        """Get the next epoch, and begin each partition at sequence 0 in it."""
        try:
            self._delivery.identity = await self._requests.initialize(
                self._delivery.identity, self.rules.timeout_ms, self._block_ms
            )
        except ClientError as error:
            refusal = self._explained(error)
            raise refusal from _cause(refusal, error)
        self._delivery.queues.renew()


def _cause(refusal: ClientError, error: ClientError) -> BaseException | None:
    """Return the cause of what is raised for an error, which may be the same one."""
    return error.__cause__ if refusal is error else error
