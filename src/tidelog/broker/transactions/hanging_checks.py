"""Checks of what is open in the logs that this broker leads: what is over is ended.

Owns when a partition is checked, the questions to coordinators, and the append. Not what becomes of
a transaction: see ``transactions.hanging``; not how a marker is written: see ``marker_writer``.

| a partition led here | is checked |
|---|---|
| its leadership has begun with something open: the log may have been cut | soon |
| one transaction holds readers back for ``transaction.max.timeout.ms`` | then: no coordinator has \
one for longer, so it was lost there, or its marker was |
| the check before had no outcome: a coordinator moves, loads, does not answer | after a pause, up \
to ``MOST_PAUSE_MS`` |

Order: the transactions are noted, then all coordinators are asked, then each marker is appended if
its transaction is the same: a batch that came meanwhile may belong to the next one of its producer.
No append waits for a check. One check is under way at a time, in turns of the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidelog.groups.placement import partition_for
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TRANSACTIONS_TOPIC, TopicPartition
from tidelog.protocol import messages
from tidelog.runtime import pace
from tidelog.runtime.backoff import steady
from tidelog.runtime.tasks import call_off
from tidelog.storage.log.joining import NONE
from tidelog.transactions.hanging import Ends, OpenInLog, Remains, StateOfId, judge
from tidelog.transactions.state import IdAndEpoch, TransactionState

if TYPE_CHECKING:
    from tidelog.broker.metadata.cache import MetadataCache
    from tidelog.broker.metadata.other_brokers import OtherBrokers
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.broker.partitions.registry import Partitions
    from tidelog.broker.transactions.marker_writer import MarkerWriter
    from tidelog.runtime.clock import Clock

logger = logging.getLogger(__name__)
audit = logging.getLogger("tidelog.audit")

SWEEP_S = 2.0
"""Interval of the search for partitions to check."""

PAUSE_MS, MOST_PAUSE_MS = 1_000, 30_000

MOST_AT_ONCE = 1_000
"""Transactions of one check, all partitions together; the others are in later checks."""

DESCRIBED_AT_ONCE = 50
"""Ids of one DescribeTransactions: each may have 20,000 partitions."""

LATE_AFTER_MS = 300_000
"""A transaction is late when it is open for so long after the longest time-out, as in Kafka."""

CHECK_MS = 5_000
"""Limit of ListTransactions to one coordinator, which reads all of its ids; and of all the
DescribeTransactions that follow, together."""

WRITTEN_MS = 5_000
"""Wait of a check for the commits of its markers."""

PURPOSE = "the check of open transactions"

_STATES = {state.spoken: state for state in TransactionState}
_NOBODY = (-1, -1)
States = dict[int, list[StateOfId] | None]


@dataclass(slots=True)
class _Watched:
    """A partition that is led here."""

    since: int
    """The leadership."""
    first_offset: int
    """Of the first open transaction, which holds readers back; -1 without one."""
    held_since_ms: int
    """Since the last check, or since that transaction was seen."""
    seen_ms: int
    is_due: bool
    next_ms: int = 0
    failures: int = 0
    passed: int = NONE
    """First offset of the last transaction that is checked, where a check had too many of them."""


@dataclass(frozen=True, slots=True)
class _Noted:
    """A transaction that is asked about."""

    hosted: HostedPartition
    since: int
    transaction: OpenInLog


class HangingChecks:
    """The checks of one broker. Created once, started once."""

    def __init__(
        self,
        partitions: Partitions,
        metadata: MetadataCache,
        others: OtherBrokers,
        writer: MarkerWriter,
        max_timeout_ms: Callable[[], int],
        clock: Clock,
    ) -> None:
        self._partitions = partitions
        self._metadata = metadata
        self.others = others
        """What the coordinators are asked with, and nothing else."""
        self._writer = writer
        self._max_timeout_ms = max_timeout_ms
        self._clock = clock
        self._watched: dict[HostedPartition, _Watched] = {}
        self._task: asyncio.Task[None] | None = None
        self.ended = self.lost = 0
        """Transactions that checks have ended, and those of them that no coordinator knew."""
        self.late = 0
        """Partitions led here with a late transaction, at the last search."""

    def start(self) -> None:
        """Start to check."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="hanging-checks")

    async def stop(self) -> None:
        """Stop; the next leader checks."""
        if self._task is not None:
            await call_off([self._task])
        self.others.close()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                await self.check()
            except Exception:
                # A bug must not stop the checks for ever.
                logger.exception("open transactions could not be checked")

    async def check(self) -> None:
        """Check what is due, once."""
        due = await self._due()
        noted: list[_Noted] = []
        undecided: set[HostedPartition] = set()
        parts: dict[HostedPartition, int] = {}
        for hosted, watched in due.items():
            room = MOST_AT_ONCE - len(noted)
            if room <= 0:
                break
            more = await self._open_in(hosted, watched)
            if len(more) > room:
                parts[hosted] = more[room - 1].transaction.first_offset
            noted += more[:room]
        if not noted:
            return
        states = await self.states({each.transaction.producer.producer_id for each in noted})
        ends = [self._end(each, states) for each in noted]
        writing = [each for each in ends if not isinstance(each, bool)]
        if writing:
            await asyncio.wait(writing, timeout=WRITTEN_MS / 1000)
        for each, end in zip(noted, ends, strict=True):
            if not (end if isinstance(end, bool) else end.done() and end.result()):
                undecided.add(each.hosted)
        for hosted in {each.hosted for each in noted}:
            if hosted in parts and hosted not in undecided:
                # The next check goes on after this part: what lives must not keep what hangs from
                # its turn.
                due[hosted].passed = parts[hosted]
            else:
                self._checked(hosted, due[hosted], hosted not in undecided)

    # Which partitions ------------------------------------------------------------------------

    async def _due(self) -> dict[HostedPartition, _Watched]:
        now_ms, turn = self._clock.monotonic_ms(), pace.Turn(self._clock)
        before, self._watched = self._watched, {}
        limit_ms, late = self._max_timeout_ms(), 0
        due: dict[HostedPartition, _Watched] = {}
        for hosted in list(self._partitions.all()):
            await turn.pause()
            leadership = hosted.leadership
            if leadership is None:
                continue
            first = next(iter(hosted.log.producers.transactions.unstable), NONE)
            watched = before.get(hosted)
            if watched is None or watched.since != leadership.since:
                watched = _Watched(leadership.since, first, now_ms, now_ms, first != NONE)
            elif watched.first_offset != first:
                watched.first_offset = first
                watched.held_since_ms = watched.seen_ms = now_ms
            elif first != NONE and now_ms - watched.held_since_ms >= limit_ms:
                watched.is_due, watched.held_since_ms = True, now_ms
            self._watched[hosted] = watched
            late += first != NONE and now_ms - watched.seen_ms >= limit_ms + LATE_AFTER_MS
            if watched.is_due and watched.next_ms <= now_ms:
                due[hosted] = watched
        self.late = late
        return due

    def _checked(self, hosted: HostedPartition, watched: _Watched, is_decided: bool) -> None:
        """Take the outcome of a check: all is decided, or it is to be made again."""
        if is_decided:
            watched.is_due, watched.failures, watched.passed = False, 0, NONE
            return
        pause_ms = int(steady(PAUSE_MS, MOST_PAUSE_MS).pause_ms(watched.failures))
        watched.failures += 1
        watched.next_ms = self._clock.monotonic_ms() + pause_ms
        if watched.failures == 5:
            logger.warning(
                "open transactions of %(partition)s are not checked yet: a coordinator does not "
                "answer for all of its ids, a marker is not committed, or their producers go on",
                {"partition": hosted.key},
            )

    async def _open_in(self, hosted: HostedPartition, watched: _Watched) -> list[_Noted]:
        """Return what is open in a log, or mark it as checked when nothing is."""
        turn = pace.Turn(self._clock)
        noted: list[_Noted] = []
        for entries in pace.parts(list(hosted.log.producers.entries.values())):
            for entry in entries:
                transaction = transaction_of(entry)
                if transaction is not None and transaction.first_offset > watched.passed:
                    noted.append(_Noted(hosted, watched.since, transaction))
            await turn.pause()
        if not noted:
            watched.is_due, watched.passed = False, NONE
        return sorted(noted, key=lambda each: each.transaction.first_offset)

    # What the coordinators say ---------------------------------------------------------------

    async def states(self, producer_ids: set[int]) -> States:
        """Return what all coordinators say of producer ids; None where it is not certain, as of all
        unless each partition has answered."""
        uncertain: States = dict.fromkeys(producer_ids)
        epochs = self._coordinators()
        if epochs is None:
            return uncertain
        brokers = sorted({leader for leader, _ in epochs.values()})
        answers = await asyncio.gather(*(self._asked(each, producer_ids) for each in brokers))
        if self._coordinators() != epochs:
            # One of them may have been deposed before it answered, and not know it.
            return uncertain
        newest: dict[int, tuple[int, int]] = {}
        for broker, (covered, _) in zip(brokers, answers, strict=True):
            for number, epoch in covered.items():
                newest[number] = max(newest.get(number, _NOBODY), (epoch, broker))
        if any(newest.get(number, _NOBODY)[0] < epoch for number, (_, epoch) in epochs.items()):
            return uncertain
        states: States = {each: [] for each in producer_ids}
        for broker, (covered, described) in zip(brokers, answers, strict=True):
            for name, (producer_id, answer) in described.items():
                number = partition_for(name, len(epochs))
                if newest.get(number) != (covered.get(number), broker):
                    continue  # a deposed coordinator
                before = states.get(producer_id)
                if answer is None or answer.error_code or answer.producer_id != producer_id:
                    states[producer_id] = None  # it changes
                elif before is not None:
                    before.append(_state_of(answer, newest[number][0]))
        return states

    def _coordinators(self) -> dict[int, tuple[int, int]] | None:
        """Return the leader and its epoch of each partition of ``__transaction_state``; None while
        one is not known."""
        topic = self._metadata.topic(TRANSACTIONS_TOPIC)
        if topic is None:
            return None
        count = topic.undeleted_partition_count
        if count <= 0:
            count = len(topic.partitions)
        known = {number: topic.partitions.get(number) for number in range(count)}
        leaders = {
            number: (part.leader, part.leader_epoch)
            for number, part in known.items()
            if part is not None and part.leader >= 0
        }
        return leaders if count and len(leaders) == count else None

    async def _asked(
        self, broker: int, producer_ids: set[int]
    ) -> tuple[dict[int, int], dict[str, tuple[int, Any]]]:
        """Return the partitions that a coordinator has, with their epochs, and by id what it says
        of these producers: the producer id, and None where it does not describe the id."""
        asked = messages.ListTransactionsRequest(
            producer_id_filters=sorted(producer_ids), include_covered=True
        )
        answers = await self.others.ask(broker, PURPOSE, ApiKey.LIST_TRANSACTIONS, 1, [asked])
        if not answers or answers[0].error_code:
            return {}, {}
        covered = {each.partition_index: each.leader_epoch for each in answers[0].covered}
        described: dict[str, tuple[int, Any]] = {
            each.transactional_id: (each.producer_id, None)
            for each in answers[0].transaction_states
        }
        names = list(described)
        requests = [
            messages.DescribeTransactionsRequest(names[first : first + DESCRIBED_AT_ONCE])
            for first in range(0, len(names), DESCRIBED_AT_ONCE)
        ]
        api = ApiKey.DESCRIBE_TRANSACTIONS
        for answer in await self.others.ask(broker, PURPOSE, api, 0, requests) if names else ():
            for each in answer.transaction_states:
                described[each.transactional_id] = described[each.transactional_id][0], each
        return covered, described

    # The end ---------------------------------------------------------------------------------

    def _end(self, noted: _Noted, states: States) -> bool | asyncio.Future[bool]:
        """End a transaction if it is over; return whether it is decided, or will be."""
        hosted, transaction = noted.hosted, noted.transaction
        producer_id = transaction.producer.producer_id
        leadership, entry = hosted.leadership, hosted.log.producers.entries.get(producer_id)
        if leadership is None or leadership.since != noted.since:
            return True  # the next leader's check
        if entry is None or entry.open_since != transaction.first_offset:
            return True  # it has ended
        said = states[producer_id]
        if said is None:
            return False
        verdict = judge(transaction, hosted.key, said)
        if not isinstance(verdict, Ends):
            # What its coordinator ends is checked, though its producer goes on.
            return verdict is Remains.OPEN
        if transaction_of(entry) != transaction:
            # A batch that came meanwhile may be of the next transaction.
            return False
        return self._write(noted, verdict)

    def _write(self, noted: _Noted, verdict: Ends) -> asyncio.Future[bool]:
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def written(error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                self._say(noted, verdict)
            if not done.done():
                done.set_result(error is ErrorCode.NONE)

        self._writer.write(noted.hosted.key, verdict.marker, written)
        return done

    def _say(self, noted: _Noted, verdict: Ends) -> None:
        self.ended += 1
        self.lost += verdict.is_lost
        fields = {
            "partition": noted.hosted.key,
            "producer_id": noted.transaction.producer.producer_id,
            "epoch": noted.transaction.producer.epoch,
            "first": noted.transaction.first_offset,
        }
        named = "producer %(producer_id)d, epoch %(epoch)d, in %(partition)s from offset %(first)d"
        if verdict.is_lost:
            audit.warning(
                f"a transaction of {named} was aborted: no coordinator knows how it ended", fields
            )
        else:
            word = "committed" if verdict.marker.committed else "aborted"
            audit.info(f"a transaction of {named} was {word}: its marker was lost", fields)


def transaction_of(entry: Any) -> OpenInLog | None:
    """Return what a producer has open by its entry in a log."""
    if entry.open_since == NONE:
        return None
    owner = IdAndEpoch(entry.producer_id, entry.epoch)
    return OpenInLog(owner, entry.open_since, entry.last_offset, entry.coordinator_epoch)


def _state_of(answer: Any, coordinator_epoch: int) -> StateOfId:
    return StateOfId(
        answer.transactional_id,
        IdAndEpoch(answer.producer_id, answer.producer_epoch),
        _STATES[answer.transaction_state],
        frozenset(_partitions_of(answer.topics)),
        coordinator_epoch,
    )


def _partitions_of(topics: Iterable[Any]) -> Iterable[TopicPartition]:
    return (TopicPartition(each.topic, number) for each in topics for number in each.partitions)
