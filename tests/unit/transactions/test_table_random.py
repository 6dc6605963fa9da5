"""Random producers, clocks, logs and crashes against a small model of transactional ids.

The model knows what is committed in the log, to which producer each identity was granted, and
nothing of the rules. After each step it compares: what an answer promises is committed; no decision
is taken back; a marker is sent only for a committed decision; no two producers have one identity;
and at rest no transaction is open or undecided.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.drawn_seed import drawn_seed
from tidelog.model.effects import Answer
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.transactions import limits, rules
from tidelog.transactions.decision import (
    AllocateProducerId,
    SendMarkers,
    TransactionDecision,
    TransactionWrite,
)
from tidelog.transactions.events import AddPartitions, Deadline, End, InitProducerId, MarkersWritten
from tidelog.transactions.records import TransactionRecord, decode, encode
from tidelog.transactions.rules import Known, NextState
from tidelog.transactions.settings import TransactionSettings
from tidelog.transactions.state import IdAndEpoch, Transaction, TransactionState
from tidelog.transactions.table import TransactionTable

EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT, DEAD = (
    TransactionState
)
EDGES = {
    None: {EMPTY},
    EMPTY: {EMPTY, ONGOING, None},
    ONGOING: {ONGOING, PREPARE_COMMIT, PREPARE_ABORT},
    PREPARE_COMMIT: {COMPLETE_COMMIT},
    PREPARE_ABORT: {COMPLETE_ABORT},
    COMPLETE_COMMIT: {COMPLETE_COMMIT, EMPTY, ONGOING, None},
    COMPLETE_ABORT: {COMPLETE_ABORT, EMPTY, ONGOING, None},
}
RESTS = (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT)
KEYS = ("a", "b")
PARTITIONS = tuple(TopicPartition("t", number) for number in range(4))
SETTINGS = TransactionSettings(5_000, 30_000)
AGREES = {True: (PREPARE_COMMIT, COMPLETE_COMMIT), False: (PREPARE_ABORT, COMPLETE_ABORT)}


class Coordinator:
    """A table, the log under it, and producers that may do anything."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now_ms = 0
        self.counts: Counter[str] = Counter()
        self.next_id = 100
        self.log: list[tuple[bytes, bytes | None]] = []
        self.committed: dict[str, Transaction] = {}
        self.granted: dict[IdAndEpoch, object] = {}
        """Each identity with the producer that got it."""
        self.requests: dict[object, tuple[str, Any, object, int]] = {}
        """Requests without an answer: key, event, the producer that sent it, the log's length."""
        self.changed: dict[str, int] = {}
        """The length of the log after the last record of each key."""
        self.in_flight: list[TransactionWrite] = []
        self.late: list[TransactionWrite] = []
        self.markers: list[SendMarkers] = []
        self.asked: list[AllocateProducerId] = []
        for key in KEYS:
            # Epochs that end within a test.
            epoch = limits.LAST_OWNED_EPOCH - rng.randrange(6)
            self.commit(TransactionRecord(key, Transaction(self.fresh(), epoch, 2_000, EMPTY)))
        self.start()

    def fresh(self) -> int:
        self.next_id += 1
        return self.next_id

    def start(self, has_lost: bool = False) -> None:
        self.table = TransactionTable(SETTINGS)
        self.table.ahead_ms = 50_000
        self.table.has_lost = has_lost
        for key, value in self.log:
            self.table.replay(key, value, self.now_ms)
        self.take(self.table.loaded(self.now_ms))

    # What the log has ----------------------------------------------------------------------

    def commit(self, record: TransactionRecord) -> None:
        """Append a record; the state may only go along the edges, and never back."""
        key, value = record.transactional_id, record.value
        before = self.committed.get(key)
        if self.log and (before is not None or value is not None):
            state = None if before is None else before.state
            after = None if value is None else value.state
            allowed = after in EDGES[state] or len(self.log) < len(KEYS)
            assert allowed, (state, after)
            if before is not None and value is not None:
                self.check_step(before, value)
        self.log.append(encode(record))
        self.changed[key] = len(self.log)
        assert decode(*self.log[-1]) == record
        if value is None:
            self.committed.pop(key)
        else:
            self.committed[key] = value

    def check_step(self, before: Transaction, after: Transaction) -> None:
        assert after.owner >= before.owner, "an identity comes back"
        assert after.updated_ms >= before.updated_ms
        if before.state is ONGOING:
            assert set(after.partitions) >= set(before.partitions), "a partition is forgotten"
            assert after.started_ms == before.started_ms
            fences = after.state is PREPARE_ABORT
            assert after.owner == before.owner or (fences and after.owner[0] == before.owner[0])
        elif before.state in (PREPARE_COMMIT, PREPARE_ABORT):
            assert after.owner == before.owner

    # What the table says -------------------------------------------------------------------

    def take(self, decision: TransactionDecision) -> None:
        for effect in decision.effects:
            match effect:
                case Answer(pending, result):
                    self.check_answer(pending, result)
                case SendMarkers(key, producer, committed, partitions):
                    now = self.committed[key]
                    decided, _ = AGREES[committed]
                    assert now.state is decided, "a marker before its decision is committed"
                    assert (now.owner, now.partitions) == (producer, partitions)
                    self.markers.append(effect)
                    self.counts["markers"] += 1
                case AllocateProducerId():
                    self.asked.append(effect)
        for write in decision.writes:
            busy = {each.key for each in (*self.in_flight, *self.late)}
            assert write.key not in busy, "two records of one id"
            self.in_flight.append(write)

    def check_answer(self, pending: object, result: Any) -> None:
        if pending not in self.requests:
            return  # It was refused before: the first answer counts.
        key, event, sender, length = self.requests.pop(pending)
        self.counts[f"{type(event).__name__} {result.error.name}"] += 1
        if result.error is not ErrorCode.NONE:
            return
        assert self.changed[key] > length, "a success from memory: a deposed one would say it too"
        now = self.committed[key]
        if isinstance(event, InitProducerId):
            got = IdAndEpoch(result.producer_id, result.producer_epoch)
            assert (now.owner, now.state) == (got, EMPTY)
            assert got.epoch <= limits.LAST_OWNED_EPOCH, "no epoch is left to fence it"
            assert self.granted.setdefault(got, sender) == sender, "two producers are one"
        elif isinstance(event, AddPartitions):
            assert (now.owner, now.state) == (event.producer, ONGOING)
            assert set(now.partitions) >= set(event.partitions)
        else:
            assert now.owner == event.producer
            assert now.state in AGREES[event.committed], "another verdict than was promised"

    # Steps ---------------------------------------------------------------------------------

    def ask(self) -> None:
        """A producer sends a request, perhaps one that is long out of date."""
        rng, pending = self.rng, object()
        key = rng.choice(KEYS)
        known = self.committed.get(key)
        identities = [*[*self.granted][-6:], IdAndEpoch(1, 1)]
        # A producer cannot name an identity that none was granted.
        if known is not None and known.owner in self.granted and rng.random() < 0.8:
            identities = [known.owner]
        producer = rng.choice(identities)
        sender = self.granted.get(producer, pending)
        event: Any
        match rng.randrange(6):
            case 0:
                sender = pending
                event = InitProducerId(pending, rng.choice((500, 5_000)))
            case 1:
                event = InitProducerId(pending, 2_000, producer)
            case 2 | 3:
                at = tuple(rng.sample(PARTITIONS, rng.randrange(1, 3)))
                event = AddPartitions(pending, producer, at)
            case _:
                event = End(pending, producer, rng.random() < 0.5)
        self.requests[pending] = (key, event, sender, len(self.log))
        self.take(self.table.decide(key, event, self.now_ms))

    def allocate(self) -> None:
        asked = self.asked.pop(self.rng.randrange(len(self.asked)))
        event = asked.request.with_new_id(self.fresh())
        self.take(self.table.decide(asked.transactional_id, event, self.now_ms))

    def store(self, writes: list[TransactionWrite]) -> None:
        write = writes.pop(self.rng.randrange(len(writes)))
        self.commit(write.records[0])
        self.take(self.table.stored(write, self.now_ms))

    def lose(self) -> None:
        write = self.in_flight.pop(self.rng.randrange(len(self.in_flight)))
        self.take(self.table.lost(write, ErrorCode.NOT_ENOUGH_REPLICAS, self.now_ms))

    def delay(self) -> None:
        write = self.in_flight.pop(self.rng.randrange(len(self.in_flight)))
        self.late.append(write)
        self.take(self.table.delayed(write, ErrorCode.REQUEST_TIMED_OUT, self.now_ms))

    def write_markers(self) -> None:
        sent = self.markers.pop(self.rng.randrange(len(self.markers)))
        if self.rng.random() < 0.1:
            self.markers.append(sent)  # They are written twice.
        event = MarkersWritten(sent.producer, sent.committed)
        self.take(self.table.decide(sent.transactional_id, event, self.now_ms))

    def pass_time(self) -> None:
        self.now_ms += self.rng.choice((1, 100, 1_000, 3_000))
        self.reach_deadlines()

    def reach_deadlines(self) -> None:
        for key in self.table.due(self.now_ms):
            self.take(self.table.decide(key, Deadline(self.now_ms), self.now_ms))

    def crash(self) -> None:
        """Another coordinator begins; what was in flight is in its log, or it is not."""
        self.take(self.table.unload())
        for write in (*self.in_flight, *self.late):
            if self.rng.random() < 0.5:
                self.commit(write.records[0])
        self.in_flight, self.late, self.markers, self.asked = [], [], [], []
        self.requests = {}
        self.start()

    def step(self) -> None:
        may: list[tuple[int, Callable[[], None]]] = [(12, self.ask), (4, self.pass_time)]
        may += [(1, self.crash)] if self.rng.random() < 0.2 else []
        if self.in_flight:
            may += [(10, lambda: self.store(self.in_flight)), (2, self.lose), (2, self.delay)]
        may += [(2, lambda: self.store(self.late))] if self.late else []
        may += [(6, self.write_markers)] if self.markers else []
        may += [(6, self.allocate)] if self.asked else []
        weights, steps = zip(*may, strict=True)
        self.rng.choices(steps, weights)[0]()
        self.check()

    def check(self) -> None:
        """The memory is the log's, and every wait has an end and a limit."""
        for key in KEYS:
            entry = self.table.get(key)
            found = None if entry is None or entry.known is None else entry.known.transaction
            assert found == self.committed.get(key)
            if entry is not None and entry.waiting:
                assert len(entry.waiting) <= limits.MAX_WAITING
                next_ms = self.table.next_deadline_ms
                assert next_ms is not None
                assert next_ms <= min(until_ms for _, until_ms in entry.waiting)

    def come_to_rest(self) -> None:
        """No further request or fault: all that is open ends."""
        for _ in range(400):
            if self.in_flight or self.late:
                self.store(self.in_flight or self.late)
            elif self.asked:
                self.allocate()
            elif self.markers:
                self.write_markers()
            else:
                is_over = all(x.state in RESTS for x in self.committed.values())
                if is_over and not self.requests and not self.table.doubtful:
                    break
                self.now_ms += 500
                self.reach_deadlines()
            self.check()
        assert not self.requests, "a request has no answer"
        assert all(now.state in RESTS for now in self.committed.values())
        assert not self.table.doubtful


