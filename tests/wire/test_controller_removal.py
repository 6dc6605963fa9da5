"""The active controller asks leaders of retired partitions over the wire, purges and removes."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tests.support.controller_process import RecordedBroker, World, run, served, topic
from tests.support.lone_broker import until
from tests.support.reporting_brokers import counts
from tidelog.controller.controller import Controller
from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.decision import Decision, Put, Write
from tidelog.metadata import layout
from tidelog.metadata.records import FormerPartition
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import OFFSETS_TOPIC, TopicPartition
from tidelog.network.router import Handler, Scope
from tidelog.protocol import messages
from tidelog.records.control_records import ChangeKind

SEALED_AT, DATA_END = 41, 40
LOOK_MS = "20"


class LeadingBroker(RecordedBroker):
    """Leads sealed partitions whose logs begin at ``starts``, and coordinates groups."""

    def __init__(self, node_id: int) -> None:
        super().__init__(node_id)
        self.starts: dict[int, int] = {}
        self.stable_end = SEALED_AT + 1
        self.groups: dict[str, dict[int, int]] = {}
        self.groups_error = ErrorCode.NONE
        self.members: dict[str, tuple[bytes, bytes]] = {}
        """Subscription and assignment of the member of each group that has one."""
        self.expires_ms: dict[str, int] = {}
        """When the offsets of a group expire."""
        self.asked: list[str] = []
        self.deleted: list[tuple[int, int]] = []
        self.leader_epoch = 0
        self.refuses_to_close: set[int] = set()
        self.closed: list[int] = []

    def handlers(self) -> list[Handler]:
        keys = (
            ApiKey.DESCRIBE_FENCES,
            ApiKey.LIST_OFFSETS,
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            ApiKey.DELETE_RECORDS,
            ApiKey.LIST_GROUPS,
            ApiKey.DESCRIBE_GROUPS,
            ApiKey.OFFSET_FETCH,
        )
        return [*super().handlers(), *(served(key, Scope.CLIENT, self._answer) for key in keys)]

    def _answer(self, _broker: Any, request: Any, _context: Any) -> Any:
        self.asked.append(type(request).__name__.removesuffix("Request"))
        match request:
            case messages.DescribeFencesRequest():
                return self._fences(request)
            case messages.ListOffsetsRequest():
                return self._offsets(request)
            case messages.OffsetForLeaderEpochRequest():
                return self._ends(request)
            case messages.DeleteRecordsRequest():
                for each in request.topics[0].partitions:
                    self.deleted.append((each.partition_index, each.offset))
                    self.starts[each.partition_index] = each.offset
                return messages.DeleteRecordsResponse()
            case messages.ListGroupsRequest():
                listed = messages.ListGroupsResponse.ListedGroup
                groups = [
                    listed(name, "consumer", "Stable" if name in self.members else "Empty")
                    for name in self.groups
                ]
                return messages.ListGroupsResponse(error_code=self.groups_error, groups=groups)
            case messages.DescribeGroupsRequest():
                return self._described(request)
        return self._committed(request)

    def _fences(self, request: messages.DescribeFencesRequest) -> Any:
        answer = messages.DescribeFencesResponse
        ends: dict[int, int] = {}
        for asked in (each for named in request.topics for each in named.partitions):
            if asked.closes and asked.partition not in self.refuses_to_close:
                self.closed.append(asked.partition)
                ends[asked.partition] = SEALED_AT + 1
        seal = answer.Fence(2, 1, SEALED_AT, int(ChangeKind.SEAL), DATA_END)
        return answer(
            topics=[
                answer.Topic(
                    asked.topic,
                    [
                        answer.Partition(
                            each.partition,
                            0,
                            self.leader_epoch,
                            [seal],
                            ends.get(each.partition, -1),
                        )
                        for each in asked.partitions
                    ],
                )
                for asked in request.topics
            ]
        )

    def _offsets(self, request: messages.ListOffsetsRequest) -> Any:
        answer = messages.ListOffsetsResponse
        assert request.isolation_level == 1 and request.replica_id == -1
        found = []
        for each in request.topics[0].partitions:
            at = self.starts[each.partition_index] if each.timestamp == -2 else self.stable_end
            is_fenced = each.current_leader_epoch != self.leader_epoch
            error = ErrorCode.FENCED_LEADER_EPOCH if is_fenced else ErrorCode.NONE
            part = answer.ListOffsetsPartitionResponse
            found.append(part(each.partition_index, error, -1, at, self.leader_epoch))
        return answer(topics=[answer.ListOffsetsTopicResponse(request.topics[0].name, found)])

    def _ends(self, request: messages.OffsetForLeaderEpochRequest) -> Any:
        answer = messages.OffsetForLeaderEpochResponse
        asked = request.topics[0]
        found = [
            answer.EpochEndOffset(0, each.partition, each.leader_epoch, SEALED_AT + 1)
            for each in asked.partitions
        ]
        return answer(topics=[answer.OffsetForLeaderTopicResult(asked.topic, found)])

    def _described(self, request: messages.DescribeGroupsRequest) -> Any:
        answer = messages.DescribeGroupsResponse
        member = answer.DescribedGroupMember
        return answer(
            groups=[
                answer.DescribedGroup(
                    group_id=name,
                    members=[
                        member(
                            member_metadata=self.members[name][0],
                            member_assignment=self.members[name][1],
                        )
                    ],
                )
                for name in request.groups
            ]
        )

    def _committed(self, request: messages.OffsetFetchRequest) -> Any:
        answer = messages.OffsetFetchResponse
        part = answer.OffsetFetchResponsePartitions
        assert request.include_expiry
        return answer(
            groups=[
                answer.OffsetFetchResponseGroup(
                    group.group_id,
                    [
                        answer.OffsetFetchResponseTopics(
                            "t",
                            partitions=[
                                part(x, y, expires_ms=self.expires_ms.get(group.group_id, -1))
                                for x, y in self.groups[group.group_id].items()
                            ],
                        )
                    ],
                )
                for group in request.groups
            ]
        )


async def leading(world: World, controller: Any) -> LeadingBroker:
    broker = LeadingBroker(1)
    world.brokers.append(broker)
    await broker.listen()
    assert (await broker.register(controller.listener_port)).error_code == 0
    return broker


async def started(
    world: World, check_ms: str = LOOK_MS, delay_ms: str = "0", **configs: str
) -> tuple[Any, LeadingBroker]:
    """A topic of three partitions of which the upper two are retired, at resize epoch 2."""
    controller = await world.controller(
        inter_broker_protocol_version="1.5",
        retired_check_interval_ms=check_ms,
        retired_purge_delay_ms=delay_ms,
    )
    broker = await leading(world, controller)
    assert (await broker.forward(topic("t", 3, 1, **configs), 7)).topics[0].error_code == 0
    broker.starts = {1: 0, 2: 0}

    def shrink(cluster: ClusterState) -> Decision[None]:
        node = msgspec.structs.replace(
            cluster.topics["t"], initial_partition_count=1, undeleted_partition_count=1
        )
        history = msgspec.structs.replace(
            cluster.topic_histories["t"], initial_partition_count=1, resize_epoch=2
        )
        writes: list[Write] = [
            Put(layout.topic("t"), node),
            Put(layout.topic_history("t"), history),
        ]
        for index in (1, 2):
            known = cluster.partition_nodes[TopicPartition("t", index)]
            born = msgspec.structs.replace(known, birth_epoch=1, retirement_epoch=2)
            writes.append(Put(layout.partition("t", index), born))
        return Decision(None, tuple(writes))

    await controller.perform(shrink)
    return controller, broker


def listed(controller: Controller) -> list[int]:
    return sorted(controller.cluster.topics["t"].partitions)


async def looked(broker: LeadingBroker, times: int = 2) -> None:
    """Wait until the controller has asked again, from the beginning to the end of a look."""
    seen = broker.asked.count("OffsetForLeaderEpoch")
    await until(lambda: broker.asked.count("OffsetForLeaderEpoch") >= seen + times)


def test_empty_partitions_go_from_the_top_and_their_replicas_are_stopped_after_that() -> None:
    async def scenario(world: World) -> None:
        controller, broker = await started(world)
        broker.starts[1] = DATA_END
        await looked(broker)
        assert listed(controller) == [0, 1, 2], "the highest has data"
        broker.starts[2] = DATA_END
        broker.stable_end = SEALED_AT
        await looked(broker)
        assert listed(controller) == [0, 1, 2], "a transaction is open"
        broker.stable_end = SEALED_AT + 1
        await until(lambda: listed(controller) == [0])
        await until(lambda: not controller.cluster.topic_histories["t"].pending_stops)
        former = controller.cluster.topic_histories["t"].former
        assert former == {
            1: FormerPartition(SEALED_AT + 1, 0, DATA_END, 2, 2),
            2: FormerPartition(SEALED_AT + 1, 0, DATA_END, 3, 2),
        }
        stops = [
            (part.partition_index, part.leader_epoch, part.delete_partition, part.partition_epoch)
            for request in broker.requests
            if isinstance(request, messages.StopReplicaRequest)
            for each in request.topic_states
            for part in each.partition_states
        ]
        assert stops == [(1, 0, True, 2), (2, 0, True, 3)]
        await until(lambda: forgotten(broker) == [1, 2])
        seen = len(broker.asked)
        await controller.retired.check()
        assert len(broker.asked) == seen, "nothing is retired any more"
        request = messages.DescribeFencesRequest
        asked = [request.Topic("t", [request.Partition(1)]), request.Topic("none", [])]
        answer = await broker.forward(request(include_former=True, topics=asked), 0)
        of_topic, of_none = answer.topics
        assert [
            (x.partition, x.partition_epoch, x.data_end_offset, x.final_offset, x.resize_epoch)
            for x in of_topic.former
        ] == [(1, 2, DATA_END, SEALED_AT + 1, 2), (2, 3, DATA_END, SEALED_AT + 1, 2)]
        assert of_topic.partitions == [] == of_none.former
        answer = await broker.forward(request(topics=asked), 0)
        assert [x.former for x in answer.topics] == [[], []]

    run(scenario)


def test_what_its_leader_does_not_close_stays_and_nothing_else_is_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As a leader of a version before the closing, which answers without ``closed_end``."""
    caplog.set_level("INFO", logger="tidelog.controller.retired")

    async def scenario(world: World) -> None:
        controller, broker = await started(world)
        await looked(broker)
        assert broker.closed == [], "both have data"
        broker.refuses_to_close = {1}
        broker.starts = {1: DATA_END, 2: DATA_END}
        await until(lambda: listed(controller) == [0, 1])
        await looked(broker)
        assert listed(controller) == [0, 1]
        assert broker.closed == [2]
        lines = {x.getMessage() for x in caplog.records if "did not close" in x.getMessage()}
        (line,) = lines
        assert line.startswith("broker 1 did not close t-1 and 0 other retired partitions, so")
        broker.refuses_to_close = set()
        await until(lambda: listed(controller) == [0])
        assert broker.closed == [2, 1]

    run(scenario)


