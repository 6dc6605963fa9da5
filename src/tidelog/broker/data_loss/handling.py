"""Data-loss handling after an unclean election: named routines per kind of partition (KIP-704).

Owns when a routine runs, and which routines there are. Not the debts themselves: see ``debts``. A
LeaderAndIsr says that a partition needs handling: by the flag of an unclean election, or by the
debt record, which each later leader inherits until the handling is finished. Then ``isr_changes``
reports it in a field of AlterIsr, and the controller clears flag and debt.

| kind of partition | routines, in this order |
|---|---|
| ordinary | record the loss: where the unclean leader's log ended, and in which leader epoch |
| ``__consumer_offsets`` | record the loss; reload the groups from the rest of the log |
| ``__transaction_state`` | record the loss; load the ids from the rest of the log, fence them, \
abort what is open and carry out what is decided (decision 0138) |

Markers of transactions wait for leaders, and may need longer than a routine: they go on meanwhile,
and the routine fails until all of them are written. A routine that fails leaves the flag set and
runs again after a pause that grows up to ``RETRY_MAX_MS``, without a limit of attempts. What waits
for the level of the cluster (decision 0138) is not tried before that. A leader in a new epoch
starts with the first routine. Memory grows with the partitions that need handling.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from tidelog.broker.data_loss.debts import Debt, Debts
from tidelog.broker.data_loss.loss_notes import LossNote, end_notes_of
from tidelog.model.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition
from tidelog.runtime.backoff import steady
from tidelog.runtime.clock import Clock
from tidelog.runtime.tasks import call_off

if TYPE_CHECKING:
    from tidelog.broker.control_plane.isr_changes import IsrChanges
    from tidelog.broker.data_loss.loss_reports import LossReports
    from tidelog.broker.partitions.partition import HostedPartition

logger = logging.getLogger(__name__)

RETRY_MS = 200
"""First pause after a failed routine; it doubles up to ``RETRY_MAX_MS``."""

RETRY_MAX_MS = 10_000
LONGEST_ROUTINE_S = 30.0
"""Timeout of a routine: what it waits for may never happen."""


class PartitionKind(Enum):
    """What a partition holds, as far as it decides the routines."""

    ORDINARY = "ordinary"
    GROUPS = "groups"
    TRANSACTIONS = "transactions"


def kind_of(topic: str) -> PartitionKind:
    """Return the kind of a topic's partitions."""
    if topic == OFFSETS_TOPIC:
        return PartitionKind.GROUPS
    return PartitionKind.TRANSACTIONS if topic == TRANSACTIONS_TOPIC else PartitionKind.ORDINARY


class Groups(Protocol):
    """The groups coordinated here: ``coordinator``."""

    async def reloaded(self, partition: HostedPartition, /) -> str | None:
        """Load the groups of a partition from its log; return why that failed, if so."""


class SettlesTransactions(Protocol):
    """The transactional ids coordinated here: ``transaction_coordinator``."""

    async def settled(self, partition: HostedPartition, /) -> str | None:
        """End what a loss has left open or decided; return why that is not done yet, if so."""

    def awaits_level(self, partition: HostedPartition, /) -> bool:
        """Whether that waits until the level of the cluster has transactions."""

    def when_level_changes(self, follow: Callable[[], None], /) -> None:
        """Call ``follow`` after each change of that level."""


Failures = Mapping["HostedPartition", str]
"""The partitions for which a routine failed, and why."""

Routine = Callable[["DataLoss", Sequence["HostedPartition"]], Awaitable[Failures]]


async def record_what_was_lost(handling: DataLoss, led: Sequence[HostedPartition]) -> Failures:
    """Report to the controller where the unclean leaders' logs ended; later offsets are lost.

    A leader that was in sync and inherited the debt has no end to report.
    """
    ends = {partition: handling.debts.ends(partition) for partition in led}
    unclean = [(partition, loss) for partition, losses in ends.items() for loss in losses]
    why = await handling.loss_reports.report_ends(unclean) if unclean else None
    return {} if why is None else dict.fromkeys((partition for partition, _ in unclean), why)


async def reload_groups(handling: DataLoss, led: Sequence[HostedPartition]) -> Failures:
    """Load the groups of these partitions from the logs as they are now.

    The load of a log whose end is not committed may never finish: each partition has a timeout.
    """
    return await _of_each(handling.groups.reloaded, led)


async def settle_transactions(handling: DataLoss, led: Sequence[HostedPartition]) -> Failures:
    """Fence the ids of these partitions, and end their transactions, each within a timeout.

    What is not done then goes on, also with the next leader, until it is asked for again.
    """
    return await _of_each(handling.transactions.settled, led)


async def _of_each(
    work: Callable[[HostedPartition], Awaitable[str | None]], led: Sequence[HostedPartition]
) -> Failures:
    reasons = await asyncio.gather(*(_in_time(work, partition) for partition in led))
    return {partition: why for partition, why in zip(led, reasons, strict=True) if why is not None}


async def _in_time(
    work: Callable[[HostedPartition], Awaitable[str | None]], partition: HostedPartition
) -> str | None:
    try:
        async with asyncio.timeout(LONGEST_ROUTINE_S / 2):
            return await work(partition)
    except TimeoutError:
        return f"still loading after {LONGEST_ROUTINE_S / 2:.0f} s"


ROUTINES: Mapping[PartitionKind, tuple[tuple[str, Routine], ...]] = {
    PartitionKind.ORDINARY: (("record what was lost", record_what_was_lost),),
    PartitionKind.GROUPS: (
        ("record what was lost", record_what_was_lost),
        ("reload the groups", reload_groups),
    ),
    PartitionKind.TRANSACTIONS: (
        ("record what was lost", record_what_was_lost),
        ("settle the transactions", settle_transactions),
    ),
}


