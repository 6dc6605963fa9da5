"""Questions whose answer is "none" as long as a feature is off, and those about producers and
controllers: answered as by a Kafka broker with the feature off."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.controller_process import World
from tests.support.lone_broker import LoneBroker, Peer, until
from tests.support.processes import free_ports
from tests.support.produce_fetch import batch, send
from tests.support.produce_fetch import run as run_work
from tidelog.broker.control_plane.quorum import Quorum, merged
from tidelog.broker.control_plane.session import ControllerSession
from tidelog.broker.handlers import (
    describe_acls,
    describe_client_quotas,
    describe_condition,
    describe_producers,
    describe_quorum,
    describe_user_scram_credentials,
    list_transactions,
)
from tidelog.model.errors import ErrorCode as E
from tidelog.network.router import Handler, Router
from tidelog.protocol import messages
from tidelog.records.builder import Producer
from tidelog.storage.log.results import Appended

QUERIES = (
    describe_acls,
    describe_client_quotas,
    describe_condition,
    describe_producers,
    describe_quorum,
    describe_user_scram_credentials,
    list_transactions,
)
ACLS = messages.DescribeAclsRequest
QUOTAS = messages.DescribeClientQuotasRequest
USERS = messages.DescribeUserScramCredentialsRequest
PRODUCERS = messages.DescribeProducersRequest
QUORUM = messages.DescribeQuorumRequest
QUORUM_SAID = messages.DescribeQuorumResponse


class QueriedBroker(LoneBroker):
    """A broker that serves these questions, too."""

    def router(self, extra: Iterable[Handler] = ()) -> Router:
        return super().router([*(each.HANDLER for each in QUERIES), *extra])


@asynccontextmanager
async def asking(folder: Path) -> AsyncIterator[tuple[QueriedBroker, Peer]]:
    lone = QueriedBroker(folder)
    await lone.start()
    peer = await Peer.connect(lone.port)
    try:
        yield lone, peer
    finally:
        peer.writer.close()
        await lone.stop()


def test_what_does_not_exist_here_is_answered_with_none(tmp_path: Path) -> None:
    async def work() -> None:
        async with asking(tmp_path) as (_, peer):
            for version in (1, 2, 3):
                acls = await peer.ask(ACLS(1, None, 1, None, None, 1, 1), version)
                assert (acls.error_code, acls.resources) == (E.SECURITY_DISABLED, [])
                assert "no access rules" in acls.error_message
            for version in (0, 1):
                for components in ([], [QUOTAS.ComponentData("user", 0, "u")]):
                    quotas = await peer.ask(QUOTAS(components, True), version)
                    assert (quotas.error_code, quotas.error_message) == (E.NONE, None)
                    assert quotas.entries == []  # null would mean that it was refused
                asked = messages.ListTransactionsRequest(["Ongoing", "Odd", "Odd"], [7])
                found = await peer.ask(asked, version)
                assert (found.error_code, found.transaction_states) == (E.NONE, [])
                assert found.unknown_state_filters == ["Odd"]

    run_work(work())


def test_no_user_has_scram_credentials(tmp_path: Path) -> None:
    async def work() -> None:
        async with asking(tmp_path) as (_, peer):
            for everyone in (None, []):
                found = await peer.ask(USERS(everyone), 0)
                assert (found.error_code, found.error_message, found.results) == (0, None, [])
            named = [USERS.UserName(name) for name in ("a", "b", "a")]
            found = await peer.ask(USERS(named), 0)
            assert [(x.user, x.error_code, x.credential_infos) for x in found.results] == [
                ("a", E.DUPLICATE_RESOURCE, []),
                ("b", E.RESOURCE_NOT_FOUND, []),
            ]
            assert "named 2 times" in found.results[0].error_message
            assert "user 'b' has no SCRAM credentials" in found.results[1].error_message

    run_work(work())


def test_the_producers_that_replicas_remember(tmp_path: Path) -> None:
    """A follower responds by its own log."""

    async def work() -> None:
        async with asking(tmp_path) as (lone, peer):
            lone.lead("t", 2)
            followed = lone.lead("followed", leader=2, isr=(1, 2), replicas=(1, 2))
            copied = batch("copied", producer=Producer(9, 1, 0))
            assert isinstance(followed.log.append_as_follower(copied, 0), Appended)
            lone.lead("unled", leader=-1)
            began_ms = lone.broker.clock.wall_ms()
            for sequence in (0, 2):
                answer = await send(peer, batch("a", "b", producer=Producer(41, 3, sequence)))
                assert answer.error_code == 0
            assert (await send(peer, batch("c", producer=Producer(7, 0, 0)))).error_code == 0
            assert (await send(peer, batch("no producer"))).error_code == 0
            asked = PRODUCERS(
                [
                    PRODUCERS.TopicRequest("t", [0, 1, 9, 0]),
                    PRODUCERS.TopicRequest("followed", [0]),
                    PRODUCERS.TopicRequest("unled", [0]),
                    PRODUCERS.TopicRequest("none", [0]),
                ]
            )
            topics = (await peer.ask(asked, 0)).topics
            codes = [
                (t.name, p.partition_index, p.error_code) for t in topics for p in t.partitions
            ]
            assert codes == [
                ("t", 0, E.NONE),
                ("t", 1, E.NONE),
                ("t", 9, E.UNKNOWN_TOPIC_OR_PARTITION),
                ("followed", 0, E.NONE),
                ("unled", 0, E.NOT_LEADER_OR_FOLLOWER),
                ("none", 0, E.UNKNOWN_TOPIC_OR_PARTITION),
            ]
            known = topics[0].partitions[0].active_producers
            assert [(x.producer_id, x.producer_epoch, x.last_sequence) for x in known] == [
                (41, 3, 3),
                (7, 0, 0),
            ]
            for each in known:
                assert (each.coordinator_epoch, each.current_txn_start_offset) == (-1, -1)
                assert began_ms <= each.last_timestamp <= lone.broker.clock.wall_ms()
            assert topics[0].partitions[1].active_producers == []
            (follows,) = topics[1].partitions[0].active_producers
            assert (follows.producer_id, follows.producer_epoch) == (9, 1)

    run_work(work())


def quorum_asked(*named: tuple[str, int]) -> QUORUM:
    return QUORUM([QUORUM.TopicData(name, [QUORUM.PartitionData(at)]) for name, at in named])


async def _nothing(_broker_epoch: int) -> None:
    pass


def session(*ports: int) -> ControllerSession:
    return ControllerSession(
        [("127.0.0.1", port) for port in ports],
        *(500, 6000, 1000),
        report=lambda: None,  # type: ignore[arg-type, return-value]
        when_registered=_nothing,
    )


def test_the_controllers_are_one_voter_and_observers(tmp_path: Path) -> None:
    """One is active, one stands by, at one address there is none."""

    async def work() -> None:
        world = World()
        try:
            one = await world.controller()
            two = await world.controller(one.store.tree, **{"node.id": "102"})
            (nowhere,) = free_ports(1)
            async with asking(tmp_path) as (lone, peer):
                lone.session = session(nowhere, two.listener_port, one.listener_port)
                for version in (0, 1):
                    known = ("__cluster_metadata", 0)
                    asked = quorum_asked(known, ("__cluster_metadata", 1), ("t", 0))
                    answers = [x.partitions[0] for x in (await peer.ask(asked, version)).topics]
                    found = answers[0]
                    active = one.controller
                    assert found.error_code == E.NONE
                    assert found.leader_id == active.configs.node_id
                    assert found.leader_epoch == active.cluster.controller_epoch
                    assert found.high_watermark == active.cluster.revision
                    (voter,) = found.current_voters
                    assert (voter.replica_id, voter.log_end_offset) == (
                        found.leader_id,
                        found.high_watermark,
                    )
                    assert (voter.last_fetch_timestamp > 0) is (version == 1)
                    assert [(x.replica_id, x.log_end_offset) for x in found.observers] == [
                        (102, -1)
                    ]
                    assert [x.error_code for x in answers[1:]] == [E.UNKNOWN_TOPIC_OR_PARTITION] * 2
                lone.session = session(nowhere, two.listener_port)
                (found,) = (await peer.ask(quorum_asked(known), 1)).topics
                assert found.partitions[0].error_code == E.LEADER_NOT_AVAILABLE
        finally:
            await world.close()

    asyncio.run(work())


def test_every_controller_says_of_itself_what_it_does(tmp_path: Path) -> None:
    """The doctor said that all was well with one of three controllers killed."""

    async def work() -> None:
        world = World()
        try:
            one = await world.controller()
            two = await world.controller(one.store.tree, **{"node.id": "102"})
            (nowhere,) = free_ports(1)
            asked = messages.DescribeConditionRequest(subjects=["controllers"])
            async with asking(tmp_path) as (lone, peer):
                ports = nowhere, two.listener_port, one.listener_port
                lone.session = session(*ports)

                async def said() -> list[tuple[Any, ...]]:
                    answer = await peer.ask(asked, 0)
                    found = json.loads(answer.condition)["controllers"]
                    at = [f"127.0.0.1:{port}" for port in ports]
                    assert [each["address"] for each in found] == at
                    return [(x["controller_id"], x["active"], x["why"]) for x in found]

                silent = None, None, None
                assert await said() == [silent, (102, False, None), (101, True, None)]
                one.store.reachable = False
                why = f"the metadata store {one.configs.metadata_store} does not answer"
                assert (await said())[2] == (101, True, why)
                one.store.reachable = True
        finally:
            await world.close()

    run_work(work())


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_that_say_they_are_active_the_later_one_is(order: int) -> None:
    def said(node_id: int, epoch: int) -> Any:
        voter = QUORUM_SAID.ReplicaState(node_id, 10)
        part = QUORUM_SAID.PartitionData(0, 0, node_id, epoch, 10, [voter], [])
        return QUORUM_SAID(topics=[QUORUM_SAID.TopicData("__cluster_metadata", [part])])

    refused = QUORUM_SAID(error_code=E.CLUSTER_AUTHORIZATION_FAILED)
    found = merged([said(5, 7), refused, said(6, 8)][::order])
    assert (found.leader_id, found.leader_epoch) == (6, 8)
    assert [each.replica_id for each in found.current_voters] == [6]
    assert [each.replica_id for each in found.observers] == [5]
    assert merged([refused]).error_code == E.LEADER_NOT_AVAILABLE


def test_questions_at_once_share_one_round_to_the_controllers() -> None:
    async def work() -> None:
        rounds: list[asyncio.Future[list[Any]]] = []

        class Controllers:
            async def ask_all(self, *_: Any) -> list[Any]:
                rounds.append(asyncio.get_running_loop().create_future())
                return await rounds[-1]

        quorum = Quorum(Controllers())
        waiting = [asyncio.create_task(quorum.answers()) for _ in range(3)]
        await until(lambda: rounds)
        waiting.append(asyncio.create_task(quorum.answers()))
        await asyncio.sleep(0)
        waiting[0].cancel()  # its client has disconnected
        rounds[0].set_result(["said"])
        assert await asyncio.gather(*waiting[1:]) == [["said"]] * 3
        assert len(rounds) == 1
        later = asyncio.create_task(quorum.answers())
        await until(lambda: len(rounds) == 2)
        rounds[1].set_result([])
        assert await later == []

    run_work(work())
