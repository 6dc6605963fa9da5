"""Produced batches that must be looked into: beside the loop, in order, within bounds (N6, S12)."""

from __future__ import annotations

import asyncio
import gzip
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.inspected_appends import codes, produce
from tests.support.lone_broker import LoneBroker, Peer, until, with_broker
from tests.support.lying_batches import changed, family, honest
from tests.support.storage_logs import NOW_MS, batch, records_of
from tests.support.turn_costs import TurnCosts
from tidelog.broker.partitions import inspected_appends
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.errors import ErrorCode
from tidelog.model.work import finish
from tidelog.records.batch import HEADER_SIZE, Rejected, read_header
from tidelog.records.builder import NewRecord, Producer, build_batch
from tidelog.records.compression import Codec
from tidelog.runtime.clock import RealClock
from tidelog.storage.log import inspecting
from tidelog.storage.log.inspecting import (
    REQUEST_BYTES_AT_ONCE,
    SMALL_BYTES,
    UNINSPECTED,
    BatchDemands,
    InspectionAllowance,
)
from tidelog.storage.log.preparing import prepare
from tidelog.storage.log.results import Appended

STALL_S = 0.1
"""What one request may hold the loop for (docs/design/speed.md): CPU time of one turn."""

PRESENT_MS = RealClock().wall_ms()
COMPACTED = {"cleanup.policy": "compact", "max.message.bytes": "30000000"}
RECOMPRESSED = {"compression.type": "gzip", "compression.gzip.level": "9"}


class Place:
    """The sender of a batch."""

    def __init__(self, client_host: str) -> None:
        self.client_host = client_host


PEER = Place("127.0.0.1")


def sized(count: int, *, codec: int = 0, producer: Producer = Producer()) -> bytes:  # noqa: B008
    """A batch of ``count`` records with keys and some text."""
    text = b"some text that is not all alike: "
    records = [NewRecord(NOW_MS, b"key%d" % at, text + b"%d" % (at * at)) for at in range(count)]
    return build_batch(records, codec=codec, producer=producer)


@pytest.mark.parametrize(
    ("configs", "content"),
    [
        (COMPACTED, lambda: sized(131_072)),
        (COMPACTED, lambda: sized(131_072, codec=Codec.ZSTD)),
        (RECOMPRESSED, lambda: sized(20_000)),
        (RECOMPRESSED, lambda: sized(20_000, codec=Codec.LZ4)),
        ({"compression.type": "lz4", "compression.lz4.level": "12"}, lambda: sized(20_000)),
    ],
    ids=["keys", "compressed keys", "gzip", "lz4 to gzip", "lz4"],
)
def test_a_large_batch_is_looked_into_beside_the_loop(
    tmp_path: Path, configs: dict[str, str], content: Callable[[], bytes]
) -> None:
    """S12: gzip of 1 MB took the loop for 82 ms, the keys of 131,072 records for 1.2 s."""

    async def story(lone: LoneBroker, peer: Peer) -> None:
        partition = lone.lead("t", configs={"max.message.bytes": "30000000", **configs})
        sent = content()
        peer.send(produce((0, sent)), 9)
        async with TurnCosts() as turns:
            answer = await peer.receive()
        assert codes(answer) == [0]
        assert turns.longest_s < STALL_S
        assert partition.end_offset == read_header(sent).record_count
        data = partition.read(0, 1, committed=False)
        assert not isinstance(data, Rejected)
        codec = {"gzip": Codec.GZIP, "lz4": Codec.LZ4}.get(configs.get("compression.type", ""))
        assert read_header(data).codec == (read_header(sent).codec if codec is None else codec)

    with_broker(tmp_path, story)


def test_many_small_bombs_are_not_waited_for(tmp_path: Path) -> None:
    """N6: 541 bytes became 16 MB and took 35 ms each, very many times in one request."""
    bomb = batch(1, size=15 * 1024 * 1024, codec=Codec.ZSTD)
    assert len(bomb) < 1000

    async def story(lone: LoneBroker, peer: Peer) -> None:
        lone.lead("t", 40, configs=COMPACTED)
        request = produce(*((index, bomb) for index in range(40)))
        async with TurnCosts() as turns:
            answer = await peer.ask(request, 9)
        assert turns.longest_s < STALL_S
        found = codes(answer)
        # A request may have 64 MiB decompressed, and 32 times the bytes of its batches.
        assert found.count(0) == 4
        assert found.count(ErrorCode.MESSAGE_TOO_LARGE) == 36

    with_broker(tmp_path, story)


