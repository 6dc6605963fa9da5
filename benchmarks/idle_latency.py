"""How long does each API take on three brokers that do nothing else?

One connection to each broker, one request at a time; the median in milliseconds. Only the clients'
APIs, each as a client sends it: to a leader, a coordinator, or a broker that is neither. A wait in
the good case for the sake of a bad one shows here.
"""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from tests.support.node import receive_frame
from tests.support.processes import wait_until

from benchmarks.clusters import BROKERS, ClusterTarget, describe
from benchmarks.measuring import Metric
from tidelog.client.connecting.connection import api_of_request
from tidelog.protocol import codec, messages
from tidelog.records.builder import NewRecord, build_batch

REQUESTS, QUICK_REQUESTS = 100, 40
WARM_UP = 20
METADATA_MS = 1.0
"""docs/design/speed.md: a Metadata request on an idle cluster takes less."""

GROUP = "idle-latency"
OFFSET = 7


@dataclass
class Subject:
    """The topic, and the group with its one member."""

    topic: str
    member: str = ""
    generation: int = -1


@dataclass(frozen=True)
class Asked:
    """One line: a request as clients send it, and which broker gets it."""

    name: str
    version: int
    request: Callable[[Subject], Any]
    to: Literal["leader", "another", "coordinator"] = "another"
    limit_ms: float | None = None
    then: tuple[tuple[int, Callable[[Subject], Any]], ...] = field(default=())
    """Versions and requests that follow, within the same time."""


def _metadata(subject: Subject | None) -> Any:
    request = messages.MetadataRequest
    named = None if subject is None else [request.MetadataRequestTopic(name=subject.topic)]
    return request(topics=named, allow_auto_topic_creation=False)


def _produce(subject: Subject) -> Any:
    request = messages.ProduceRequest
    records = build_batch([NewRecord(int(time.time() * 1000), None, b"x" * 100)])
    part = request.PartitionProduceData(index=0, records=records)
    topic = request.TopicProduceData(name=subject.topic, partition_data=[part])
    return request(acks=-1, timeout_ms=30_000, topic_data=[topic])


def _fetch(subject: Subject) -> Any:
    request = messages.FetchRequest
    part = request.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=10_000)
    topic = request.FetchTopic(topic=subject.topic, partitions=[part])
    return request(max_wait_ms=500, min_bytes=1, topics=[topic])


def _list_offsets(subject: Subject, timestamp: int) -> Any:
    request = messages.ListOffsetsRequest
    part = request.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    topic = request.ListOffsetsTopic(name=subject.topic, partitions=[part])
    return request(replica_id=-1, topics=[topic])


def _epoch_end(subject: Subject) -> Any:
    request = messages.OffsetForLeaderEpochRequest
    part = request.OffsetForLeaderPartition(partition=0, leader_epoch=0)
    return request(topics=[request.OffsetForLeaderTopic(topic=subject.topic, partitions=[part])])


def _join(subject: Subject) -> Any:
    request = messages.JoinGroupRequest
    return request(
        group_id=GROUP,
        session_timeout_ms=45_000,
        rebalance_timeout_ms=60_000,
        member_id=subject.member,
        protocol_type="consumer",
        protocols=[request.JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\0")],
    )


def _sync(subject: Subject) -> Any:
    request = messages.SyncGroupRequest
    share = request.SyncGroupRequestAssignment(subject.member, b"\0\0\0\0\0\0")
    return request(
        group_id=GROUP,
        generation_id=subject.generation,
        member_id=subject.member,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[share],
    )


def _heartbeat(subject: Subject) -> Any:
    return messages.HeartbeatRequest(
        group_id=GROUP, generation_id=subject.generation, member_id=subject.member
    )


def _commit(subject: Subject) -> Any:
    request = messages.OffsetCommitRequest
    part = request.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=OFFSET, committed_metadata=""
    )
    return request(
        group_id=GROUP,
        generation_id_or_member_epoch=subject.generation,
        member_id=subject.member,
        topics=[request.OffsetCommitRequestTopic(subject.topic, partitions=[part])],
    )


