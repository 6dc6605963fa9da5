"""Each request of the clients to a broker that is stopped (SIGSTOP) as it arrives, in virtual time.

A stopped broker keeps its connections and responds to nothing. The controller suspects it after
``broker.silence.suspect.ms``, and other brokers take over what it did. The table says for each
request what the client does then, and how long that may take with default settings. The last test
holds that the table has every request that a client sends.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tidelog.client
from tests.simulation.cluster.scripted_run import ScriptedRun
from tests.simulation.kernel.connection import Endpoint
from tests.simulation.kernel.world import VirtualClock
from tidelog.client.admin import configs, groups, nodes, reassignments, topics
from tidelog.client.cluster import Cluster, ClusterSettings
from tidelog.client.connecting.connection import ClientConnection
from tidelog.client.errors import ConnectionLost, Refused
from tidelog.client.fences import describe_fences, describe_former
from tidelog.client.fetching.fetcher import Fetcher
from tidelog.client.groups.committed_offsets import Position, commit_offsets, committed_offsets
from tidelog.client.groups.group_member import GroupMember
from tidelog.client.offsets import EARLIEST, list_offsets, offsets_for_leader_epoch
from tidelog.client.producing.sender import RecordSender
from tidelog.client.producing.settings import SendSettings
from tidelog.model.admin_requests import ResourceType
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import OFFSETS_TOPIC, TopicPartition
from tidelog.protocol import messages as m
from tidelog.runtime.backoff import Backoff

pytestmark = pytest.mark.usefixtures("quiet")

LEADER_S = 4.0
COORDINATOR_S = 6.0
EVERY_REPLICA_S = 9.0
"""The new leader waits until every replica has deleted the records, or the session of the stopped
one has ended."""

ANY_S = 2.5
"""Another broker is asked when this one was silent for a second; two may be stopped with it."""

CLIENT_ID = "meets-a-stopped-broker"
T0 = TopicPartition("t", 0)
GROUP = "g"
WHICH = f"1 of 3 partitions of {OFFSETS_TOPIC}"


@dataclass
class Stage:
    """One client, and the trap for its first request of a kind."""

    run: ScriptedRun
    cluster: Cluster
    kind: type[Any] | None = None
    stopped: int = 0
    stopped_at: float = 0.0
    sent: int = 0
    """How many requests of the kind were sent."""
    member: GroupMember = field(init=False)

    def __post_init__(self) -> None:
        self.member = GroupMember(self.cluster, GROUP, ["t"])

    def sends(self, connection: ClientConnection, request: Any) -> None:
        """Stop the peer of the first request of the kind."""
        if self.kind is None or type(request) is not self.kind:
            return
        self.sent += 1
        if self.stopped:
            return
        host = connection.peer.rpartition(":")[0]
        node = next(each for each in self.run.cluster.brokers if each.host == host)
        self.stop(node.node_id)

    def stop(self, broker: int) -> None:
        process = self.run.cluster.broker(broker).process
        assert process is not None
        process.pause()
        # A stopped broker is dead to the controller when its session is over.
        self.run.faults.unquiet_until = asyncio.get_running_loop().time() + 60
        self.stopped, self.stopped_at = broker, asyncio.get_running_loop().time()

    def resume(self) -> None:
        process = self.run.cluster.broker(self.stopped).process
        assert process is not None
        process.resume()


Ask = Callable[[Stage], Awaitable[Any]]


async def nothing(_: Stage) -> None:
    pass


async def joined(stage: Stage) -> None:
    await stage.member.join()
    stage.member.positioned()


async def fetched(stage: Stage) -> None:
    """Read all that there is: each record once, in order."""
    fetcher = Fetcher(stage.cluster)
    fetcher.assign({T0: 0}, {T0: 5})
    seen: list[int] = []
    while not fetcher.finished():
        for piece in await fetcher.poll(500):
            for header, _ in piece.batches():
                seen += range(header.base_offset, header.next_offset)
    assert seen == list(range(seen[0], seen[0] + len(seen))) and len(seen) >= 5, seen
    await fetcher.close()


async def produced(stage: Stage) -> None:
    """Send several requests that are in flight together: each record is written once, in order."""
    clock = VirtualClock(stage.run.world.loop)
    settings = SendSettings(linger_ms=0, batch_bytes=100)
    async with RecordSender(stage.cluster, settings, clock=clock) as sender:
        sent = [await sender.send("t", b"%d" % n * 60, partition=0) for n in range(9)]
        await sender.flush()
    offsets = [each.result().offset for each in sent]
    assert offsets == list(range(offsets[0], offsets[0] + 9))


async def produced_after_a_break(stage: Stage) -> None:
    """The leader stops, and no connection to it is open."""
    leader = stage.cluster.view.topics["t"].partitions[0].leader
    await stage.cluster.close_connections()
    stage.stop(leader)
    await produced(stage)


async def heartbeat(stage: Stage) -> None:
    """The member's own heartbeat, which comes by itself; until one is answered elsewhere."""
    await stage.run.until(lambda: bool(stage.stopped), "a heartbeat is sent")
    former = (None, stage.stopped)
    await stage.run.until(
        lambda: stage.cluster.known_coordinator(GROUP) not in former, "another coordinator is found"
    )
    await stage.member.commit({T0: Position(1)})


