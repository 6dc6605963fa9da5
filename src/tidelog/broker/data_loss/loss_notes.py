"""Notes of committed records that replicas here truncated, on disk until they are reported.

Owns one small file per log directory, ``tidelog.unreported-losses``. Not the reports: see
``loss_reports``. Order (KIP-704; docs/design/who-may-lead.md): the note is durable before the log
is truncated, and is removed after the controller's response. So a crash between note, truncation
and report loses no report:

| the log at the next check | the note |
|---|---|
| it has other records at these offsets, or none | is reported: the log was truncated |
| it still has the records | is kept: the truncation may follow |
| it still has the records, and this broker leads | is dropped: no record was lost |

A note without a topic id (below level 1.4) belongs to its replica and is removed with it: otherwise
the note would get the topic id of a later topic of the same name.

An empty range says where the log of an unclean leader ended, and is always reported. Memory grows
with the replicas truncated since the last response, and with their ranges up to ``KEPT_RANGES``.
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
from tidelog.model.work import Work
from tidelog.protocol.primitives import NO_UUID
from tidelog.storage.directory.checkpointing import Checkpoints
from tidelog.storage.directory.log_directory import LogDirectory
from tidelog.storage.log.partition_log import PartitionLog

if TYPE_CHECKING:
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.broker.partitions.registry import Partitions

logger = logging.getLogger(__name__)

FILE = "tidelog.unreported-losses"

KEPT_RANGES = 16
"""Most ranges of one replica; further ones are merged, with the offsets between them."""


@dataclass(frozen=True, slots=True)
class LossNote:
    """Offsets [first, end) of one replica, with the leader epochs of their records.

    ``topic_id`` is ``NO_UUID`` while the replica has none.
    """

    key: TopicPartition
    topic_id: UUID
    first: int
    end: int
    epochs: tuple[int, ...]

    @property
    def is_end(self) -> bool:
        """Whether the note is the end of an unclean leader's log."""
        return self.first == self.end


def note_of(partition: HostedPartition, first: int, end: int) -> LossNote:
    """Return the note for a range of offsets, with the leader epochs of its records."""
    return LossNote(
        partition.key, partition.topic_id, first, end, _epochs(partition.log, first, end)
    )


def end_notes_of(partition: HostedPartition) -> list[LossNote]:
    """Return where the log of a new unclean leader ends, before it appends its first record.

    A second note covers records that a power loss removed, up to the high watermark that was
    noted before it. Their leader epochs are unknown; the note has that of the last record left.
    """
    end = partition.epoch_start
    committed_end = partition.log.watermark_note.known
    last = partition.log.epochs.epoch_at(end - 1) if end > partition.start_offset else -1
    notes = [LossNote(partition.key, partition.topic_id, end, end, (last,))]
    if committed_end > end:
        epochs = (last,) if last >= 0 else ()
        notes.append(LossNote(partition.key, partition.topic_id, end, committed_end, epochs))
    return notes


def has_happened(loss: LossNote, log: PartitionLog | None) -> bool:
    """Return whether the log no longer has the records of a note; a deleted log has none."""
    if loss.is_end or log is None or log.end_offset <= loss.first:
        return True
    return log.epochs.epoch_at(loss.first) not in loss.epochs


def _epochs(log: PartitionLog, first: int, end: int) -> tuple[int, ...]:
    entries = log.epochs.entries
    epochs = []
    for place, (epoch, start) in enumerate(entries):
        next_start = entries[place + 1][1] if place + 1 < len(entries) else log.end_offset
        if start < end and next_start > first:
            epochs.append(epoch)
    return tuple(epochs)


