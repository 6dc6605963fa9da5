"""What a follower tells clients of a leader whose connection broke (decisions 0009 and 0013)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_pair import Pair, append, run, running
from tests.support.links import Network
from tests.support.lone_broker import Peer, until
from tidelog.broker.following import fetch_patience, source_fetcher
from tidelog.broker.metadata import lost_leaders
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.network.limits import Limits
from tidelog.network.server import Server
from tidelog.protocol import messages

TOLD = messages.UpdateMetadataRequest


def know_the_leader(pair: Pair, port: int, leader: int = 1, isr: Sequence[int] = (1, 2)) -> None:
    """Send the follower both brokers, and the leader and the ISR of t-0."""
    ends = {
        node_id: TOLD.UpdateMetadataEndpoint(port=at, host="127.0.0.1", listener="PLAINTEXT")
        for node_id, at in ((1, port), (2, pair.follower.port))
    }
    state = TOLD.UpdateMetadataPartitionState(
        partition_index=0, leader=leader, leader_epoch=leader, isr=list(isr), replicas=[1, 2]
    )
    update = TOLD(
        controller_id=1,
        topic_states=[TOLD.UpdateMetadataTopicState(topic_name="t", partition_states=[state])],
        live_brokers=[
            TOLD.UpdateMetadataBroker(id=node_id, endpoints=[end]) for node_id, end in ends.items()
        ],
    )
    pair.follower.broker.metadata.apply(update, complete=False)


async def answered(peer: Peer, *, creates: bool = False) -> Any:
    """Return what a Metadata response has of t."""
    topic = messages.MetadataRequest.MetadataRequestTopic(name="t")
    request: Any = messages.MetadataRequest(topics=[topic], allow_auto_topic_creation=creates)
    (found,) = (await peer.ask(request, 8)).topics
    return found


async def told(peer: Peer) -> tuple[ErrorCode, int]:
    """Return what a Metadata response has of t-0: the error and the leader."""
    (partition,) = (await answered(peer)).partitions
    return ErrorCode(partition.error_code), partition.leader_id


async def told_of_all(peer: Peer) -> tuple[ErrorCode, int]:
    """Return what a response about all topics has of t-0."""
    request: Any = messages.MetadataRequest(topics=None)
    (topic,) = (await peer.ask(request, 8)).topics
    return ErrorCode(topic.partitions[0].error_code), topic.partitions[0].leader_id


async def described(peer: Peer, *names: str) -> tuple[ErrorCode, int]:
    """Return what DescribeTopicPartitions has of t-0; without names it is about all topics."""
    kind = messages.DescribeTopicPartitionsRequest
    request: Any = kind(topics=[kind.TopicRequest(name=name) for name in names])
    (topic,) = (await peer.ask(request, 0)).topics
    return ErrorCode(topic.partitions[0].error_code), topic.partitions[0].leader_id


LED = (ErrorCode.NONE, 1)
REPLACED = (ErrorCode.NONE, 2)
LOST = (ErrorCode.LEADER_NOT_AVAILABLE, -1)
LONG_MS = 60_000
"""Longer than any test: what ends a wait is what the test says."""


@asynccontextmanager
async def following(
    folder: Path, through: Network | None = None, wait_ms: int = 500
) -> AsyncIterator[tuple[Pair, Peer]]:
    """Broker 2 has copied a record from broker 1; a client is connected to broker 2."""
    async with running(folder, {"replica.fetch.wait.max.ms": wait_ms}) as pair:
        port = pair.leader.port
        if through is not None:
            port = through.link("2", "1", port)
        pair.tell(port)
        leads, follows = pair.lead(), pair.follow()
        append(leads, "a")
        know_the_leader(pair, port)
        await until(lambda: follows.end_offset == 1)
        peer = await Peer.connect(pair.follower.port)
        yield pair, peer
        peer.writer.close()


async def lose_the_leader(pair: Pair) -> None:
    await pair.leader.server.stop(grace_s=0)
    await until(lambda: pair.follower.broker.followers.has_lost(1))


async def asked(
    pair: Pair, peer: Peer, ask: Callable[[Peer], Any] = told
) -> asyncio.Task[tuple[ErrorCode, int]]:
    """A question that the follower has read, and not answered."""
    tallies = pair.follower.server.router.tallies

    def pending() -> int:
        kinds = (ApiKey.METADATA, ApiKey.DESCRIBE_TOPIC_PARTITIONS)
        return sum(tallies[kind].pending for kind in kinds)

    before = pending()
    question = asyncio.create_task(ask(peer))
    await until(lambda: pending() > before)
    assert not question.done()
    return question


def test_an_answer_waits_until_a_lost_leader_is_replaced(tmp_path: Path) -> None:
    async def main() -> None:
        async with following(tmp_path) as (pair, peer):
            assert await told(peer) == LED
            await lose_the_leader(pair)
            question = await asked(pair, peer)
            know_the_leader(pair, pair.leader.port, leader=2)
            assert await question == REPLACED

    run(main())


def test_an_answer_does_not_wait_for_a_leader_that_no_election_can_replace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One such partition held back what the response says of all the others."""
    monkeypatch.setattr(source_fetcher, "LOST_SHOWN_MS", LONG_MS)
    monkeypatch.setattr(lost_leaders, "LONGEST_MS", LONG_MS)

    async def main() -> None:
        async with following(tmp_path) as (pair, peer):
            know_the_leader(pair, pair.leader.port, isr=[1])
            await lose_the_leader(pair)
            assert await told(peer) == LOST

    run(main())