async def committed(stage: Stage) -> None:
    await stage.member.commit({T0: Position(3)})
    assert (await committed_offsets(stage.cluster, GROUP, [T0]))[T0].offset == 3


async def committed_by_tool(cluster: Cluster, offset: int) -> None:
    await commit_offsets(cluster, GROUP, {T0: Position(offset)})


async def deleted_group(stage: Stage) -> None:
    try:
        await groups.delete_group(stage.cluster, GROUP)
    except Refused as error:
        # The first request deleted it.
        assert error.code is ErrorCode.GROUP_ID_NOT_FOUND, error


async def listed(stage: Stage) -> None:
    found = [each.group_id for each in await groups.list_groups(stage.cluster)]
    assert found == [GROUP]


async def none_listed(stage: Stage) -> None:
    unlisted: list[str] = []
    assert await groups.list_groups(stage.cluster, unlisted=unlisted) == [] == unlisted


async def one_replica_of_groups(stage: Stage) -> None:
    """Two groups in each partition; only one broker has it."""
    await stage.run.admin.create(OFFSETS_TOPIC, 3, 1, {})
    for group in "abcdef":
        await commit_offsets(stage.cluster, group, {T0: Position(1)})


async def others_listed(stage: Stage) -> None:
    """The groups of the stopped broker alone are not listed: no other one can take them over."""
    unlisted: list[str] = []
    found = await groups.list_groups(stage.cluster, unlisted=unlisted)
    assert len(found) == 4
    assert len(unlisted) == 1 and unlisted[0].startswith(WHICH)


async def created(stage: Stage) -> None:
    found = await topics.create_topics(stage.cluster, [topics.TopicSpec("new", 1, 3)])
    error = found["new"]
    # The stopped broker may have sent it on before, or the first broker did it.
    assert error is None or (
        error.code is ErrorCode.TOPIC_ALREADY_EXISTS and "repeated" in error.reason
    )


def of(work: Callable[[Cluster], Awaitable[Any]]) -> Ask:
    async def ask(stage: Stage) -> None:
        await work(stage.cluster)

    return ask


@dataclass(frozen=True)
class Row:
    """A request, what makes the client send it, and within how many seconds that is done."""

    kind: type[Any]
    ask: Ask
    within_s: float
    before: Ask = nothing


