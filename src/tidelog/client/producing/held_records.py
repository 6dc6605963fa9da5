"""Records that a sender holds while their topic is resized.

Owns a held record, and how a batch that was taken back becomes such records. Not when they are
held, and where they go then: see ``topic_epochs`` and ``turning``.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.client.errors import ClientError
from tidelog.client.producing.record_metadata import OpenOutcome, fail_outcome
from tidelog.client.producing.send_queue import ProducerBatch, SendTally
from tidelog.records.builder import NewRecord
from tidelog.records.reader import read_batch


@dataclass(slots=True, eq=False)
class HeldRecord:
    """A record that waits for older ones of its keys. ``partition``: the caller named it."""

    number: tuple[int, ...]
    """Its place in the order of ``send``, among records of other batches."""
    record: NewRecord
    size: int
    deadline: float
    partition: int | None = None
    outcome: OpenOutcome | None = None
    tally: SendTally | None = None

    def fail(self, error: ClientError) -> None:
        """Say that it was not written."""
        if self.outcome is not None:
            fail_outcome(self.outcome[0], error)
        if self.tally is not None:
            self.tally.fail(1, error)


def records_of(batch: ProducerBatch, deadline: float) -> list[HeldRecord]:
    """Return the records of a batch that was taken back, with their outcomes and memory."""
    records = read_batch(batch.encode())
    share, rest = divmod(batch.size, len(records))
    return [
        HeldRecord(
            batch.number,
            NewRecord(record.timestamp, record.key, record.value, list(record.headers)),
            share + (rest if index == 0 else 0),
            deadline,
            batch.partition.partition if batch.is_fixed else None,
            None if batch.tally is not None else batch.outcomes[index],
            batch.tally,
        )
        for index, record in enumerate(records)
    ]
