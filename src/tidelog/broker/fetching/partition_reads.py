"""What one partition answers to one Fetch, be it a consumer's or a follower's.

Owns who may read what: up to the high watermark or to the log's end, from the leader or, for a
consumer that names its rack, from a follower too (KIP-392); and which of it is news to a session.
Which partitions are read in which order is the request's (``handlers.fetch``, ``feeds``).

| who asks | of whom | up to |
|---|---|---|
| a consumer | the leader | its high watermark |
| a consumer with a rack | a follower | its own high watermark, and waits for what is behind it |
| a follower that is a replica | the leader | the log's end |
| Kafka's debugging consumer (-2), which compares replicas | any | its own high watermark |
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidelog.broker.partitions.read_limit import read_limit
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.protocol.primitives import NO_UUID
from tidelog.records.batch import Rejected, walk
from tidelog.replication.closest import Candidate, closest
from tidelog.storage.log.cold import ColdRead, cold_read, run_all
from tidelog.storage.log.region import LEAST_BYTES, FileRegion, find_region

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from tidelog.broker.fetching.client_sessions import Wanted
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.network.router import RequestContext, Steps

TOLD_AT_ONCE = 1000
"""Partitions that are put into a response in one step."""

READ_COMMITTED = 1
DEBUGGING_CONSUMER = -2

SMALL_READ_BYTES = 4096
"""A read of less, with later segments behind it, goes on in those."""

MOST_WARM_UPS = 3
"""Of one request: for the index, for the batches behind its entry, for the bytes."""

MAX_SLICES = 64
"""Most segments that one read goes through."""

_Response = messages.FetchResponse
_Topic = messages.FetchResponse.FetchableTopicResponse
_Partition = messages.FetchResponse.PartitionData
_EpochEndOffset = messages.FetchResponse.EpochEndOffset


@dataclass(frozen=True, slots=True)
class Reader:
    """What all reads of one broker use."""

    node_id: int
    rack: str | None
    most_bytes: int
    """Of one response: ``fetch.max.bytes``."""
    reads_from_closest: bool
    """Whether consumers are sent to the replica in their rack (KIP-392)."""
    threads: Executor | None
    addresses: Callable[[str], list[tuple[int, str, int, str | None]]]
    """The live brokers (node id, host, port, rack) as the clients of a listener see them."""
    fetched: Callable[[HostedPartition, int], None]
    """Called when a follower's fetch was counted: it may join the ISR now."""