ROWS: dict[str, Row] = {
    "Fetch": Row(m.FetchRequest, fetched, LEADER_S),
    "Produce": Row(m.ProduceRequest, produced, LEADER_S),
    "the greeting before Produce": Row(m.ProduceRequest, produced_after_a_break, LEADER_S),
    "InitProducerId": Row(m.InitProducerIdRequest, produced, LEADER_S),
    "ListOffsets": Row(
        m.ListOffsetsRequest, of(lambda c: list_offsets(c, {T0: EARLIEST})), LEADER_S
    ),
    "OffsetForLeaderEpoch": Row(
        m.OffsetForLeaderEpochRequest, of(lambda c: offsets_for_leader_epoch(c, {T0: 0})), LEADER_S
    ),
    "DescribeFences": Row(
        m.DescribeFencesRequest, of(lambda c: describe_fences(c, [T0])), LEADER_S
    ),
    "DescribeFences of former": Row(
        m.DescribeFencesRequest, of(lambda c: describe_former(c, ["t"])), ANY_S
    ),
    "DeleteRecords": Row(
        m.DeleteRecordsRequest, of(lambda c: topics.delete_records(c, {T0: 1})), EVERY_REPLICA_S
    ),
    "FindCoordinator": Row(m.FindCoordinatorRequest, of(lambda c: c.coordinator(GROUP)), ANY_S),
    "JoinGroup": Row(m.JoinGroupRequest, joined, COORDINATOR_S),
    "JoinGroup again": Row(m.JoinGroupRequest, joined, COORDINATOR_S, joined),
    "SyncGroup": Row(m.SyncGroupRequest, joined, COORDINATOR_S),
    "Heartbeat": Row(m.HeartbeatRequest, heartbeat, COORDINATOR_S, joined),
    "OffsetCommit": Row(m.OffsetCommitRequest, committed, COORDINATOR_S, joined),
    "OffsetFetch": Row(
        m.OffsetFetchRequest, of(lambda c: committed_offsets(c, GROUP, [T0])), COORDINATOR_S
    ),
    "ConsumerGroupPosition": Row(
        m.ConsumerGroupPositionRequest,
        lambda stage: stage.member.exchange_positions({T0: 1}, []),
        COORDINATOR_S,
        joined,
    ),
    "LeaveGroup": Row(m.LeaveGroupRequest, lambda stage: stage.member.leave(), 5.5, joined),
    "DescribeGroups": Row(
        m.DescribeGroupsRequest, of(lambda c: groups.describe_group(c, GROUP)), COORDINATOR_S
    ),
    "Metadata": Row(m.MetadataRequest, of(lambda c: c.refresh()), ANY_S),
    "Metadata of all": Row(m.MetadataRequest, of(lambda c: c.all_topics()), ANY_S),
    "DescribeCluster": Row(m.DescribeClusterRequest, of(nodes.describe_cluster), ANY_S),
    "DescribeConfigs": Row(
        m.DescribeConfigsRequest,
        of(lambda c: configs.describe_configs(c, ResourceType.TOPIC, "t")),
        ANY_S,
    ),
    "ListPartitionReassignments": Row(
        m.ListPartitionReassignmentsRequest, of(reassignments.list_reassignments), ANY_S
    ),
    "DeleteGroups": Row(
        m.DeleteGroupsRequest, deleted_group, COORDINATOR_S, of(lambda c: committed_by_tool(c, 1))
    ),
    "OffsetDelete": Row(
        m.OffsetDeleteRequest,
        of(lambda c: groups.delete_offsets(c, GROUP, [T0])),
        COORDINATOR_S,
        of(lambda c: committed_by_tool(c, 1)),
    ),
    "ListGroups": Row(m.ListGroupsRequest, listed, COORDINATOR_S, joined),
    "ListGroups before there are any": Row(m.ListGroupsRequest, none_listed, ANY_S),
    "ListGroups of the others": Row(
        m.ListGroupsRequest, others_listed, LEADER_S, one_replica_of_groups
    ),
    "DescribeCondition": Row(m.DescribeConditionRequest, of(nodes.describe_condition), ANY_S),
    "CreateTopics": Row(m.CreateTopicsRequest, created, LEADER_S),
}


ELSEWHERE = {
    "ApiVersions": "the greeting, part of each request: a broker that does not greet, below",
    "SaslHandshake": "as ApiVersions",
    "SaslAuthenticate": "as ApiVersions",
    "DescribeLogDirs": "only this broker knows",
    "AlterReplicaLogDirs": "only this broker does it",
    "RestoredStore": "a command of operators, which shows that it waits",
    "DeleteTopics": "not repeated, below",
    "CreatePartitions": "not repeated: a former count could come back",
    "AlterPartitionReassignments": "not repeated: a former plan could come back",
    "ElectLeaders": "not repeated: an unclean election could come later",
    "IncrementalAlterConfigs": "not repeated soon: a former value could come back",
    **dict.fromkeys(
        ("AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn"),
        "this cluster does not offer transactions; max_block_ms bounds each call of a producer",
    ),
    **dict.fromkeys(
        ("ListTransactions", "DescribeTransactions", "DescribeProducers", "WriteTxnMarkers"),
        "commands of operators, which name the broker that does not respond",
    ),
}
"""Requests that are not in the table: which test has them, or why the client waits."""


