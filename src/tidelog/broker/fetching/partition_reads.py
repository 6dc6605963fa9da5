"""Reads of one partition for one Fetch request, of a consumer or a follower.

Owns which reader may read up to where, from the leader or, for a consumer that names its rack, from
a follower (KIP-392); and whether a part of a response has changed for its session. Not which
partitions a request reads, nor in which order: see ``handlers.fetch`` and ``follower_sessions``.

| reader | reads from | up to |
|---|---|---|
| a consumer | the leader | its high watermark |
| a consumer with a count (KIP-253) | the same | the first fence of a newer resize epoch, too |
| a consumer with a rack | a follower | the follower's high watermark; beyond it the fetch waits |
| a follower that is a replica | the leader | the log end |
| Kafka's debugging consumer (-2), which compares replicas | any replica | its high watermark |

A consumer that has waited while its leader began a newer leader epoch gets no record of that epoch:
FENCED_LEADER_EPOCH, as soon as there is one. It has asked for the end of the former epoch, perhaps,
and takes a position beyond that end for a truncation: librdkafka then drops the records that the
application has not received yet (its ``rd_kafka_toppar_handle_OffsetForLeaderEpoch``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidelog.broker.partitions.read_limit import is_at_limit, limit_of_consumer
from tidelog.broker.partitions.resize_checks import why_not_read
from tidelog.model.errors import ErrorCode
from tidelog.model.work import Work
from tidelog.protocol import messages
from tidelog.protocol.primitives import NO_UUID, records_size
from tidelog.records.batch import Rejected, walk
from tidelog.replication.closest import Candidate, closest
from tidelog.replication.resize_rules import NOT_NAMED
from tidelog.runtime import pace
from tidelog.storage.log.cold import ColdRead, cold_read, run_all
from tidelog.storage.log.reading import read_before
from tidelog.storage.log.region import FileRegion, find_region

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from tidelog.broker.fetching.client_sessions import Wanted
    from tidelog.broker.metadata.shown_epochs import ShownEpochs
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.broker.partitions.throttles import Throttles
    from tidelog.network.router import Peer, RequestContext
    from tidelog.storage.log.partition_log import PartitionLog

READ_COMMITTED = 1
DEBUGGING_CONSUMER = -2

SMALL_READ_BYTES = 4096
"""A read of less that ends at the end of a segment continues in the next segments."""

MOST_WARM_UPS = 3
"""Maximum per request: the index, the batches after its entry, the bytes to send."""

MAX_SLICES = 64
"""Maximum number of segments in one read."""

_Response = messages.FetchResponse
_Topic = messages.FetchResponse.FetchableTopicResponse
_Partition = messages.FetchResponse.PartitionData
_EpochEndOffset = messages.FetchResponse.EpochEndOffset


@dataclass(frozen=True, slots=True)
class Reader:
    """The parts that all reads of one broker use."""

    node_id: int
    rack: str | None
    most_bytes: int
    """Per response: ``fetch.max.bytes``."""
    reads_from_closest: bool
    """Whether consumers are sent to the replica in their rack (KIP-392)."""
    threads: Executor | None
    addresses: Callable[[str], list[tuple[int, str, int, str | None]]]
    """The live brokers (node id, host, port, rack) as the clients of a listener see them."""
    throttles: Throttles
    """Of copies that this broker sends."""
    shown: ShownEpochs
    """The resize epochs in this broker's metadata."""
    fetched: Callable[[HostedPartition, int], None]
    """Called when a follower's fetch offset was noted: it may join the ISR now."""

    def room(self, max_bytes: int, client: Peer) -> int:
        """Return how many bytes of records a response to this client may have."""
        # None at all while other clients leave too much unread: the next request waits.
        return min(max(1, min(max_bytes, self.most_bytes)), client.answer_budget())


