"""Fences and seals that a real broker writes for LeaderAndIsr v6, and reports (KIP-253)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.append_paths import FillingDisk
from tests.support.controller_commands import FULL, OK, command, run, running
from tests.support.lone_broker import LoneBroker, Peer, until
from tests.support.produce_fetch import batch, produce
from tests.support.resize_commands import Side, resizing
from tidelog.broker.control_plane import fence_reports
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.model.errors import ErrorCode as E
from tidelog.protocol import messages
from tidelog.protocol.primitives import NO_UUID
from tidelog.records.batch import Rejected
from tidelog.records.control_records import ChangeKind
from tidelog.storage.log.fences import FenceEntry

FENCE, SEAL = ChangeKind.FENCE, ChangeKind.SEAL


def hosted(lone: LoneBroker, index: int = 0) -> HostedPartition:
    found = lone.broker.partitions.get("t", index)
    assert found is not None
    return found


def fences(lone: LoneBroker, index: int = 0) -> tuple[FenceEntry, ...]:
    return hosted(lone, index).log.fences.entries


async def sent(peer: Peer, *sides: Side, version: int = 6, **more: Any) -> None:
    assert set(await command(peer, resizing(*sides, **more), version)) == {OK}


def append(lone: LoneBroker, index: int = 0, records: int = 1) -> None:
    for number in range(records):
        got = hosted(lone, index).append(batch(f"{number}", timestamp=1), 1)
        assert not isinstance(got, Rejected), got


def test_a_growth_puts_a_fence_before_the_records_of_the_new_epoch(tmp_path: Path) -> None:
    """One request has partitions on both sides of the resize."""

    async def work() -> None:
        async with running(tmp_path) as (lone, peer):
            await sent(peer, Side(2, 0, (0, 1)))
            append(lone, 0, 3)
            assert fences(lone) == () and hosted(lone).end_offset == 3
            grown, former = Side(4, 1, (0,), leader_epoch=1), Side(2, 0, (1,), leader_epoch=1)
            await sent(peer, grown, former)
            assert fences(lone) == (FenceEntry(1, 4, FENCE, 3, 3),)
            assert fences(lone, 1) == ()
            state, other = hosted(lone).state, hosted(lone, 1).state
            assert (state.undeleted_count, state.resize_epoch) == (4, 1)
            assert (other.undeleted_count, other.resize_epoch) == (2, 0)
            assert hosted(lone).log.epochs.entries[-1] == (1, 3)
            # A plain change of the leader epoch, and a repeated command, append nothing.
            await sent(peer, grown)
            await sent(peer, Side(4, 1, leader_epoch=2))
            assert hosted(lone).end_offset == 4

    run(work())


def test_a_partition_of_the_next_incarnation_begins_with_its_birth(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (lone, peer):
            born = Side(8, 5, (4,), leader_epoch=9, birth=5, start=70)
            # A later resize was ordered before this broker led the second one.
            late = Side(8, 6, (5,), leader_epoch=9, birth=5, start=30)
            await sent(peer, born, late)
            assert fences(lone, 4) == (FenceEntry(5, 8, FENCE, 70, 70),)
            assert fences(lone, 5) == (
                FenceEntry(5, 6, FENCE, 30, 30),
                FenceEntry(6, 8, FENCE, 31, 30),
            )
            append(lone, 4)
            assert (hosted(lone, 4).start_offset, hosted(lone, 4).end_offset) == (70, 72)
            (topic,) = lone.broker.partitions.inventory()
            for partition in topic.partitions:
                noted = [(x.resize_epoch, x.kind, x.offset) for x in partition.fences]
                assert noted == [
                    (x.resize_epoch, x.kind, x.offset)
                    for x in fences(lone, partition.partition_index)
                ]
                assert partition.birth.birth_epoch == 5
                assert partition.birth.birth_offset == noted[0][2]

    run(work())


def test_births_and_fences_are_in_the_inventory_of_the_next_start(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (_, peer):
            await sent(peer, Side(8, 5, (4,), birth=5, start=70), Side(8, 5, (0,)))
        async with running(tmp_path) as (lone, _):
            (topic,) = lone.broker.partitions.inventory()
            found = {each.partition_index: each for each in topic.partitions}
            assert found[0].birth is None and found[4].birth.birth_offset == 70
            assert [each.offset for each in found[4].fences] == [70]
            assert [each.offset for each in found[0].fences] == [0]

    run(work())


def test_a_shrink_seals_and_its_undo_opens_the_partition_again(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (lone, peer):
            await sent(peer, Side(2, 0))
            append(lone, 0, 3)
            await sent(peer, Side(1, 1, leader_epoch=1, sealed=True))
            assert fences(lone) == (FenceEntry(1, 1, SEAL, 3, 3),)
            log = hosted(lone).log
            await until(lambda: not log.waits_to_roll)
            await lone.broker.maintenance.remove()
            assert [each.base_offset for each in log.segments] == [0, 4], "retention reaches it"
            # Whoever leads after a failover finds the seal.
            await sent(peer, Side(1, 1, leader_epoch=2, sealed=True))
            assert hosted(lone).end_offset == 4
            await sent(peer, Side(2, 2, leader_epoch=3))
            assert fences(lone)[1:] == (FenceEntry(2, 2, FENCE, 4, 3),)
            append(lone)
            assert hosted(lone).end_offset == 6

    run(work())


def test_below_level_1_5_nothing_is_fenced(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (lone, peer):
            await sent(peer, Side(4, 1), version=5)
            assert hosted(lone).state.undeleted_count == -1
            assert hosted(lone).end_offset == 0

    run(work())


def test_a_fence_needs_no_isr(tmp_path: Path) -> None:
    """With min.insync.replicas above the ISR clients wait, and the resize goes on."""

    async def work() -> None:
        config = {"min.insync.replicas": "2"}
        async with running(tmp_path, **config) as (lone, peer):
            two: dict[str, Any] = {"replicas": (1, 2)}
            await sent(peer, Side(2, 0, **two))
            await sent(peer, Side(4, 1, leader_epoch=1, **two))
            assert fences(lone) == (FenceEntry(1, 4, FENCE, 0, 0),)
            assert hosted(lone).high_watermark == 0

    run(work())


def test_a_full_disk_keeps_the_partition_shut_until_the_fence_is_written(tmp_path: Path) -> None:
    async def work() -> None:
        disk = FillingDisk()
        async with running(tmp_path, disk) as (lone, peer):
            await sent(peer, Side(2, 0))
            append(lone)
            disk.room = 20
            await sent(peer, Side(4, 1, leader_epoch=1))
            assert hosted(lone).fence_unwritten and fences(lone) == ()
            disk.room = None
            client = await Peer.connect(lone.port)
            answer = await client.ask(produce(batch("a"), acks=1), 11)
            (part,) = answer.responses[0].partition_responses
            assert part.error_code == E.KAFKA_STORAGE_ERROR, "before any client's record"
            assert hosted(lone).end_offset == 1
            await lone.broker.maintenance.remove()
            assert not hosted(lone).fence_unwritten
            assert fences(lone) == (FenceEntry(1, 4, FENCE, 1, 1),)
            answer = await client.ask(produce(batch("a"), acks=1), 11)
            assert answer.responses[0].partition_responses[0].base_offset == 2

    run(work())


class Session:
    """A controller that answers ReportFences once it is ``up``."""

    def __init__(self) -> None:
        self.up = True
        self.broker_epoch = 7
        self.channel_key = NO_UUID
        self.asked = 0
        self.reported: list[tuple[int, int, int, int]] = []

    async def request(self, request: Any) -> Any:
        assert isinstance(request, messages.ReportFencesRequest), request
        self.asked += 1
        if not self.up:
            return messages.ReportFencesResponse(error_code=E.NOT_CONTROLLER)
        self.reported += [
            (each.partition, each.partition_epoch, each.leader_epoch, each.resize_epoch)
            for each in request.fences
        ]
        return messages.ReportFencesResponse()


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence_reports, "RETRY_MS", 1)


@pytest.mark.usefixtures("quick_retries")
def test_a_committed_fence_is_reported_until_it_is_answered_and_after_each_full(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        async with running(tmp_path) as (lone, peer):
            session = Session()
            lone.session = session
            lone.broker.fence_reports.start()
            session.up = False
            await sent(peer, Side(2, 0, (0, 1)))
            both = Side(4, 1, (0, 1), leader_epoch=1)
            await sent(peer, both)
            await until(lambda: session.asked > 2)
            assert session.reported == []
            session.up = True
            await until(lambda: len(session.reported) == 2)
            assert sorted(session.reported) == [(0, 3, 1, 1), (1, 4, 1, 1)]
            asked = session.asked
            await sent(peer, both)
            assert session.asked == asked, "what was answered is not repeated"
            await sent(peer, both, kind=FULL)
            await until(lambda: len(session.reported) == 4)
            await lone.broker.fence_reports.stop()

    run(work())


def test_a_new_controller_gets_the_reports_at_once_however_long_the_last_pause_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Aware producers wait from the fence to the publication, also while a controller is away."""
    for name in ("RETRY_MS", "RETRY_MAX_MS"):
        monkeypatch.setattr(fence_reports, name, 3_600_000)

    async def work() -> None:
        async with running(tmp_path) as (lone, peer):
            session = Session()
            lone.session = session
            lone.broker.fence_reports.start()
            session.up = False
            await sent(peer, Side(2, 0, (0, 1)))
            both = Side(4, 1, (0, 1), leader_epoch=1)
            await sent(peer, both)
            await until(lambda: session.asked == 1)
            session.up = True
            await sent(peer, both, kind=FULL)
            await until(lambda: len(session.reported) == 2)
            await lone.broker.fence_reports.stop()

    run(work())