def play(story: Callable[[Stage], Awaitable[None]], seed: int, monkeypatch: Any) -> None:
    submit, close = ClientConnection.submit, ClientConnection.close
    stages: list[Stage] = []

    def trapped(self: ClientConnection, request: Any, *args: Any, **options: Any) -> Any:
        sent = submit(self, request, *args, **options)
        if self.client_id == CLIENT_ID and stages:
            stages[0].sends(self, request)
        return sent

    def closed(self: ClientConnection, *why: str) -> None:
        # Their errors are logged: without a cause they read like faults of the peer.
        assert why or not self.in_flight, f"requests to {self.peer} end without a cause"
        close(self, *why)

    monkeypatch.setattr(ClientConnection, "submit", trapped)
    monkeypatch.setattr(ClientConnection, "close", closed)

    async def script(run: ScriptedRun) -> None:
        await run.write(5)
        rng = run.world.random("client")
        settings = ClusterSettings(client_id=CLIENT_ID, backoff=Backoff(random=rng))
        process = run.world.machine("client").process("client")
        bootstrap = ",".join(f"{node.host}:9092" for node in run.cluster.brokers)

        async def client() -> None:
            async with Cluster(bootstrap, settings) as cluster:
                await cluster.topics(["t"])
                await list_offsets(cluster, {T0: EARLIEST})
                await run.until_isr(1, 2, 3)
                stages.append(Stage(run, cluster))
                await story(stages[0])

        await process.run(client())
        if stages[0].stopped:
            stages[0].resume()
            await run.until_isr(1, 2, 3)

    run = ScriptedRun(seed, script, "replicated", {"min.insync.replicas": "2"})
    result = run.run()
    assert not result.violations, result.report()