def test_a_topic_that_allows_large_batches_allows_no_larger_bombs(tmp_path: Path) -> None:
    """N6: the limit was four times the topic's own max.message.bytes: 25 kB took 1.8 GB."""

    async def story(lone: LoneBroker, peer: Peer) -> None:
        lone.lead("t", configs={**COMPACTED, "max.message.bytes": "100000000"})
        content = batch(1, size=400_000_000, codec=Codec.ZSTD)
        async with TurnCosts() as turns:
            answer = await peer.ask(produce((0, content)), 9)
        assert codes(answer) == [ErrorCode.MESSAGE_TOO_LARGE]
        assert turns.longest_s < STALL_S

    with_broker(tmp_path, story)


def test_members_of_gzip_are_bounded(tmp_path: Path) -> None:
    """N6: each of very many empty members copied all that was left."""

    async def story(lone: LoneBroker, peer: Peer) -> None:
        lone.lead("t", configs=COMPACTED)
        members = gzip.compress(b"", mtime=0) * 50_000
        content = changed(batch(1, codec=Codec.GZIP), members)
        async with TurnCosts() as turns:
            answer = await peer.ask(produce((0, content)), 9)
        assert codes(answer) == [ErrorCode.INVALID_RECORD]
        assert (
            "bytes after member 1 of a gzip payload"
            in answer.responses[0].partition_responses[0].error_message
        )
        assert turns.longest_s < STALL_S

    with_broker(tmp_path, story)