class Reading:
    """The reads for one request: at once, and again after a wait or a warm-up."""

    __slots__ = (
        "cold",
        "context",
        "fenced",
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
        """Whether the response must be sent at once."""
        self.full = False
        """Whether records were read, and a limit excludes others that could be read: a wait for
        ``min_bytes`` would not end before its timeout."""
        self.is_last = request.max_wait_ms <= 0
        """Whether to respond with the records of this read, however few."""
        self.waited = False
        """Whether the request was read before, and has waited for more records."""
        self.fenced: dict[HostedPartition, int] = {}
        """The partitions whose next records come after a fence that this consumer must not pass,
        and its resize epoch: no append is a reason to read them again."""
        self.cold: list[ColdRead] = []
        """Cold reads for a thread; their partitions have no records in the response yet."""
        self.warmed = 0
        """Number of warm-ups so far."""

    def again(self) -> None:
        """The wait is over: respond with the records of the next read."""
        self.is_last = self.waited = True
        self.warmed = MOST_WARM_UPS  # the new records were just written

    async def warm_up(self) -> None:
        """Perform the cold reads in a thread; afterwards the request is read again."""
        cold, self.cold = self.cold, []
        self.warmed += 1
        try:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self.reader.threads, run_all, cold)
        finally:
            for read in cold:
                read.done()

    def forget_cold(self) -> None:
        """Close the files of the cold reads: they are not needed."""
        cold, self.cold = self.cold, []
        for read in cold:
            read.done()

    def begin(self) -> None:
        """Begin a read: determine how many bytes the response may have."""
        self.size, self.full = 0, False
        self.fenced.clear()
        self.room = self.reader.room(self.request.max_bytes, self.context.connection)

    def read(self, wanted: Wanted, partition: HostedPartition) -> Any:
        """Return the partition's part of the response."""
        error = self._why_not(wanted, partition)
        if error is not ErrorCode.NONE:
            return self._refused(wanted, partition, error)
        log = partition.log
        offset = wanted.fetch_offset
        mark = log.high_watermark
        part = _Partition(wanted.index, 0, mark, mark, log.start_offset)
        part.aborted_transactions = (
            [] if self.request.isolation_level == READ_COMMITTED and not self.follower else None
        )
        if wanted.last_fetched_epoch >= 0 and self._diverges(wanted, partition, part):
            return part
        if self.rack:
            if partition.is_leader:
                if self._sent_to_another(wanted, partition, part):
                    return part
            elif mark < offset <= log.end_offset:
                # The leader's high watermark may be higher: its next response brings it.
                return self._not_yet(wanted, partition)
        room = self.room - self.size
        end = log.end_offset if self.follower else limit_of_consumer(partition, wanted.named)
        if self.waited and not self.follower and 0 <= wanted.leader_epoch < partition.leader_epoch:
            of_its_epoch = log.end_offset_for_epoch(wanted.leader_epoch)[1]
            if of_its_epoch <= offset < end:
                return self._refused(wanted, partition, ErrorCode.FENCED_LEADER_EPOCH)
            end = min(end, of_its_epoch)
        if is_at_limit(offset, end, mark):
            if end < mark and not self.follower:
                self.fenced[partition] = wanted.named.resize_epoch
            return part
        if self.follower and self.reader.throttles.free_in_ms(partition, self.node_id):
            return part  # it stays to be read: a later request of the follower finds it free
        if room > 0:
            before = partition.bytes_out
            part = self._records(wanted, partition, part, room, end)
            counts = partition.counts
            counts.fetches += 1
            if self.follower:
                sent = partition.bytes_out - before
                counts.replicated_out += sent
                if partition.state.is_copied_to(self.node_id):
                    counts.reassigned_out += sent
                self.reader.throttles.copied(partition, self.node_id, sent)
        if 0 < self.size < self.request.min_bytes and not part.error_code:
            self.full = self.full or _more_follows(part.records, offset, end)
        return part

    def _records(
        self, wanted: Wanted, partition: HostedPartition, part: Any, room: int, limit: int
    ) -> Any:
        records = records_at(
            partition,
            wanted.fetch_offset,
            min(room, wanted.max_bytes),
            limit=limit,
            at_least_one=not self.size,
            from_file=self.context.connection.can_send_files(),
            may_be_cold=self.warmed < MOST_WARM_UPS,
        )
        if isinstance(records, ColdRead):
            self.cold.append(records)
            return part
        if isinstance(records, Rejected):
            refused = self._refused(wanted, partition, records.error)
            if records.error is ErrorCode.OFFSET_OUT_OF_RANGE:
                log = partition.log
                refused.high_watermark = refused.last_stable_offset = log.high_watermark
                refused.log_start_offset = log.start_offset
            return refused
        size = records_size(records)
        self.size += size
        partition.bytes_out += size
        part.records = records
        return part

    def _refused(self, wanted: Wanted, partition: HostedPartition, error: ErrorCode) -> Any:
        self.urgent = True
        partition.counts.fetch_refused(error)
        return refusal(wanted.index, error)

    def _why_not(self, wanted: Wanted, partition: HostedPartition) -> ErrorCode:
        goes_on = self.waited and not self.follower
        ask = partition.why_not_answering if goes_on else partition.why_not_serving
        error = ask(wanted.leader_epoch)
        if self.follower:
            return error or why_not_replicated(wanted, partition, self.node_id)
        if error is ErrorCode.NOT_LEADER_OR_FOLLOWER and (
            (self.rack and partition.is_following)
            or (self.node_id == DEBUGGING_CONSUMER and partition.assigned)
        ):
            error = ErrorCode.NONE
        return error or why_not_read(partition, wanted.named, self.reader.shown)

    def _diverges(self, wanted: Wanted, partition: HostedPartition, part: Any) -> bool:
        log = partition.log
        if wanted.last_fetched_epoch == log.epochs.latest and wanted.fetch_offset <= log.end_offset:
            return False
        epoch, end = log.end_offset_for_epoch(wanted.last_fetched_epoch)
        if epoch < 0:
            self.urgent = True
            part.error_code = int(ErrorCode.OFFSET_OUT_OF_RANGE)
            return True
        if epoch == wanted.last_fetched_epoch and end >= wanted.fetch_offset:
            return False
        self.urgent = True
        part.diverging_epoch = _EpochEndOffset(epoch, end)
        return True

    # -- the closest replica (KIP-392)

    def _sent_to_another(self, wanted: Wanted, partition: HostedPartition, part: Any) -> bool:
        """Set the preferred read replica of the consumer, if it is another broker."""
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
        part.preferred_read_replica = chosen
        return True

    def _not_yet(self, wanted: Wanted, partition: HostedPartition) -> Any:
        """Let the consumer wait for the next high watermark; refuse when its wait is over, so that
        it requests the leader."""
        log = partition.log
        error = ErrorCode.OFFSET_NOT_AVAILABLE if self.is_last else ErrorCode.NONE
        mark = log.high_watermark
        return _Partition(wanted.index, int(error), mark, mark, log.start_offset)


