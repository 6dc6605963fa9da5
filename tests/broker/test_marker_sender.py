"""Markers from a coordinator's broker to the leaders: three brokers over real connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.lone_broker import Peer, until
from tests.support.marker_broker import (
    COORDINATOR,
    EPOCH,
    ID,
    MarkerBrokers,
    begin,
    follower_fetches,
    markers_of,
    read_committed,
)
from tidelog.broker.control_plane.controller_search import ControllerUnreachable
from tidelog.broker.transactions import marker_sender
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode as E
from tidelog.model.topics import OFFSETS_TOPIC, TopicPartition
from tidelog.protocol import codec, messages
from tidelog.records.control_records import EndMarker
from tidelog.transactions.decision import SendMarkers
from tidelog.transactions.state import IdAndEpoch

Story = Callable[[MarkerBrokers], Awaitable[None]]


def play(folder: Path, story: Story) -> None:
    async def main() -> None:
        async with MarkerBrokers(folder) as brokers:
            await story(brokers)

    asyncio.run(main())


async def turns(count: int = 50) -> None:
    """Let everything that is ready on the loop run."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("committed", [True, False])
def test_markers_reach_this_broker_and_two_others(tmp_path: Path, committed: bool) -> None:
    async def story(brokers: MarkerBrokers) -> None:
        topics = {"a": 1, "b": 2, "c": 3}
        hosted = {topic: brokers.lead(topic, node_id) for topic, node_id in topics.items()}
        for each in hosted.values():
            begin(each)
        brokers.know(a=(1, 0), b=(2, 0), c=(3, 0))
        brokers.end("one", *topics, committed=committed)
        assert brokers.written == []
        await brokers.until_written("one")
        for topic, node_id in topics.items():
            peer = await Peer.connect(brokers.all[node_id].port)
            assert await read_committed(peer, topic) == (2, [] if committed else [0])
            peer.writer.close()
            ended = EndMarker(committed, COORDINATOR)
            assert markers_of(hosted[topic]) == [(ID, EPOCH, ended)]
        # What this broker leads goes without the network.
        assert [brokers.requests(node_id) for node_id in (1, 2, 3)] == [0, 1, 1]
        brokers.end("none")
        await brokers.until_written("none")

    play(tmp_path, story)


def test_many_transactions_share_requests_and_one_connection(tmp_path: Path) -> None:
    count = 300

    async def story(brokers: MarkerBrokers) -> None:
        hosted = brokers.lead("a", 2)
        brokers.know(a=(2, 0))
        opened = len(brokers.all[2].server.connections)
        for producer_id in range(count):
            brokers.end(f"{producer_id}", "a", producer_id=producer_id)
        await brokers.until_written(*(f"{number}" for number in range(count)))
        assert brokers.requests(2) == 1
        brokers.end("more", "a")
        await brokers.until_written("more")
        assert len(brokers.all[2].server.connections) == opened + 1
        assert len(markers_of(hosted)) == count + 1

    play(tmp_path, story)


def test_a_frozen_broker_holds_no_other_up(tmp_path: Path) -> None:
    async def hold(_: Any, writer: asyncio.StreamWriter) -> None:
        held.append(writer)

    held: list[asyncio.StreamWriter] = []

    async def story(brokers: MarkerBrokers) -> None:
        frozen = await asyncio.start_server(hold, "127.0.0.1", 0)
        brokers.ports[3] = frozen.sockets[0].getsockname()[1]
        brokers.lead("b", 2)
        brokers.know(b=(2, 0), c=(3, 0))
        brokers.end("held", "b", "c")
        brokers.end("free", "b", producer_id=8)
        await brokers.until_written("free")
        await until(lambda: held)
        assert brokers.written == ["free"]
        # Its partition has another leader, while a request to the frozen one is open.
        hosted = brokers.lead("c", 2, epoch=1)
        brokers.know(c=(2, 1))
        await brokers.until_written("held")
        assert len(markers_of(hosted)) == 1
        for writer in held:
            writer.close()
        frozen.close()

    play(tmp_path, story)


def test_a_leader_that_does_not_respond_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marker_sender, "CONNECT_MS", 50)
    monkeypatch.setattr(marker_sender, "PAUSE_MS", 1)

    async def hold(_: Any, writer: asyncio.StreamWriter) -> None:
        held.append(writer)

    held: list[asyncio.StreamWriter] = []

    async def story(brokers: MarkerBrokers) -> None:
        frozen = await asyncio.start_server(hold, "127.0.0.1", 0)
        port = brokers.ports[2]
        brokers.ports[2] = frozen.sockets[0].getsockname()[1]
        brokers.lead("b", 2)
        brokers.know(b=(2, 0))
        brokers.end("one", "b")
        await until(lambda: len(held) > 1)
        # It was started again elsewhere.
        brokers.ports[2] = port
        brokers.know()
        await brokers.until_written("one")
        for writer in held:
            writer.close()
        frozen.close()

    play(tmp_path, story)