def test_what_the_loop_looks_at_itself_is_bounded_for_a_request() -> None:
    """Its batches may be many, each of them small."""
    configs = TopicConfigs(cleanup_policy=frozenset({"compact"}))
    content = sized(500)
    assert len(content) < SMALL_BYTES
    allowance = InspectionAllowance()
    seen = [
        prepare(content, BatchDemands(configs, NOW_MS), allowance=allowance) is UNINSPECTED
        for _ in range(2 * REQUEST_BYTES_AT_ONCE // len(content))
    ]
    at_once = REQUEST_BYTES_AT_ONCE // len(content)
    assert seen == [False] * at_once + [True] * (len(seen) - at_once)


def test_what_is_too_large_for_the_loop_is_not_too_large(tmp_path: Path) -> None:
    """A thread decompresses it: 200 bytes that become more than the loop looks at."""

    async def story(lone: LoneBroker, peer: Peer) -> None:
        partition = lone.lead("t", configs=COMPACTED)
        content = batch(1, size=4 * SMALL_BYTES, codec=Codec.ZSTD)
        assert len(content) < 1_000
        assert codes(await peer.ask(produce((0, content)), 9)) == [0]
        assert len(records_of(partition.log)) == 1

    with_broker(tmp_path, story)


def test_a_partition_that_is_named_twice_takes_one_batch(tmp_path: Path) -> None:
    async def story(lone: LoneBroker, peer: Peer) -> None:
        partition = lone.lead("t", 2)
        answer = await peer.ask(produce((0, batch(1)), (1, batch(1)), (0, batch(1))), 9)
        assert codes(answer) == [0, 0, ErrorCode.INVALID_REQUEST]
        assert partition.end_offset == 1

    with_broker(tmp_path, story)


@pytest.mark.parametrize("configs", [COMPACTED, RECOMPRESSED], ids=["compacted", "gzip"])
def test_batches_keep_their_order(tmp_path: Path, configs: dict[str, str]) -> None:
    """Promise 5: small batches wait after large ones of the same partition, of any connection."""

    async def story(lone: LoneBroker, peer: Peer) -> None:
        partition = lone.lead("t", configs=configs)
        dice = random.Random(5)
        print("seed 5")
        sequence = 0
        sent = []
        for at in range(60):
            count = dice.choice((1, 3, 5000))
            content = sized(count, codec=dice.choice((0, 4)), producer=Producer(7, 0, sequence))
            sequence += count
            sent.append(count)
            peer.send(produce((0, content), acks=dice.choice((1, -1))), 9)
            if at % 7 == 0:
                await asyncio.sleep(0)
        for _ in sent:
            assert codes(await peer.receive()) == [0]
        assert partition.end_offset == sum(sent)
        assert len(records_of(partition.log)) == sum(sent)
        assert not lone.broker.inspected_appends.bytes and not partition.has_uninspected

    with_broker(tmp_path, story)


def test_a_large_batch_of_one_connection_is_not_overtaken_by_another(tmp_path: Path) -> None:
    async def story(lone: LoneBroker, peer: Peer) -> None:
        partition = lone.lead("t", configs=COMPACTED)
        other = await Peer.connect(lone.port)
        first = asyncio.ensure_future(peer.ask(produce((0, sized(50_000))), 9))
        await until(lambda: partition.has_uninspected)
        second = await other.ask(produce((0, sized(1))), 9)
        assert second.responses[0].partition_responses[0].base_offset == 50_000
        assert codes(await first) == [0]
        other.writer.close()

    with_broker(tmp_path, story)


def test_what_waits_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = sized(20_000)
    monkeypatch.setattr(inspected_appends, "MOST_BYTES", len(content) + 100)

    async def story(lone: LoneBroker, peer: Peer) -> None:
        partition = lone.lead("t", 2, configs=COMPACTED)
        answer = await peer.ask(produce((0, content), (1, content)), 9)
        assert codes(answer) == [0, ErrorCode.REQUEST_TIMED_OUT]
        assert codes(await peer.ask(produce((1, content)), 9)) == [0]
        assert partition.end_offset == 20_000 and not lone.broker.inspected_appends.bytes

    with_broker(tmp_path, story)


def test_a_client_that_sends_much_does_not_have_the_batches_of_others_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One client could fill what may wait, and every other's batch was refused."""
    content = sized(1000)
    monkeypatch.setattr(inspected_appends, "MOST_BYTES", 4 * len(content))

    async def story(lone: LoneBroker, _: Peer) -> None:
        partition = lone.lead("t", configs=COMPACTED)
        looked, busy, other = lone.broker.inspected_appends, Place("127.0.0.2"), Place("127.0.0.3")

        def sent(by: Place, count: int) -> list[Any]:
            return [
                looked.add(
                    partition, content, InspectionAllowance(), by, in_sync=False, timeout_ms=30_000
                )
                for _ in range(count)
            ]

        alone, shared, back = sent(busy, 5), sent(other, 3), sent(busy, 1)
        taken = [[isinstance(await each, Appended) for each in of] for of in (alone, shared, back)]
        assert taken == [[True] * 4 + [False], [True] * 2 + [False], [False]]
        assert looked.bytes == 0 and partition.end_offset == 6000
        assert all([isinstance(await each, Appended) for each in sent(busy, 4)])

    with_broker(tmp_path, story)


def test_what_is_larger_than_all_that_may_wait_waits_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspected_appends, "MOST_BYTES", 100)

    async def story(lone: LoneBroker, peer: Peer) -> None:
        lone.lead("t", configs=COMPACTED)
        assert codes(await peer.ask(produce((0, sized(20_000))), 9)) == [0]

    with_broker(tmp_path, story)


def test_a_broker_that_stops_refuses_what_waits(tmp_path: Path) -> None:
    async def story(lone: LoneBroker, _: Peer) -> None:
        partition = lone.lead("t", configs=COMPACTED)
        looked, content = lone.broker.inspected_appends, sized(20_000)
        outcomes = [
            looked.add(
                partition, content, InspectionAllowance(), PEER, in_sync=False, timeout_ms=30_000
            )
            for _ in range(2)
        ]
        await asyncio.sleep(0)
        await looked.stop()
        assert all(outcome.done() for outcome in outcomes)
        found = [await outcome for outcome in outcomes]
        refused = [each.error for each in found if isinstance(each, Rejected)]
        assert refused == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
        assert not looked.bytes and not partition.end_offset

    with_broker(tmp_path, story)


