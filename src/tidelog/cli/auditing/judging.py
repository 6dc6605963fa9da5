"""The rules of an audit, applied to fetched batches: placement, and the order of each key. No I/O.

Owns what happens to each batch and record:

| what | placement | order of keys |
|---|---|---|
| a record with a key | it lies where its hash is at home in its resize epoch | judged at home |
| a record without a key | counted | not judged |
| a record of an aborted transaction | counted | not judged |
| a record of an epoch in which no order was promised | counted | not judged |
| a fence or seal | it is the one that DescribeFences names | not judged |
| another control record | counted | not judged |
| a batch | its offsets follow the batch before | its producer's sequence numbers do, too |

A misplaced record is no part of the order of its key. Records that compaction removed leave no
trace: those that are left are judged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidelog.cli.auditing.facts import AuditedTopic, Example, Findings, PartitionAudit
from tidelog.cli.auditing.key_order import LastOfKeys, number_in
from tidelog.cli.auditing.producer_order import ProducersOfPartition
from tidelog.client.fetching.batches import Fetched
from tidelog.partitioning.audit_rules import Kind, Remembered
from tidelog.partitioning.epoch_spans import EpochSpan
from tidelog.partitioning.hashing import hashes_of_keys
from tidelog.records.batch import BatchHeader
from tidelog.records.control_records import ChangeKind, changes_in
from tidelog.records.reader import FastReader

_ANY_EPOCH = -1


class TopicJudge:
    """Takes what was fetched of a topic, and finds what is wrong in it.

    ``field``: the JSON field that must not decrease for a key. Records come phase by phase, see
    ``AuditedTopic.phases``; CorruptRecords for a batch with a wrong CRC.
    """

    def __init__(
        self,
        audited: AuditedTopic,
        most_keys: int,
        *,
        by_time: bool = True,
        by_order: bool = True,
        field: str | None = None,
    ) -> None:
        self._audited = audited
        self._by_time = by_time and by_order
        self._field = field if by_order else None
        self._reader = FastReader()
        self._times = LastOfKeys(most_keys)
        self._numbers = LastOfKeys(most_keys)
        self._next_offset = {index: one.begin for index, one in audited.partitions.items()}
        self._producers = {index: ProducersOfPartition() for index in audited.partitions}
        self._fences = {
            index: {
                fence.fence.offset: (fence.fence.resize_epoch, fence.undeleted_count, fence.is_seal)
                for fence in one.fences
            }
            for index, one in audited.partitions.items()
        }
        self.partitions = {index: PartitionAudit() for index in audited.partitions}
        self.findings = Findings()
        self.timed = 0
        """Records whose time was compared, or is the first of their key and producer."""
        self.without_number = 0
        """Records with a key whose value has no number in the field, if one was asked for."""

    @property
    def keys(self) -> int:
        """How many keys have a number in the field, if one was asked for; otherwise 0."""
        return len(self._numbers)

    def take(self, fetched: Fetched, span: EpochSpan) -> None:
        """Judge batches of one partition as far as they lie in a span of it."""
        partition = fetched.partition.partition
        facts = self.partitions[partition]
        records = 0
        for header, batch in fetched.all_batches():
            if header.base_offset >= span.end:
                break
            if header.last_offset < span.begin:
                continue
            self._take_header(partition, header)
            if header.control:
                facts.control += header.record_count
                self._take_control(partition, header, batch)
            else:
                records += header.record_count
        seen = 0
        for header, batch in fetched.batches(check_crc=True):
            if header.base_offset >= span.end:
                break
            seen += header.record_count
            self._take_records(partition, span, header, self._reader.records(batch))
        facts.aborted += records - seen

    def skipped(self, partition: int, begin: int, end: int) -> None:
        """Note that retention removed offsets before they were read."""
        self.partitions[partition].lost += max(0, end - begin)

    def _take_header(self, partition: int, header: BatchHeader) -> None:
        if header.last_offset < self._next_offset[partition]:
            text = f"offsets to {header.last_offset} after {self._next_offset[partition] - 1}"
            self.findings.add(Kind.OFFSET, Example(partition, header.base_offset, text))
        self._next_offset[partition] = max(self._next_offset[partition], header.next_offset)
        back = self._producers[partition].step_back(header)
        if back is not None:
            self.findings.add(Kind.PRODUCER, Example(partition, header.base_offset, back))

    def _take_control(self, partition: int, header: BatchHeader, batch: memoryview) -> None:
        for offset, change in changes_in(header, batch):
            is_seal = change.kind is ChangeKind.SEAL
            change_of = change.resize_epoch, change.undeleted_count, is_seal
            if self._fences[partition].get(offset) != change_of:
                what = "seal" if is_seal else "fence"
                text = f"a {what} of resize epoch {change.resize_epoch}, not named by its leader"
                self.findings.add(Kind.FENCE, Example(partition, offset, text))

    def _take_records(
        self, partition: int, span: EpochSpan, header: BatchHeader, records: Iterable[Any]
    ) -> None:
        facts = self.partitions[partition]
        # The log may begin within a batch (DeleteRecords).
        inside = [record for record in records if span.begin <= record.offset < span.end]
        keyed = [record for record in inside if record.key is not None]
        facts.records += len(inside)
        facts.unkeyed += len(inside) - len(keyed)
        home = self._audited.counts.home_in(partition, span.resize_epoch)
        if home is None:
            facts.unjudged += len(keyed)
            return
        has_time = self._by_time and header.producer_id >= 0 and not header.log_append_time
        for record, key_hash in zip(
            keyed, hashes_of_keys([bytes(record.key) for record in keyed]), strict=True
        ):
            if home.is_away(key_hash):
                facts.misplaced += 1
                homes = self._audited.counts.homes_of(key_hash, span.resize_epoch)
                text = f"partition {' or '.join(map(str, homes))} in resize epoch"
                self._add(Kind.HOME, partition, record, f"belongs in {text} {span.resize_epoch}")
                continue
            if has_time and record.timestamp >= 0:
                self._take_time(partition, span, header, record)
            if self._field is not None:
                self._take_number(partition, span, record)

    def _take_time(self, partition: int, span: EpochSpan, header: BatchHeader, record: Any) -> None:
        # Another epoch of a transactional producer may be another process, with its own clock.
        epoch = header.producer_epoch if header.transactional else _ANY_EPOCH
        now = Remembered(record.timestamp, partition, span.resize_epoch, record.offset)
        before = self._times.step_back((record.key, header.producer_id, epoch), now)
        self.timed += 1
        if before is not None:
            back_ms = before.value - record.timestamp
            text = f"created {back_ms} ms before {_place(before)} by producer {header.producer_id}"
            self._add(Kind.TIMESTAMP, partition, record, text)

    def _take_number(self, partition: int, span: EpochSpan, record: Any) -> None:
        assert self._field is not None
        number = number_in(record.value, self._field)
        if number is None:
            self.without_number += 1
            return
        now = Remembered(number, partition, span.resize_epoch, record.offset)
        before = self._numbers.step_back(record.key, now)
        if before is not None:
            text = f"{self._field}={number} after {before.value} in {_place(before)}"
            self._add(Kind.SEQUENCE, partition, record, text)

    def _add(self, kind: Kind, partition: int, record: Any, text: str) -> None:
        self.findings.add(kind, Example(partition, record.offset, text, bytes(record.key)))


def _place(before: Remembered) -> str:
    return f"partition {before.partition} offset {before.offset}"
