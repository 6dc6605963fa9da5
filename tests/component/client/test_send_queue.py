"""Order and sequence numbers of one partition's batches, whatever goes wrong."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict, deque
from collections.abc import Iterator
from uuid import UUID

import pytest

from tidelog.client.errors import ConnectionLost, Refused
from tidelog.client.producing.lanes import Lane
from tidelog.client.producing.send_queue import BatchResult, ProducerBatch, SendQueue
from tidelog.client.stamps import Stamp
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import crc_is_right, read_header
from tidelog.records.builder import Producer
from tidelog.records.reader import read_batch
from tidelog.replication.resize_rules import Named

WHERE = TopicPartition("t", 0)
ONE, TWO = Producer(1, 0), Producer(2, 0)
OK = BatchResult(None, 10, -1)
LOST = BatchResult(ConnectionLost("gone"))


def refused(code: ErrorCode) -> BatchResult:
    return BatchResult(Refused(code, "t-0"))


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """For futures only: it never runs."""
    made = asyncio.new_event_loop()
    yield made
    made.close()


class Sending:
    """A queue and what was put into it; its leader knows the producer, or not ``is_known``."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, idempotent: bool = True, is_known: bool = True
    ) -> None:
        self.queue = SendQueue(WHERE, 5, idempotent=idempotent, batch_bytes=1 << 20)
        self.loop = loop
        self.is_known = is_known
        self.identity: Producer | None = ONE
        self.count = 0

    def add(self, records: int = 1) -> ProducerBatch:
        batch = self.queue.open()
        for _ in range(records):
            batch.builder.append(1, None, b"%d" % self.count, [])
            batch.outcomes.append((self.loop.create_future(), 1))
            self.count += 1
        return batch

    def send(self) -> tuple[ProducerBatch, int, int] | None:
        """Send the next batch; it, its producer id and its first sequence number."""
        batch = self.queue.next(self.identity)
        if batch is None:
            return None
        data = self.queue.sent(batch)
        self.queue.is_known |= self.is_known
        header = read_header(data)
        assert crc_is_right(data, header.crc)
        return batch, header.producer_id, header.base_sequence


def test_sequences_count_records(loop: asyncio.AbstractEventLoop) -> None:
    sending = Sending(loop)
    batches = [sending.add(3), sending.add(2), sending.add(1)]
    assert [sending.send() for _ in range(4)] == [
        (batches[0], 1, 0),
        (batches[1], 1, 3),
        (batches[2], 1, 5),
        None,
    ]


def test_at_most_five_are_under_way(loop: asyncio.AbstractEventLoop) -> None:
    sending = Sending(loop)
    for _ in range(7):
        sending.add()
    sent = [sending.send() for _ in range(6)]
    assert sent[5] is None
    assert sent[0] is not None
    assert sending.queue.answered(sent[0][0], OK)
    assert sending.send() is not None


def test_an_open_batch_is_one_of_the_last_five(loop: asyncio.AbstractEventLoop) -> None:
    sending = Sending(loop)
    for _ in range(8):
        sending.add()
    first = sending.send()
    assert first is not None
    # Its leader has it and does not answer; the next one acknowledges what follows.
    for _ in range(4):
        later = sending.send()
        assert later is not None
        assert sending.queue.answered(later[0], OK)
    assert sending.send() is None, "brokers would forget the first batch"
    assert not sending.queue.answered(first[0], LOST)
    assert sending.send() == first
    assert sending.queue.answered(first[0], OK)
    assert sending.send() is not None


def test_the_halves_of_an_open_batch_are_two(loop: asyncio.AbstractEventLoop) -> None:
    sending = Sending(loop)
    first = sending.add(2)
    for _ in range(6):
        sending.add()
    sending.send()
    assert sending.queue.answered(first, refused(ErrorCode.MESSAGE_TOO_LARGE))
    sent = [sending.send() for _ in range(5)]
    assert sent[0] is not None and sent[0][0] is first.halves[0]
    for each in sent[1:]:
        assert each is not None
        assert sending.queue.answered(each[0], OK)
    assert sending.send() is None
    assert sending.queue.answered(sent[0][0], OK)
    assert sending.send() is not None