def test_a_marker_that_is_given_up_is_not_delivered_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would end the next transaction of its producer, so its connection is reset."""
    monkeypatch.setattr(marker_sender, "ANSWER_MS", 50)
    monkeypatch.setattr(marker_sender, "PAUSE_MS", 1)
    ended: list[str] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward requests and responses, but no request from the first marker on."""
        there, back = await asyncio.open_connection("127.0.0.1", port)
        try:
            while True:
                frame = await reader.readexactly(4)
                frame += await reader.readexactly(int.from_bytes(frame, "big"))
                if int.from_bytes(frame[4:6], "big") == ApiKey.WRITE_TXN_MARKERS:
                    break
                back.write(frame)
                answer = await there.readexactly(4)
                writer.write(answer + await there.readexactly(int.from_bytes(answer, "big")))
            await reader.read()
            ended.append("with all that was sent")
        except ConnectionResetError:
            ended.append("reset")
        finally:
            writer.close()
            back.close()

    port = 0

    async def story(brokers: MarkerBrokers) -> None:
        nonlocal port
        port = brokers.ports[2]
        relaying = await asyncio.start_server(relay, "127.0.0.1", 0)
        brokers.ports[2] = relaying.sockets[0].getsockname()[1]
        brokers.lead("b", 2)
        brokers.know(b=(2, 0))
        brokers.end("one", "b")
        await until(lambda: ended)
        assert ended[0] == "reset"
        brokers.ports[2] = port
        brokers.know()
        await brokers.until_written("one")
        relaying.close()

    play(tmp_path, story)


def test_a_leader_that_moves_is_followed(tmp_path: Path) -> None:
    async def story(brokers: MarkerBrokers) -> None:
        brokers.lead("a", 2)
        brokers.all[2].lead("a", epoch=1, leader=3, isr=(3,), replicas=(2, 3))
        brokers.know(a=(2, 0))
        brokers.end("one", "a")
        # The broker that led says so, again and again: the metadata do not know the next one.
        await until(lambda: brokers.requests(2) > 2)
        brokers.know(a=(-1, 1))
        await turns()
        hosted = brokers.lead("a", 3, epoch=2)
        assert brokers.written == []
        brokers.know(a=(3, 2))
        await brokers.until_written("one")
        assert len(markers_of(hosted)) == 1

    play(tmp_path, story)


def test_a_partition_that_hangs_holds_no_other_transaction_up(tmp_path: Path) -> None:
    """Its follower is frozen: its marker is in the log of the leader, and not committed."""

    async def story(brokers: MarkerBrokers) -> None:
        hosted = brokers.lead("hangs", 2, epoch=1, isr=(1, 2), replicas=(1, 2))
        other = brokers.lead("here", 1, epoch=1, isr=(1, 2), replicas=(1, 2))
        brokers.lead("b", 2)
        brokers.know(hangs=(2, 1), here=(1, 1), b=(2, 0))
        brokers.end("held", "hangs", "b")
        brokers.end("held here", "here", "b", producer_id=8)
        for number in range(20):
            brokers.end(f"{number}", "b", producer_id=10 + number)
            await brokers.until_written(f"{number}")
        await until(lambda: brokers.requests(2) > 25)
        assert len(brokers.written) == 20
        # However often the marker was sent, it was written once.
        assert (hosted.end_offset, other.end_offset) == (1, 1)
        peer = await Peer.connect(brokers.all[1].port)
        await follower_fetches(peer, "here", 1, epoch=1)
        await brokers.until_written("held here")
        hosted.follower_fetched(1, 1)
        await brokers.until_written("held")
        peer.writer.close()

    play(tmp_path, story)


def test_after_a_stop_nothing_is_said(tmp_path: Path) -> None:
    async def story(brokers: MarkerBrokers) -> None:
        hosted = brokers.lead("a", 2, epoch=1, isr=(1, 2), replicas=(1, 2))
        brokers.know(a=(2, 1))
        brokers.end("stopped", "a", state_partition=7)
        brokers.end("empty", state_partition=7)
        brokers.end("goes on", "a", producer_id=8, state_partition=8)
        brokers.sender.stop(7)
        await until(lambda: hosted.end_offset == 1)
        hosted.follower_fetched(1, 1)
        await brokers.until_written("goes on")
        assert brokers.written == ["goes on"]
        assert len(brokers.sender.plan) == 0

    play(tmp_path, story)


def test_what_is_done_may_stop_others_that_are_done_with_it(tmp_path: Path) -> None:
    async def story(brokers: MarkerBrokers) -> None:
        brokers.lead("a", 2)
        brokers.know(a=(2, 0))
        said: list[int] = []

        def written(number: int) -> None:
            said.append(number)
            brokers.sender.stop(0)

        for number in range(2):
            asked = SendMarkers("", IdAndEpoch(number, 0), True, (TopicPartition("a", 0),))
            brokers.sender.send(0, 0, asked, lambda number=number: written(number))
        await until(lambda: said)
        await turns()
        assert said == [0]

    play(tmp_path, story)