class Reading:
    """One request being answered: may be begun twice, at once and after a wait."""

    __slots__ = (
        "cold",
        "context",
        "follower",
        "full",
        "is_last",
        "node_id",
        "rack",
        "reader",
        "request",
        "room",
        "size",
        "urgent",
        "waited",
        "warmed",
    )

    def __init__(
        self, reader: Reader, request: messages.FetchRequest, context: RequestContext
    ) -> None:
        self.reader = reader
        self.request = request
        self.context = context
        self.node_id = request.replica_id
        self.follower = request.replica_id >= 0
        self.rack = "" if self.follower else request.rack_id
        self.size = 0
        self.room = 0
        self.urgent = False
        """Whether something must be told at once."""
        self.full = False
        """Whether there is something, and a limit keeps more away that could be read: a wait for
        ``min_bytes`` would bring nothing."""
        self.is_last = request.max_wait_ms <= 0
        """Whether the request is answered with what is found now."""
        self.waited = False
        """Whether it was served before, and waited for more."""
        self.cold: list[ColdRead] = []
        """What a thread should read before; the partitions concerned have no records yet."""
        self.warmed = 0
        """How often one did."""

    def again(self) -> None:
        """The wait is over: what is found now is the answer."""
        self.is_last = self.waited = True
        self.warmed = MOST_WARM_UPS  # what has come meanwhile was just written

    async def warm_up(self) -> None:
        """Have a thread read what is cold: then the request is read again."""
        cold, self.cold = self.cold, []
        self.warmed += 1
        try:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self.reader.threads, run_all, cold)
        finally:
            for each in cold:
                each.done()

    def forget_cold(self) -> None:
        """Nobody will read what is cold: let its files go."""
        cold, self.cold = self.cold, []
        for each in cold:
            each.done()

    def begin(self) -> None:
        """Find out how much this answer may have."""
        self.size, self.full = 0, False
        room = max(1, min(self.request.max_bytes, self.reader.most_bytes))
        # Nothing at all while other clients leave too much unread: the next request waits.
        self.room = min(room, self.context.connection.answer_budget())

    def read(self, wanted: Wanted, partition: HostedPartition) -> Any:
        """Return the partition's part of the answer."""
        error = self._why_not(wanted, partition)
        if error is not ErrorCode.NONE:
            self.urgent = True
            partition.counts.fetch_refused(error)
            return refusal(wanted.index, error)
        log = partition.log
        offset = wanted.fetch_offset
        mark = log.high_watermark
        answer = _Partition(wanted.index, 0, mark, mark, log.start_offset)
        answer.aborted_transactions = (
            [] if self.request.isolation_level == READ_COMMITTED and not self.follower else None
        )
        if wanted.last_fetched_epoch >= 0 and self._diverges(wanted, partition, answer):
            return answer
        if self.rack:
            if partition.is_leader:
                if self._sent_to_another(wanted, partition, answer):
                    return answer
            elif mark < offset <= log.end_offset:
                # The leader is ahead of what it told this follower: it will tell soon.
                return self._not_yet(wanted, partition)
        room = self.room - self.size
        end = read_limit(log, not self.follower)
        if offset == end:
            return answer
        if room > 0:
            before = partition.bytes_out
            answer = self._records(wanted, partition, answer, room)
            counts = partition.counts
            counts.fetches += 1
            if self.follower:
                counts.replicated_out += partition.bytes_out - before
        if 0 < self.size < self.request.min_bytes and not answer.error_code:
            self.full = self.full or _more_lies_behind(answer.records, offset, end)
        return answer

    def _records(self, wanted: Wanted, partition: HostedPartition, answer: Any, room: int) -> Any:
        log = partition.log
        offset = wanted.fetch_offset
        most = min(room, wanted.max_bytes)
        known = log.segments.remembered(offset)
        if self.warmed < MOST_WARM_UPS:
            cold = cold_read(log, offset, most, known)
            if cold is not None:
                self.cold.append(cold)
                return answer
        if room >= LEAST_BYTES and self.context.connection.can_send_files():
            region = find_region(log, offset, most, known)
            if region is not None:
                parts: Any = [region]
                answer.records = parts
                self.size += region.size
                partition.bytes_out += region.size
                return answer
        committed = not self.follower
        records = partition.read(offset, most, committed=committed, at_least_one=not self.size)
        if isinstance(records, Rejected):
            self.urgent = True
            partition.counts.fetch_refused(records.error)
            refused = refusal(wanted.index, records.error)
            if records.error is ErrorCode.OFFSET_OUT_OF_RANGE:
                refused.high_watermark = refused.last_stable_offset = log.high_watermark
                refused.log_start_offset = log.start_offset
            return refused
        self.size += len(records)
        answer.records = records
        # Where not even the first batch had room there is nothing to go on from.
        if 0 < len(records) < SMALL_READ_BYTES and offset < log.segments[-1].base_offset:
            answer.records = read_on(partition, records, most, committed=committed)
            self.size += sum(map(len, answer.records)) - len(records)
        return answer

    def _why_not(self, wanted: Wanted, partition: HostedPartition) -> ErrorCode:
        goes_on = self.waited and not self.follower
        ask = partition.why_not_answering if goes_on else partition.why_not_serving
        error = ask(wanted.leader_epoch)
        if self.follower:
            return error or why_not_fed(wanted, partition, self.node_id)
        if error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            if self.rack and partition.is_following:
                return ErrorCode.NONE
            if self.node_id == DEBUGGING_CONSUMER and partition.assigned:
                return ErrorCode.NONE
        return error

    def _diverges(self, wanted: Wanted, partition: HostedPartition, answer: Any) -> bool:
        log = partition.log
        if wanted.last_fetched_epoch == log.epochs.latest and wanted.fetch_offset <= log.end_offset:
            return False
        epoch, end = log.end_offset_for_epoch(wanted.last_fetched_epoch)
        if epoch < 0:
            self.urgent = True
            answer.error_code = int(ErrorCode.OFFSET_OUT_OF_RANGE)
            return True
        if epoch == wanted.last_fetched_epoch and end >= wanted.fetch_offset:
            return False
        self.urgent = True
        answer.diverging_epoch = _EpochEndOffset(epoch, end)
        return True

    # -- the closest replica (KIP-392)

    def _sent_to_another(self, wanted: Wanted, partition: HostedPartition, answer: Any) -> bool:
        """Name the replica that the consumer should read from, if it is not this one."""
        reader = self.reader
        if not reader.reads_from_closest:
            return False
        alive = {
            node_id: rack for node_id, _, _, rack in reader.addresses(self.context.listener_name)
        }
        own = Candidate(
            reader.node_id,
            reader.rack,
            partition.start_offset,
            partition.end_offset,
        )
        others = [
            Candidate(node_id, alive[node_id], follower.start_offset, follower.end_offset)
            for node_id, follower in partition.followers.items()
            if node_id in alive and node_id in partition.state.isr
        ]
        chosen = closest(self.rack, wanted.fetch_offset, own, others)
        if chosen == reader.node_id:
            return False
        self.urgent = True
        answer.preferred_read_replica = chosen
        return True

    def _not_yet(self, wanted: Wanted, partition: HostedPartition) -> Any:
        """Have the consumer wait for a watermark on its way; in the end refuse, so that it asks
        the leader."""
        log = partition.log
        error = ErrorCode.OFFSET_NOT_AVAILABLE if self.is_last else ErrorCode.NONE
        mark = log.high_watermark
        return _Partition(wanted.index, int(error), mark, mark, log.start_offset)