@pytest.mark.parametrize("name", ROWS)
def test_another_broker_is_asked_soon(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = ROWS[name]

    async def story(stage: Stage) -> None:
        await row.before(stage)
        stage.kind = row.kind
        async with asyncio.timeout(400):
            await row.ask(stage)
        assert stage.stopped, "no such request was sent"
        took_s = asyncio.get_running_loop().time() - stage.stopped_at
        assert took_s < row.within_s, f"{name} took {took_s:.1f} s"

    play(story, 1, monkeypatch)


def test_the_table_has_every_request_that_clients_send() -> None:
    folder = Path(inspect.getfile(tidelog.client)).parent
    text = "".join(path.read_text() for path in folder.rglob("*.py"))
    sent = set(re.findall(r"\bmessages\.([A-Z]\w+)Request\b", text))
    listed = {row.kind.__name__.removesuffix("Request") for row in ROWS.values()}
    assert not listed & ELSEWHERE.keys()
    assert sent == listed | ELSEWHERE.keys()


def test_the_deletion_of_a_topic_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped broker sends it on when it runs again: by then the name may be a newer topic's."""

    async def story(stage: Stage) -> None:
        await stage.run.admin.create("gone", 1, 3, {})
        stage.kind = m.DeleteTopicsRequest
        with pytest.raises(ConnectionLost):
            await topics.delete_topics(stage.cluster, ["gone"])
        assert stage.sent == 1

    play(story, 1, monkeypatch)


async def deleted(cluster: Cluster) -> None:
    await topics.delete_topics(cluster, ["d"])


async def recreated(cluster: Cluster) -> None:
    await topics.delete_topics(cluster, ["d"])
    assert await topics.create_topics(cluster, [topics.TopicSpec("d", 1, 3)]) == {"d": None}


async def configured(cluster: Cluster, value: str) -> None:
    values = {"retention.ms": value}
    await configs.alter_configs(cluster, ResourceType.TOPIC, "d", set_values=values)


async def shown(cluster: Cluster) -> tuple[Any, str | None]:
    """Return the topic's id and a configuration of it."""
    topic = (await cluster.describe(["d"])).topics["d"]
    found = await configs.describe_configs(cluster, ResourceType.TOPIC, "d", keys=["retention.ms"])
    return topic.topic_id, found[0].value


LATE: dict[str, tuple[type[Any], Callable[[Cluster], Awaitable[None]], Any]] = {
    "deletion": (m.DeleteTopicsRequest, deleted, recreated),
    "value": (
        m.IncrementalAlterConfigsRequest,
        partial(configured, value="1111111"),
        partial(configured, value="2222222"),
    ),
}


@pytest.mark.parametrize("name", LATE)
def test_a_change_whose_client_has_gone_is_not_sent_on(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stopped broker has it unread. Another client has made a newer change meanwhile."""
    kind, change, newer = LATE[name]
    # What has arrived can be read after the end of a connection, whichever way it ended.
    monkeypatch.setattr(Endpoint, "abort", Endpoint.close)

    async def story(stage: Stage) -> None:
        run, cluster = stage.run, stage.cluster
        await run.admin.create("d", 1, 3, {})
        stage.kind = kind
        asked = asyncio.create_task(change(cluster))
        await run.until(lambda: stage.stopped > 0, "a broker is stopped")
        asked.cancel()
        await cluster.close_connections()
        settings = ClusterSettings(backoff=cluster.settings.backoff)
        others = [node.host for node in run.cluster.brokers if node.node_id != stage.stopped]
        async with Cluster([f"{host}:9092" for host in others], settings) as second:
            await newer(second)
            before = await shown(second)
            # Its session ends: it sends a request on when it has registered again.
            await asyncio.sleep(10)
            stage.resume()
            await run.until_isr(1, 2, 3)
            for _ in range(10):
                assert await shown(second) == before
                await asyncio.sleep(0.2)

    play(story, 1, monkeypatch)


def test_a_change_goes_to_no_broker_that_does_not_greet(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(stage: Stage) -> None:
        cluster = stage.cluster
        controller = cluster.view.controller_id
        await cluster.close_connections()
        stage.stop(controller)
        began_s = asyncio.get_running_loop().time()
        found = await topics.delete_topics(cluster, ["t2"])
        assert found["t2"] is not None
        assert found["t2"].code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert asyncio.get_running_loop().time() - began_s < ANY_S

    play(story, 1, monkeypatch)


def test_a_commit_that_was_given_up_does_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stopped coordinator has it unread, and is deposed when it reads it."""

    async def story(stage: Stage) -> None:
        await joined(stage)
        stage.kind = m.OffsetCommitRequest
        await stage.member.commit({T0: Position(2)})
        assert stage.stopped
        await stage.member.commit({T0: Position(4)})
        stage.resume()
        await stage.run.until_isr(1, 2, 3)
        for _ in range(20):
            found = await committed_offsets(stage.cluster, GROUP, [T0])
            assert found[T0].offset == 4
            await asyncio.sleep(0.1)

    play(story, 1, monkeypatch)


def test_groups_without_a_leader_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(stage: Stage) -> None:
        await one_replica_of_groups(stage)
        stage.kind = m.ListGroupsRequest
        await groups.list_groups(stage.cluster, unlisted=[])
        began_s = asyncio.get_running_loop().time()
        unlisted: list[str] = []
        # Until the stopped broker is dead for the controller: before that, a response that finds
        # its leader silent names none, and the next one names it again.
        while (
            unlisted != [f"{WHICH} have no leader: their groups are not listed"]
            or len(stage.cluster.view.brokers) > 2
        ):
            assert asyncio.get_running_loop().time() - began_s < 20, unlisted
            unlisted = []
            assert len(await groups.list_groups(stage.cluster, unlisted=unlisted)) == 4
        began_s = asyncio.get_running_loop().time()
        assert len(await groups.list_groups(stage.cluster, unlisted=[])) == 4
        assert asyncio.get_running_loop().time() - began_s < ANY_S

    play(story, 1, monkeypatch)
