"""Resizes of a topic that is written, as events and decisions: no loop, no clock, no connection."""

from __future__ import annotations

import random
from dataclasses import replace
from uuid import UUID

import pytest

from tidelog.client.errors import ClientError, ConnectionLost, GaveUp, Refused
from tidelog.client.metadata import Partition, Topic
from tidelog.client.producing.held_records import HeldRecord
from tidelog.client.producing.partitioner import PartitionChooser
from tidelog.client.producing.send_queue import BatchResult, ProducerBatch, SendQueue, SendTally
from tidelog.client.producing.send_queues import SendQueues
from tidelog.client.producing.settings import Partitioner, SendSettings
from tidelog.client.producing.topic_epochs import TopicEpochs
from tidelog.client.producing.turning import (
    AskAgain,
    Decision,
    HeldFailed,
    Holds,
    Lost,
    Opened,
    TookBack,
    TopicTurning,
)
from tidelog.client.stamps import stamp_of
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.partitioning.hashing import hash_of_key
from tidelog.records.builder import NewRecord, Producer
from tidelog.records.reader import read_batch

ONE = Producer(1, 0)
REFUSED = Refused(ErrorCode.INVALID_PARTITION_METADATA, "t-0")


def topic_of(count: int, resize_epoch: int, initial: int = 2, topic_id: int = 1) -> Topic:
    """Return a topic; its partitions have the epochs 100 * topic_id + index."""
    partitions = {
        index: Partition(index, 1, 0, (1,), (1,), (), partition_epoch=100 * topic_id + index)
        for index in range(count)
    }
    return Topic("t", UUID(int=topic_id), False, partitions, 0, initial, count, resize_epoch)


TWO, FOUR = topic_of(2, 0), topic_of(4, 1)


def key_of(place: int, count: int) -> bytes:
    return next(key for n in range(999) if hash_of_key(key := b"k%d" % n) % count == place)


class Topics:
    """A machine with one topic, and what it decided."""

    def __init__(self, topic: Topic = TWO, partitioner: Partitioner | None = None) -> None:
        self.queues = SendQueues(SendSettings())
        chooser = PartitionChooser(random.Random(1), partitioner)
        self.turning = TopicTurning(self.queues, chooser, is_by_key=partitioner is None)
        self.epochs: TopicEpochs = self.turning.epochs_of(topic)
        self.tally = SendTally()

    def send(self, value: bytes, key: bytes | None, deadline: float = 9.0) -> ProducerBatch:
        """Add a record to a batch whose time-out is set."""
        home = self.turning.home_of(self.epochs, key)
        record = NewRecord(0, key, value, [])
        batch, _ = self.turning.append(self.epochs, home, record, tally=self.tally)
        batch.size += 10
        batch.deadline = deadline
        return batch

    def on_its_way(self, batch: ProducerBatch) -> SendQueue:
        queue = self.turning.queue_of(self.epochs, batch.partition.partition)
        assert queue.next(ONE) is batch
        queue.sent(batch)
        return queue

    def record(self, value: bytes, key: bytes | None, deadline: float = 9.0) -> HeldRecord:
        number = self.queues.next_number()
        return HeldRecord(
            number, NewRecord(0, key, value, []), 10, deadline, None, None, self.tally
        )

    def saw(self, topic: Topic) -> list[Decision]:
        return self.turning.saw(self.epochs, topic, ONE)

    def refuse(self, queue: SendQueue, batch: ProducerBatch) -> list[Decision] | None:
        return self.turning.refused(queue, batch, BatchResult(REFUSED, node_id=7), TWO)

    def waiting(self) -> dict[int, list[bytes | None]]:
        """The values that wait to be sent, by partition."""
        values: dict[int, list[bytes | None]] = {}
        for queue in self.queues:
            for batch in queue.waiting:
                sent = [record.value for record in read_batch(batch.builder.build())]
                values.setdefault(queue.partition.partition, []).extend(sent)
        return values


