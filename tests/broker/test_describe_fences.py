"""DescribeFences to a broker at level 1.5."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.every_yield import every_yield
from tests.support.lone_broker import Peer
from tests.support.produce_fetch import batch, run, running
from tests.support.resized import COUNT, EPOCH, LIFE, OLDER, OWN, fence, put
from tidelog.broker.handlers import describe_fences
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode as E
from tidelog.model.work import finish
from tidelog.protocol import codec, messages
from tidelog.records.control_records import ChangeKind
from tidelog.replication.resize_rules import NOT_NAMED, Named
from tidelog.storage.log.fences import FenceEntry, Fences

NEWER = Named(COUNT, EPOCH + 1, LIFE)


async def ask(peer: Peer, named: Named = NOT_NAMED, index: int = 0) -> Any:
    request = messages.DescribeFencesRequest
    partition = request.Partition(index, named.partition_epoch)
    topic = request.Topic("t", [partition], named.undeleted_count, named.resize_epoch)
    answer = await peer.ask(request(topics=[topic]), 0)
    (part,) = answer.topics[0].partitions
    return part


def test_the_fences_below_the_watermark_are_answered(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t")
            for _ in range(3):
                hosted.append(batch("x", timestamp=1), 1)
            put(hosted)
            assert list((await ask(peer)).fences) == []
            fence(hosted, 2)
            part = await ask(peer)
            (found,) = part.fences
            assert (part.error_code, part.leader_epoch) == (0, hosted.leader_epoch)
            assert (found.resize_epoch, found.offset, found.kind) == (EPOCH, 2, 0)
            hosted.log.fences = Fences((FenceEntry(EPOCH, COUNT, ChangeKind.FENCE, 2, 1),))
            (found,) = (await ask(peer)).fences
            assert (found.offset, found.data_end_offset) == (2, 1)
            hosted.log.high_watermark = 2
            assert list((await ask(peer)).fences) == [], "it may be lost with this leader"

    run(main())


def test_the_numbers_of_a_request_go_together_and_name_the_incarnation(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t")
            put(hosted)
            for named, expected in (
                (OWN, E.NONE),
                (OLDER, E.NONE),
                (NEWER, E.NOT_LEADER_OR_FOLLOWER),
                (OWN._replace(partition_epoch=LIFE + 1), E.NOT_LEADER_OR_FOLLOWER),
                (Named(partition_epoch=LIFE), E.INVALID_REQUEST),
                (Named(COUNT, EPOCH), E.INVALID_REQUEST),
                (Named(COUNT), E.INVALID_REQUEST),
            ):
                assert E((await ask(peer, named)).error_code) == expected, named
            put(hosted, sealed=True)
            assert E((await ask(peer, NEWER)).error_code) == E.NONE, "a sealed one keeps its epoch"
            assert E((await ask(peer, index=7)).error_code) == E.UNKNOWN_TOPIC_OR_PARTITION

    run(main())


def test_many_partitions_are_looked_up_in_steps_each_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            lone.lead("t")
            request = messages.DescribeFencesRequest
            asked = request(topics=[request.Topic("t", [request.Partition(x) for x in range(5)])])
            (topic,) = (await peer.ask(asked, 0)).topics
            assert [part.partition for part in topic.partitions] == [0, 1, 2, 3, 4]
            assert [bool(part.error_code) for part in topic.partitions] == [False] + [True] * 4

    with every_yield():
        run(main())


class ControllerWithFormer:
    """A session whose controller knows former incarnations of two topics."""

    async def forward(self, inner: bytes, *_: object) -> bytes:
        response = messages.DescribeFencesResponse
        api = ApiKey.DESCRIBE_FENCES
        frame = memoryview(inner)
        header = codec.decode_request_header(frame)
        asked = finish(codec.decode_request(api, 0, frame, header.body))
        names = dict.fromkeys(topic.topic for topic in asked.topics)
        former = [response.Former(index, 1, 5, 6, 2) for index in range(3)]
        found = response(topics=[response.Topic(name, [], former) for name in names])
        return b"".join(codec.encode_response(api, 0, 0, found))[4:]


def test_a_topic_that_is_named_often_has_its_former_incarnations_once(tmp_path: Path) -> None:
    """A request of 76 kB got a response of 550 MB, built in memory, from a topic that had once had
    1,000 partitions."""

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            lone.session = ControllerWithFormer()
            lone.lead("t")
            request = messages.DescribeFencesRequest
            named = [request.Topic("t", [request.Partition(0)]), request.Topic("u")]
            answer = await peer.ask(request(include_former=True, topics=named * 1_000), 0)
            assert [topic.topic for topic in answer.topics] == ["t", "u"] * 1_000
            assert [len(topic.former) for topic in answer.topics] == [3, 3] + [0] * 1_998
            assert {len(topic.partitions) for topic in answer.topics[::2]} == {1}

    run(main())


def test_the_memory_of_former_incarnations_is_stated_while_the_response_grows(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, _):
            request, response = messages.DescribeFencesRequest, messages.DescribeFencesResponse
            former = {"t": [response.Former(index, 1, 5, 6, 2) for index in range(9)]}
            asked = request(include_former=True, topics=[request.Topic("t")])
            grown = list(describe_fences._joined(lone.broker, asked, former))
            assert sum(grown) >= 9 * describe_fences.FORMER_BYTES

    run(main())
