"""A hosted partition that serves Produce requests by the fast path or the handler, with no loop.

Owns the two ways in and what can be seen of the partition afterwards. Not what is sent. A request
that must wait on an event loop (acks=all while followers lag) cannot be served here.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import GeneratorType, SimpleNamespace
from typing import Any, Protocol

from tests.support.storage_logs import (
    NOW_MS,
    PARTITION,
    TOPIC_ID,
    FixedClock,
    QuickDisk,
    open_as_a_server,
    resources,
)
from tidelog.broker.handlers import produce
from tidelog.broker.partitions import produce_fast_path
from tidelog.broker.partitions.partition import HostedPartition, LeaderAndIsrState
from tidelog.broker.partitions.resuming_producers import ResumingProducers
from tidelog.broker.partitions.unaware_writers import NEVER
from tidelog.model.api_keys import ApiKey
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.errors import ErrorCode
from tidelog.model.principals import ANONYMOUS
from tidelog.model.work import finish
from tidelog.network.router import RequestContext, begun
from tidelog.protocol import codec
from tidelog.records.batch import Rejected
from tidelog.replication.resize_rules import NOT_NAMED, Named
from tidelog.storage.checkpoints import PartitionMetadata
from tidelog.storage.log.producers import RESUMES
from tidelog.storage.log.retention import ROLL_WAITS

VERSION, CORRELATION = 11, 77
COUNT = 8
"""The partitions of the topic, which was never resized."""

_decode = codec.request_decoder(ApiKey.PRODUCE, VERSION, None)
_PEER: Any = SimpleNamespace(listener_name="L")


class Role(Protocol):
    """Whether the partition is led here, and its ISR and replicas."""

    @property
    def leads(self) -> bool: ...

    @property
    def layout(self) -> tuple[tuple[int, ...], tuple[int, ...]]: ...


class Now:
    """An awaited result that is there already."""

    def __init__(self, result: Any) -> None:
        self.result = result

    def __await__(self) -> Iterator[None]:
        yield from ()
        return self.result


class NoLoop:
    """What the handler needs of a loop, with all done at once."""

    def create_task(self, work: Any) -> Any:
        try:
            work.send(None)
        except StopIteration as end:
            return end.value
        raise AssertionError("it waits for something")

    def time(self) -> float:
        return 0.0


class FillingDisk(QuickDisk):
    """A disk with room for ``room`` more bytes of batches: the write that exceeds it is torn."""

    room: int | None = None

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> Any:
        file: Any = super().open(path, create=create, read_only=read_only)
        return _FillingFile(self, file) if path.endswith(".log") else file


class _FillingFile:
    def __init__(self, disk: FillingDisk, file: Any) -> None:
        self._disk, self._file = disk, file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write_at(self, position: int, chunks: Sequence[Any]) -> int:
        room, whole = self._disk.room, b"".join(chunks)
        if room is not None and len(whole) > room:
            self._file.write_at(position, [whole[:room]])
            raise OSError(errno.ENOSPC, "planted", self._file.path)
        return int(self._file.write_at(position, [whole]))


class Hosted:
    """A hosted partition with its log on disk, and the broker that requests come to."""

    def __init__(self, folder: Path, configs: TopicConfigs) -> None:
        self.folder = folder / "t-0"
        self.clock = FixedClock(NOW_MS)
        self.resuming = ResumingProducers(self.clock)
        self.unaware = 0
        """Batches without a count that were noted."""
        self.refused = 0
        """Refused batches that were noted."""
        self.disk = FillingDisk()
        self.directory = open_as_a_server(folder, resources(self.disk))
        log = self.directory.create(PARTITION, configs, PartitionMetadata(TOPIC_ID, 0, ()))
        commit = SimpleNamespace(before_ack=False, want=lambda _: None)
        self.partition = HostedPartition(PARTITION, log, 1, commit)
        hints = SimpleNamespace(
            why_not_here=lambda *_: ErrorCode.NOT_LEADER_OR_FOLLOWER,
            name_leaders=lambda *_, **__: None,
        )
        self.broker: Any = SimpleNamespace(
            partitions=SimpleNamespace(by_topic={"t": {0: self.partition}}),
            clock=self.clock,
            leader_hints=hints,
            inspected_appends=self,
            resuming_producers=self.resuming,
            loop=NoLoop(),
            configs=SimpleNamespace(broker_listeners=()),
            metadata=SimpleNamespace(topic=lambda _: None),
            unaware_writers=SimpleNamespace(
                note=self._unaware,
                note_refused=self._refused,
                may_append=lambda *_: True,
                last_ms={},
            ),
        )

    def add(
        self, partition: HostedPartition, records: Any, allowance: Any, *_: Any, **__: Any
    ) -> Now:
        """As ``inspected_appends`` does it in turns: inspect, sync before a roll, append."""
        now_ms, log = self.clock.now_ms, partition.log
        found = finish(log.inspect(bytes(records), now_ms, allowance))
        if isinstance(found, Rejected):
            return Now(found)
        append = partial(partition.append, records, now_ms, inspected=found)
        result = append()
        if result is ROLL_WAITS:
            assert finish(log.syncing_before_roll()) is None
            result = append()
        if result is RESUMES:
            result = self.resuming.append(partition, records, partial(append, resumes=True))
        if isinstance(result, Rejected):
            self.resuming.note_refusal(partition, records, result.error)
        return Now(result)

    def _unaware(self, partition: HostedPartition, named: Named, *_: Any) -> None:
        # The fast path notes the next one too, whatever the time.
        partition.noted_ms = NEVER
        self.unaware += named is NOT_NAMED and partition is self.partition

    def _refused(self, partition: HostedPartition, _: Named) -> None:
        self.refused += partition is self.partition

    def become(self, role: Role, leader_epoch: int) -> None:
        """Lead or follow, as LeaderAndIsr says it."""
        isr, replicas = role.layout
        self.partition.become(
            LeaderAndIsrState(
                topic_id=TOPIC_ID,
                leader=1 if role.leads else 2,
                leader_epoch=leader_epoch,
                isr=isr,
                replicas=replicas,
                partition_epoch=0,
                undeleted_count=COUNT,
            )
        )

    def general(self, request: Any) -> bytes:
        """The response of the handler, with the general append."""
        log = self.partition.log
        kept, log.keeps_batches = log.keeps_batches, False
        try:
            return self._handled(request)
        finally:
            log.keeps_batches = kept

    def _handled(self, request: Any) -> bytes:
        context = RequestContext(_PEER, VERSION, CORRELATION, "c", ANONYMOUS)
        response = begun(produce.handle(self.broker, request, context))
        if isinstance(response, GeneratorType):
            response = finish(response)
        return b"".join(codec.encode_response(ApiKey.PRODUCE, VERSION, CORRELATION, response))

    def flat(self, request: Any) -> bytes:
        """The response of the fast path, or of the handler where that leaves the request alone.

        Both read the same bytes, as in a connection's buffer, which an append may write to.
        """
        chunks = codec.encode_request(ApiKey.PRODUCE, VERSION, CORRELATION, "c", request)
        frame = memoryview(bytearray().join(chunks))[4:]
        at = codec.decode_request_header(frame).body
        answered: Any = produce_fast_path.answer(
            self.broker, frame, at, VERSION, CORRELATION, _PEER
        )
        if answered is not None:
            return bytes(answered)
        again, stop = _decode(frame, at)
        assert stop == len(frame)
        return self._handled(again)

    def state(self) -> dict[str, Any]:
        """All that the next request, a reader, a follower or a start can find out."""
        partition, log = self.partition, self.partition.log
        counts = partition.counts
        return {
            "offsets": (log.start_offset, log.end_offset, log.high_watermark),
            "epochs": (log.epochs.entries, partition.leader_epoch),
            "producers": {
                key: (entry.epoch, entry.batches) for key, entry in log.producers.entries.items()
            },
            "idle": list(log.producers.entries),
            "segments": [self._segment(segment) for segment in log.segments],
            "files": {
                path.name: path.read_bytes() for path in self.folder.iterdir() if path.is_file()
            },
            "unsynced": {Path(path).name for path in log.dirty.files},
            "names": (log.dirty.names_unsynced, log.waits_to_roll),
            "counted": (counts.appends, counts.refused_appends, counts.messages(log.end_offset)),
            "unaware": self.unaware,
            "bytes": (partition.bytes_in, partition.waiting.uncommitted_bytes),
        }

    @staticmethod
    def _segment(segment: Any) -> tuple[Any, ...]:
        return (
            (segment.base_offset, segment.size, segment.next_offset, segment.newest),
            [segment.index.fields(at) for at in range(len(segment.index))],
            [segment.time_index.fields(at) for at in range(len(segment.time_index))],
            segment.checked,
        )