def test_metadata_with_the_same_stamp_decide_nothing() -> None:
    topics = Topics()
    topics.send(b"0", b"k")
    newer = replace(TWO, max_partition_epoch=8)
    assert topics.saw(newer) == [] and topics.epochs.seen is newer
    assert topics.saw(replace(TWO, error=3)) == [] and topics.epochs.seen is newer


def test_a_growth_takes_unsent_batches_back_and_hashes_their_records_again() -> None:
    topics, key = Topics(), key_of(3, 4)
    former = topics.send(b"0", key, deadline=5.0)
    took_back, holds, opened, held_none = topics.saw(FOUR)
    assert took_back == TookBack(former, 1)
    assert holds == Holds("t", 5.0)
    assert isinstance(opened, Opened) and (opened.former, opened.deadline) == (None, 5.0)
    assert opened.batch.stamp == stamp_of(FOUR) and opened.batch.deadline == 5.0
    assert held_none == Holds("t", None)
    assert topics.waiting() == {3: [b"0"]} and not topics.epochs.is_turning


def test_a_batch_on_its_way_shuts_only_the_partitions_that_its_keys_may_come_to() -> None:
    topics = Topics()
    stuck = topics.send(b"stuck", key_of(0, 2))
    queue = topics.on_its_way(stuck)
    assert topics.saw(FOUR) == [Holds("t", None)]
    assert topics.epochs.is_turning
    assert [topics.epochs.is_shut(index) for index in range(4)] == [True, False, True, False]
    # A record that comes for it meanwhile waits, until the batch has its outcome.
    waits = topics.record(b"later", key_of(2, 4))
    assert topics.turning.hold(topics.epochs, waits, 2) == [Holds("t", 9.0)]
    assert topics.turning.holds_before((9_999,)) and not topics.turning.holds_before((0,))
    assert topics.turning.held_bytes() == {"t": 10}
    queue.answered(stuck, BatchResult(None, 0))
    opened, held_none = topics.saw(FOUR)
    assert isinstance(opened, Opened) and held_none == Holds("t", None)
    assert topics.waiting() == {2: [b"later"]} and not topics.epochs.is_turning


def test_a_refusal_that_metadata_do_not_explain_holds_the_topic_until_they_do() -> None:
    topics, key = Topics(), key_of(3, 4)
    batch = topics.send(b"0", key)
    queue = topics.on_its_way(batch)
    later = topics.send(b"1", key)
    decisions = topics.refuse(queue, batch)
    # What was never sent is taken back with it, and both are held.
    assert decisions == [
        TookBack(later, 1),
        Holds("t", 9.0),
        TookBack(batch, 1),
        Holds("t", 9.0),
    ]
    assert topics.turning.home_now(topics.epochs, key, None) is None
    assert topics.saw(TWO) == [AskAgain("t")] and topics.epochs.refused_by == 7
    topics.saw(FOUR)
    assert topics.waiting() == {3: [b"0", b"1"]}, "in the order of send"


@pytest.mark.parametrize(
    "error",
    [None, ConnectionLost("gone"), Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "t-0")],
)
def test_any_other_result_takes_nothing_back(error: ClientError | None) -> None:
    topics = Topics()
    batch = topics.send(b"0", b"k")
    queue = topics.on_its_way(batch)
    assert topics.turning.refused(queue, batch, BatchResult(error), TWO) is None
    assert not topics.epochs.is_turning and batch in queue.in_flight


def test_a_refusal_that_metadata_have_explained_holds_nothing_further() -> None:
    topics, key = Topics(), key_of(3, 4)
    batch = topics.send(b"0", key)
    queue = topics.on_its_way(batch)
    topics.saw(FOUR)
    assert topics.refuse(queue, batch) == [TookBack(batch, 1), Holds("t", 9.0)]
    assert topics.epochs.refused is None
    topics.saw(FOUR)
    assert topics.waiting() == {3: [b"0"]}