def _committed(subject: Subject) -> Any:
    request = messages.OffsetFetchRequest
    topic = request.OffsetFetchRequestTopics(subject.topic, partition_indexes=[0])
    return request(
        groups=[request.OffsetFetchRequestGroup(group_id=GROUP, topics=[topic])],
        require_stable=True,
    )


def _configs(subject: Subject) -> Any:
    request = messages.DescribeConfigsRequest
    resource = request.DescribeConfigsResource(2, subject.topic, None)
    return request(resources=[resource], include_synonyms=True)


def _alter(subject: Subject) -> Any:
    request = messages.IncrementalAlterConfigsRequest
    config = request.AlterableConfig("retention.ms", 0, str(time.time_ns()))
    return request(resources=[request.AlterConfigsResource(2, subject.topic, [config])])


def _create(subject: Subject) -> Any:
    request = messages.CreateTopicsRequest
    topic = request.CreatableTopic(f"{subject.topic}-not", 1, 3, [], [])
    return request(topics=[topic], validate_only=True)


def _grow(subject: Subject) -> Any:
    request = messages.CreatePartitionsRequest
    topic = request.CreatePartitionsTopic(subject.topic, 2, None)
    return request(topics=[topic], timeout_ms=30_000, validate_only=True)


def _delete_records(subject: Subject) -> Any:
    request = messages.DeleteRecordsRequest
    topic = request.DeleteRecordsTopic(subject.topic, [request.DeleteRecordsPartition(0, 0)])
    return request(topics=[topic], timeout_ms=30_000)


def _find() -> Any:
    return messages.FindCoordinatorRequest(coordinator_keys=[GROUP])


def _pages(subject: Subject) -> Any:
    request = messages.DescribeTopicPartitionsRequest
    return request(topics=[request.TopicRequest(subject.topic)])


ASKED = (
    Asked("ApiVersions", 3, lambda _: messages.ApiVersionsRequest("bench", "1")),
    Asked("Metadata of a topic", 12, _metadata, limit_ms=METADATA_MS),
    Asked("Metadata of all topics", 12, lambda _: _metadata(None), limit_ms=METADATA_MS),
    Asked("DescribeTopicPartitions", 0, _pages),
    Asked("DescribeCluster", 1, lambda _: messages.DescribeClusterRequest()),
    Asked(
        "FindCoordinator", 4, lambda _: messages.FindCoordinatorRequest(coordinator_keys=[GROUP])
    ),
    Asked("InitProducerId", 4, lambda _: messages.InitProducerIdRequest(None, 60_000)),
    Asked("Produce, acks=all", 9, _produce, "leader"),
    Asked("Fetch of 10 kB", 12, _fetch, "leader"),
    Asked("ListOffsets, latest", 7, lambda subject: _list_offsets(subject, -1), "leader"),
    Asked("ListOffsets by time", 7, lambda subject: _list_offsets(subject, 1), "leader"),
    Asked("OffsetForLeaderEpoch", 4, _epoch_end, "leader"),
    Asked("JoinGroup and SyncGroup", 9, _join, "coordinator", then=((5, _sync),)),
    Asked("Heartbeat", 4, _heartbeat, "coordinator"),
    Asked("OffsetCommit", 9, _commit, "coordinator"),
    Asked("OffsetFetch", 9, _committed, "coordinator"),
    Asked("ListGroups", 5, lambda _: messages.ListGroupsRequest(), "coordinator"),
    Asked("DescribeGroups", 5, lambda _: messages.DescribeGroupsRequest([GROUP]), "coordinator"),
    Asked("DescribeConfigs", 4, _configs),
    Asked("IncrementalAlterConfigs", 1, _alter),
    Asked("CreateTopics, validated", 7, _create),
    Asked("CreatePartitions, validated", 3, _grow),
    Asked("DeleteRecords", 2, _delete_records, "leader"),
    Asked("DescribeLogDirs", 4, lambda _: messages.DescribeLogDirsRequest(topics=None)),
    Asked(
        "ListPartitionReassignments",
        0,
        lambda _: messages.ListPartitionReassignmentsRequest(timeout_ms=30_000, topics=None),
    ),
)