def test_without_an_identity_one_at_a_time(loop: asyncio.AbstractEventLoop) -> None:
    sending = Sending(loop, idempotent=False)
    first, second = sending.add(), sending.add()
    assert sending.send() == (first, -1, -1)
    assert sending.send() is None
    assert not sending.queue.answered(first, LOST)
    assert sending.send() == (first, -1, -1)
    assert sending.queue.answered(first, OK)
    assert sending.send() == (second, -1, -1)


def test_nothing_is_sent_before_there_is_an_identity(loop: asyncio.AbstractEventLoop) -> None:
    sending = Sending(loop)
    sending.identity = None
    batch = sending.add()
    assert sending.queue.needs_identity(None)
    assert sending.send() is None
    sending.identity = ONE
    assert not sending.queue.needs_identity(ONE)
    assert sending.send() == (batch, 1, 0)


def test_a_lost_connection_repeats_in_order_under_the_same_numbers(
    loop: asyncio.AbstractEventLoop,
) -> None:
    sending = Sending(loop)
    batches = [sending.add(2) for _ in range(3)]
    for _ in batches:
        sending.send()
    for batch in reversed(batches):
        assert not sending.queue.answered(batch, LOST)
    assert [sending.send() for _ in range(3)] == [
        (batches[0], 1, 0),
        (batches[1], 1, 2),
        (batches[2], 1, 4),
    ]


