"""Positions of the application: after what it has got, not after what was fetched."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

from tidelog.client.fetching.fetcher import Fetcher
from tidelog.client.fetching.record_queue import QueuePlace
from tidelog.client.groups.reader_hooks import ReaderHooks
from tidelog.client.groups.reader_positions import ReaderPositions
from tidelog.model.topics import TopicPartition

A, B, C = (TopicPartition("t", index) for index in range(3))


class Read:
    """What positions need of a fetcher."""

    def __init__(self, positions: dict[TopicPartition, int], **gates: int) -> None:
        self.at = positions
        self.gates = {TopicPartition("t", int(index[1:])): at for index, at in gates.items()}
        self.sought: list[tuple[TopicPartition, int, int]] = []

    def positions(self) -> dict[TopicPartition, int]:
        return dict(self.at)

    def epoch_before(self, partition: TopicPartition, offset: int) -> int:
        return 9 if self.at.get(partition) == offset else -1

    def seek(self, partition: TopicPartition, offset: int, epoch: int) -> None:
        self.sought.append((partition, offset, epoch))


class Queue(ReaderHooks):
    """What the application has not got, and the epochs before places of it."""

    def __init__(self, places: dict[TopicPartition, QueuePlace], epoch: int = -1) -> None:
        self.places = places
        self.epoch = epoch
        self.dropped: list[Any] = []

    def undelivered(self) -> Mapping[TopicPartition, QueuePlace]:
        return dict(self.places)

    def epoch_before(self, partition: TopicPartition, offset: int) -> int:
        return self.epoch

    def drop(self, partitions: Collection[TopicPartition] | None) -> None:
        self.dropped.append(partitions)


def positions_of(read: Read, queue: Queue) -> ReaderPositions:
    return ReaderPositions(cast("Fetcher", read), queue)


def test_a_position_is_where_the_application_is() -> None:
    queue = Queue({A: QueuePlace(5, 2), C: QueuePlace(1, 1)})
    assert positions_of(Read({A: 8, B: 3}), queue).all() == {A: 5, B: 3}, "C is not read any more"


def test_the_epoch_is_that_of_the_last_record_that_was_returned() -> None:
    read = Read({A: 8})
    assert positions_of(read, Queue({}, epoch=0)).epoch_before(A, 8) == 0
    assert positions_of(read, Queue({}, epoch=-1)).epoch_before(A, 8) == 9
    assert positions_of(read, Queue({}, epoch=-1)).epoch_before(A, 7) == -1


def test_another_position_drops_what_was_not_returned() -> None:
    read, queue = Read({A: 8}), Queue({A: QueuePlace(5, 2)})
    positions_of(read, queue).set(A, 4, 7)
    assert queue.dropped == [[A]] and read.sought == [(A, 4, 7)]
    positions_of(read, queue).set(A, 3)
    assert read.sought[1:] == [(A, 3, -1)]


def test_all_that_was_not_returned_is_taken_back() -> None:
    read, queue = (
        Read({A: 8, B: 3}, p0=8),
        Queue({A: QueuePlace(5, 2), B: QueuePlace(2), C: QueuePlace(1, 1)}),
    )
    positions_of(read, queue).take_back(beyond_gates=False)
    assert read.sought == [(A, 5, 2), (B, 2, -1)] and queue.dropped == [[A], [B]]


def test_beyond_a_gate_that_has_shut_it_is_taken_back() -> None:
    """What was fetched up to the gate may be returned; what another partition comes before may
    not."""
    places = {A: QueuePlace(5, 2), B: QueuePlace(1, 1), C: QueuePlace(2, 1)}
    read = Read({A: 8, B: 3, C: 4}, p0=7, p1=3)
    positions_of(read, Queue(places)).take_back(beyond_gates=True)
    assert read.sought == [(A, 5, 2)]