def test_a_closing_counts_for_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        controller, broker = await started(world)
        monkeypatch.setattr("tidelog.controller.retired.CLOSED_MS", -1)
        broker.starts = {1: DATA_END, 2: DATA_END}
        await until(lambda: broker.closed)
        await looked(broker)
        assert listed(controller) == [0, 1, 2]
        monkeypatch.undo()
        await until(lambda: listed(controller) == [0])

    run(scenario)


def forgotten(broker: RecordedBroker) -> list[int]:
    """The partitions that the broker was sent as gone."""
    return [
        part.partition_index
        for request in broker.requests
        if isinstance(request, messages.UpdateMetadataRequest)
        for each in request.topic_states
        for part in each.partition_states
        if part.leader == -2
    ]


def test_a_deposed_leader_is_not_believed() -> None:
    async def scenario(world: World) -> None:
        controller, broker = await started(world)
        broker.starts = {1: DATA_END, 2: DATA_END}
        broker.leader_epoch = 5
        await looked(broker)
        assert listed(controller) == [0, 1, 2]
        broker.leader_epoch = 0
        await until(lambda: listed(controller) == [0])

    run(scenario)


def test_drained_data_is_purged_once_every_group_is_past_it_and_asked_for_again() -> None:
    async def scenario(world: World) -> None:
        controller, broker = await started(world, retired_purge="drained")
        assert (await broker.forward(topic(OFFSETS_TOPIC, 1, 1), 7)).topics[0].error_code == 0
        broker.groups = {"done": {0: 3, 1: 40, 2: 40}, "lags": {1: 39, 2: 41}, "other": {}}
        await until(lambda: broker.deleted == [(2, DATA_END)])
        # It is removed in the same look; what lags keeps its partition.
        await until(lambda: listed(controller) == [0, 1])
        await looked(broker)
        broker.groups_error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        # A look that is under way may have its list of groups.
        await looked(broker)
        broker.groups["lags"][1] = 40
        await looked(broker)
        assert broker.deleted == [(2, DATA_END)], "not every coordinator can be asked"
        broker.groups_error = ErrorCode.NONE
        await until(lambda: listed(controller) == [0])
        assert broker.deleted == [(2, DATA_END), (1, DATA_END)]

    run(scenario)


