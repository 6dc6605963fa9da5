"""The state of one partition's log: segments, offsets, leader epochs, producers, service flags.

Owns the values and what can be computed from them alone. Once made, each value is written here, or
in one other module: `tests/tidy/test_tidy_log_state.py` has the list. Not the work: each module has
the functions of one kind of change, and `partition_log` lists them.
"""

from __future__ import annotations

from collections.abc import Callable

from tidelog.model.configs.topic import CREATE_TIME, TopicConfigs
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import MAX_INT64
from tidelog.storage.checkpoints import PartitionMetadata
from tidelog.storage.epochs import LeaderEpochs
from tidelog.storage.log.aborted_files import AbortedFiles
from tidelog.storage.log.changes import LogChange
from tidelog.storage.log.dirty_files import DirtyFiles
from tidelog.storage.log.epoch_file import EpochFile, FenceFile
from tidelog.storage.log.producers import ProducerState
from tidelog.storage.log.recovery import Recovered
from tidelog.storage.log.segment_list import SegmentList
from tidelog.storage.log.snapshots import WaitingSnapshots
from tidelog.storage.log.watermark_note import WatermarkNote
from tidelog.storage.log.whole_files import replace
from tidelog.storage.segments.resources import Resources
from tidelog.storage.segments.segment import NO_ROOM

PRODUCER_EXPIRATION_MS = 86_400_000
"""Default of ``producer.id.expiration.ms``."""


Claims = tuple[int, int, int]
"""Recovery point, high watermark and log start, as the checkpoints have them."""