class LossNotes:
    """The notes of one broker. Methods that write return pieces of work (``model.work``)."""

    def __init__(self, partitions: Partitions) -> None:
        """Read the files of earlier starts; damaged lines are logged and dropped."""
        self._partitions = partitions
        self._by_directory: dict[LogDirectory, list[LossNote]] = {}
        self._on_their_way: dict[LogDirectory, list[Sequence[LossNote]]] = {}
        """What is being written, and counts when it is on the disk."""
        self._files: dict[LogDirectory, Checkpoints] = {}
        self._outdated: set[LogDirectory] = set()
        """Directories whose file has notes that are forgotten."""
        for directory in partitions.directories:
            self._by_directory[directory] = _read(directory)
            self._on_their_way[directory] = []
            self._files[directory] = Checkpoints(directory.resources.disk)

    def __len__(self) -> int:
        return sum(map(len, self._by_directory.values()))

    def adding(self, losses: Sequence[tuple[HostedPartition, LossNote]]) -> Work[str | None]:
        """Write notes durably, with one write per log directory; return why that failed, if so."""
        added: dict[LogDirectory, list[LossNote]] = {}
        for partition, loss in losses:
            added.setdefault(self._partitions.directory_of(partition), []).append(loss)
        for directory, new in added.items():
            # One write for all of them: the file of a directory is always written whole.
            why = yield from self._writing(directory, new)
            if why is not None:
                return why
        return None

    def due(self) -> list[LossNote]:
        """Return the notes to report now; drop those of records that a leader here still has."""
        due = []
        for directory, kept in list(self._by_directory.items()):
            unfounded = set()
            for loss in kept:
                hosted = self._hosted(loss)
                if hosted is not None and hosted.offline_reason is not None:
                    continue  # its log cannot be read
                if has_happened(loss, None if hosted is None else hosted.log):
                    due.append(self._named(loss))
                elif hosted is not None and hosted.is_leader:
                    # A leader cuts nothing: the truncation that this was written for never
                    # happened.
                    unfounded.add(loss)
            if unfounded:
                self._forget(directory, [x for x in kept if x not in unfounded])
        return [loss for loss in due if loss.topic_id != NO_UUID]

    def _hosted(self, loss: LossNote) -> HostedPartition | None:
        """Return the replica of a note, if it is still hosted with the same topic id."""
        hosted = self._partitions.get(*loss.key)
        if hosted is None or NO_UUID in (hosted.topic_id, loss.topic_id):
            return hosted
        return hosted if hosted.topic_id == loss.topic_id else None

    def _named(self, loss: LossNote) -> LossNote:
        """Return a note with the topic id that its replica has adopted since."""
        hosted = self._hosted(loss)
        if loss.topic_id != NO_UUID or hosted is None:
            return loss
        return replace(loss, topic_id=hosted.topic_id)

    def reported(self, losses: Iterable[LossNote]) -> None:
        """Remove the notes of a report that the controller has accepted."""
        done = set(losses)
        for directory, kept in list(self._by_directory.items()):
            self._forget(directory, [note for note in kept if self._named(note) not in done])

    def forget_nameless(self, key: TopicPartition) -> None:
        """Remove the notes without a topic id of a replica that is removed."""
        for directory, kept in list(self._by_directory.items()):
            left = [note for note in kept if (note.key, note.topic_id) != (key, NO_UUID)]
            self._forget(directory, left)

    def _forget(self, directory: LogDirectory, left: list[LossNote]) -> None:
        if len(left) < len(self._by_directory[directory]):
            self._by_directory[directory] = left
            self._outdated.add(directory)

    def forgetting(self) -> Work[None]:
        """Write the files without the removed notes.

        If that fails, the next start reports them again; the controller counts no loss twice.
        """
        while self._outdated:
            yield from self._writing(self._outdated.pop())

    def _writing(self, directory: LogDirectory, new: Sequence[LossNote] = ()) -> Work[str | None]:
        """Replace a directory's file; unless its disk is full, a failure is final for it."""
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
            # Notes were added or removed during the write.
            losses = _bounded([*self._by_directory[directory], *new])
        self._by_directory[directory] = losses
        return None


def _bounded(losses: Sequence[LossNote]) -> list[LossNote]:
    """Return notes without duplicates, and merge ranges beyond ``KEPT_RANGES`` of one replica.

    Fewer ranges are not merged: of two truncations one may have happened and the other not.
    """
    bounded: list[LossNote] = []
    counts: dict[tuple[TopicPartition, UUID], int] = {}
    for loss in sorted(set(losses), key=lambda x: (x.key, x.topic_id.int, x.first, x.end)):
        replica = (loss.key, loss.topic_id)
        counts[replica] = counts.get(replica, 0) + 1
        if counts[replica] <= KEPT_RANGES or loss.is_end:
            bounded.append(loss)
            continue
        last = bounded[-1]
        epochs = tuple(sorted({*last.epochs, *loss.epochs}))
        bounded[-1] = replace(last, end=max(last.end, loss.end), epochs=epochs)
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
    notes = []
    for line in lines:
        loss = _decode(line)
        if loss is None:
            logger.error("%s: damaged note of lost records dropped: %r", path, line)
        else:
            notes.append(loss)
    return notes


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