def _more_follows(records: Any, offset: int, end: int) -> bool:
    """Return whether records read from ``offset`` end before ``end``. O(their batches)."""
    last = records[-1] if isinstance(records, list) else records
    if isinstance(last, FileRegion):
        return last.more_follows
    for _, header in walk(last):
        offset = header.next_offset
    return offset < end


def why_not_replicated(wanted: Wanted, partition: HostedPartition, node_id: int) -> ErrorCode:
    """Return why a follower may not copy this partition: another topic id, or it is no replica.

    A follower names no count, and reads up to the log end, over fences: one that has a count is
    refused, because a limit by its resize epoch would stop the copy.
    """
    if wanted.named is not NOT_NAMED:
        return ErrorCode.INVALID_REQUEST
    if not wanted.is_of(partition) and wanted.topic_id != NO_UUID:
        return ErrorCode.INCONSISTENT_TOPIC_ID
    if node_id not in partition.state.hosts:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return ErrorCode.NONE


def note_follower(
    reader: Reader,
    wanted: Wanted,
    partition: HostedPartition,
    node_id: int,
    broker_epoch: int,
    now_ms: int,
) -> None:
    """Note a follower's fetch offset as its log end, before the read: the watermark may move.

    It counts when topic id and leader epoch are this leader's and the logs do not diverge below it.
    """
    if wanted.leader_epoch != partition.leader_epoch or why_not_replicated(
        wanted, partition, node_id
    ):
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
    partition.follower_fetched(node_id, offset, broker_epoch, now_ms, wanted.log_start)
    reader.fetched(partition, node_id)


