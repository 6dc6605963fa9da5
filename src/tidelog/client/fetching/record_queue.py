"""The queue of fetched pieces that a consumer has not returned yet, record by record. No I/O.

Owns which records are returned next, and the position of the application in each partition. Not
fetching: see ``fetcher``, for which these pieces are returned already. Not decoding: see
``consumer_record``. A piece is decoded batch by batch, when its records are due.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from typing import NamedTuple

from tidelog.client.errors import ClientError
from tidelog.client.fetching.batches import Fetched
from tidelog.client.fetching.consumer_record import ConsumerRecord
from tidelog.model.topics import TopicPartition


class QueuePlace(NamedTuple):
    """A position, and the leader epoch of the record before it (-1: not known)."""

    offset: int
    leader_epoch: int = -1


Decode = Callable[[Fetched], Iterator[list[ConsumerRecord]]]


class _Piece:
    """One piece: the records of the batch in turn, and what is not decoded yet."""

    __slots__ = ("at", "batches", "fetched", "problem", "records", "start")

    def __init__(self, fetched: Fetched, batches: Iterator[list[ConsumerRecord]]) -> None:
        self.fetched = fetched
        self.batches = batches
        self.records: list[ConsumerRecord] = []
        self.at = 0
        self.start = QueuePlace(fetched.offset)
        """The place before the first of ``records``."""
        self.problem: ClientError | None = None

    def decode(self) -> bool:
        """Have a record at hand; False when there is none left, or the next one is unreadable."""
        while self.at >= len(self.records):
            if self.problem is not None:
                return False
            try:
                self.start = self.next
                self.records, self.at = next(self.batches), 0
            except StopIteration:
                return False
            except ClientError as error:
                self.problem = error
                return False
        return True

    @property
    def next(self) -> QueuePlace:
        """The place after the last record that was taken."""
        if not self.at:
            return self.start
        last = self.records[self.at - 1]
        return QueuePlace(last.offset + 1, last.leader_epoch)

    def take(self, most: int) -> list[ConsumerRecord]:
        """Return the next records of the batch at hand."""
        first, self.at = self.at, min(self.at + most, len(self.records))
        return self.records[first : self.at]


class RecordQueue:
    """Pieces in the order in which they were fetched; partitions in turn."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._pieces: deque[_Piece] = deque()
        self.paused: set[TopicPartition] = set()
        """Partitions of which nothing is returned."""
        self._last: dict[TopicPartition, ConsumerRecord] = {}
        """The last record that was returned of each partition, kept for its epoch."""

    def __len__(self) -> int:
        return len(self._pieces)

    def has(self, only: Container[TopicPartition] | None = None) -> bool:
        """Whether ``take`` has something to return, or to raise."""
        return any(
            piece.fetched.partition not in self.paused
            and (only is None or piece.fetched.partition in only)
            and (piece.decode() or piece.problem is not None)
            for piece in self._pieces
        )

    def add(self, pieces: Iterable[Fetched]) -> None:
        """Append pieces that were fetched after those that are here."""
        self._pieces.extend(_Piece(piece, self._decode(piece)) for piece in pieces)

    def take(
        self, most: int, only: Container[TopicPartition] | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Return up to ``most`` records, of these partitions, by partition in order of offsets.

        Raises the error of an unreadable record when nothing before it is left.
        """
        records: dict[TopicPartition, list[ConsumerRecord]] = {}
        skipped: list[_Piece] = []
        stuck: set[TopicPartition] = set()
        problem: ClientError | None = None
        while most > 0 and self._pieces:
            piece = self._pieces[0]
            tp = piece.fetched.partition
            is_wanted = only is None or tp in only
            if tp in self.paused or tp in stuck or not is_wanted:
                skipped.append(self._pieces.popleft())
            elif piece.decode():
                taken = piece.take(most)
                self._last[tp] = taken[-1]
                most -= len(taken)
                have = records.get(tp)
                if have is None:
                    records[tp] = taken
                else:
                    have += taken
            elif piece.problem is not None:
                problem = problem or piece.problem
                stuck.add(tp)
            else:
                self._pieces.popleft()
        self._pieces.extendleft(reversed(skipped))
        if not records and problem is not None:
            raise problem
        return records

    def take_one(self) -> ConsumerRecord | None:
        """Return the next record, or None. Raises as ``take``."""
        if self._pieces:
            piece = self._pieces[0]
            # The usual case, for a caller that takes each record by itself.
            if piece.at < len(piece.records) and not self.paused:
                record = piece.records[piece.at]
                piece.at += 1
                self._last[piece.fetched.partition] = record
                return record
        for records in self.take(1).values():
            return records[0]
        return None

    def positions(self) -> dict[TopicPartition, QueuePlace]:
        """Return where the application is in partitions of which something is here."""
        places: dict[TopicPartition, QueuePlace] = {}
        for piece in self._pieces:
            tp = piece.fetched.partition
            if tp not in places and (piece.at < len(piece.records) or piece.decode()):
                places[tp] = piece.next
            elif piece.problem is not None:
                places.setdefault(tp, piece.next)
        return places

    def epoch_before(self, partition: TopicPartition, offset: int) -> int:
        """Return the leader epoch of the record before a position; -1 where it is not known."""
        last = self._last.get(partition)
        return -1 if last is None or last.offset + 1 != offset else last.leader_epoch

    def drop(self, partitions: Collection[TopicPartition] | None = None) -> None:
        """Forget the pieces of these partitions, or of all."""
        if partitions is None:
            self._pieces.clear()
        elif self._pieces:
            left = [piece for piece in self._pieces if piece.fetched.partition not in partitions]
            self._pieces = deque(left)