class Losing(Coordinator):
    """A coordinator of a partition whose unclean leaders lose records that were committed."""

    def __init__(self, rng: random.Random) -> None:
        self.before_loss: set[IdAndEpoch] = set()
        """Identities that were granted before the last loss: nothing is known of them."""
        super().__init__(rng)

    def crash(self) -> None:
        """The next leader lacks the end of the log."""
        self.take(self.table.unload())
        self.log = self.log[: max(len(KEYS), len(self.log) - self.rng.randrange(6))]
        self.committed, self.changed = {}, {}
        for number, (key, value) in enumerate(self.log):
            record = decode(key, value)
            assert isinstance(record, TransactionRecord)
            self.changed[record.transactional_id] = number + 1
            self.committed.pop(record.transactional_id, None)
            if record.value is not None:
                self.committed[record.transactional_id] = record.value
        self.in_flight, self.late, self.markers, self.asked = [], [], [], []
        self.requests = {}
        self.before_loss |= set(self.granted)
        self.start(has_lost=True)
        self.counts["losses"] += 1

    def check_answer(self, pending: object, result: Any) -> None:
        if pending in self.requests and result.error is ErrorCode.NONE:
            _, event, _, _ = self.requests[pending]
            # InitProducerId brings a new identity, also to one that names a former.
            named = None if isinstance(event, InitProducerId) else event.producer
            assert named not in self.before_loss, "it may have begun what the log has lost"
        super().check_answer(pending, result)