def has_changed(wanted: Wanted, part: Any) -> bool:
    """Return whether an incremental response must include this partition."""
    return bool(
        part.error_code
        or len(part.records)
        or wanted.is_dirty(part.high_watermark, part.log_start_offset)
        or part.diverging_epoch is not None
        or part.preferred_read_replica >= 0
    )


def refusal(index: int, error: ErrorCode) -> Any:
    """Return a partition's part of a response, with an error."""
    return _Partition(index, int(error), -1, -1, -1)


def respond(
    session_id: int, answers: Sequence[tuple[Wanted, Any]], note: Callable[[Any, Any], bool] | None
) -> Work[Any]:
    """Build the response, and note its contents in the session.

    ``note`` is called with each partition's part in the step that adds it to the response. When it
    returns False, another request has superseded this one, and None is returned.
    """
    topics: dict[str | bytes, Any] = {}
    for seen, (wanted, part) in enumerate(answers):
        if seen and not seen % pace.PART:
            yield 0
        if note is not None and not note(wanted, part):
            return None
        put_into(topics, wanted, part)
    return _Response(session_id=session_id, responses=list(topics.values()))


def put_into(topics: dict[str | bytes, Any], wanted: Wanted, part: Any) -> None:
    """Add a partition's part to the topics of a response, and note the offsets sent."""
    topic = topics.get(wanted.key)
    if topic is None:
        topic = topics[wanted.key] = _Topic(wanted.topic, wanted.topic_id, [])
    topic.partitions.append(part)
    if part.error_code or part.diverging_epoch is not None:
        # The receiver ignores both offsets of such a part: they must be sent again.
        wanted.sent(-2, -2)
    else:
        wanted.sent(part.high_watermark, part.log_start_offset)


def records_at(
    partition: HostedPartition,
    offset: int,
    most: int,
    *,
    limit: int,
    at_least_one: bool,
    from_file: bool,
    may_be_cold: bool,
) -> memoryview | list[Any] | ColdRead | Rejected:
    """Return whole batches from ``offset`` on, at most ``most`` bytes up to ``limit``: in memory,
    or, ``from_file`` and if they are many, as a part of the file. Counts nothing.

    ``at_least_one``: a larger first batch is returned whole. With ``may_be_cold`` a ``ColdRead`` of
    what a thread must read first.
    """
    log = partition.log
    before = read_before(log, offset, most, limit, at_least_one=at_least_one)
    if before is not None:
        return before
    remembered = log.segments.remembered(offset)
    if may_be_cold:
        cold = cold_read(log, offset, most, remembered)
        if cold is not None:
            return cold
    if from_file:
        region = find_region(log, offset, most, min(limit, log.high_watermark), remembered)
        if region is not None:
            return [region]
    records = log.read(offset, most, limit, at_least_one=at_least_one)
    if isinstance(records, Rejected):
        if records.error is ErrorCode.KAFKA_STORAGE_ERROR:
            partition.check_disk()
        return records
    # An empty read (no room for the first batch) has no end to continue from.
    if 0 < len(records) < SMALL_READ_BYTES and offset < log.segments.active.base_offset:
        return _read_on(log, records, most, limit)
    return records


def _read_on(log: PartitionLog, first: memoryview, room: int, limit: int) -> list[memoryview]:
    """Return the records read and those that follow in later segments, at most ``room`` bytes.

    For small reads: where compaction left almost nothing of a segment (perhaps one batch without
    records), a client that receives only that takes it for the end of the log.
    """
    parts = [first]
    while len(parts) < MAX_SLICES and len(parts[-1]) < SMALL_READ_BYTES:
        room -= len(parts[-1])
        next_offset = -1
        for _, header in walk(parts[-1]):
            next_offset = header.next_offset
        if next_offset < 0 or room <= 0:
            break
        more = log.read(next_offset, room, limit, at_least_one=False)
        if isinstance(more, Rejected) or not more:
            break
        parts.append(more)
    return parts