class IdleLatency:
    """The median of each API's time, in milliseconds."""

    title = "three nodes: latency of each API at rest"
    cold = False
    metrics = tuple(
        Metric(
            f"three nodes at rest: {asked.name}",
            "ms",
            "less",
            goal=None if asked.limit_ms else 2.0,
            limit=asked.limit_ms,
        )
        for asked in ASKED
    )

    def measure(self, target: ClusterTarget, quick: bool) -> list[float]:
        with target.topic() as topic, ExitStack() as open_:
            brokers = {
                node_id: _Client(open_, target.node.brokers[node_id].port) for node_id in BROKERS
            }
            subject = Subject(topic)
            leader = describe(target.node.brokers[1].port, topic)[1][0][0]
            another = next(node_id for node_id in BROKERS if node_id != leader)
            places = {
                "leader": brokers[leader],
                "another": brokers[another],
                "coordinator": brokers[_coordinator(brokers[another])],
            }
            places["coordinator"].join(subject)
            target.node.settle()
            count = QUICK_REQUESTS if quick else REQUESTS
            return [places[asked.to].median_ms(asked, subject, count) for asked in ASKED]


def _coordinator(client: _Client) -> int:
    """Find the group's coordinator, which has to be made first."""
    found: list[int] = []

    def is_known() -> bool:
        answer = client.ask(4, _find())
        (coordinator,) = answer.coordinators
        found[:] = [coordinator.node_id]
        return not coordinator.error_code

    wait_until(is_known, 60, "the group has a coordinator")
    return found[0]


class _Client:
    def __init__(self, open_: ExitStack, port: int) -> None:
        self._open, self._port = open_, port

    @cached_property
    def _connection(self) -> socket.socket:
        """Made by the first request: a broker closes one that sends none for ten seconds."""
        made = self._open.enter_context(socket.create_connection(("127.0.0.1", self._port), 60))
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def ask(self, version: int, request: Any) -> Any:
        """One request and its response."""
        key = api_of_request(request).key
        frame = b"".join(codec.encode_request(key, version, 1, "bench", request))
        self._connection.sendall(frame)
        return codec.decode_response(key, version, memoryview(receive_frame(self._connection)))[1]

    def median_ms(self, asked: Asked, subject: Subject, count: int) -> float:
        """The median of so many requests, after some whose times do not count."""
        # Kafka refuses a first producer id until it has its block of them.
        wait_until(lambda: not self._timed(asked, subject)[1], 60, f"{asked.name} is served")
        found = [self._timed(asked, subject) for _ in range(WARM_UP + count)][WARM_UP:]
        assert not any(refused for _, refused in found), (asked.name, found)
        return statistics.median(seconds for seconds, _ in found) * 1000

    def _timed(self, asked: Asked, subject: Subject) -> tuple[float, bool]:
        """How long a request and those after it take, and whether one of them was refused."""
        begun = time.perf_counter()
        answers = [self.ask(asked.version, asked.request(subject))]
        if asked.then:
            subject.generation = answers[0].generation_id
        answers += [self.ask(version, then(subject)) for version, then in asked.then]
        took = time.perf_counter() - begun
        return took, any(getattr(each, "error_code", 0) for each in answers)

    def join(self, subject: Subject) -> None:
        """Make the subject's member the only one of its group."""
        subject.member = ""

        def is_in() -> bool:
            answer = self.ask(9, _join(subject))
            subject.member = answer.member_id or subject.member
            subject.generation = answer.generation_id
            return not answer.error_code

        wait_until(is_in, 60, "the member is in its group")
        assert not self.ask(5, _sync(subject)).error_code


ROWS = (IdleLatency(),)