def test_the_loop_packs_and_unpacks_no_large_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[tuple[str, bool]] = []

    def noting(name: str) -> None:
        really = getattr(inspecting, name)

        def noted(*args: Any) -> Any:
            threads.append((name, threading.current_thread() is threading.main_thread()))
            return really(*args)

        monkeypatch.setattr(inspecting, name, noted)

    async def story(lone: LoneBroker, peer: Peer) -> None:
        lone.lead("t", configs=COMPACTED | RECOMPRESSED)
        noting("decompress")
        noting("compress")
        assert codes(await peer.ask(produce((0, sized(20_000, codec=Codec.LZ4))), 9)) == [0]
        assert threads == [("decompress", False), ("compress", False)]

    with_broker(tmp_path, story)


def test_what_waits_is_a_copy(tmp_path: Path) -> None:
    """The receive buffer goes on: the next request stands where this one stood."""

    async def story(lone: LoneBroker, _: Peer) -> None:
        partition = lone.lead("t", configs=COMPACTED)
        received = bytearray(sized(20_000))
        outcome = lone.broker.inspected_appends.add(
            partition,
            memoryview(received),
            InspectionAllowance(),
            PEER,
            in_sync=False,
            timeout_ms=30_000,
        )
        received[:] = bytes(len(received))
        assert isinstance(await outcome, Appended)
        assert len(records_of(partition.log)) == 20_000

    with_broker(tmp_path, story)


def test_what_a_batch_does_not_need_is_left_to_the_others(tmp_path: Path) -> None:
    """Each takes what it may decompress to before, and gives back what it did not."""
    content = batch(1, size=4 * SMALL_BYTES, codec=Codec.ZSTD)
    many = 2 * inspecting.REQUEST_BYTES // inspecting.INSPECTED_BYTES

    async def story(lone: LoneBroker, peer: Peer) -> None:
        lone.lead("t", many, configs=COMPACTED)
        answer = await peer.ask(produce(*((index, content) for index in range(many))), 9)
        assert codes(answer) == [0] * many

    with_broker(tmp_path, story)


def test_a_batch_of_a_compacted_topic_has_so_many_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspecting, "INSPECTED_RECORDS", 10)

    async def story(lone: LoneBroker, peer: Peer) -> None:
        partition = lone.lead("t", configs=COMPACTED)
        found = [codes(await peer.ask(produce((0, sized(count))), 9)) for count in (10, 11)]
        assert found == [[0], [ErrorCode.MESSAGE_TOO_LARGE]]
        assert partition.end_offset == 10

    with_broker(tmp_path, story)


def test_a_connection_has_one_such_request_at_a_time(tmp_path: Path) -> None:
    """Its copy is all that a connection may have beside its receive buffer."""
    content = sized(50_000)

    async def story(lone: LoneBroker, peer: Peer) -> None:
        lone.lead("t", configs=COMPACTED)
        for _ in range(5):
            peer.send(produce((0, content)), 9)
        most = 0
        answers = asyncio.ensure_future(asyncio.gather(*[peer.receive()]))
        while not answers.done():
            most = max(most, lone.broker.inspected_appends.bytes)
            await asyncio.sleep(0)
        for _ in range(4):
            assert codes(await peer.receive()) == [0]
        assert most == len(content)

    with_broker(tmp_path, story)


def test_refusals_come_when_the_turn_has_come(tmp_path: Path) -> None:
    """Leadership, the ISR, the time: asked before the append, not when the request came."""

    async def story(lone: LoneBroker, peer: Peer) -> None:
        partition = lone.lead("t", configs=COMPACTED)
        peer.send(produce((0, sized(50_000))), 9)
        await until(lambda: partition.has_uninspected)
        lone.lead("t", epoch=1, leader=2, replicas=(1, 2), isr=(1, 2))
        assert codes(await peer.receive()) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        lone.lead("t", epoch=2, configs=COMPACTED | {"min.insync.replicas": "2"})
        looked = lone.broker.inspected_appends
        lone.lead("t", epoch=3, replicas=(1, 2), isr=(1, 2))
        few = looked.add(
            partition, sized(1), InspectionAllowance(), PEER, in_sync=True, timeout_ms=30_000
        )
        lone.lead("t", epoch=3, replicas=(1, 2), isr=(1,), isr_version=1)
        late = looked.add(
            partition, sized(1), InspectionAllowance(), PEER, in_sync=True, timeout_ms=-1
        )
        found = [await few, await late]
        assert [each.error for each in found if isinstance(each, Rejected)] == [
            ErrorCode.NOT_ENOUGH_REPLICAS,
            ErrorCode.REQUEST_TIMED_OUT,
        ]
        assert partition.end_offset == 0

    with_broker(tmp_path, story)


