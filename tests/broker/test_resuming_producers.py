"""An unknown producer that goes on with its sequence: no batch of it passes one that was refused.

Requests as librdkafka sends them: several in flight, the next one on its way when one is refused.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.inspected_appends import codes
from tests.support.lone_broker import Peer
from tests.support.produce_fetch import LATEST, batch, produce, run, running, send
from tests.support.resized import put
from tests.support.storage_logs import records_of
from tidelog.broker.partitions import inspected_appends
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode as E
from tidelog.protocol import codec
from tidelog.records.builder import Producer
from tidelog.storage.log.changes import LogChange

RECOMPRESSED = {"compression.type": "gzip"}
BY_ID = 13
NEXT = 1_000
"""A correlation id that no other request of a test has."""


def numbered(sequence: int, *, size: int = 0) -> bytes:
    return batch(f"{sequence}".ljust(size), producer=Producer(7, 0, sequence))


def stored(hosted: HostedPartition) -> list[int]:
    return [int(record.value or b"") for record in records_of(hosted.log)]


async def error_of(peer: Peer, sequence: int, **more: Any) -> E:
    return E((await send(peer, numbered(sequence), **more)).error_code)


async def while_on_its_way(
    peer: Peer, first: bytes, second: bytes, between: Callable[[], object]
) -> list[E]:
    """Send two requests, the second only in part before the first is answered; ``between`` runs
    before the rest comes."""
    frame = b"".join(codec.encode_request(ApiKey.PRODUCE, LATEST, NEXT, "peer", produce(second)))
    peer.send(produce(first), LATEST)
    peer.asked(NEXT, ApiKey.PRODUCE, LATEST)
    peer.writer.write(frame[:-3])
    answers = [await peer.receive()]
    between()
    peer.writer.write(frame[-3:])
    answers.append(await peer.receive())
    return [E(each.responses[0].partition_responses[0].error_code) for each in answers]


def test_a_batch_does_not_pass_the_one_that_was_refused_before_this_broker_led(
    tmp_path: Path,
) -> None:
    """97 found no leader, 98 was in flight after it: then 97 counted as stored, and was not."""

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            errors = await while_on_its_way(
                peer, numbered(97), numbered(98), lambda: lone.lead("t")
            )
            assert errors == [E.UNKNOWN_TOPIC_OR_PARTITION, E.NOT_LEADER_OR_FOLLOWER]
            assert [await error_of(peer, sequence) for sequence in (97, 98, 99)] == [E.NONE] * 3
            hosted = lone.broker.partitions.get("t", 0)
            assert hosted is not None and stored(hosted) == [97, 98, 99]
            assert len(lone.broker.resuming_producers) == 0

    run(main())


def test_a_batch_does_not_pass_one_that_is_with_another_broker(tmp_path: Path) -> None:
    """This broker never saw 97: it cannot know that it was refused, or has no answer yet."""

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t")
            refused = await send(peer, numbered(98))
            assert refused.error_code == E.NOT_LEADER_OR_FOLLOWER
            assert "t-0 does not know producer 7" in refused.error_message
            assert "sequence 98: send it again" in refused.error_message
            assert await error_of(peer, 99) is E.NOT_LEADER_OR_FOLLOWER
            assert [await error_of(peer, sequence) for sequence in (97, 98, 99)] == [E.NONE] * 3
            assert stored(hosted) == [97, 98, 99]

    run(main())


def _too_few(hosted: HostedPartition, *, on: bool) -> None:
    hosted.required_in_sync = 2 if on else 1


def _fence_unwritten(hosted: HostedPartition, *, on: bool) -> None:
    put(hosted)
    hosted.fence_unwritten = on


def _cutting(hosted: HostedPartition, *, on: bool) -> None:
    hosted.log.change = LogChange.CUT if on else None  # as for a moment while a log is cut


REFUSALS: dict[Callable[..., None], E] = {
    _too_few: E.NOT_ENOUGH_REPLICAS,
    _fence_unwritten: E.KAFKA_STORAGE_ERROR,
    _cutting: E.KAFKA_STORAGE_ERROR,
}


@pytest.mark.parametrize("refusing", REFUSALS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("configs", [None, RECOMPRESSED], ids=["plain", "looked into"])
@pytest.mark.parametrize("first", [97, 98], ids=["at once", "after a refusal of 98"])
def test_a_batch_does_not_pass_one_that_its_leader_refuses_for_now(
    tmp_path: Path, refusing: Callable[..., None], configs: dict[str, str] | None, first: int
) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t", configs=configs)
            size = 200_000 if configs else 0
            if first == 98:
                assert await error_of(peer, 98) is E.NOT_LEADER_OR_FOLLOWER
            refusing(hosted, on=True)
            errors = await while_on_its_way(
                peer, numbered(97, size=size), numbered(98), lambda: refusing(hosted, on=False)
            )
            assert errors == [REFUSALS[refusing], E.NOT_LEADER_OR_FOLLOWER]
            # All that were in flight have an outcome: the lowest one is sent first.
            assert [await error_of(peer, sequence) for sequence in (97, 98)] == [E.NONE] * 2
            assert stored(hosted) == [97, 98]

    run(main())


def test_batches_that_wait_to_be_looked_into_keep_the_rule(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t", configs=RECOMPRESSED)
            for sequence in (97, 98):
                peer.send(produce(numbered(sequence, size=200_000)), LATEST)
            assert codes(await peer.receive()) == codes(await peer.receive()) == [6]
            for sequence in (97, 98):
                peer.send(produce(numbered(sequence, size=200_000)), LATEST)
            assert codes(await peer.receive()) == codes(await peer.receive()) == [0]
            assert stored(hosted) == [97, 98]

    run(main())


def test_a_batch_that_is_refused_after_it_was_looked_into_lowers_the_note(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t", configs=RECOMPRESSED)
            assert await error_of(peer, 98) is E.NOT_LEADER_OR_FOLLOWER
            run_pieces = lone.broker.background.run

            async def then_too_few(pieces: Any) -> Any:
                result = await run_pieces(pieces)
                _too_few(hosted, on=True)
                return result

            lone.broker.background.run = then_too_few  # type: ignore[method-assign]
            errors = await while_on_its_way(
                peer, numbered(97, size=200_000), numbered(98), lambda: _too_few(hosted, on=False)
            )
            assert errors == [E.NOT_ENOUGH_REPLICAS, E.NOT_LEADER_OR_FOLLOWER]
            assert [await error_of(peer, sequence) for sequence in (97, 98)] == [E.NONE] * 2
            assert stored(hosted) == [97, 98]

    run(main())


def test_a_batch_that_found_no_room_to_wait_lowers_the_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t", configs=RECOMPRESSED)
            assert await error_of(peer, 98) is E.NOT_LEADER_OR_FOLLOWER
            waits = lone.broker.inspected_appends
            other: Any = SimpleNamespace(client_host="127.0.0.1")
            waits._account.charge(inspected_appends.MOST_BYTES, other)
            answer = await send(peer, numbered(97, size=200_000))
            assert answer.error_code == E.REQUEST_TIMED_OUT
            waits._account.charge(-inspected_appends.MOST_BYTES, other)
            assert await error_of(peer, 98) is E.NOT_LEADER_OR_FOLLOWER
            assert await error_of(peer, 97) is E.NONE
            assert stored(hosted) == [97]

    run(main())


def test_another_leadership_begins_without_the_notes_of_the_former(tmp_path: Path) -> None:
    """The leader in between may have refused 97."""

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t")
            assert await error_of(peer, 98) is E.NOT_LEADER_OR_FOLLOWER
            lone.lead("t", leader=2, epoch=1)
            lone.lead("t", epoch=2)
            assert await error_of(peer, 98) is E.NOT_LEADER_OR_FOLLOWER
            lone.lead("t", epoch=3)  # without a break
            assert await error_of(peer, 98) is E.NONE
            assert stored(hosted) == [98]

    run(main())


def test_requests_by_id_keep_the_rule(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            topic_id = uuid.uuid5(uuid.NAMESPACE_OID, "t")

            async def by_id(sequence: int) -> list[int]:
                request = produce(numbered(sequence))
                request.topic_data[0].topic_id = topic_id
                return codes(await peer.ask(request, BY_ID))

            assert await by_id(97) == [E.UNKNOWN_TOPIC_ID]
            hosted = lone.lead("t")
            assert hosted.topic_id == topic_id
            assert await by_id(98) == [E.NOT_LEADER_OR_FOLLOWER]
            assert [await by_id(sequence) for sequence in (97, 98)] == [[E.NONE]] * 2
            assert stored(hosted) == [97, 98]

    run(main())


def test_producers_in_order_are_asked_for_nothing(tmp_path: Path) -> None:
    """The good case pays nothing: a new producer, a known one, one that is not idempotent."""

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t")
            for acks in (1, -1):
                assert (await send(peer, batch("0"), acks=acks)).error_code == 0
            for sequence in range(3):
                assert await error_of(peer, sequence) is E.NONE
            assert await error_of(peer, 7) is E.OUT_OF_ORDER_SEQUENCE_NUMBER
            hosted.required_in_sync = 2
            assert await error_of(peer, 3) is E.NOT_ENOUGH_REPLICAS
            assert (await send(peer, batch("0"))).error_code == E.NOT_ENOUGH_REPLICAS
            assert len(lone.broker.resuming_producers) == 0
            assert stored(hosted) == [0, 0, 0, 1, 2]

    run(main())