@pytest.mark.parametrize(
    ("subscription", "assignment"),
    [
        (b"\0\0\0\0\0\1\0\1t\0\0\0\0", b""),
        # Of a rebalance: what it read until then.
        (b"", b"\0\0\0\0\0\1\0\1t\0\0\0\1\0\0\0\2"),
        # It has just joined.
        (b"", b""),
        (b"none", b""),
        (b"\0\0\0\0\0\0", b"none"),
    ],
)
def test_a_group_that_reads_and_has_not_committed_is_waited_for(
    subscription: bytes, assignment: bytes
) -> None:
    async def scenario(world: World) -> None:
        controller, broker = await started(world, retired_purge="drained")
        assert (await broker.forward(topic(OFFSETS_TOPIC, 1, 1), 7)).topics[0].error_code == 0
        broker.groups = {"done": {1: 40, 2: 40}, "joined": {}, "empty": {}, "elsewhere": {}}
        other = b"\0\0\0\0\0\1\0\1u\0\0\0\0"
        broker.members = {"joined": (subscription, assignment), "elsewhere": (other, b"")}
        await looked(broker)
        assert broker.deleted == []
        assert listed(controller) == [0, 1, 2]
        broker.groups["joined"] = {1: 40, 2: 40}
        await until(lambda: listed(controller) == [0])

    run(scenario)