class DataLoss:
    """The data-loss handling of one broker. Created once, started once."""

    def __init__(
        self,
        debts: Debts,
        loss_reports: LossReports,
        isr_changes: IsrChanges,
        groups: Groups,
        transactions: SettlesTransactions,
        clock: Clock,
    ) -> None:
        self.debts = debts
        self.loss_reports = loss_reports
        self.groups = groups
        self.transactions = transactions
        self._debts = debts.owed
        self._isr_changes = isr_changes
        self._clock = clock
        self._wake = {kind: asyncio.Event() for kind in PartitionKind}
        self._tasks: list[asyncio.Task[None]] = []
        transactions.when_level_changes(self._wake[PartitionKind.TRANSACTIONS].set)

    def __len__(self) -> int:
        """How many partitions led here need handling, or its confirmation by the controller."""
        return len(self._debts)

    def start(self) -> None:
        """Start one task per kind, so that no kind waits for the routines of another."""
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._work(kind), name=f"data-loss-{kind.value}")
            for kind in PartitionKind
        ]

    async def stop(self) -> None:
        """Stop; the controller keeps the debts that are left."""
        await call_off(self._tasks)

    # -- partitions that need handling

    def applied(self, partition: HostedPartition) -> None:
        """Update a partition after a LeaderAndIsr: it needs handling, or no longer does."""
        state = partition.state
        if not (partition.is_leader and (state.is_unclean_leader or state.has_debt)):
            self._debts.pop(partition, None)
            return
        debt = self._debts.get(partition)
        if debt is not None and debt.epoch == partition.leader_epoch:
            if debt.is_handled:
                self._isr_changes.handled(partition)
            return
        ends: Sequence[LossNote] = ()
        if debt is not None and not debt.is_handled:
            # It continues to lead: the log ended before the records appended since.
            ends = debt.ends
        elif state.is_unclean_leader:
            ends = end_notes_of(partition)
        self._debts[partition] = Debt(partition.leader_epoch, ends)
        self._wake[kind_of(partition.topic)].set()

    def stopped(self, key: TopicPartition) -> None:
        """Drop a replica that is no longer served: it needs no handling."""
        for partition in [one for one in self._debts if one.key == key]:
            del self._debts[partition]

    # -- handling

    async def _work(self, kind: PartitionKind) -> None:
        wake = self._wake[kind]
        while True:
            wait_ms = self._until_due_ms(kind)
            if wait_ms is None or wait_ms > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if wait_ms is None else wait_ms / 1000):
                        await wake.wait()
            wake.clear()
            due = [partition for partition, _ in self._owed(kind) if self._is_due(partition)]
            if due:
                await self._handle(kind, due)

    def _owed(self, kind: PartitionKind) -> list[tuple[HostedPartition, Debt]]:
        return [
            (partition, debt)
            for partition, debt in self._debts.items()
            if not debt.is_handled
            and kind_of(partition.topic) is kind
            and not (debt.is_deferred and self.transactions.awaits_level(partition))
        ]

    def _until_due_ms(self, kind: PartitionKind) -> int | None:
        now_ms = self._clock.monotonic_ms()
        return min((debt.due_ms - now_ms for _, debt in self._owed(kind)), default=None)

    def _is_due(self, partition: HostedPartition) -> bool:
        return self._debts[partition].due_ms <= self._clock.monotonic_ms()

    async def _handle(self, kind: PartitionKind, led: Sequence[HostedPartition]) -> None:
        """Run the routines of a kind in order, each for the partitions that passed the previous."""
        debts = {partition: self._debts[partition] for partition in led}
        for name, routine in ROUTINES[kind]:
            failures = await self._run(routine, list(debts))
            for partition, why in failures.items():
                debt = debts.pop(partition)
                is_settling = routine is settle_transactions
                if is_settling and self.transactions.awaits_level(partition):
                    _defer(debt, partition)
                else:
                    self._put_off(debt, partition, f"{name}: {why}")
            if not debts:
                return
        for partition, debt in debts.items():
            # A newer command may have replaced the debt while a routine waited.
            if self._debts.get(partition) is debt:
                debt.is_handled = True
                logger.info(
                    "%(partition)s: the data-loss handling is finished",
                    {"partition": partition.key},
                )
                self._isr_changes.handled(partition)

    async def _run(self, routine: Routine, led: Sequence[HostedPartition]) -> Failures:
        try:
            async with asyncio.timeout(LONGEST_ROUTINE_S):
                return await routine(self, led)
        except TimeoutError:
            return dict.fromkeys(led, f"not finished in {LONGEST_ROUTINE_S:.0f} s")
        except Exception as error:
            # A bug in a routine must not stop the handling of other partitions.
            logger.exception("the data-loss handling failed")
            return dict.fromkeys(led, repr(error))

    def _put_off(self, debt: Debt, partition: HostedPartition, why: str) -> None:
        pause_ms = int(steady(RETRY_MS, RETRY_MAX_MS).pause_ms(debt.failures))
        debt.failures += 1
        debt.due_ms = self._clock.monotonic_ms() + pause_ms
        if not debt.failures & (debt.failures - 1):
            # The 1st, 2nd, 4th … time: a lasting error must not fill the log.
            times = debt.failures
            logger.warning(
                "%(partition)s: data-loss handling, %(why)s (%(times)d)",
                {"partition": partition.key, "why": why, "times": times},
            )


def _defer(debt: Debt, partition: HostedPartition) -> None:
    """Leave a debt until the level of the cluster changes: one line in the log, and no attempt."""
    if not debt.is_deferred:
        logger.warning(
            "%(partition)s: data-loss handling waits until the level of the cluster has "
            "transactions",
            {"partition": partition.key},
        )
    debt.is_deferred = True