@pytest.mark.parametrize("ask", [told_of_all, described])
def test_a_response_about_all_topics_waits_for_no_frozen_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Peer], Any]
) -> None:
    """One frozen broker held back every list of all topics for a second."""
    monkeypatch.setattr(source_fetcher, "LOST_SHOWN_MS", LONG_MS)
    monkeypatch.setattr(lost_leaders, "LONGEST_MS", LONG_MS)
    monkeypatch.setattr(lost_leaders, "LONGEST_OF_ALL_MS", 20)

    async def main() -> None:
        async with following(tmp_path) as (pair, peer):
            await lose_the_leader(pair)
            assert await ask(peer) == LOST

    run(main())


@pytest.mark.parametrize("ask", [told_of_all, described])
def test_a_response_about_all_topics_waits_until_a_killed_leader_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Peer], Any]
) -> None:
    monkeypatch.setattr(source_fetcher, "LOST_SHOWN_MS", LONG_MS)
    monkeypatch.setattr(lost_leaders, "LONGEST_OF_ALL_MS", LONG_MS)

    async def main() -> None:
        async with following(tmp_path) as (pair, peer):
            await lose_the_leader(pair)
            question = await asked(pair, peer, ask)
            know_the_leader(pair, pair.leader.port, leader=2)
            assert await question == REPLACED

    run(main())


def test_a_description_of_named_topics_waits_as_long_as_metadata_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_fetcher, "LOST_SHOWN_MS", LONG_MS)
    monkeypatch.setattr(lost_leaders, "LONGEST_MS", LONG_MS)
    monkeypatch.setattr(lost_leaders, "LONGEST_OF_ALL_MS", 0)

    async def main() -> None:
        async with following(tmp_path) as (pair, peer):
            await lose_the_leader(pair)
            question = await asked(pair, peer, lambda peer: described(peer, "t"))
            know_the_leader(pair, pair.leader.port, leader=2)
            assert await question == REPLACED

    run(main())


def test_an_answer_waits_until_a_lost_leader_is_found_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with following(tmp_path) as (pair, peer):
            await lose_the_leader(pair)
            question = await asked(pair, peer)
            again = Server(pair.leader.router(), pair.leader.broker, Limits())
            pair.leader.server = again
            know_the_leader(pair, await again.listen("PLAINTEXT", "127.0.0.1", 0))
            assert await question == LED
            assert not pair.follower.broker.followers.has_lost(1)

    run(main())


def test_a_leader_that_does_not_answer_is_lost_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped process closes no connection."""
    monkeypatch.setattr(source_fetcher, "UNANSWERED_MS", 20)
    monkeypatch.setattr(source_fetcher, "LOST_SHOWN_MS", 0)
    questions: list[bytes] = []

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(1000):
            questions.append(piece)
        writer.close()

    async def main() -> None:
        async with following(tmp_path) as (pair, peer):
            mute = await asyncio.start_server(swallow, "127.0.0.1", 0)
            know_the_leader(pair, mute.sockets[0].getsockname()[1])
            await pair.leader.server.stop(grace_s=0)
            await until(lambda: bool(questions))
            await until(lambda: pair.follower.broker.followers.has_lost(1))
            question = await asked(pair, peer)
            know_the_leader(pair, pair.leader.port, leader=2)
            assert await question == REPLACED
            monkeypatch.setattr(source_fetcher, "SILENT_SHOWN_MS", 0)
            assert not pair.follower.broker.followers.has_lost(1), "it may only be slow"
            mute.close()

    run(main())


def test_a_client_that_noticed_first_is_not_sent_to_the_dead_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its question was read before the end of the follower's own connections arrived."""
    monkeypatch.setattr(lost_leaders, "NOTICED_WITHIN_MS", LONG_MS)
    monkeypatch.setattr(lost_leaders, "LONGEST_MS", LONG_MS)

    async def main() -> None:
        with Network() as network:
            async with following(tmp_path, network) as (pair, peer):
                network.cut("2", "1")
                network.cut("1", "2")
                question = await asked(pair, peer)
                await pair.leader.server.stop(grace_s=0)
                assert not pair.follower.broker.followers.has_lost(1)
                network.heal("1", ["2"])
                await until(lambda: pair.follower.broker.followers.has_lost(1))
                assert not question.done()
                know_the_leader(pair, pair.leader.port, leader=2)
                assert await question == REPLACED

    run(main())