def test_a_topic_that_does_not_exist_is_done(tmp_path: Path) -> None:
    """A broker that has just started knows no topics; the controller has to say that it is gone."""

    async def story(brokers: MarkerBrokers) -> None:
        asked: list[str] = []
        answers: list[E | None] = [None, E.NONE]

        async def forward(*_: Any) -> bytes:
            api = ApiKey.DESCRIBE_TOPIC_PARTITIONS
            error = answers.pop(0) if answers else E.UNKNOWN_TOPIC_OR_PARTITION
            asked.append("" if error is None else error.name)
            if error is None:
                raise ControllerUnreachable("no controller responds")
            response = messages.DescribeTopicPartitionsResponse
            topic = response.DescribeTopicPartitionsResponseTopic
            parts = [topic_part(0)] if error is E.NONE else []
            made = response(topics=[topic(error, "gone", partitions=parts)])
            return b"".join(codec.encode_response(api, 0, 0, made))[4:]

        response = messages.DescribeTopicPartitionsResponse
        topic_part = response.DescribeTopicPartitionsResponsePartition
        brokers.all[1].session = SimpleNamespace(forward=forward, broker_epoch=1)
        brokers.lead("a", 2)
        brokers.know(a=(2, 0))
        brokers.end("one", "gone", "a")
        await until(lambda: len(asked) == 2)
        assert brokers.written == []
        await brokers.until_written("one")
        assert asked == ["", "NONE", "UNKNOWN_TOPIC_OR_PARTITION"]

    play(tmp_path, story)


def test_a_topic_that_a_young_cache_does_not_have_yet_gets_its_marker(tmp_path: Path) -> None:
    async def story(brokers: MarkerBrokers) -> None:
        hosted = brokers.lead("a", 2)
        brokers.know(a=(2, 0))
        brokers.forget("a")
        brokers.end("one", "a")
        await until(lambda: brokers.sender.plan.next_ms is not None)
        assert brokers.written == []
        brokers.know(a=(2, 0))
        await brokers.until_written("one")
        assert len(markers_of(hosted)) == 1

    play(tmp_path, story)


def test_a_broker_that_does_not_offer_transactions_yet_is_asked_again(tmp_path: Path) -> None:
    """As while a cluster rolls up to the level that has them."""

    async def story(brokers: MarkerBrokers) -> None:
        brokers.all[2].broker.cluster_level.take("1.5")
        hosted = brokers.lead("a", 2)
        brokers.know(a=(2, 0))
        brokers.end("one", "a")
        await until(
            lambda: any(place.failures or place.error for place in brokers.sender.plan.places)
        )
        assert hosted.end_offset == 0
        brokers.all[2].broker.cluster_level.take("1.6")
        await brokers.until_written("one")

    play(tmp_path, story)


def test_offsets_of_another_broker_are_visible_with_the_marker(tmp_path: Path) -> None:
    async def story(brokers: MarkerBrokers) -> None:
        other = brokers.all[2]
        other.lead("t", 2, leader=2, isr=(2,), replicas=(2,))
        other.offsets_isr = other.offsets_replicas = (2,)
        await other.coordinator.reloaded(other.lead_offsets(leader=2))
        brokers.know(**{OFFSETS_TOPIC: (2, 0)})
        peer = await Peer.connect(other.port)
        commit = messages.TxnOffsetCommitRequest
        parts = [commit.TxnOffsetCommitRequestPartition(0, 9, 3)]
        topics = [commit.TxnOffsetCommitRequestTopic("t", parts)]
        answer = await peer.ask(commit("id", "g", ID, EPOCH, topics=topics), 4)
        assert answer.topics[0].partitions[0].error_code == E.NONE
        brokers.end("one", OFFSETS_TOPIC)
        await brokers.until_written("one")
        asked = messages.OffsetFetchRequest
        wanted = [asked.OffsetFetchRequestTopic("t", [0])]
        answer = await peer.ask(asked(group_id="g", topics=wanted, require_stable=True), 7)
        assert answer.topics[0].partitions[0].committed_offset == 9
        peer.writer.close()

    play(tmp_path, story)


def test_a_partition_that_waits_for_long_has_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(marker_sender, "SAID_AFTER_MS", 100)

    async def story(brokers: MarkerBrokers) -> None:
        brokers.lead("a", 1, replicas=(1, 2), configs={"min.insync.replicas": "2"})
        brokers.know(a=(1, 0))
        brokers.end("one", "a")
        await until(lambda: "wait for" in caplog.text)

    play(tmp_path, story)
    assert "for a-0, led by broker 1" in caplog.text and "NOT_ENOUGH_REPLICAS" in caplog.text
