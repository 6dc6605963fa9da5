"""Batches of an older epoch after one of a newer epoch of their producer, which a leader that knows
the newer one refuses: what a follower, a start and a parallel check know of the producer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.storage_logs import NOW_MS, batch, new_log, reopen
from tests.support.transactional_logs import marker, transactional
from tidelog.records.batch import Rejected, read_header, seal_batch
from tidelog.records.builder import Producer
from tidelog.storage.log.joining import NONE
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.producers import BATCHES_REMEMBERED, ProducerState, encode
from tidelog.storage.log.stable import last_stable_offset
from tidelog.storage.log.transaction_events import TransactionEvents

DATA, IN_TRANSACTION, MARKER = "data", "in a transaction", "marker"


class Sent(NamedTuple):
    """A batch of one record, or a marker; ``number``: a sequence, or the coordinator's epoch."""

    kind: str
    producer_id: int
    epoch: int
    number: int

    def made(self) -> bytes:
        if self.kind == MARKER:
            return marker(
                self.producer_id, self.epoch, committed=True, coordinator_epoch=self.number
            )
        made = batch(1, producer=Producer(self.producer_id, self.epoch, self.number))
        return transactional(made) if self.kind == IN_TRANSACTION else made


Known = dict[int, tuple[int, list[tuple[int, int]], int, int]]
"""By producer: epoch, (sequence, offset) of its last batches, coordinator epoch, open since."""


def expected(log: Sequence[Sent]) -> Known:
    """What is known after a log that was read from its beginning."""
    known: Known = {}
    for producer_id in {sent.producer_id for sent in log}:
        own = [(at, sent) for at, sent in enumerate(log) if sent.producer_id == producer_id]
        newest = max(sent.epoch for _, sent in own)
        last = [
            (sent.number, at) for at, sent in own if sent.kind != MARKER and sent.epoch == newest
        ]
        ends = [(at, sent.number) for at, sent in own if sent.kind == MARKER]
        marked, coordinator = ends[-1] if ends else (NONE, NONE)
        since = [at for at, sent in own if sent.kind == IN_TRANSACTION and at > marked]
        known[producer_id] = (
            newest,
            last[-BATCHES_REMEMBERED:],
            coordinator,
            min(since, default=NONE),
        )
    return known


def known_to(state: ProducerState) -> Known:
    return {
        producer_id: (
            entry.epoch,
            [(one.first_sequence, one.first_offset) for one in entry.batches],
            entry.coordinator_epoch,
            entry.open_since,
        )
        for producer_id, entry in state.entries.items()
    }


def note(state: ProducerState, log: Sequence[Sent], begin: int, end: int) -> None:
    for at in range(begin, end):
        made = log[at].made()
        state.note(read_header(made), at, NOW_MS, made)


def written(random_: random.Random, count: int) -> list[Sent]:
    kinds = random_.choices([DATA, IN_TRANSACTION, MARKER], [3, 3, 2], k=count)
    return [
        Sent(kind, random_.randint(1, 2), random_.choice([0, 0, 1, 1, 1, 2]), random_.randrange(9))
        for kind in kinds
    ]


@pytest.mark.parametrize("seed", range(60))
def test_an_older_epoch_changes_nothing_that_is_known_but_what_is_open(seed: int) -> None:
    rng = random.Random(seed)
    log = written(rng, 40)
    for end in range(0, len(log) + 1, 4):
        read = ProducerState()
        note(read, log, 0, end)
        assert known_to(read) == expected(log[:end]), seed
        # A snapshot, and what comes after it: noted, or by a check that began at or before it.
        at = rng.randint(0, end)
        before = ProducerState()
        note(before, log, 0, at)
        loaded, *copies = (ProducerState.decode(encode(before.copied())) for _ in range(3))
        note(loaded, log, at, end)
        committed = rng.randint(0, end)
        for copied, known_committed in zip(copies, (0, committed), strict=True):
            later = ProducerState()
            later.events = TransactionEvents(known_committed)
            note(later, log, rng.randint(0, at), end)
            copied.follow(later, at)
        for one, least in ((loaded, 0), (copies[0], 0), (copies[1], committed)):
            assert known_to(one) == expected(log[:end]), (seed, at, end)
            for watermark in sorted({least, max(least, at), end}):
                first = one.transactions.first_unstable(watermark)
                assert first == read_first(log, at, end, watermark), (seed, at, end, watermark)


def read_first(log: Sequence[Sent], at: int, end: int, watermark: int) -> int | None:
    """The first unstable offset for a reader of a snapshot at ``at``, which has what is open there
    alone."""
    state = ProducerState()
    note(state, log, 0, at)
    state.transactions.first_unstable(at)
    note(state, log, at, end)
    return state.transactions.first_unstable(watermark)


def follow(log: PartitionLog, *batches: Sent) -> None:
    for sent in batches:
        made = sent.made()
        header = read_header(made)._replace(base_offset=log.end_offset, leader_epoch=0)
        assert not isinstance(
            log.append_as_follower(seal_batch(header, made[61:]), NOW_MS), Rejected
        )


@pytest.mark.parametrize("snapshot_at", [None, 1, 2, 3])
def test_a_follower_and_a_start_fence_the_older_epoch(
    tmp_path: Path, snapshot_at: int | None
) -> None:
    log = new_log(tmp_path)
    for place, sent in enumerate(
        (Sent(DATA, 7, 1, 0), Sent(DATA, 7, 1, 1), Sent(IN_TRANSACTION, 7, 0, 0)), 1
    ):
        follow(log, sent)
        if place == snapshot_at:
            log.roll(NOW_MS)
            pending = log.unsynced()
            assert pending is not None
            pending.run()
            log.synced(pending)

    def check(log: PartitionLog) -> None:
        log.raise_watermark(log.end_offset)

        def judged(epoch: int, sequence: int) -> object:
            made = Sent(IN_TRANSACTION, 7, epoch, sequence).made()
            return log.producers.judge(read_header(made))

        late = judged(0, 1)
        assert isinstance(late, Rejected) and late.error.name == "INVALID_PRODUCER_EPOCH"
        assert judged(1, 2) is None
        assert last_stable_offset(log) == 2, "its marker ends it for readers"

    check(log)
    assert log.close()
    check(reopen(tmp_path))