def _more_lies_behind(records: Any, offset: int, end: int) -> bool:
    """Return whether what was read from ``offset`` on stops before ``end``. O(its batches)."""
    last = records[-1] if isinstance(records, list) else records
    if isinstance(last, FileRegion):
        return last.more_follows
    for _, header in walk(last):
        offset = header.next_offset
    return offset < end


def why_not_fed(wanted: Wanted, partition: HostedPartition, node_id: int) -> ErrorCode:
    """Return why a follower is not fed from this leader: another topic's life, or no replica."""
    topic_id = partition.topic_id
    # Mostly the very object of last time: two ids are compared in Python.
    if wanted.topic_id is not topic_id and wanted.topic_id != NO_UUID:
        if wanted.topic_id != topic_id:
            return ErrorCode.INCONSISTENT_TOPIC_ID
        wanted.topic_id = topic_id
    if node_id not in partition.state.hosts:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return ErrorCode.NONE


def note_follower(
    reader: Reader,
    wanted: Wanted,
    partition: HostedPartition,
    node_id: int,
    life: int,
    now_ms: int,
) -> None:
    """Take a follower's offset as what it holds, before reading: the watermark may move.

    It counts when topic id and leader epoch are this leader's and the logs do not part below it.
    """
    if wanted.leader_epoch != partition.leader_epoch or why_not_fed(wanted, partition, node_id):
        return
    log = partition.log
    offset = wanted.fetch_offset
    if not log.start_offset <= offset <= log.end_offset:
        return
    last_epoch = wanted.last_fetched_epoch
    if last_epoch >= 0 and last_epoch != log.epochs.latest:
        epoch, end = log.end_offset_for_epoch(last_epoch)
        if epoch != last_epoch or end < offset:
            return
    partition.follower_fetched(node_id, offset, life, now_ms, wanted.log_start)
    reader.fetched(partition, node_id)


def is_news(wanted: Wanted, answer: Any) -> bool:
    """Return whether an incremental answer must have this partition."""
    return bool(
        answer.error_code
        or len(answer.records)
        or answer.high_watermark != wanted.sent_watermark
        or answer.log_start_offset != wanted.sent_start
        or answer.diverging_epoch is not None
        or answer.preferred_read_replica >= 0
    )


def refusal(index: int, error: ErrorCode) -> Any:
    """Return a partition's part of an answer that says an error."""
    return _Partition(index, int(error), -1, -1, -1)


def respond(
    session_id: int, found: Sequence[tuple[Wanted, Any]], note: Callable[[Any, Any], bool] | None
) -> Steps:
    """Make the response, and note for the session what it tells.

    ``note`` is called with each partition's part in the step that puts it into the response; when
    it is False, the session has gone on without this response, and None is returned.
    """
    topics: dict[str, Any] = {}
    for seen, (wanted, part) in enumerate(found):
        if seen and not seen % TOLD_AT_ONCE:
            yield 0
        if note is not None and not note(wanted, part):
            return None
        put_into(topics, wanted, part)
    return _Response(session_id=session_id, responses=list(topics.values()))


def put_into(topics: dict[str, Any], wanted: Wanted, part: Any) -> None:
    """Put a partition's part into the topics of a response, and note what it tells."""
    topic = topics.get(wanted.topic)
    if topic is None:
        topic = topics[wanted.topic] = _Topic(wanted.topic, [])
    topic.partitions.append(part)
    if part.error_code or part.diverging_epoch is not None:
        # Who is told such a thing takes over neither: it must be told again.
        wanted.sent_watermark = wanted.sent_start = -2
    else:
        wanted.sent_watermark = part.high_watermark
        wanted.sent_start = part.log_start_offset


def read_on(
    partition: HostedPartition, found: memoryview, room: int, *, committed: bool = True
) -> list[memoryview]:
    """Return what was read and what follows it in later segments, at most ``room`` bytes.

    For small finds: where compaction left almost nothing of a segment (perhaps one batch
    without records), a client that gets that alone takes it for the end of the log.
    """
    parts = [found]
    while len(parts) < MAX_SLICES and len(parts[-1]) < SMALL_READ_BYTES:
        room -= len(parts[-1])
        next_offset = -1
        for _, header in walk(parts[-1]):
            next_offset = header.next_offset
        if next_offset < 0 or room <= 0:
            break
        more = partition.read(next_offset, room, committed=committed, at_least_one=False)
        if isinstance(more, Rejected) or not more:
            break
        parts.append(more)
    return parts
