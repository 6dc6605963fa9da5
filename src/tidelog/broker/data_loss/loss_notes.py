"""What replicas on this broker had to cut below their high watermark, on disk until it is reported.

Owns one small file per log directory, ``tidelog.unreported-losses``. Order (KIP-704;
docs/design/who-may-lead.md): the note is durable before the log is cut, and goes when the
controller has answered. So a crash between note, cut and report loses no report:

| at the next look | the note is |
|---|---|
| the log holds other records there by now, or none | to be reported: the cut has happened |
| the log still holds the records | kept: the cut may yet come |
| this broker leads with those records | dropped: nothing was lost |

A note without a topic id (below level 1.4) is its replica's, and goes with it: else the next life
of the name would be charged with it as soon as it has an id.

An empty range says where the log of an unclean leader ended: always to be reported. Grows with the
replicas that were cut since the last answer, and with the ranges of each up to a limit.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tidelog.model.topics import TopicPartition
from tidelog.protocol.primitives import NO_UUID
from tidelog.runtime.turns import Pieces
from tidelog.storage.directory.checkpointing import Checkpoints
from tidelog.storage.directory.log_directory import LogDirectory
from tidelog.storage.log.partition_log import PartitionLog

if TYPE_CHECKING:
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.broker.partitions.registry import Partitions

logger = logging.getLogger(__name__)

FILE = "tidelog.unreported-losses"

KEPT_RANGES = 16
"""Ranges of one replica; more are joined, with what lies between."""


@dataclass(frozen=True, slots=True)
class LossNote:
    """Offsets [first, end) of one replica, with the leader epochs of their records.

    ``topic_id`` is ``NO_UUID`` while the replica has not learnt one.
    """

    key: TopicPartition
    topic_id: UUID
    first: int
    end: int
    epochs: tuple[int, ...]

    @property
    def is_end(self) -> bool:
        """Whether it tells where an unclean leader's log ended."""
        return self.first == self.end


def note_of(partition: HostedPartition, first: int, end: int) -> LossNote:
    """Return what goes with the records of a range; the epochs are those of its records."""
    return LossNote(
        partition.key, partition.topic_id, first, end, _epochs(partition.log, first, end)
    )


def end_notes_of(partition: HostedPartition) -> list[LossNote]:
    """Return where the log ends of one that becomes an unclean leader, before its first record.

    With it comes what a power loss took from it: up to the watermark that an earlier life knew of.
    Of which epochs those records were is not known; at least of that of the last one left.
    """
    end = partition.epoch_start
    known = partition.log.watermark_note.known
    last = partition.log.epochs.epoch_at(end - 1) if end > partition.start_offset else -1
    found = [LossNote(partition.key, partition.topic_id, end, end, (last,))]
    if known > end:
        epochs = (last,) if last >= 0 else ()
        found.append(LossNote(partition.key, partition.topic_id, end, known, epochs))
    return found


def has_happened(loss: LossNote, log: PartitionLog | None) -> bool:
    """Return whether the records of a note are gone from the log; a log that is gone has none."""
    if loss.is_end or log is None or log.end_offset <= loss.first:
        return True
    return log.epochs.epoch_at(loss.first) not in loss.epochs


def _epochs(log: PartitionLog, first: int, end: int) -> tuple[int, ...]:
    entries = log.epochs.entries
    found = []
    for at, (epoch, start) in enumerate(entries):
        next_start = entries[at + 1][1] if at + 1 < len(entries) else log.end_offset
        if start < end and next_start > first:
            found.append(epoch)
    return tuple(found)