def test_what_was_sent_after_a_failed_batch_is_sent_again_after_it(
    loop: asyncio.AbstractEventLoop,
) -> None:
    sending = Sending(loop)
    first, second = sending.add(), sending.add()
    sending.send()
    sending.send()
    assert not sending.queue.answered(first, refused(ErrorCode.NOT_ENOUGH_REPLICAS))
    assert not sending.queue.answered(second, refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
    assert [sending.send(), sending.send()] == [(first, 1, 0), (second, 1, 1)]
    assert not sending.queue.broken


def test_a_duplicate_is_a_success(loop: asyncio.AbstractEventLoop) -> None:
    sending = Sending(loop)
    batch = sending.add(2)
    sending.send()
    answer = refused(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    answer.base_offset = 40
    assert sending.queue.answered(batch, answer)
    assert [outcome.result().offset for outcome, _ in batch.outcomes] == [40, 41]


def test_after_a_refused_batch_a_new_identity_starts(loop: asyncio.AbstractEventLoop) -> None:
    sending = Sending(loop)
    first, second, third = sending.add(), sending.add(), sending.add()
    sending.send()
    sending.send()
    assert sending.queue.answered(first, refused(ErrorCode.MESSAGE_TOO_LARGE))
    assert isinstance(first.outcomes[0][0].exception(), Refused)
    # Nothing new while an answer is due: it tells whether the second one was appended.
    assert sending.send() is None
    assert not sending.queue.answered(second, refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
    assert sending.queue.needs_identity(ONE)
    assert sending.send() is None
    sending.identity = TWO
    assert [sending.send(), sending.send()] == [(second, 2, 0), (third, 2, 1)]


def test_in_a_broken_queue_an_unclear_batch_is_repeated_under_its_old_number(
    loop: asyncio.AbstractEventLoop,
) -> None:
    sending = Sending(loop)
    first, second, third = sending.add(), sending.add(), sending.add()
    for _ in range(3):
        sending.send()
    sending.queue.answered(first, refused(ErrorCode.INVALID_RECORD))
    sending.queue.answered(second, refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
    sending.queue.answered(third, LOST)
    sending.identity = TWO
    # Whether the third was appended is not known: only its old number can tell.
    assert sending.send() == (third, 1, 2)
    assert sending.send() is None
    sending.queue.answered(third, refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
    assert [sending.send(), sending.send()] == [(second, 2, 0), (third, 2, 1)]


def test_the_bytes_under_a_new_identity_are_whole(loop: asyncio.AbstractEventLoop) -> None:
    sending = Sending(loop)
    first, second = sending.add(2), sending.add(3)
    sending.send()
    sending.send()
    sending.queue.answered(first, refused(ErrorCode.INVALID_RECORD))
    sending.queue.answered(second, refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
    sending.identity = TWO
    batch = sending.queue.next(TWO)
    assert batch is second
    records = read_batch(sending.queue.sent(second))
    assert [record.value for record in records] == [b"2", b"3", b"4"]


def test_an_expired_batch_in_flight_is_answered_quietly(loop: asyncio.AbstractEventLoop) -> None:
    sending = Sending(loop)
    batch = sending.add()
    sending.send()
    sending.queue.fail(batch, ConnectionLost("too late"))
    assert sending.queue.broken
    assert sending.queue.answered(batch, OK)
    assert isinstance(batch.outcomes[0][0].exception(), ConnectionLost)
    assert sending.queue.empty


def test_a_batch_that_is_too_large_is_cut_under_its_numbers(
    loop: asyncio.AbstractEventLoop,
) -> None:
    sending = Sending(loop)
    first, second = sending.add(5), sending.add(1)
    sending.send()
    sending.send()
    assert sending.queue.answered(first, refused(ErrorCode.MESSAGE_TOO_LARGE))
    assert not sending.queue.answered(second, refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
    left, right = first.halves
    assert [sending.send() for _ in range(3)] == [(left, 1, 0), (right, 1, 2), (second, 1, 5)]
    assert sending.queue.answered(left, BatchResult(None, 10))
    assert sending.queue.answered(right, BatchResult(None, 12))
    assert [outcome.result().offset for outcome, _ in first.outcomes] == [10, 11, 12, 13, 14]
    assert not sending.queue.broken


def test_a_single_record_that_is_too_large_fails(loop: asyncio.AbstractEventLoop) -> None:
    sending = Sending(loop)
    batch = sending.add(1)
    sending.send()
    assert sending.queue.answered(batch, refused(ErrorCode.MESSAGE_TOO_LARGE))
    assert isinstance(batch.outcomes[0][0].exception(), Refused)


class Leader:
    """A log that judges sequences as a broker does: it remembers five batches of a producer."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.next: dict[int, int] = {}
        self.seen: dict[int, deque[tuple[int, int]]] = defaultdict(lambda: deque(maxlen=5))

    def append(self, data: bytes) -> BatchResult:
        header = read_header(data)
        known = dict(self.seen[header.producer_id])
        if header.base_sequence in known:
            return BatchResult(None, known[header.base_sequence])
        if header.base_sequence != self.next.get(header.producer_id, 0):
            return refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        self.seen[header.producer_id].append((header.base_sequence, len(self.values)))
        answer = BatchResult(None, len(self.values))
        records = read_batch(data)
        self.values += [record.value or b"" for record in records]
        self.next[header.producer_id] = header.base_sequence + len(records)
        return answer


def test_random_failures_lose_repeat_and_reorder_nothing(
    loop: asyncio.AbstractEventLoop,
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(60):
        sending, leader = Sending(loop), Leader()
        made = [sending.add(chance.randint(1, 6)) for _ in range(25)]
        under_way: list[tuple[ProducerBatch, bytes]] = []
        late: list[ProducerBatch] = []
        given_up = set()
        identities = 1
        steps = 0
        while not sending.queue.empty:
            steps += 1
            assert steps < 5000
            if sending.queue.needs_identity(sending.identity) and chance.random() < 0.5:
                identities += 1
                sending.identity = Producer(identities, 0)
            batch = sending.queue.next(sending.identity)
            if batch is not None and chance.random() < 0.6:
                under_way.append((batch, sending.queue.sent(batch)))
            elif late and (not under_way or chance.random() < 0.05):
                sending.queue.answered(late.pop(0), LOST)
            elif under_way:
                # A broker takes the requests of one connection in order.
                batch, data = under_way.pop(0)
                dice = chance.random()
                if dice > 0.95:
                    # Its former leader has replicated it, and says nothing while a new one serves.
                    leader.append(data)
                    late.append(batch)
                    continue
                if dice < 0.1:
                    answer = LOST
                elif dice < 0.2:
                    leader.append(data)
                    answer = LOST
                elif dice < 0.3:
                    answer = refused(ErrorCode.NOT_ENOUGH_REPLICAS)
                elif dice < 0.34 and batch.attempts == 1:
                    answer = refused(ErrorCode.MESSAGE_TOO_LARGE)
                    if batch.builder.count == 1:
                        given_up.update(outcome for outcome, _ in batch.outcomes)
                else:
                    answer = leader.append(data)
                done = sending.queue.answered(batch, answer)
                if answer.error is None:
                    assert done
        order = [int(value) for value in leader.values]
        assert order == sorted(order)
        assert len(order) == len(set(order))
        acknowledged = 0
        for batch in made:
            for outcome, _ in batch.outcomes:
                assert outcome.done()
                if outcome.exception() is None:
                    assert leader.values[outcome.result().offset] is not None
                    acknowledged += 1
                else:
                    assert outcome in given_up
        assert acknowledged == len(order)


@pytest.mark.parametrize("error", (LOST, refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)))
def test_retries_end_after_their_number(
    loop: asyncio.AbstractEventLoop, error: BatchResult
) -> None:
    queue = SendQueue(WHERE, 5, idempotent=False, retries=1)
    batch = queue.open()
    batch.builder.append(1, None, b"x", [])
    outcome: asyncio.Future[object] = loop.create_future()
    batch.outcomes.append((outcome, 1, -1, 1, -1))
    queue.sent(batch)
    assert not queue.answered(batch, error)
    queue.sent(batch)
    assert queue.answered(batch, error)
    assert outcome.exception() is error.error


def test_a_queue_whose_log_goes_on_waits_for_another_identity(
    loop: asyncio.AbstractEventLoop,
) -> None:
    # The topic became ordered, or ceased to be: the log has batches of ONE from sequence 0.
    sending = Sending(loop)
    sending.queue = SendQueue(WHERE, 5, idempotent=True, former=ONE)
    sending.add()
    assert sending.queue.needs_identity(ONE)
    assert sending.queue.next(ONE) is None
    assert not sending.queue.needs_identity(TWO)
    sending.identity = TWO
    found = sending.send()
    assert found is not None
    assert found[1:] == (TWO.producer_id, 0)
    assert not sending.queue.broken


def test_what_was_sent_before_a_place_is_known(loop: asyncio.AbstractEventLoop) -> None:
    sending = Sending(loop)
    first = sending.add()
    assert sending.queue.has_before((first.number[0] + 1,))
    assert not sending.queue.has_before(first.number)
    sending.send()
    assert sending.queue.has_before((first.number[0] + 1,))
    sending.queue.answered(first, OK)
    assert not sending.queue.has_before((first.number[0] + 1,))


def test_batches_in_flight_are_with_one_broker_on_one_connection(
    loop: asyncio.AbstractEventLoop,
) -> None:
    sending = Sending(loop)
    first, second = sending.add(), sending.add()
    assert sending.queue.may_go_to(Lane(2))
    for batch in (first, second):
        assert sending.queue.next(ONE) is batch
        sending.queue.sent(batch, Lane(1))
        sending.queue.is_known = True
    assert sending.queue.may_go_to(Lane(1)) and not sending.queue.may_go_to(Lane(2))
    assert not sending.queue.may_go_to(Lane(1, 1))
    sending.queue.answered(first, LOST)
    assert not sending.queue.may_go_to(Lane(2))
    sending.queue.answered(second, LOST)
    assert sending.queue.may_go_to(Lane(2))
    assert sending.queue.next(ONE) is first


def test_until_its_leader_knows_the_producer_one_batch_is_in_flight(
    loop: asyncio.AbstractEventLoop,
) -> None:
    """Seed 750 of the simulation: a leader that does not know it takes any first number."""
    sending = Sending(loop, is_known=False)
    batches = [sending.add() for _ in range(5)]
    assert sending.send() == (batches[0], 1, 0)
    assert sending.send() is None
    assert sending.queue.answered(batches[0], OK)
    assert sending.send() == (batches[1], 1, 1)
    assert sending.send() == (batches[2], 1, 2), "it is known now"
    # After a failure the leader may be another one.
    assert not sending.queue.answered(batches[1], refused(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert not sending.queue.answered(batches[2], LOST)
    assert sending.send() == (batches[1], 1, 1)
    assert sending.send() is None
    assert sending.queue.answered(batches[1], refused(ErrorCode.DUPLICATE_SEQUENCE_NUMBER))
    assert sending.send() == (batches[2], 1, 2)
    assert sending.send() == (batches[3], 1, 3)


def test_another_leader_and_another_identity_are_to_be_known_first(
    loop: asyncio.AbstractEventLoop,
) -> None:
    sending = Sending(loop, is_known=False)
    queue = sending.queue
    batches = [sending.add() for _ in range(6)]

    def send(node_id: int, identity: Producer = ONE) -> ProducerBatch | None:
        batch = queue.next(identity)
        if batch is not None:
            queue.sent(batch, Lane(node_id))
        return batch

    assert send(1) is batches[0]
    assert queue.answered(batches[0], OK)
    assert [send(2), send(2)] == [batches[1], None]
    assert queue.answered(batches[1], OK)
    assert [send(2), send(2)] == [batches[2], batches[3]]
    assert queue.answered(batches[3], OK)
    assert queue.answered(batches[2], refused(ErrorCode.INVALID_RECORD))
    assert [send(2, TWO), send(2, TWO)] == [batches[4], None]


def test_the_place_of_a_batch_that_was_taken_back_is_free_again(
    loop: asyncio.AbstractEventLoop,
) -> None:
    """What was not appended pushes nothing out: the open batch is still one of the last five."""
    sending = Sending(loop)
    batches = [sending.add() for _ in range(5)]
    for batch in batches:
        assert sending.send() is not None
        sending.queue.is_known = True
        assert batch in sending.queue.in_flight
    for batch in reversed(batches[1:]):
        sending.queue.take_back(batch)
    later = sending.add()
    assert sending.send() == (later, ONE.producer_id, 1)


def test_without_an_identity_what_was_sent_once_may_be_in_the_log(
    loop: asyncio.AbstractEventLoop,
) -> None:
    sending = Sending(loop, idempotent=False)
    first, second = sending.add(), sending.add()
    sending.send()
    assert not sending.queue.answered(first, LOST)
    assert list(sending.queue.waiting) == [first, second]
    assert sending.queue.unsent() == [second]


def test_an_expired_batch_in_flight_is_before_no_place(loop: asyncio.AbstractEventLoop) -> None:
    sending = Sending(loop)
    first = sending.add()
    sending.send()
    sending.queue.fail(first, ConnectionLost("too late"))
    assert sending.queue.in_flight == [first]
    assert not sending.queue.has_before((first.number[0] + 1,))
    for outcome, *_ in first.outcomes:
        assert outcome.exception() is not None


def test_a_leader_that_acknowledged_an_expired_batch_does_not_know_the_next_identity(
    loop: asyncio.AbstractEventLoop,
) -> None:
    sending = Sending(loop, is_known=False)
    expired, second, third = (sending.add() for _ in range(3))
    assert sending.send() == (expired, 1, 0)
    sending.queue.fail(expired, ConnectionLost("too late"))
    assert expired.outcomes[0][0].exception() is not None
    assert sending.queue.answered(expired, OK)
    assert sending.queue.is_known
    sending.identity = TWO
    assert sending.send() == (second, 2, 0)
    assert sending.send() is None
    assert sending.queue.answered(second, OK)
    assert sending.send() == (third, 2, 1)


@pytest.mark.parametrize("is_fixed", [False, True])
def test_halves_are_of_the_count_of_their_batch(
    loop: asyncio.AbstractEventLoop, is_fixed: bool
) -> None:
    """Without it a leader would take them for those of a writer that knows no counts."""
    stamp = Stamp(UUID(int=1), 4, 2)
    queue = SendQueue(WHERE, 5, idempotent=True, batch_bytes=1 << 20, partition_epoch=7)
    batch = queue.open(stamp=stamp, is_fixed=is_fixed)
    for number in range(2):
        batch.builder.append(1, b"k", b"%d" % number, [])
        batch.outcomes.append((loop.create_future(), 1))
    assert queue.next(ONE) is batch
    queue.sent(batch)
    assert queue.answered(batch, refused(ErrorCode.MESSAGE_TOO_LARGE))
    assert len(batch.halves) == 2
    for half in batch.halves:
        assert half.is_fixed is is_fixed
        assert queue.stamp_of(half) == Named(4, 2, 7)