EXPECTED = [
    "InitProducerId NONE",
    "InitProducerId PRODUCER_FENCED",
    "InitProducerId CONCURRENT_TRANSACTIONS",
    "InitProducerId COORDINATOR_NOT_AVAILABLE",
    "AddPartitions NONE",
    "AddPartitions PRODUCER_FENCED",
    "AddPartitions INVALID_PRODUCER_ID_MAPPING",
    "AddPartitions CONCURRENT_TRANSACTIONS",
    "End NONE",
    "End INVALID_TXN_STATE",
    "End PRODUCER_FENCED",
    "End COORDINATOR_NOT_AVAILABLE",
    "markers",
]


def test_random_histories_keep_what_was_promised() -> None:
    rng = random.Random(drawn_seed())
    counts: Counter[str] = Counter()
    ids = 0
    for _ in range(60):
        coordinator = Coordinator(rng)
        for _ in range(300):
            coordinator.step()
        coordinator.come_to_rest()
        counts += coordinator.counts
        ids += coordinator.next_id - 100 - len(KEYS)
    # The histories have what they are here for.
    assert {name: counts[name] for name in EXPECTED if counts[name] < 20} == {}
    assert ids > 60, "producer ids whose epochs ended"


def lossy_histories(rng: random.Random, number: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    for _ in range(number):
        coordinator = Losing(rng)
        for _ in range(300):
            coordinator.step()
        coordinator.come_to_rest()
        counts += coordinator.counts
    return counts


def test_no_producer_goes_on_after_a_loss_of_states_and_no_identity_is_granted_twice() -> None:
    counts = lossy_histories(random.Random(drawn_seed()), 60)
    wanted = (*EXPECTED, "losses")
    assert {name: counts[name] for name in wanted if counts[name] < 20} == {}


@pytest.mark.parametrize("rule", ["open only", "nothing"])
def test_a_fence_of_less_than_every_id_is_found(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controls: only what the log has open is fenced, by one epoch; and nothing is."""

    def one_epoch(known: Known, wall_ms: int) -> NextState | None:
        return rules.timed_out(known, 2**62) if rule == "open only" else None

    monkeypatch.setattr(rules, "after_loss", one_epoch)
    monkeypatch.setattr(rules, "is_fenced", lambda known: known.transaction.state in RESTS)
    with pytest.raises(AssertionError):
        lossy_histories(random.Random(7), 60)


def broken_lost(table: TransactionTable, write: TransactionWrite) -> None:
    """A late record is taken back as if the log had refused it."""
    entry = table.get(write.key)
    assert entry is not None
    entry.in_flight = None


def test_a_record_that_is_taken_back_too_early_is_found() -> None:
    """The control: Kafka's coordinator forgets a record that is not committed in time."""

    class Forgetful(Coordinator):
        def delay(self) -> None:
            super().delay()
            broken_lost(self.table, self.late[-1])

    rng = random.Random(7)
    with pytest.raises(AssertionError):
        for _ in range(200):
            coordinator = Forgetful(rng)
            for _ in range(300):
                coordinator.step()
            coordinator.come_to_rest()
