"""Reads of one partition for one Fetch request, of a consumer or a follower.

Owns which reader may read up to where, from the leader or, for a consumer that names its rack, from
a follower (KIP-392); and whether a part of a response has changed for its session. Not which
partitions a request reads, nor in which order: see ``handlers.fetch`` and ``follower_sessions``.

| reader | reads from | up to |
|---|---|---|
| a consumer | the leader | its high watermark |
| a consumer with a count (KIP-253) | the same | the first fence of a newer resize epoch, too |
| a consumer of committed records (KIP-98) | the same | the last stable offset, too |
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

from tidelog.broker.fetching.aborted_reads import (
    MOST_OF_REQUEST,
    NOTHING_ABORTED,
    AbortedOfRead,
    aborted_of_read,
    answered,
    may_have_aborted,
)
from tidelog.broker.fetching.record_reads import records_at
from tidelog.broker.partitions.read_limit import READ_COMMITTED, is_at_limit, limit_of_consumer
from tidelog.broker.partitions.resize_checks import why_not_read
from tidelog.model.errors import ErrorCode
from tidelog.model.work import Work
from tidelog.protocol import messages
from tidelog.protocol.primitives import NO_UUID, records_size
from tidelog.records.batch import Rejected, walk
from tidelog.records.record import CorruptRecords
from tidelog.replication.closest import Candidate, closest
from tidelog.replication.resize_rules import NOT_NAMED
from tidelog.runtime import pace
from tidelog.storage.log.aborted_proving import ProvingRead, Unproved
from tidelog.storage.log.cold import ColdRead, cold_aborted, run_all
from tidelog.storage.log.region import FileRegion
from tidelog.storage.log.service import unreadable
from tidelog.storage.log.stable import last_stable_offset

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from tidelog.broker.fetching.client_sessions import Wanted
    from tidelog.broker.metadata.shown_epochs import ShownEpochs
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.broker.partitions.throttles import Throttles
    from tidelog.network.router import Peer, RequestContext

DEBUGGING_CONSUMER = -2

MOST_WARM_UPS = 5
"""Maximum per request: the index, the batches after its entry, the bytes to send; the aborted
transactions and their check."""

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
        "aborted",
        "cold",
        "context",
        "fenced",
        "follower",
        "full",
        "is_last",
        "looked_up",
        "node_id",
        "only_committed",
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
        self.only_committed = request.isolation_level == READ_COMMITTED and not self.follower
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
        self.cold: list[ColdRead | ProvingRead] = []
        """Cold reads for a thread; their partitions have no records in the response yet."""
        self.warmed = 0
        """Number of warm-ups so far."""
        self.aborted = 0
        """Number of aborted transactions in the response."""
        self.looked_up = False
        """Whether the last read looked for some: then the loop's other work should have a turn."""

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
        self.size, self.aborted, self.full = 0, 0, False
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
        stable = mark if self.follower else last_stable_offset(log)
        part = _Partition(wanted.index, 0, mark, stable, log.start_offset)
        part.aborted_transactions = [] if self.only_committed else None
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
        fence = log.end_offset if self.follower else limit_of_consumer(partition, wanted.named)
        end = stable if self.only_committed and stable < fence else fence
        if self.waited and not self.follower and 0 <= wanted.leader_epoch < partition.leader_epoch:
            of_its_epoch = log.end_offset_for_epoch(wanted.leader_epoch)[1]
            if of_its_epoch <= offset < end:
                return self._refused(wanted, partition, ErrorCode.FENCED_LEADER_EPOCH)
            end = min(end, of_its_epoch)
        if is_at_limit(offset, end, mark):
            if fence < mark and not self.follower and is_at_limit(offset, fence, mark):
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
        log, offset = partition.log, wanted.fetch_offset
        looks_up = self.only_committed and may_have_aborted(log, offset)
        if looks_up and self.aborted >= MOST_OF_REQUEST:
            self.full = True
            return part
        records: Any = self._records_at(wanted, partition, room, limit)
        aborted = NOTHING_ABORTED
        if looks_up and not isinstance(records, (ColdRead, Rejected)) and len(records):
            records, aborted = self._committed(wanted, partition, room, records)
        if isinstance(records, (ColdRead, ProvingRead)):
            self.cold.append(records)
            return part
        if isinstance(records, Rejected):
            refused = self._refused(wanted, partition, records.error)
            if records.error is ErrorCode.OFFSET_OUT_OF_RANGE:
                refused.high_watermark = part.high_watermark
                refused.last_stable_offset = part.last_stable_offset
                refused.log_start_offset = log.start_offset
            return refused
        if aborted.transactions:
            part.aborted_transactions = answered(aborted.transactions)
            self.aborted += len(aborted.transactions)
        size = records_size(records)
        self.size += size
        partition.bytes_out += size
        part.records = records
        return part

    def _records_at(
        self, wanted: Wanted, partition: HostedPartition, room: int, limit: int
    ) -> memoryview | list[Any] | ColdRead | Rejected:
        return records_at(
            partition,
            wanted.fetch_offset,
            min(room, wanted.max_bytes),
            limit=limit,
            at_least_one=not self.size,
            from_file=self.context.connection.can_send_files(),
            may_be_cold=self.warmed < MOST_WARM_UPS,
        )

    def _committed(
        self, wanted: Wanted, partition: HostedPartition, room: int, records: Any
    ) -> tuple[bytes | memoryview | list[Any] | ColdRead | ProvingRead | Rejected, AbortedOfRead]:
        """Return records that were read, with their aborted transactions; fewer records where
        these are too many for the response."""
        log, offset = partition.log, wanted.fetch_offset
        cold = cold_aborted(log, offset) if self.warmed < MOST_WARM_UPS else None
        if cold is not None:
            return cold, NOTHING_ABORTED
        self.looked_up = True
        may_wait = self.waited or self.warmed < MOST_WARM_UPS
        most = MOST_OF_REQUEST - self.aborted
        try:
            aborted = aborted_of_read(log, offset, records, most, soon=may_wait)
        except Unproved as unproved:
            if not self.waited:
                return ProvingRead(log, unproved.base), NOTHING_ABORTED
            # No thread can read now: the next request of the client begins with that.
            self.full = True
            return b"", NOTHING_ABORTED
        except (OSError, CorruptRecords) as error:
            refused = unreadable(log, error)
            partition.check_disk()
            return refused, NOTHING_ABORTED
        if aborted.end is not None:
            self.full = True
            records = self._records_at(wanted, partition, room, aborted.end)
        return records, aborted

    def _refused(self, wanted: Wanted, partition: HostedPartition, error: ErrorCode) -> Any:
        self.urgent = True
        partition.counts.fetch_refused(error)
        return refusal(wanted.index, error)

    def _why_not(self, wanted: Wanted, partition: HostedPartition) -> ErrorCode:
        if self.follower:
            error = partition.why_not_serving(wanted.leader_epoch)
            return error or why_not_replicated(wanted, partition, self.node_id)
        ask = partition.why_not_answering if self.waited else partition.why_not_serving
        error = ask(wanted.leader_epoch)
        if error is ErrorCode.NOT_LEADER_OR_FOLLOWER and (
            (self.rack and partition.is_following)
            or (self.node_id == DEBUGGING_CONSUMER and partition.assigned)
        ):
            error = ErrorCode.NONE
        if error is ErrorCode.NONE and wanted.named is not NOT_NAMED:
            return why_not_read(partition, wanted.named, self.reader.shown)
        return error

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
        mark, stable = log.high_watermark, last_stable_offset(log)
        part = _Partition(wanted.index, int(error), mark, stable, log.start_offset)
        part.aborted_transactions = [] if self.only_committed else None
        return part


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
        or wanted.is_dirty(part.high_watermark, part.last_stable_offset, part.log_start_offset)
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
        wanted.sent(-2, -2, -2)
    else:
        wanted.sent(part.high_watermark, part.last_stable_offset, part.log_start_offset)
