"""A leader takes the first batch of a transaction only when its coordinator confirms it (KIP-890):
over the wire, with a coordinator on a real socket whose answers the test holds back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.lone_broker import LoneBroker, Peer, until
from tests.support.played_coordinator import (
    PlayedCoordinator,
    TransactionalProducer,
    become,
    know_coordinator,
    leading,
    part_of,
    produced,
)
from tests.support.processes import DEADLINE_S
from tests.support.produce_fetch import batch, run
from tests.support.resized import OLDER, OWN, count_in, fence, put
from tests.support.transactional_logs import batches_from, marker
from tidelog.broker.metadata.configurations import EntityType
from tidelog.broker.partitions import joining_room, verifier
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.model.errors import ErrorCode
from tidelog.model.work import finish
from tidelog.records.batch import read_header, seal_batch
from tidelog.records.builder import Producer
from tidelog.replication.resize_rules import Named
from tidelog.storage.log.stable import last_stable_offset

ABORTABLE = ErrorCode.TRANSACTION_ABORTABLE
RETRY = ErrorCode.NOT_ENOUGH_REPLICAS
LARGE_MS = 600_000

OF_OLDER = {"undeleted_count": OLDER.undeleted_count, "resize_epoch": OLDER.resize_epoch}
"""The state of a partition before its resize."""


def partition_of(lone: LoneBroker, index: int = 0) -> HostedPartition:
    hosted = lone.broker.partitions.get("t", index)
    assert hosted is not None
    return hosted


def data_of(hosted: HostedPartition) -> list[tuple[int, int, bool]]:
    """Producer id, first sequence, and whether it is of a transaction, of each batch that is no
    marker."""
    return [
        (header.producer_id, header.base_sequence, header.transactional)
        for header, ended in batches_from(hosted.log)
        if ended is None
    ]


async def configure(lone: LoneBroker, **values: str) -> None:
    """Set dynamic configurations of the broker."""
    texts = {name.replace("_", "."): text for name, text in values.items()}
    finish(lone.broker.topic_configs.apply([(EntityType.BROKER, "1", texts)], complete=False))


# -- what is asked, and when


def test_the_first_batch_of_each_transaction_is_asked_for_and_no_other(tmp_path: Path) -> None:
    async def main() -> None:
        async with leading(tmp_path, 2) as (lone, coordinator, peer):
            producer, hosted = TransactionalProducer(lone, coordinator), partition_of(lone)
            producer.add(0)
            for sequence in range(3):
                part = await producer.send(peer, sequence)
                assert (part.error_code, part.base_offset) == (0, sequence)
            assert coordinator.asked == [producer.question(0)]
            producer.add(1)
            assert (await producer.send(peer, 0, 1)).error_code == 0
            assert coordinator.asked == [producer.question(0), producer.question(1)]
            producer.end(hosted)
            # The next transaction, and the partition is not in it yet: a late batch.
            assert (await producer.send(peer, 3)).error_code == ABORTABLE
            producer.add(0)
            assert (await producer.send(peer, 3)).error_code == 0
            assert len(coordinator.requests) == 4
            assert data_of(hosted) == [(7, each, True) for each in range(4)]

    run(main())


def test_what_is_open_in_an_older_epoch_confirms_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with leading(tmp_path) as (lone, coordinator, peer):
            producer = TransactionalProducer(lone, coordinator)
            producer.add()
            assert (await producer.send(peer)).error_code == 0
            newer = TransactionalProducer(lone, coordinator, epoch=1)
            assert (await newer.send(peer)).error_code == ABORTABLE
            assert coordinator.asked == [producer.question(), newer.question()]
            assert partition_of(lone).end_offset == 1

    run(main())


def test_a_known_batch_is_answered_without_a_question(tmp_path: Path) -> None:
    async def main() -> None:
        async with leading(tmp_path) as (lone, coordinator, peer):
            producer, hosted = TransactionalProducer(lone, coordinator), partition_of(lone)
            producer.add()
            for sequence in range(2):
                await producer.send(peer, sequence)
            producer.end(hosted)
            part = await producer.send(peer, 1)
            assert (part.error_code, part.base_offset) == (0, 1)
            assert len(coordinator.requests) == 1 and hosted.end_offset == 3

    run(main())


def test_verification_can_be_switched_off_and_on_while_the_broker_runs(tmp_path: Path) -> None:
    async def main() -> None:
        async with leading(tmp_path, 2) as (lone, coordinator, peer):
            producer = TransactionalProducer(lone, coordinator)
            await configure(lone, transaction_partition_verification_enable="false")
            assert (await producer.send(peer)).error_code == 0
            assert not coordinator.requests
            await configure(lone, transaction_partition_verification_enable="true")
            assert (await producer.send(peer, 0, 1)).error_code == ABORTABLE

    run(main())


def test_a_plain_batch_with_an_id_is_not_asked_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with leading(tmp_path) as (lone, coordinator, peer):
            plain = batch("v", producer=Producer(9, 0, 0))
            request = produced((0, plain), transactional_id="tx")
            assert part_of(await peer.ask(request, 11)).error_code == 0
            assert not coordinator.requests
            assert data_of(partition_of(lone)) == [(9, 0, False)]

    run(main())


@pytest.mark.parametrize(
    "configs",
    [
        {"cleanup.policy": "compact"},
        {"message.timestamp.type": "LogAppendTime"},
        {"compression.type": "zstd"},
        {"segment.bytes": "200"},
    ],
    ids=lambda configs: next(iter(configs)),
)
def test_a_batch_that_is_not_kept_as_it_was_sent(tmp_path: Path, configs: dict[str, str]) -> None:
    """Inspected, stamped, compressed, or in a new segment: each is verified all the same."""

    async def main() -> None:
        async with leading(tmp_path, 1, configs) as (lone, coordinator, peer):
            producer, hosted = TransactionalProducer(lone, coordinator), partition_of(lone)
            assert (await producer.send(peer)).error_code == ABORTABLE
            producer.add()
            for sequence in range(4):
                assert (await producer.send(peer, sequence)).error_code == 0
            assert len(coordinator.requests) == 2
            assert data_of(hosted) == [(7, each, True) for each in range(4)]
            broken = bytearray(producer.batch(4))
            broken[-1] ^= 1
            request = producer.request((0, bytes(broken)))
            assert part_of(await peer.ask(request, 11)).error_code == ErrorCode.CORRUPT_MESSAGE
            # Its header is not to be believed: the coordinator is not asked about it.
            producer.end(hosted)
            assert part_of(await peer.ask(request, 11)).error_code == ErrorCode.CORRUPT_MESSAGE
            assert len(coordinator.requests) == 2

    run(main())


# -- refusals


@pytest.mark.parametrize("version", range(3, 13))
def test_a_batch_of_no_open_transaction_is_refused_in_each_version(
    tmp_path: Path, version: int
) -> None:
    async def main() -> None:
        async with leading(tmp_path) as (lone, coordinator, peer):
            producer = TransactionalProducer(lone, coordinator)
            part = await producer.send(peer, version=version)
            expected = ABORTABLE if version >= 11 else ErrorCode.INVALID_TXN_STATE
            assert part.error_code == expected
            assert version < 8 or "t-0 is in no open transaction" in part.error_message
            assert partition_of(lone).end_offset == 0

    run(main())


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (ErrorCode.TRANSACTION_ABORTABLE, ABORTABLE),
        (ErrorCode.INVALID_TXN_STATE, ABORTABLE),
        (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ErrorCode.CONCURRENT_TRANSACTIONS, RETRY),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, RETRY),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, RETRY),
        (ErrorCode.NOT_COORDINATOR, RETRY),
        (ErrorCode.UNKNOWN_SERVER_ERROR, RETRY),
    ],
)
def test_the_errors_of_a_coordinator(
    tmp_path: Path, answer: ErrorCode, expected: ErrorCode
) -> None:
    async def main() -> None:
        async with leading(tmp_path) as (lone, coordinator, peer):
            producer, coordinator.error = TransactionalProducer(lone, coordinator), answer
            assert (await producer.send(peer)).error_code == expected
            assert partition_of(lone).end_offset == 0
            # What was refused for now is taken when it is sent again.
            coordinator.error = ErrorCode.NONE
            assert (await producer.send(peer)).error_code == 0

    run(main())


async def _refuse_all(lone: LoneBroker, coordinator: PlayedCoordinator) -> None:
    coordinator.top_error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def _leave_out(lone: LoneBroker, coordinator: PlayedCoordinator) -> None:
    coordinator.leaves_out = True


async def _go_away(lone: LoneBroker, coordinator: PlayedCoordinator) -> None:
    await coordinator.stop()


async def _lose_leader(lone: LoneBroker, coordinator: PlayedCoordinator) -> None:
    know_coordinator(lone, coordinator.port, leader=-1)


async def _freeze(lone: LoneBroker, coordinator: PlayedCoordinator) -> None:
    coordinator.may_answer.clear()


@pytest.mark.parametrize("trouble", [_refuse_all, _leave_out, _go_away, _lose_leader, _freeze])
def test_without_an_answer_the_batch_is_to_be_sent_again(
    tmp_path: Path, trouble: Callable[[LoneBroker, PlayedCoordinator], Awaitable[None]]
) -> None:
    async def main() -> None:
        async with leading(tmp_path) as (lone, coordinator, peer):
            producer = TransactionalProducer(lone, coordinator)
            producer.add()
            await trouble(lone, coordinator)
            # A frozen coordinator: the produce timeout is the limit.
            timeout_ms = 50 if trouble is _freeze else LARGE_MS
            part = await producer.send(peer, timeout_ms=timeout_ms)
            assert part.error_code == RETRY
            assert partition_of(lone).end_offset == 0
            assert not lone.broker.inspected_appends.bytes

    run(main())


def test_a_frozen_coordinator_is_given_up_before_a_long_produce_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.broker.assembly.QUESTION_MS", 50)

    async def main() -> None:
        async with leading(tmp_path) as (lone, coordinator, peer):
            producer = TransactionalProducer(lone, coordinator)
            producer.add()
            coordinator.may_answer.clear()
            assert (await producer.send(peer, timeout_ms=LARGE_MS)).error_code == RETRY
            coordinator.may_answer.set()
            part = None
            while part is None or part.error_code == RETRY:  # within the back-off
                part = await producer.send(peer)
            assert part.error_code == 0

    run(main())


def test_a_deposed_coordinator_is_not_asked(tmp_path: Path) -> None:
    """Its successor has ended the transaction that it would confirm: the marker is of that one."""

    async def main() -> None:
        async with leading(tmp_path) as (lone, coordinator, peer):
            producer, hosted = TransactionalProducer(lone, coordinator), partition_of(lone)
            producer.add()
            assert (await producer.send(peer)).error_code == 0
            producer.end(hosted, coordinator_epoch=5)
            producer.add()
            assert (await producer.send(peer, 1)).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
            assert len(coordinator.requests) == 1
            know_coordinator(lone, coordinator.port, epoch=5)
            assert (await producer.send(peer, 1)).error_code == 0

    run(main())


def test_a_moved_coordinator_is_found_by_the_next_attempt(tmp_path: Path) -> None:
    async def main() -> None:
        async with leading(tmp_path) as (lone, coordinator, peer):
            other = PlayedCoordinator()
            await other.start()
            producer = TransactionalProducer(lone, coordinator)
            coordinator.error = ErrorCode.NOT_COORDINATOR
            assert (await producer.send(peer)).error_code == RETRY
            know_coordinator(lone, other.port)
            other.open.add(producer.question())
            assert (await producer.send(peer)).error_code == 0
            await other.stop()

    run(main())


# -- what may happen while a batch waits


Change = Callable[[LoneBroker, HostedPartition, TransactionalProducer], Any]


def _commit(_: LoneBroker, hosted: HostedPartition, producer: TransactionalProducer) -> None:
    producer.end(hosted)


def _abort_and_fence(
    _: LoneBroker, hosted: HostedPartition, producer: TransactionalProducer
) -> None:
    producer.end(hosted, committed=False, epoch=1)


def _raise_epoch(lone: LoneBroker, hosted: HostedPartition, _: TransactionalProducer) -> None:
    newer = batch("v", producer=Producer(7, 1, 0))
    hosted.append(newer, lone.broker.clock.wall_ms())


def _lose_leadership(lone: LoneBroker, hosted: HostedPartition, _: TransactionalProducer) -> None:
    become(lone, hosted, leader=2, leader_epoch=1, replicas=(1, 2), isr=(1, 2))


def _lose_and_regain(lone: LoneBroker, hosted: HostedPartition, _: TransactionalProducer) -> None:
    become(lone, hosted, leader=2, leader_epoch=1)
    become(lone, hosted, leader=1, leader_epoch=2)


def _lead_on(lone: LoneBroker, hosted: HostedPartition, _: TransactionalProducer) -> None:
    become(lone, hosted, leader_epoch=1)


def _lose_isr(lone: LoneBroker, hosted: HostedPartition, _: TransactionalProducer) -> None:
    finish(
        lone.broker.topic_configs.apply(
            [(EntityType.TOPIC, "t", {"min.insync.replicas": "2"})], complete=False
        )
    )
    become(lone, hosted, replicas=(1, 2), isr=(1,))


def _resize(lone: LoneBroker, hosted: HostedPartition, _: TransactionalProducer) -> None:
    put(hosted)
    fence(hosted, -1)


def _seal(_: LoneBroker, hosted: HostedPartition, __: TransactionalProducer) -> None:
    put(hosted, **OF_OLDER, sealed=True)


def _shrink_batches(lone: LoneBroker, hosted: HostedPartition, _: TransactionalProducer) -> None:
    finish(
        lone.broker.topic_configs.apply(
            [(EntityType.TOPIC, "t", {"max.message.bytes": "70"})], complete=False
        )
    )


def _append_another(lone: LoneBroker, hosted: HostedPartition, _: TransactionalProducer) -> None:
    other = batch("v", producer=Producer(7, 0, 0))
    hosted.append(other, lone.broker.clock.wall_ms())


def _fail_disk(_: LoneBroker, hosted: HostedPartition, __: TransactionalProducer) -> None:
    hosted.go_offline("planted")


def _mark_another(_: LoneBroker, hosted: HostedPartition, __: TransactionalProducer) -> None:
    hosted.append(marker(8, 0, committed=True), 0, from_client=False)


@pytest.mark.parametrize(
    ("change", "expected", "is_counted"),
    [
        (_commit, ABORTABLE, False),
        (_abort_and_fence, ErrorCode.INVALID_PRODUCER_EPOCH, False),
        (_raise_epoch, ErrorCode.INVALID_PRODUCER_EPOCH, False),
        (_lose_leadership, ErrorCode.NOT_LEADER_OR_FOLLOWER, False),
        (_lose_and_regain, ErrorCode.NOT_LEADER_OR_FOLLOWER, False),
        (_lose_isr, ErrorCode.NOT_ENOUGH_REPLICAS, False),
        (_resize, ErrorCode.INVALID_PARTITION_METADATA, True),
        (_seal, ErrorCode.POLICY_VIOLATION, True),
        (_shrink_batches, ErrorCode.MESSAGE_TOO_LARGE, False),
        # A batch of this sequence is in the log: success with its offset, and nothing twice.
        (_append_another, ErrorCode.NONE, False),
        (_fail_disk, ErrorCode.KAFKA_STORAGE_ERROR, False),
        (_lead_on, ErrorCode.NONE, False),
        (_mark_another, ErrorCode.NONE, False),
    ],
)
def test_all_rows_are_judged_again_after_the_wait(
    tmp_path: Path, change: Change, expected: ErrorCode, is_counted: bool
) -> None:
    """The coordinator has confirmed the batch before the change, and its answer comes after it."""

    async def main() -> None:
        async with leading(tmp_path) as (lone, coordinator, peer):
            producer, hosted = TransactionalProducer(lone, coordinator), partition_of(lone)
            if is_counted:
                put(hosted, **OF_OLDER)
            producer.add()
            coordinator.may_answer.clear()
            request = producer.request((0, producer.batch()))
            peer.send(count_in(request, OLDER) if is_counted else request, 11)
            await until(lambda: coordinator.requests)
            change(lone, hosted, producer)
            before = hosted.end_offset
            coordinator.may_answer.set()
            part = part_of(await peer.receive())
            assert part.error_code == expected, part.error_message
            is_appended = change in (_lead_on, _mark_another)
            assert hosted.end_offset == before + is_appended
            assert not hosted.log.producers.transactions or is_appended

    run(main())


def test_a_fence_in_the_midst_of_a_transaction_refuses_the_former_count(tmp_path: Path) -> None:
    """Of what goes on with an open transaction, too; its marker comes after the fence."""

    async def main() -> None:
        async with leading(tmp_path) as (lone, coordinator, peer):
            producer, hosted = TransactionalProducer(lone, coordinator), partition_of(lone)
            put(hosted, **OF_OLDER)
            producer.add()

            async def send(sequence: int, count: Named) -> int:
                request = count_in(producer.request((0, producer.batch(sequence))), count)
                code: int = part_of(await peer.ask(request, 11)).error_code
                return code

            assert await send(0, OLDER) == 0
            put(hosted)
            fence(hosted, -1)
            assert await send(1, OLDER) == ErrorCode.INVALID_PARTITION_METADATA
            assert await send(0, OLDER) == 0, "it is known"
            assert last_stable_offset(hosted.log) == 0 and hosted.end_offset == 1
            assert await send(1, OWN) == 0
            producer.end(hosted)
            assert last_stable_offset(hosted.log) == hosted.end_offset == 3
            assert data_of(hosted) == [(7, 0, True), (7, 1, True)]

    run(main())


def test_a_marker_before_the_question_makes_a_late_batch_too(tmp_path: Path) -> None:
    """It waits for one before it, and the marker comes; the coordinator would confirm it, for the
    partition is in the next transaction of the same epoch by then."""

    async def main() -> None:
        async with leading(tmp_path) as (lone, coordinator, peer):
            producer, hosted = TransactionalProducer(lone, coordinator), partition_of(lone)
            producer.add()
            coordinator.may_answer.clear()
            first, second = await Peer.connect(lone.port), peer
            first.send(producer.request((0, producer.batch(0))), 11)
            await until(lambda: coordinator.requests)
            second.send(producer.request((0, producer.batch(1))), 11)
            await until(lambda: lone.broker.inspected_appends.bytes > len(producer.batch(0)))
            producer.end(hosted)
            producer.add()
            coordinator.may_answer.set()
            answers = [part_of(await each.receive()) for each in (first, second)]
            assert [part.error_code for part in answers] == [ABORTABLE, ABORTABLE]
            assert hosted.end_offset == 1

    run(main())


def test_an_answer_counts_for_no_later_question(tmp_path: Path) -> None:
    """A batch gave up; its transaction ended, and then a late copy of it came. The answer that was
    on its way is from before."""

    async def main() -> None:
        async with leading(tmp_path) as (lone, coordinator, peer):
            producer, hosted = TransactionalProducer(lone, coordinator), partition_of(lone)
            producer.add()
            coordinator.may_answer.clear()
            assert (await producer.send(peer, timeout_ms=50)).error_code == RETRY
            producer.end(hosted)
            peer.send(producer.request((0, producer.batch())), 11)
            await until(lambda: lone.broker.inspected_appends.bytes)
            coordinator.may_answer.set()
            assert part_of(await peer.receive()).error_code == ABORTABLE
            assert len(coordinator.requests) == 2 and hosted.end_offset == 1

    run(main())


# -- order, and what does not wait


@pytest.mark.parametrize("is_known", [False, True])
def test_later_batches_of_the_producer_keep_their_order(tmp_path: Path, is_known: bool) -> None:
    """``is_known``: from an earlier transaction, so that each sequence is judged."""

    async def main() -> None:
        async with leading(tmp_path) as (lone, coordinator, peer):
            producer, hosted = TransactionalProducer(lone, coordinator), partition_of(lone)
            producer.add()
            if is_known:
                await producer.send(peer)
                producer.end(hosted)
                producer.add()
            begin, asked = hosted.end_offset, len(coordinator.requests)
            coordinator.may_answer.clear()
            peers = [await Peer.connect(lone.port) for _ in range(5)]
            size = 0
            for sequence, peer in enumerate(peers, is_known):
                content = producer.batch(sequence)
                size += len(content)
                peer.send(producer.request((0, content)), 11)
                await until(lambda size=size: lone.broker.inspected_appends.bytes == size)
            coordinator.may_answer.set()
            parts = [part_of(await peer.receive()) for peer in peers]
            assert [(part.error_code, part.base_offset) for part in parts] == [
                (0, begin + place) for place in range(5)
            ]
            assert len(coordinator.requests) == asked + 1
            assert [sequence for _, sequence, _ in data_of(hosted)] == list(range(5 + is_known))

    run(main())


@pytest.mark.parametrize("version", [7, 11])
def test_a_batch_that_waits_holds_up_no_other(tmp_path: Path, version: int) -> None:
    """Not the other partition of its request, not plain producers of its partition, not another
    transaction there."""

    async def main() -> None:
        async with leading(tmp_path, 2) as (lone, coordinator, waiting):
            producer = TransactionalProducer(lone, coordinator)
            other = TransactionalProducer(lone, coordinator, "other", 8)
            for each in (0, 1):
                producer.add(each)
                other.add(each)
            peer = await Peer.connect(lone.port)
            assert (await producer.send(peer, 0, 1)).error_code == 0
            assert (await other.send(peer, 0, 0)).error_code == 0
            coordinator.may_answer.clear()
            request = producer.request((0, producer.batch(0)), (1, producer.batch(1)))
            waiting.send(request, 11)
            await until(lambda: len(coordinator.requests) == 3)
            assert partition_of(lone, 1).end_offset == 2
            plain = produced((0, batch("v")), (1, batch("v")))
            answer = await peer.ask(plain, version)
            assert [part_of(answer, place).error_code for place in (0, 1)] == [0, 0]
            assert part_of(await peer.ask(produced((0, batch("v"))), version)).error_code == 0
            assert (await other.send(peer, 1, 0, version=version)).error_code == 0
            coordinator.may_answer.set()
            answer = await waiting.receive()
            assert [part_of(answer, place).error_code for place in (0, 1)] == [0, 0]

    run(main())


def test_a_coordinator_has_one_request_in_flight_with_many_transactions(tmp_path: Path) -> None:
    async def main() -> None:
        async with leading(tmp_path, 3) as (lone, coordinator, _):
            coordinator.may_answer.clear()
            producers = [
                TransactionalProducer(lone, coordinator, f"tx{number}", 100 + number)
                for number in range(10)
            ]
            peers = [await Peer.connect(lone.port) for _ in producers]
            sent = 0
            for producer, peer in zip(producers, peers, strict=True):
                for index in range(3):
                    producer.add(index)
                batches = [(index, producer.batch()) for index in range(3)]
                sent += sum(len(content) for _, content in batches)
                peer.send(producer.request(*batches), 11)
                await until(lambda sent=sent: lone.broker.inspected_appends.bytes == sent)
            assert len(coordinator.requests) == 1
            coordinator.may_answer.set()
            for peer in peers:
                answer = await peer.receive()
                assert [part_of(answer, place).error_code for place in range(3)] == [0, 0, 0]
            assert len(coordinator.requests) == 2
            assert len(coordinator.requests[1]) == 30 - len(coordinator.requests[0])
            assert len(set(coordinator.asked)) == 30

    run(main())


def test_one_request_has_a_limit_and_one_transaction_of_an_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifier, "MOST_PARTITIONS", 4)

    async def main() -> None:
        async with leading(tmp_path, 6) as (lone, coordinator, peer):
            coordinator.may_answer.clear()
            first = TransactionalProducer(lone, coordinator, "first", 1)
            first.add(0)
            peer.send(first.request((0, first.batch())), 11)
            await until(lambda: coordinator.requests)
            # Two epochs of one id, and more partitions than one request has.
            old, new = (
                TransactionalProducer(lone, coordinator, "tx", 7, epoch) for epoch in (0, 1)
            )
            peers = [await Peer.connect(lone.port) for _ in range(2)]
            for producer, each in zip((old, new), peers, strict=True):
                for index in range(6):
                    producer.add(index)
                indexes = range(6) if producer is new else range(1)
                each.send(producer.request(*((index, producer.batch()) for index in indexes)), 11)
            await until(lambda: lone.broker.inspected_appends.bytes == 8 * len(first.batch()))
            coordinator.may_answer.set()
            assert part_of(await peer.receive()).error_code == 0
            assert part_of(await peers[0].receive()).error_code in (
                0,
                ErrorCode.INVALID_PRODUCER_EPOCH,
            )
            answer = await peers[1].receive()
            assert [part_of(answer, place).error_code for place in range(6)] == [0] * 6
            for request in coordinator.requests:
                assert len(request) <= 4
                assert len({(one.transactional_id, one.producer_epoch) for one in request}) == len(
                    {one.transactional_id for one in request}
                )

    run(main())


# -- bad input, limits, the end


def test_a_coordinator_whose_broker_offers_transactions_later_is_asked_then(tmp_path: Path) -> None:
    """Brokers learn the level of the cluster one after another; a connection from before shows no
    API of transactions."""

    async def main() -> None:
        async with leading(tmp_path) as (lone, coordinator, peer):
            coordinator.offers = False
            producer = TransactionalProducer(lone, coordinator)
            producer.add()
            assert (await producer.send(peer)).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
            coordinator.offers = True
            async with asyncio.timeout(DEADLINE_S):
                while (await producer.send(peer)).error_code:
                    pass
            assert coordinator.asked == [producer.question()]

    run(main())


def test_as_long_as_transactions_are_not_offered_an_id_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with leading(tmp_path) as (lone, coordinator, peer):
            lone.broker.cluster_level.take("1.5")
            producer = TransactionalProducer(lone, coordinator)
            producer.add()
            refused = (await producer.send(peer)).error_code
            assert refused == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            without_id = produced((0, producer.batch()))
            refused = part_of(await peer.ask(without_id, 11)).error_code
            assert refused == ErrorCode.INVALID_TXN_STATE
            assert not coordinator.requests and not partition_of(lone).end_offset

    run(main())


@pytest.mark.parametrize("version", [7, 11])
def test_a_batch_of_a_transaction_needs_an_id(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        async with leading(tmp_path, 3) as (lone, coordinator, peer):
            producer = TransactionalProducer(lone, coordinator)
            producer.add()
            refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            alone = produced((0, producer.batch()))
            assert part_of(await peer.ask(alone, version)).error_code == refused
            mixed = produced((0, batch("v")), (1, producer.batch()), (2, batch("v")))
            answer = await peer.ask(mixed, version)
            assert [part_of(answer, place).error_code for place in range(3)] == [0, refused, 0]
            assert not coordinator.requests and not partition_of(lone, 1).end_offset

    run(main())


def test_a_batch_of_a_transaction_needs_an_id_where_a_thread_inspects_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with leading(tmp_path, 1, {"compression.type": "gzip"}) as (lone, coordinator, peer):
            producer = TransactionalProducer(lone, coordinator)
            large = produced((0, producer.batch(count=5_000)))
            refused = part_of(await peer.ask(large, 11)).error_code
            assert refused == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

    run(main())


def _two_producers(producer: TransactionalProducer) -> Any:
    other = replace(producer, producer_id=8)
    return producer.request((0, producer.batch()), (1, other.batch()))


def _two_epochs(producer: TransactionalProducer) -> Any:
    other = replace(producer, epoch=1)
    return producer.request((0, producer.batch()), (1, other.batch()))


def _empty_id(producer: TransactionalProducer) -> Any:
    return produced((0, producer.batch()), (1, producer.batch()), transactional_id="")


@pytest.mark.parametrize("version", [7, 9, 11, 12])
@pytest.mark.parametrize(
    ("request_of", "expected"),
    [
        (_two_producers, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (_two_epochs, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (_empty_id, ErrorCode.INVALID_REQUEST),
    ],
)
def test_requests_that_are_refused_as_a_whole(
    tmp_path: Path,
    request_of: Callable[[TransactionalProducer], Any],
    expected: ErrorCode,
    version: int,
) -> None:
    async def main() -> None:
        async with leading(tmp_path, 2) as (lone, coordinator, peer):
            coordinator.error = ErrorCode.NONE
            answer = await peer.ask(request_of(TransactionalProducer(lone, coordinator)), version)
            assert [part_of(answer, place).error_code for place in (0, 1)] == [expected] * 2
            assert not coordinator.requests
            assert not any(partition_of(lone, index).end_offset for index in (0, 1))

    run(main())


def _without_producer(producer: TransactionalProducer) -> bytes:
    made = producer.batch()
    header = read_header(made)._replace(producer_id=-1, producer_epoch=-1, base_sequence=-1)
    return seal_batch(header, made[61:])


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (lambda producer: marker(7, 0, committed=True), ErrorCode.INVALID_RECORD),
        (_without_producer, ErrorCode.INVALID_RECORD),
        (lambda producer: producer.batch() + producer.batch(1), ErrorCode.INVALID_RECORD),
        (lambda producer: producer.batch()[:-1], ErrorCode.CORRUPT_MESSAGE),
        (lambda producer: producer.batch()[:-1] + b"?", ErrorCode.CORRUPT_MESSAGE),
        (lambda producer: producer.batch()[:30], ErrorCode.CORRUPT_MESSAGE),
        (lambda producer: b"", ErrorCode.INVALID_RECORD),
    ],
)
@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_bad_batches_with_an_id_are_refused_before_a_question(
    tmp_path: Path,
    content: Callable[[TransactionalProducer], bytes],
    expected: ErrorCode,
    policy: str,
) -> None:
    async def main() -> None:
        async with leading(tmp_path, 1, {"cleanup.policy": policy}) as (lone, coordinator, peer):
            producer, coordinator.error = TransactionalProducer(lone, coordinator), ErrorCode.NONE
            for request in (producer.request((0, content(producer))),) * 2:
                assert part_of(await peer.ask(request, 11)).error_code == expected
            assert not coordinator.requests and not partition_of(lone).end_offset

    run(main())


def test_a_batch_in_a_partition_with_an_older_count_is_refused_before_a_question(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with leading(tmp_path) as (lone, coordinator, peer):
            producer, hosted = TransactionalProducer(lone, coordinator), partition_of(lone)
            put(hosted)
            fence(hosted, -1)
            request = count_in(producer.request((0, producer.batch())), OLDER)
            part = part_of(await peer.ask(request, 11))
            assert part.error_code == ErrorCode.INVALID_PARTITION_METADATA
            assert not coordinator.requests

    run(main())


def test_as_many_batches_wait_as_the_limits_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining_room, "MOST_OF_PARTITION", 3)

    async def main() -> None:
        async with leading(tmp_path) as (lone, coordinator, _):
            coordinator.may_answer.clear()
            queues, sent, waiting = lone.broker.inspected_appends, 0, []
            for number in range(3):
                producer = TransactionalProducer(lone, coordinator, f"tx{number}", number)
                producer.add()
                peer = await Peer.connect(lone.port)
                sent += len(producer.batch())
                peer.send(producer.request((0, producer.batch())), 11)
                await until(lambda sent=sent: queues.bytes == sent)
                waiting.append(peer)
            one_more = TransactionalProducer(lone, coordinator, "one more", 9)
            one_more.add()
            peer = await Peer.connect(lone.port)
            part = await one_more.send(peer)
            assert part.error_code == ErrorCode.REQUEST_TIMED_OUT
            assert "too many batches wait for their coordinators" in part.error_message
            coordinator.may_answer.set()
            assert [part_of(await each.receive()).error_code for each in waiting] == [0, 0, 0]
            assert (await one_more.send(peer)).error_code == 0
            assert not queues.bytes

    run(main())


def test_a_broker_that_stops_refuses_what_waits(tmp_path: Path) -> None:
    async def main() -> None:
        async with leading(tmp_path) as (lone, coordinator, peer):
            producer = TransactionalProducer(lone, coordinator)
            producer.add()
            coordinator.may_answer.clear()
            peer.send(producer.request((0, producer.batch())), 11)
            await until(lambda: coordinator.requests)
            await lone.broker.inspected_appends.stop()
            part = part_of(await peer.receive())
            assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert not lone.broker.inspected_appends.bytes

    run(main())


def test_the_records_are_copied_before_the_wait(tmp_path: Path) -> None:
    """The receive buffer takes the next frame of the connection meanwhile."""

    async def main() -> None:
        async with leading(tmp_path, 2) as (lone, coordinator, peer):
            producer, hosted = TransactionalProducer(lone, coordinator), partition_of(lone)
            producer.add()
            coordinator.may_answer.clear()
            sent = producer.batch(count=50)
            peer.send(producer.request((0, sent)), 11)
            await until(lambda: coordinator.requests)
            for _ in range(3):
                peer.send(produced((1, batch("x" * len(sent)))), 11)
            coordinator.may_answer.set()
            for _ in range(4):
                assert part_of(await peer.receive()).error_code == 0
            written = hosted.read(0, 2**20, committed=False)
            assert isinstance(written, memoryview) and written[61:] == sent[61:]

    run(main())