def test_with_acks_0_a_refusal_closes_the_connection(tmp_path: Path) -> None:
    async def story(lone: LoneBroker, peer: Peer) -> None:
        partition = lone.lead("t", configs=COMPACTED)
        peer.send(produce((0, sized(5000)), acks=0), 9)
        peer.send(produce((0, batch(5000, key=None)), acks=0), 9)
        await until(lambda: partition.end_offset == 5000)
        with pytest.raises(ConnectionError):
            peer._asked.clear()
            await peer.receive()

    with_broker(tmp_path, story)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("configs", [COMPACTED, RECOMPRESSED, {}], ids=["compacted", "gzip", ""])
def test_lies_over_the_wire(tmp_path: Path, seed: int, configs: dict[str, str]) -> None:
    """The kind of S3 and N6: whatever a batch claims, it is answered, the loop goes on, and the
    partition takes honest batches."""
    print(f"seed {seed}")
    dice = random.Random(seed)

    async def story(lone: LoneBroker, peer: Peer) -> None:
        partition = lone.lead("t", configs=configs)
        for lie in family(seed, PRESENT_MS, 90):
            async with TurnCosts() as turns:
                answer = await peer.ask(produce((0, lie.batch)), 9)
                again = await peer.ask(produce((0, honest(dice, PRESENT_MS))), 9)
            assert codes(again) == [0], lie.claim
            assert codes(answer) != [ErrorCode.UNKNOWN_SERVER_ERROR], lie.claim
            assert turns.longest_s < STALL_S, lie.claim
        assert partition.offline_reason is None

    with_broker(tmp_path, story)


@pytest.mark.parametrize(("missing", "error"), [(0, None), (1, ErrorCode.MESSAGE_TOO_LARGE)])
def test_a_batch_may_become_so_many_times_its_bytes(missing: int, error: ErrorCode | None) -> None:
    """S12: 32 times, beside what all of its request may."""
    plain = sized(500)
    content = sized(500, codec=Codec.ZSTD)
    records_bytes = len(plain) - HEADER_SIZE
    allowance = InspectionAllowance(plain=records_bytes - 32 * len(content) - missing)
    configs = TopicConfigs(cleanup_policy=frozenset({"compact"}))
    batches = [(read_header(content), memoryview(content))]
    found = finish(inspecting.inspect(batches, BatchDemands(configs, NOW_MS), allowance))
    assert (found.error if isinstance(found, Rejected) else None) is error
    if error is None:
        assert allowance.plain == 0


def test_a_bug_in_one_batch_is_the_end_of_it_alone(tmp_path: Path, monkeypatch: Any) -> None:
    """S12: what waits after it is inspected all the same."""

    async def story(lone: LoneBroker, _: Peer) -> None:
        partition = lone.lead("t", configs=COMPACTED)
        inspect, failed = partition.log.inspect, []

        def fails_once(*asked: Any, **named: Any) -> Any:
            if not failed:
                failed.append(1)
                raise ZeroDivisionError("planted")
            return inspect(*asked, **named)

        monkeypatch.setattr(partition.log, "inspect", fails_once)
        first, second = (
            lone.broker.inspected_appends.add(
                partition, sized(10), InspectionAllowance(), PEER, in_sync=False, timeout_ms=30_000
            )
            for _ in range(2)
        )
        refused = await first
        assert isinstance(refused, Rejected) and refused.error is ErrorCode.UNKNOWN_SERVER_ERROR
        assert isinstance(await second, Appended)
        assert not partition.has_uninspected and not lone.broker.inspected_appends.bytes

    with_broker(tmp_path, story)