HOUR_MS = "3600000"


def test_a_growth_looks_first_and_its_refusal_names_the_groups_and_the_deadline() -> None:
    async def scenario(world: World) -> None:
        _, broker = await started(world, HOUR_MS, retired_purge="drained")
        assert (await broker.forward(topic(OFFSETS_TOPIC, 1, 1), 7)).topics[0].error_code == 0
        broker.groups = {"done": {1: 40, 2: 40}, "lags": {1: 39, 2: 41}}
        broker.expires_ms = {"lags": 1_800_000_000_000}
        code, why = await grown(broker)
        assert code is ErrorCode.INVALID_PARTITIONS
        # The highest is drained, and gone; of what is left the group is named.
        assert "while its retired partition 1 is listed. It holds at most 40 records" in why
        assert "past them: lags (its offsets expire at 2027-01-15T08:00:00Z)." in why
        assert "or delete those without members (tidelog groups --delete)" in why
        asked = messages.DescribeConditionRequest(subjects=["resizes"])
        condition = json.loads((await broker.forward(asked, 0)).condition)
        (row,) = condition["retired"]
        assert (row["topic"], row["partition"], row["records"]) == ("t", 1, 40)
        assert row["groups"] == [
            {"group": "lags", "committed_offset": 39, "offsets_expire_ms": 1_800_000_000_000}
        ]
        (problem,) = [x for x in condition["problems"] if x["kind"] == "retired_partitions_held"]
        assert "lags (its offsets expire at 2027-01-15" in problem["what"]
        assert problem["partitions"] == ["t-1"]
        # Its group is gone: the same request finds nothing left that is retired.
        del broker.groups["lags"]
        assert await grown(broker) == (ErrorCode.NONE, "")

    run(scenario)


def test_what_all_groups_have_read_stays_while_a_producer_may_ask_for_a_batch() -> None:
    async def scenario(world: World) -> None:
        controller, broker = await started(world, delay_ms=HOUR_MS, retired_purge="drained")
        assert (await broker.forward(topic(OFFSETS_TOPIC, 1, 1), 7)).topics[0].error_code == 0
        broker.groups = {"done": {1: 40, 2: 40}}
        await looked(broker)
        await looked(broker)
        assert (broker.deleted, listed(controller)) == ([], [0, 1, 2])
        assert 2 in controller.cluster.topic_histories["t"].retired_ms
        code, why = await grown(broker)
        assert code is ErrorCode.INVALID_PARTITIONS
        assert "records, which all groups have read. Before 20" in why
        assert "none is removed in any case (retired.purge.delay.ms)" in why
        asked = messages.DescribeConditionRequest(subjects=["resizes"])
        condition = json.loads((await broker.forward(asked, 0)).condition)
        # It is over by itself soon.
        held = [x for x in condition["problems"] if x["kind"] == "retired_partitions_held"]
        assert held == []

    run(scenario)


async def grown(broker: LeadingBroker) -> tuple[ErrorCode, str]:
    """Ask whether the topic may have two partitions."""
    answer = await broker.forward(counts("t", 2, validate_only=True), 3)
    (result,) = answer.results
    return ErrorCode(result.error_code), result.error_message or ""


def test_a_change_of_a_configuration_begins_a_look() -> None:
    async def scenario(world: World) -> None:
        controller, broker = await started(world, HOUR_MS, retired_purge="retention")
        assert (await broker.forward(topic(OFFSETS_TOPIC, 1, 1), 7)).topics[0].error_code == 0
        broker.groups = {"done": {1: 40, 2: 40}}
        code, why = await grown(broker)
        assert code is ErrorCode.INVALID_PARTITIONS
        assert "Or set retired.purge=drained" in why
        request = messages.IncrementalAlterConfigsRequest
        change = request.AlterableConfig("retired.purge", 0, "drained")
        await broker.forward(request([request.AlterConfigsResource(2, "t", [change])]), 1)
        await until(lambda: listed(controller) == [0])

    run(scenario)


def test_below_level_1_5_no_broker_is_asked() -> None:
    async def scenario(world: World) -> None:
        controller = await world.controller(retired_check_interval_ms="1")
        broker = await leading(world, controller)
        assert (await broker.forward(topic("t", 1, 1), 7)).topics[0].error_code == 0
        await controller.retired.check()
        assert broker.asked == []

    run(scenario)
