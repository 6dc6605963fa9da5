"""Leaders whose fetches the test answers one by one, or from logs that it writes.

Owns the responses to Fetch. Not the cluster: see ``scripted_cluster``.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages
from tidelog.records.builder import NewRecord, build_batch


def batch(first: int, *values: bytes, leader_epoch: int = 3) -> bytes:
    """Return a batch of these records, from an offset on."""
    records = [NewRecord(1_000, b"k", each) for each in values]
    return build_batch(records, base_offset=first, leader_epoch=leader_epoch)


@dataclass
class Waiting:
    """A Fetch that a leader has not answered."""

    node_id: int
    request: messages.FetchRequest
    future: asyncio.Future[Any]

    @property
    def named(self) -> dict[TopicPartition, Any]:
        """The partitions that it names."""
        return {
            TopicPartition(topic.topic, part.partition): part
            for topic in self.request.topics
            for part in topic.partitions
        }

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """Where it fetches from."""
        return {where: part.fetch_offset for where, part in self.named.items()}

    def answer(
        self, found: dict[TopicPartition, bytes | ErrorCode] | None = None, **other: Any
    ) -> None:
        """Answer it with batches or errors of partitions; without any: nothing is new.

        Of a reader that was closed meanwhile it is cancelled.
        """
        if not self.future.done():
            self.future.set_result(answer_of(found or {}, **other))


def answer_of(
    found: dict[TopicPartition, bytes | ErrorCode],
    *,
    high: int = 100,
    stable: int | None = None,
    aborted: tuple[int, ...] = (),
    **other: Any,
) -> messages.FetchResponse:
    """Return a response with batches or errors of partitions; ``high``, ``stable``: its ends."""
    response = messages.FetchResponse
    topics = []
    for where, what in found.items():
        is_error = isinstance(what, ErrorCode)
        part = response.PartitionData(
            partition_index=where.partition,
            error_code=int(what) if is_error else 0,
            high_watermark=high,
            last_stable_offset=high if stable is None else stable,
            log_start_offset=0,
            aborted_transactions=[
                response.AbortedTransaction(producer_id=7, first_offset=at) for at in aborted
            ],
            records=None if is_error else memoryview(what),
        )
        topics.append(response.FetchableTopicResponse(topic=where.topic, partitions=[part]))
    return response(responses=topics, **{"session_id": 0, **other})


@dataclass
class Fetches:
    """The answer of a ``ScriptedCluster`` to each Fetch: it waits, unless ``logs`` have more."""

    waiting: list[Waiting] = field(default_factory=list)
    logs: dict[TopicPartition, list[tuple[int, bytes]]] = field(default_factory=dict)
    """The end of each batch, and the batch."""

    def write(self, where: TopicPartition, *values: bytes) -> None:
        """Append a batch to the log of a partition."""
        log = self.logs.setdefault(where, [])
        first = log[-1][0] if log else 0
        log.append((first + len(values), batch(first, *values)))
        for each in [each for each in self.waiting if where in each.named]:
            self.waiting.remove(each)
            each.answer(self._new_of(each))

    def __call__(self, node_id: int, request: messages.FetchRequest) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        waiting = Waiting(node_id, request, future)
        if found := self._new_of(waiting):
            waiting.answer(found)
        else:
            self.waiting.append(waiting)
        return future

    def _new_of(self, asked: Waiting) -> dict[TopicPartition, bytes | ErrorCode]:
        found: dict[TopicPartition, bytes | ErrorCode] = {}
        for where, offset in asked.offsets.items():
            new = b"".join(data for end, data in self.logs.get(where, ()) if end > offset)
            if new:
                found[where] = new
        return found