@pytest.mark.usefixtures("quick_retries")
def test_a_fence_above_the_watermark_and_one_of_a_former_epoch_are_not_reported(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        async with running(tmp_path) as (lone, peer):
            session = Session()
            lone.session = session
            lone.broker.fence_reports.start()
            two: dict[str, Any] = {"isr": (1, 2), "replicas": (1, 2)}
            await sent(peer, Side(2, 0, **two))
            await sent(peer, Side(4, 1, leader_epoch=1, **two))
            await sent(peer, Side(4, 1, leader_epoch=1, **two), kind=FULL)
            # All that it looks for after a FULL was looked at.
            await until(lambda: not lone.broker.fence_reports.is_checking)
            assert session.asked == 0 and hosted(lone).high_watermark == 0
            # Another leader epoch begins before follower 2 has fetched the fence.
            await sent(peer, Side(4, 1, leader_epoch=2, **two))
            hosted(lone).follower_fetched(2, 1)
            await until(lambda: session.reported)
            assert session.reported == [(0, 3, 2, 1)]
            await lone.broker.fence_reports.stop()

    run(work())


def test_more_fences_than_fit_into_one_report_are_reported_in_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fence_reports, "MAX_REPORTED", 1)

    async def work() -> None:
        async with running(tmp_path) as (lone, peer):
            session = Session()
            lone.session = session
            await sent(peer, Side(2, 0, (0, 1, 2)))
            await sent(peer, Side(4, 1, (0, 1, 2), leader_epoch=1))
            lone.broker.fence_reports.start()
            await until(lambda: len(session.reported) == 3)
            assert session.asked == 3
            await lone.broker.fence_reports.stop()

    run(work())


def test_a_fence_of_a_later_leader_epoch_is_reported_after_the_answer_to_the_former_one(
    tmp_path: Path,
) -> None:
    """It became due while the report of the former one was on its way."""

    async def work() -> None:
        async with running(tmp_path) as (lone, peer):
            session = Session()
            lone.session = session
            await sent(peer, Side(2, 0))
            await sent(peer, Side(4, 1, leader_epoch=1))
            answer = session.request

            async def slow(request: Any) -> Any:
                if not session.asked:
                    await sent(peer, Side(4, 1, leader_epoch=2))
                return await answer(request)

            session.request = slow  # type: ignore[method-assign]
            lone.broker.fence_reports.start()
            await until(lambda: len(session.reported) == 2)
            assert session.reported == [(0, 3, 1, 1), (0, 3, 2, 1)]
            await lone.broker.fence_reports.stop()

    run(work())
