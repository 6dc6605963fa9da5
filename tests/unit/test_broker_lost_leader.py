"""What a follower tells clients of a leader whose connection broke (decision 0009)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.lone_broker import Peer, until
from tests.unit.test_broker_following import Pair, append, run, running

from tidelog.broker import follower_fetcher
from tidelog.model.errors import ErrorCode
from tidelog.network.limits import Limits
from tidelog.network.server import Server
from tidelog.protocol import messages

TOLD = messages.UpdateMetadataRequest


def know_the_leader(pair: Pair, port: int) -> None:
    """Tell the follower of both brokers, and that broker 1 leads t-0."""
    ends = {
        node_id: TOLD.UpdateMetadataEndpoint(port=at, host="127.0.0.1", listener="PLAINTEXT")
        for node_id, at in ((1, port), (2, pair.follower.port))
    }
    state = TOLD.UpdateMetadataPartitionState(
        partition_index=0, leader=1, leader_epoch=1, isr=[1, 2], replicas=[1, 2]
    )
    update = TOLD(
        controller_id=1,
        topic_states=[TOLD.UpdateMetadataTopicState(topic_name="t", partition_states=[state])],
        live_brokers=[
            TOLD.UpdateMetadataBroker(id=node_id, endpoints=[end]) for node_id, end in ends.items()
        ],
    )
    pair.follower.broker.metadata.apply(update, complete=False)


async def told(peer: Peer) -> tuple[ErrorCode, int]:
    """What a client hears of t-0: the error and the leader."""
    topic = messages.MetadataRequest.MetadataRequestTopic(name="t")
    request: Any = messages.MetadataRequest(topics=[topic], allow_auto_topic_creation=False)
    answer = await peer.ask(request, 8)
    (partition,) = answer.topics[0].partitions
    return ErrorCode(partition.error_code), partition.leader_id


LED = (ErrorCode.NONE, 1)
LOST = (ErrorCode.LEADER_NOT_AVAILABLE, -1)


def test_a_leader_whose_connection_broke_is_not_named_until_it_is_found_again(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with running(tmp_path) as pair:
            leads, follows = pair.lead(), pair.follow()
            append(leads, "a")
            know_the_leader(pair, pair.leader.port)
            await until(lambda: follows.end_offset == 1)
            peer = await Peer.connect(pair.follower.port)
            assert await told(peer) == LED
            await pair.leader.server.stop(grace_s=0)
            await until(lambda: pair.follower.broker.followers.has_lost(1))
            assert await told(peer) == LOST
            again = Server(pair.leader.router(), pair.leader.broker, Limits())
            pair.leader.server = again
            know_the_leader(pair, await again.listen("PLAINTEXT", "127.0.0.1", 0))
            await until(lambda: not pair.follower.broker.followers.has_lost(1))
            assert await told(peer) == LED
            peer.writer.close()

    run(main())


def test_one_that_stays_away_is_named_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be alive and only cut off from here."""
    monkeypatch.setattr(follower_fetcher, "LOST_SHOWN_MS", 50)

    async def main() -> None:
        async with running(tmp_path) as pair:
            leads, follows = pair.lead(), pair.follow()
            append(leads, "a")
            know_the_leader(pair, pair.leader.port)
            await until(lambda: follows.end_offset == 1)
            peer = await Peer.connect(pair.follower.port)
            await pair.leader.server.stop(grace_s=0)
            await until(lambda: pair.follower.broker.followers.has_lost(1))
            await until(lambda: not pair.follower.broker.followers.has_lost(1))
            assert await told(peer) == LED
            peer.writer.close()

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


def test_a_leader_that_nobody_follows_here_is_what_the_controller_says(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as pair:
            know_the_leader(pair, pair.leader.port)
            peer = await Peer.connect(pair.follower.port)
            await pair.leader.server.stop(grace_s=0)
            assert await told(peer) == LED
            peer.writer.close()

    run(main())