class LogState:
    """One replica's log in memory. Its offsets go from ``start_offset`` to ``end_offset``."""

    __slots__ = (
        "aborted",
        "adopted",
        "change",
        "closed",
        "configs",
        "damage_unsynced",
        "damaged",
        "dirty",
        "end_offset",
        "epoch_file",
        "epochs",
        "fence_file",
        "fences",
        "first_dirty_offset",
        "generation",
        "high_watermark",
        "is_mirrored",
        "jitter_ms",
        "keeps_batches",
        "last_sync_ms",
        "lowered",
        "metadata",
        "partition",
        "path",
        "producer_expiration_ms",
        "producers",
        "recovered",
        "resources",
        "segments",
        "snapshot_size",
        "snapshots",
        "start_offset",
        "synced_end_offset",
        "uncut_end",
        "undone_writes",
        "undone_writes_synced",
        "watermark_note",
        "write_again",
    )

    def __init__(
        self,
        resources: Resources,
        path: str,
        partition: TopicPartition,
        configs: TopicConfigs,
        recovered: Recovered,
    ) -> None:
        self.resources = resources
        self.path = path
        self.partition = partition
        self.configs = configs
        self.recovered = recovered
        """What the start found on disk."""

        self.segments = SegmentList(recovered.segments)
        self.start_offset = max(recovered.log_start, self.segments[0].base_offset)
        self.end_offset = self.segments[-1].next_offset
        self.high_watermark = self.segments[0].base_offset
        """Set by the caller; retention and compaction never pass it."""
        self.synced_end_offset = self.segments[0].base_offset
        """The recovery point: everything below survives a power loss."""
        self.first_dirty_offset = self.segments[0].base_offset
        """The cleaner's checkpoint: everything below was compacted once."""
        self.generation = 0
        """+1 whenever offsets may be given out again (truncation)."""
        self.lowered = 0
        """+1 whenever what the log claims in the checkpoints falls: older claims are void then."""

        self.epochs = LeaderEpochs()
        self.fence_file = FenceFile()
        self.fences = self.fence_file.durable = self.fence_file.written
        """Of every resize that this replica knows, those below its start included."""
        self.producers = ProducerState()
        self.producer_expiration_ms = PRODUCER_EXPIRATION_MS
        self.aborted = AbortedFiles()
        self.metadata = recovered.metadata
        self.adopted: PartitionMetadata | None = None
        """What ``adopt_metadata`` has written, until it is durable."""
        self.epoch_file = EpochFile()
        self.watermark_note = WatermarkNote(resources, path)
        self.snapshots = WaitingSnapshots(resources, path)
        self.snapshot_size = self.segments.active.size
        """Bytes of the active segment that the newest snapshot covers, as far as is known."""

        self.dirty = DirtyFiles(path, resources.removals)
        self.undone_writes = self.undone_writes_synced = 0
        """How many partial writes were cut off again, and how many of these cuts a sync covers."""
        self.write_again: Callable[[LogState], None] | None = None
        """Writes again what an earlier process may not have synced; the start had no room for
        it."""
        self.last_sync_ms = 0

        self.damaged = recovered.damaged
        self.damage_unsynced = False
        """Whether a power loss could take the note of the damage: until then it is not reported."""
        self.closed = False
        self.change: LogChange | None = None
        """What is done to its segments, in pieces: one change at a time (``changes.during``)."""
        self.is_mirrored = False
        """Whether its segments are being copied to another directory: they are not compacted."""
        self.uncut_end = MAX_INT64
        """No offset below was cut since the copy in another directory was last compared."""
        self.jitter_ms = 0
        self.keeps_batches = False
        """Whether a produced batch is kept as it was sent, but for its offset and epoch."""
        self.configure(configs)

    @property
    def failed(self) -> str | None:
        """Why appends are refused for good: damage, a failed disk, or None."""
        return self.damaged or self.resources.failed

    @property
    def size(self) -> int:
        """Bytes of all batches. Grows with the number of segments."""
        return sum(segment.size for segment in self.segments)

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch of the log, -1 when there is none."""
        return self.epochs.latest

    @property
    def first_unwritten_fence(self) -> int | None:
        """The offset of the first fence that a start could find only in its batch, None without.

        The batch must stay until the file has it durably: no claim and no removal passes it.
        """
        file, fences = self.fence_file, self.fences
        if file.durable is not file.written and self.dirty.names_durable >= file.change:
            file.durable = file.written
        if file.durable is fences:
            return None
        written = file.durable.entries
        return next((fence.offset for fence in fences.entries if fence not in written), None)

    @property
    def first_fence(self) -> int | None:
        """The offset of the oldest fence for the record in the log directory, None for none."""
        if self.fences.entries:
            return self.fences.entries[0].offset
        # A damaged log has read none: the next start must have the same record.
        return self.fence_file.first_on_record if self.damaged is not None else None

    @property
    def waits_to_roll(self) -> bool:
        """Whether a sync must come before a roll.

        A closed segment is not scanned below the recovery point: a power loss must not bring back
        what was cut off its end. Nor may it take the log's beginning, and leave what follows.
        """
        undone = self.undone_writes_synced < self.undone_writes
        return undone or (len(self.segments) == 1 and self.dirty.names_unsynced)

    def begin_with(
        self,
        synced_end: int,
        high_watermark: int,
        *,
        first_dirty: int | None = None,
        start: int | None = None,
    ) -> None:
        """Take over what the checkpoints say, at the start; None leaves what the segments say."""
        self.synced_end_offset = synced_end
        self.high_watermark = high_watermark
        if first_dirty is not None:
            self.first_dirty_offset = first_dirty
        if start is not None:
            self.start_offset = start

    def take_over(self, log: LogState) -> None:
        """Be the log that ``log`` was, in another directory."""
        self.start_offset, self.end_offset = log.start_offset, log.end_offset
        self.high_watermark = log.high_watermark
        self.synced_end_offset = log.synced_end_offset
        self.first_dirty_offset = log.first_dirty_offset
        self.generation, self.lowered = log.generation, log.lowered
        self.epochs, self.producers = log.epochs, log.producers
        self.aborted = log.aborted.elsewhere()
        self.producer_expiration_ms = log.producer_expiration_ms
        self.snapshot_size, self.last_sync_ms = log.snapshot_size, log.last_sync_ms
        self.watermark_note = log.watermark_note.elsewhere(self.resources, self.path)
        self.fences = self.fence_file.written = self.fence_file.durable = log.fences

    # -- where it begins, and what it claims

    def raise_watermark(self, offset: int) -> None:
        """Let readers have everything below ``offset``."""
        self.high_watermark = offset

    def raise_start(self, offset: int) -> None:
        """Begin at ``offset``, which is above the present start."""
        self.start_offset = offset
        self.first_dirty_offset = max(self.first_dirty_offset, offset)

    def raise_recovery_point(self, offset: int) -> None:
        """Everything below ``offset`` is durable, or gone; a lower offset changes nothing."""
        self.synced_end_offset = max(self.synced_end_offset, offset)

    def was_cleaned(self, end_offset: int) -> None:
        """Everything below ``end_offset`` was compacted once."""
        self.first_dirty_offset = max(self.first_dirty_offset, end_offset)

    def lower_claims(self, offset: int) -> Claims:
        """Claim nothing above ``offset``, before a cut there; return what was claimed."""
        former = self.synced_end_offset, self.high_watermark, self.start_offset
        self.restore_claims(
            (min(former[0], offset), min(former[1], offset), min(former[2], offset))
        )
        self.lowered += 1
        self.producers.transactions.is_outdated = self.high_watermark < former[1]
        return former

    def restore_claims(self, claims: Claims) -> None:
        """Claim again what ``lower_claims`` returned: nothing was cut."""
        self.synced_end_offset, self.high_watermark, self.start_offset = claims
        self.producers.transactions.is_outdated = False

    def cut_at(self, end: int, *, uncut_end: int) -> None:
        """Let no value say anything of records from ``end`` on.

        ``uncut_end``: below it everything is as it was.
        """
        self.uncut_end = min(self.uncut_end, uncut_end)
        self.snapshot_size = 0
        self.undone_writes_synced = self.undone_writes
        self.start_offset = min(self.start_offset, end)
        self.high_watermark = max(min(self.high_watermark, end), self.start_offset)
        self.synced_end_offset = min(self.synced_end_offset, end)
        self.first_dirty_offset = min(self.first_dirty_offset, end)
        self.lowered += 1

    def begin_again(self, offset: int) -> None:
        """Begin at ``offset``, where the empty log ends."""
        self.start_offset = self.high_watermark = offset

    def take_uncut_end(self) -> int:
        """Return ``uncut_end``, which a copy is being compared with now."""
        uncut_end, self.uncut_end = self.uncut_end, MAX_INT64
        return uncut_end

    # -- producers and syncs

    def replace_producers(self, producers: ProducerState) -> ProducerState:
        """Have these producers, which the batches say; return the former ones."""
        former, self.producers = self.producers, producers
        return former

    def forget_producers_after(self, silence_ms: int) -> None:
        """Apply ``producer.id.expiration.ms``."""
        self.producer_expiration_ms = silence_ms

    def snapshot_covers(self, size: int) -> None:
        """The newest snapshot has the producers of so many bytes of the active segment."""
        self.snapshot_size = size

    def undone_are_synced(self, count: int) -> None:
        """A sync covers the cuts of the first ``count`` partial writes."""
        self.undone_writes_synced = max(self.undone_writes_synced, count)

    def configure(self, configs: TopicConfigs) -> None:
        """Apply the topic's configurations to all that follows."""
        self.configs = configs
        jitter = min(configs.segment_jitter_ms, configs.roll_ms)
        self.jitter_ms = self.resources.random.randrange(jitter) if jitter > 0 else 0
        self.segments.active.room = NO_ROOM
        self.keeps_batches = (
            not self.resources.checks_records
            and configs.compression_type == "producer"
            and not configs.compacted
            and configs.message_timestamp_type is CREATE_TIME
        )

    def take_snapshot(self) -> None:
        """Have the next sync write the producers as they are now."""
        self.snapshot_covers(self.segments.active.size)
        self.snapshots.take(self.end_offset, self.producers)

    def write_file(self, name: str, content: bytes) -> None:
        """Replace a small file of the log; the next sync covers it."""
        path = f"{self.path}/{name}"
        self.resources.files.forget(path)
        replace(self.resources.disk, path, content)
        self.dirty.files.add(path)
        self.dirty.note_names()