def test_batches_that_are_refused_in_any_order_are_hashed_in_the_order_of_send() -> None:
    topics, key = Topics(), key_of(3, 4)
    first = topics.send(b"0", key)
    queue = topics.on_its_way(first)
    # After its acknowledgement several may be on their way.
    queue.answered(first, BatchResult(None, 0))
    batches = []
    for value in (b"1", b"2"):
        batches.append(topics.send(value, key))
        topics.on_its_way(batches[-1])
    topics.saw(FOUR)
    for batch in reversed(batches):
        topics.refuse(queue, batch)
    topics.saw(FOUR)
    assert topics.waiting() == {3: [b"1", b"2"]}


def test_a_batch_whose_partition_was_removed_is_lost() -> None:
    topics = Topics(FOUR)
    batch = topics.send(b"0", key_of(3, 4))
    queue = topics.on_its_way(batch)
    queue.answered(batch, BatchResult(ConnectionLost("gone")))
    decisions = topics.saw(topic_of(2, 2))
    assert Lost(batch) in decisions and batch.failed
    assert isinstance(topics.tally.first_error, GaveUp)
    assert not topics.epochs.is_turning, "nothing waits for it"


def test_a_refused_batch_of_a_deleted_topic_goes_to_the_next_one() -> None:
    topics = Topics()
    batch = topics.send(b"0", key_of(1, 2))
    queue = topics.on_its_way(batch)
    again = topic_of(2, 0, topic_id=2)
    refusal = Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "t-1")
    decisions = topics.turning.refused(queue, batch, BatchResult(refusal), again)
    assert decisions == [TookBack(batch, 1), Holds("t", 9.0)]
    topics.saw(again)
    assert topics.waiting() == {1: [b"0"]}
    assert [each.partition_epoch for each in topics.queues] == [201]


def test_held_records_expire_each_at_its_own_deadline() -> None:
    topics = Topics()
    topics.epochs.is_turning, topics.epochs.refused = True, stamp_of(TWO)
    first, second = topics.record(b"0", b"k", 3.0), topics.record(b"1", b"k", 5.0)
    for record in (second, first):
        topics.turning.hold(topics.epochs, record)
    assert topics.turning.expired(topics.epochs, 2.0) == ([], 3.0)
    assert topics.turning.expired(topics.epochs, 3.0) == ([first], 5.0)
    assert topics.turning.expired(topics.epochs, 9.0) == ([second], None)


def test_an_error_of_the_whole_producer_fails_all_that_is_held() -> None:
    topics, error = Topics(), ConnectionLost("for good")
    first, second = topics.record(b"0", b"k"), topics.record(b"1", b"k")
    topics.turning.hold(topics.epochs, second)
    topics.turning.hold(topics.epochs, first, 0)
    decisions = topics.turning.failed(error)
    assert decisions == [Holds("t", None), HeldFailed([first, second], error)]
    assert topics.turning.held_bytes() == {}


def test_a_record_that_no_partition_takes_any_longer_fails() -> None:
    def fails(*_: object) -> int:
        raise RuntimeError("no")

    topics = Topics(partitioner=fails)
    topics.epochs.is_turning, topics.epochs.refused = True, stamp_of(TWO)
    hashed = topics.record(b"0", b"k")
    named = replace(topics.record(b"1", b"k"), partition=7)
    for record in (hashed, named):
        topics.turning.hold(topics.epochs, record)
    failed = [each for each in topics.saw(FOUR) if isinstance(each, HeldFailed)]
    assert [each.records for each in failed] == [[hashed], [named]]
    assert "the partitioner failed" in str(failed[0].error)
    assert isinstance(failed[1].error, Refused)
    assert failed[1].error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_that_ceases_to_be_ordered_goes_on_in_other_queues() -> None:
    topics = Topics()
    topics.on_its_way(topics.send(b"0", key_of(1, 2)))
    topics.saw(replace(TWO, undeleted_partition_count=-1))
    queue = topics.queues.get(TopicPartition("t", 1), -1, topics.epochs.former)
    # The log goes on: the identity of before must not number batches from 0 again.
    assert topics.epochs.former == ONE and queue.needs_identity(ONE)