class LossNotes:
    """The notes of one broker. What waits for the disk is in pieces (``runtime.turns``)."""

    def __init__(self, partitions: Partitions) -> None:
        """Read what an earlier life left; lines that are damaged are named and dropped."""
        self._partitions = partitions
        self._by_directory: dict[LogDirectory, list[LossNote]] = {}
        self._on_their_way: dict[LogDirectory, list[Sequence[LossNote]]] = {}
        """What is being written, and counts when it is on the disk."""
        self._files: dict[LogDirectory, Checkpoints] = {}
        self._outdated: set[LogDirectory] = set()
        """Whose file tells of notes that are forgotten."""
        for directory in partitions.directories:
            self._by_directory[directory] = _read(directory)
            self._on_their_way[directory] = []
            self._files[directory] = Checkpoints(directory.resources.disk)

    def __len__(self) -> int:
        return sum(map(len, self._by_directory.values()))

    def adding(self, losses: Sequence[tuple[HostedPartition, LossNote]]) -> Pieces[str | None]:
        """Put losses on disk, durably; one write per log directory. Returns why it could not be."""
        added: dict[LogDirectory, list[LossNote]] = {}
        for partition, loss in losses:
            added.setdefault(self._partitions.directory_of(partition), []).append(loss)
        for directory, new in added.items():
            # Once for all of them: a write tells all notes of a directory.
            why = yield from self._writing(directory, new)
            if why is not None:
                return why
        return None

    def due(self) -> list[LossNote]:
        """Return what is to be reported now; a note of what a leader here still has is dropped."""
        found = []
        for directory, kept in list(self._by_directory.items()):
            unfounded = set()
            for loss in kept:
                hosted = self._hosted(loss)
                if hosted is not None and hosted.offline_reason is not None:
                    continue  # what its log holds cannot be told
                if has_happened(loss, None if hosted is None else hosted.log):
                    found.append(self._named(loss))
                elif hosted is not None and hosted.is_leader:
                    unfounded.add(loss)
            if unfounded:
                self._forget(directory, [x for x in kept if x not in unfounded])
        return [loss for loss in found if loss.topic_id != NO_UUID]

    def _hosted(self, loss: LossNote) -> HostedPartition | None:
        """Return the replica that a note is of, if it is still here in that life of its topic."""
        hosted = self._partitions.get(*loss.key)
        if hosted is None or NO_UUID in (hosted.topic_id, loss.topic_id):
            return hosted
        return hosted if hosted.topic_id == loss.topic_id else None

    def _named(self, loss: LossNote) -> LossNote:
        """Return a note with the topic id that its replica has learnt since."""
        hosted = self._hosted(loss)
        if loss.topic_id != NO_UUID or hosted is None:
            return loss
        return replace(loss, topic_id=hosted.topic_id)

    def reported(self, losses: Iterable[LossNote]) -> None:
        """Forget what the controller has answered."""
        done = set(losses)
        for directory, kept in list(self._by_directory.items()):
            self._forget(directory, [each for each in kept if self._named(each) not in done])

    def forget_nameless(self, key: TopicPartition) -> None:
        """Forget the notes without a topic id of a replica that goes."""
        for directory, kept in list(self._by_directory.items()):
            left = [each for each in kept if (each.key, each.topic_id) != (key, NO_UUID)]
            self._forget(directory, left)

    def _forget(self, directory: LogDirectory, left: list[LossNote]) -> None:
        if len(left) < len(self._by_directory[directory]):
            self._by_directory[directory] = left
            self._outdated.add(directory)

    def forgetting(self) -> Pieces[None]:
        """Have the files forget what is forgotten.

        What a disk does not let go of is told again by the next life: nothing counts twice.
        """
        while self._outdated:
            yield from self._writing(self._outdated.pop())

    def _writing(self, directory: LogDirectory, new: Sequence[LossNote] = ()) -> Pieces[str | None]:
        """Replace a directory's file; a failure is final for it, unless its disk is full."""
        if directory.failed is not None:
            return directory.failed
        path = f"{directory.path}/{FILE}"
        kept, on_their_way = self._by_directory[directory], self._on_their_way[directory]
        is_alone = not on_their_way
        on_their_way.append(new)
        losses = _bounded([*kept, *chain(*on_their_way)])
        try:
            if losses or directory.resources.disk.exists(path):
                content = b"".join(map(_encode, losses))
                writing = self._files[directory].changed({path: content})
                if writing is not None:
                    yield writing.run
                    if writing.error is not None:
                        raise writing.error
                    self._files[directory].finished(writing)
        except OSError as error:
            why = f"{path} cannot be written: {error}"
            if not directory.resources.is_full(error):
                directory.resources.fail(why)
            return why
        finally:
            on_their_way.remove(new)
        if not (is_alone and kept is self._by_directory[directory]):
            # Others came or went while the disk was waited for.
            losses = _bounded([*self._by_directory[directory], *new])
        self._by_directory[directory] = losses
        return None


def _bounded(losses: Sequence[LossNote]) -> list[LossNote]:
    """Return notes without repetitions, at most so many of one replica.

    They are not joined before that: of two cuts one may have happened and the other not.
    """
    bounded: list[LossNote] = []
    counts: dict[tuple[TopicPartition, UUID], int] = {}
    for each in sorted(set(losses), key=lambda x: (x.key, x.topic_id.int, x.first, x.end)):
        replica = (each.key, each.topic_id)
        counts[replica] = counts.get(replica, 0) + 1
        if counts[replica] <= KEPT_RANGES or each.is_end:
            bounded.append(each)
            continue
        last = bounded[-1]
        epochs = tuple(sorted({*last.epochs, *each.epochs}))
        bounded[-1] = replace(last, end=max(last.end, each.end), epochs=epochs)
    return bounded


def _read(directory: LogDirectory) -> list[LossNote]:
    path = f"{directory.path}/{FILE}"
    try:
        lines = directory.resources.disk.read(path).splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        directory.resources.fail(f"{path} cannot be read: {error}")
        return []
    found = []
    for line in lines:
        loss = _decode(line)
        if loss is None:
            logger.error("%s: a note of lost records is damaged: %r", path, line)
        else:
            found.append(loss)
    return found


def _encode(loss: LossNote) -> bytes:
    fields = {
        "topic": loss.key.topic,
        "partition": loss.key.partition,
        "topic_id": str(loss.topic_id),
        "first": loss.first,
        "end": loss.end,
        "epochs": loss.epochs,
    }
    text = json.dumps(fields).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _decode(line: bytes) -> LossNote | None:
    crc, _, text = line.partition(b" ")
    if crc != b"%08x" % zlib.crc32(text):
        return None
    fields: dict[str, Any] = json.loads(text)
    return LossNote(
        TopicPartition(fields["topic"], fields["partition"]),
        UUID(fields["topic_id"]),
        fields["first"],
        fields["end"],
        tuple(fields["epochs"]),
    )