def test_an_idle_leader_is_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No fetch of the follower has a response meanwhile: the probe has."""
    monkeypatch.setattr(fetch_patience, "SHORT_FOR_MS", 0)
    monkeypatch.setattr(lost_leaders, "NOTICED_WITHIN_MS", LONG_MS)

    async def main() -> None:
        async with following(tmp_path, wait_ms=LONG_MS) as (pair, peer):
            for _ in range(20):
                assert await told(peer) == LED
            many = [await Peer.connect(pair.follower.port) for _ in range(20)]
            assert set(await asyncio.gather(*map(told, many))) == {LED}
            for each in many:
                each.writer.close()

    run(main())


def test_a_response_of_before_is_no_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the follower had received when the client asked may be from a leader that died since."""
    monkeypatch.setattr(lost_leaders, "NOTICED_WITHIN_MS", LONG_MS)

    async def main() -> None:
        with Network() as network:
            async with following(tmp_path, network) as (pair, peer):
                assert await told(peer) == LED
                network.cut("1", "2")
                question = await asked(pair, peer)
                network.heal("1", ["2"])
                assert await question == LED

    run(main())


def test_a_leader_that_proves_nothing_is_named_after_a_moment(tmp_path: Path) -> None:
    async def main() -> None:
        with Network() as network:
            async with following(tmp_path, network) as (_, peer):
                network.cut("1", "2")
                assert await told(peer) == LED
                network.heal("1", ["2"])

    run(main())


def test_a_leader_that_is_not_followed_any_longer_is_not_probed(tmp_path: Path) -> None:
    async def main() -> None:
        async with following(tmp_path) as (pair, peer):
            assert await told(peer) == LED
            connections = pair.leader.server.connections
            await until(lambda: len(connections) == 2)
            followers = pair.follower.broker.followers
            followers.stopped(TopicPartition("t", 0))
            await until(lambda: not connections)
            assert followers.proofs([1]) == {}

    run(main())


def test_no_request_waits_once_a_loss_was_noticed_and_the_leader_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_leaders, "NOTICED_WITHIN_MS", LONG_MS)

    async def main() -> None:
        async with following(tmp_path) as (pair, peer):
            await lose_the_leader(pair)
            know_the_leader(pair, pair.leader.port, leader=2)
            assert await told(peer) == REPLACED

    run(main())


def test_a_client_that_has_waited_long_enough_gets_no_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_fetcher, "LOST_SHOWN_MS", LONG_MS)
    monkeypatch.setattr(lost_leaders, "LONGEST_MS", 50)

    async def main() -> None:
        async with following(tmp_path) as (pair, peer):
            await lose_the_leader(pair)
            assert await told(peer) == LOST

    run(main())


def test_one_that_stays_away_is_named_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be alive and only cut off from here."""
    monkeypatch.setattr(source_fetcher, "LOST_SHOWN_MS", LONG_MS)

    async def main() -> None:
        async with following(tmp_path) as (pair, peer):
            await lose_the_leader(pair)
            monkeypatch.setattr(source_fetcher, "LOST_SHOWN_MS", 50)
            assert await told(peer) == LED
            assert not pair.follower.broker.followers.has_lost(1)

    run(main())


def test_one_that_was_never_reached_is_what_the_controller_says(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as pair:
            port = pair.leader.port
            await pair.leader.server.stop(grace_s=0)
            pair.follow()
            know_the_leader(pair, port)
            peer = await Peer.connect(pair.follower.port)
            assert await told(peer) == LED
            peer.writer.close()

    run(main())


def test_a_leader_without_a_follower_here_is_what_the_controller_says(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as pair:
            know_the_leader(pair, pair.leader.port)
            peer = await Peer.connect(pair.follower.port)
            await pair.leader.server.stop(grace_s=0)
            assert await told(peer) == LED
            peer.writer.close()

    run(main())


def test_a_topic_that_is_deleted_while_an_answer_waits_is_not_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_leaders, "NOTICED_WITHIN_MS", LONG_MS)

    created: list[str] = []

    async def create(name: str) -> ErrorCode:
        created.append(name)
        return ErrorCode.NONE

    async def main() -> None:
        with Network() as network:
            async with following(tmp_path, network) as (pair, peer):
                network.cut("1", "2")
                follower = pair.follower.broker
                creating = replace(follower.configs, auto_create_topics_enable=True)
                object.__setattr__(follower, "configs", creating)
                monkeypatch.setattr(follower.topic_creation, "ensure", create)
                tally = pair.follower.server.router.tallies[ApiKey.METADATA]
                before = tally.pending
                question = asyncio.create_task(answered(peer, creates=True))
                await until(lambda: tally.pending > before)
                follower.metadata.apply(TOLD(controller_id=1), complete=True)
                assert (await question).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                assert created == []

    run(main())
