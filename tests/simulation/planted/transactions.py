"""Bugs of transactions, to be planted in a run, and the courses that find them.

Owns the plants and their table. Not the search for a seed: see ``search``.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from tests.simulation.cluster import transactional_readers
from tests.simulation.planted.search import Patch, Planted, directed
from tests.simulation.scenarios.course import Course
from tests.support.isolation import UNCOMMITTED
from tidelog.broker.fetching import fetch_fast_path, partition_reads, read_positions
from tidelog.broker.metadata.cluster_level import ClusterLevel
from tidelog.broker.partitions import read_limit, waiters
from tidelog.broker.partitions.joining import Joining
from tidelog.broker.partitions.verifier import Verifier
from tidelog.broker.transactions.hanging_checks import HangingChecks
from tidelog.broker.transactions.transaction_partition import TransactionPartition
from tidelog.groups import offsets, replay
from tidelog.groups.group import Group
from tidelog.storage.log.aborted import ENTRY_BYTES
from tidelog.storage.log.aborted_files import AbortedFiles
from tidelog.transactions import rules
from tidelog.transactions.decision import Collected, SendMarkers
from tidelog.transactions.state import PREPARED, TransactionState
from tidelog.transactions.table import TransactionTable

WHOLE = ("committed_is_whole",)
ABORTED = ("aborted_is_never_visible",)
POSITIONS = ("offsets_agree",)
STABLE = ("the_stable_offset_follows",)


def send_markers_before_the_decision_is_durable(patch: Patch) -> None:
    """The markers of a decision leave with its record, and not after its commit."""
    write = Collected.write

    def early(self: Any, known: Any, answers: Any) -> Any:
        made = write(self, known, answers)
        if known is not None and known.transaction.state in PREPARED:
            now = known.transaction
            commits = now.state is TransactionState.PREPARE_COMMIT
            self.effect(SendMarkers(made.key, now.owner, commits, now.partitions))
        return made

    patch.setattr(Collected, "write", early)


def forget_a_partition(patch: Patch) -> None:
    """No marker is sent to the first one of several partitions, and its leader does not ask whether
    what is open there is over: it would end it (decision 0139)."""
    carry_out = TransactionPartition.carry_out

    def fewer(self: Any, effect: Any) -> None:
        if isinstance(effect, SendMarkers) and len(effect.partitions) > 1:
            effect = replace(effect, partitions=effect.partitions[1:])
        carry_out(self, effect)

    async def unchecked(_: Any) -> None:
        pass

    patch.setattr(TransactionPartition, "carry_out", fewer)
    patch.setattr(HangingChecks, "check", unchecked)


def raise_no_epoch_at_a_timeout(patch: Patch) -> None:
    """A transaction that has passed its time-out is aborted, and its producer is not fenced."""
    timed_out = rules.timed_out

    def mild(known: Any, wall_ms: int) -> Any:
        ended = timed_out(known, wall_ms)
        if ended is None:
            return None
        epoch = known.transaction.producer_epoch
        aborted = replace(ended.known.transaction, producer_epoch=epoch)
        return replace(ended, known=replace(ended.known, transaction=aborted))

    patch.setattr(rules, "timed_out", mild)


def skip_the_verification(patch: Patch) -> None:
    """A leader takes the first batch of a transaction without a word of its coordinator."""
    patch.setattr(Verifier, "is_enabled", property(lambda _: False))


def judge_once(patch: Patch) -> None:
    """What a coordinator has confirmed is appended, whatever came while the batch waited. That
    answers take their time is no bug by itself."""
    verification = Verifier.verification

    async def slow(self: Any, *of: Any) -> Any:
        answer = await verification(self, *of)
        await asyncio.sleep(0.1)
        return answer

    patch.setattr(Verifier, "verification", slow)
    patch.setattr(Joining, "why_not", lambda *_: None)


def read_committed_to_the_watermark(patch: Patch) -> None:
    """The last stable offset is the high watermark."""
    for module in (read_limit, waiters, partition_reads, fetch_fast_path, read_positions):
        patch.setattr(module, "last_stable_offset", lambda log: log.high_watermark)


def show_pending_offsets(patch: Patch) -> None:
    """Offsets of an open transaction are the group's at once, and count as stable."""
    pend = replay.pend

    def shown(group: Group, producer_id: int, record: Any) -> None:
        pend(group, producer_id, record)
        columns = record.columns
        positions = group.offsets.setdefault(columns.topic, {})
        values = record.values(columns.topic_id)
        for partition, value in zip(columns.partitions, values, strict=True):
            group.offset_count += partition not in positions
            positions[partition] = value

    patch.setattr(replay, "pend", shown)
    patch.setattr(offsets, "unstable_partitions", lambda *_: ())


def load_no_decision(patch: Patch) -> None:
    """A coordinator that loads its log sends no marker of a decision that it finds there."""
    settle = TransactionTable.settle

    def half(self: Any, now_ms: int) -> Any:
        yield from settle(self, now_ms)
        self._decided = []

    patch.setattr(TransactionTable, "settle", half)


def refuse_before_the_level_is_known(patch: Patch) -> None:
    """A broker that has just started refuses transactions as below their level."""
    begin = ClusterLevel.__init__

    def refusing(self: Any) -> None:
        begin(self)
        self.offers_transactions = False

    patch.setattr(ClusterLevel, "__init__", refusing)


def cut_the_aborted_index_short(patch: Patch) -> None:
    """A truncation drops the last aborted transaction that it should keep, too."""
    cut = AbortedFiles.cut

    def short(self: Any, base: int, end: int) -> None:
        cut(self, base, end)
        self.hold(base, bytes(self.held[base].entries[:-ENTRY_BYTES]))

    patch.setattr(AbortedFiles, "cut", short)


def read_uncommitted(patch: Patch) -> None:
    """The control: a reader that asks for all records, and gets no list of aborted ones."""
    patch.setattr(transactional_readers, "COMMITTED", UNCOMMITTED)


def transactional(weights: dict[str, float], **more: Any) -> Course:
    """Return a directed course with transactions."""
    return directed(weights, **{"deletes": False, "unclean": False, "controllers": 1, **more})


BUSY = transactional(
    {"kill_broker": 3.0, "bounce_broker": 1.0, "cut": 3.0, "pause": 3.0, "isolate": 1.0},
    pause=(0.05, 0.8),
    seconds=20.0,
    end_seconds=22.0,
)
CUT = transactional(
    {"kill_broker": 3.0, "cut": 6.0, "isolate": 3.0},
    pause=(0.05, 0.5),
    seconds=20.0,
    end_seconds=22.0,
)
SELDOM = transactional({"kill_broker": 1.0}, pause=(3.0, 6.0))

PLANTED = (
    Planted(send_markers_before_the_decision_is_durable, WHOLE, CUT, first_seed=3),
    Planted(forget_a_partition, STABLE, SELDOM),
    Planted(refuse_before_the_level_is_known, ("nothing_is_refused_for_good",), BUSY),
    Planted(raise_no_epoch_at_a_timeout, WHOLE, SELDOM),
    Planted(skip_the_verification, (*ABORTED, *STABLE), SELDOM),
    Planted(judge_once, (*ABORTED, *STABLE), SELDOM),
    Planted(read_committed_to_the_watermark, ABORTED, SELDOM),
    Planted(show_pending_offsets, POSITIONS, SELDOM),
    Planted(load_no_decision, STABLE, BUSY),
    Planted(cut_the_aborted_index_short, ABORTED, CUT, first_seed=5),
    Planted(read_uncommitted, ABORTED, SELDOM),
)
