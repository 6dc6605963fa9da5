"""The data-loss routine of ``__consumer_offsets``: groups are what is left of their log."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.group_broker import GroupBroker
from tests.support.lone_broker import until
from tidelog.broker.coordinator import led_partition
from tidelog.broker.coordinator.led_partition import LedPartition
from tidelog.broker.coordinator.replaying import LoadFailed
from tidelog.broker.handlers import find_coordinator, offset_commit, offset_fetch
from tidelog.groups.table import GroupTable
from tidelog.model.errors import ErrorCode as E
from tidelog.protocol import messages
from tidelog.storage.log.service import unreadable


def run(work: Any) -> None:
    asyncio.run(work)


def test_groups_that_are_loaded_in_this_epoch_are_reloaded(tmp_path: Path) -> None:
    async def main() -> None:
        broker = GroupBroker(tmp_path)
        await broker.start()
        try:
            hosted = broker.lead_offsets()
            coordinator = broker.coordinator
            assert await coordinator.reloaded(hosted) is None
            assert not coordinator.is_loading
            # Led on in a newer epoch, they are what their log says.
            hosted = broker.lead_offsets(epoch=1)
            assert not coordinator.is_loading
            assert await coordinator.reloaded(hosted) is None
            # After another leader it answers only when those groups are there.
            hosted = broker.lead_again(2)
            assert coordinator.is_loading
            assert await coordinator.reloaded(hosted) is None
            assert not coordinator.is_loading
            broker.lead_offsets(epoch=4, leader=2)
            assert await coordinator.reloaded(hosted) == "this broker does not coordinate them"
        finally:
            await broker.stop()

    run(main())


def test_a_load_that_failed_is_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [LoadFailed("planted"), LoadFailed("planted again")]
    load = LedPartition._load

    async def failing(self: LedPartition[GroupTable], reading: asyncio.Semaphore) -> None:
        if failures:
            raise failures.pop()
        await load(self, reading)

    monkeypatch.setattr(led_partition.LedPartition, "_load", failing)

    async def main() -> None:
        broker = GroupBroker(tmp_path)
        await broker.start()
        try:
            hosted = broker.lead_offsets()
            coordinator = broker.coordinator
            await until(lambda: not coordinator.is_loading)
            assert coordinator.table_of("g") is E.COORDINATOR_NOT_AVAILABLE
            why = await coordinator.reloaded(hosted)
            assert why == "not loaded: COORDINATOR_NOT_AVAILABLE"
            assert await coordinator.reloaded(hosted) is None
            assert not isinstance(coordinator.table_of("g"), E)
        finally:
            await broker.stop()

    run(main())


def test_leadership_that_goes_ends_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(led_partition.LedPartition, "_load", never)

    async def main() -> None:
        broker = GroupBroker(tmp_path)
        await broker.start()
        try:
            hosted = broker.lead_offsets()
            waiting = asyncio.create_task(broker.coordinator.reloaded(hosted))
            await asyncio.sleep(0)
            assert not waiting.done()
            following = replace(hosted.state, leader=2, leader_epoch=5, isr_version=5)
            broker.broker.partitions.apply(hosted, following)
            assert await waiting == "not loaded: NOT_COORDINATOR"
        finally:
            await broker.coordinator.close()
            await broker.stop()

    run(main())


def test_a_load_that_no_descriptor_is_left_for_goes_on_when_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The groups were not available until another broker led them."""
    asked: list[int] = []

    async def main() -> None:
        broker = GroupBroker(tmp_path)
        await broker.start()
        try:
            hosted = broker.lead_offsets()
            await until(lambda: not broker.coordinator.is_loading)
            request = messages.OffsetCommitRequest
            part = request.OffsetCommitRequestPartition(0, 5, 0, "m")
            broker.lead("t")
            topics = [request.OffsetCommitRequestTopic("t", partitions=[part])]
            answer = await broker.ask(offset_commit, request("g", -1, topics=topics), 8)
            assert answer.topics[0].partitions[0].error_code == E.NONE
            reading = type(hosted.log).read

            def read(log: Any, *args: Any, **more: Any) -> Any:
                if log is not hosted.log or len(asked) >= 3:
                    return reading(log, *args, **more)
                asked.append(args[0])
                return unreadable(log, OSError(errno.EMFILE, "planted"))

            monkeypatch.setattr(type(hosted.log), "read", read)
            broker.lead_again(2)
            await until(lambda: not broker.coordinator.is_loading)
            assert len(asked) == 3
            table = broker.coordinator.table_of("g")
            assert not isinstance(table, E), table
            assert table.get("g") is not None
        finally:
            await broker.stop()

    run(main())


def test_before_the_first_update_metadata_no_group_is_elsewhere(tmp_path: Path) -> None:
    """A member that asks a broker while it starts must ask again: librdkafka 2.16 waits for ever
    after NOT_COORDINATOR to its OffsetFetch."""
    fetch, group = messages.OffsetFetchRequest, messages.OffsetFetchRequest.OffsetFetchRequestGroup

    async def main() -> None:
        broker = GroupBroker(tmp_path)
        await broker.start()
        try:
            asked = (offset_fetch, fetch(groups=[group("g", None, -1, None)]), 8)
            answer = await broker.ask(*asked)
            assert [each.error_code for each in answer.groups] == [E.COORDINATOR_LOAD_IN_PROGRESS]
            assert broker.coordinator.is_loading
            broker.lead("t")
            answer = await broker.ask(*asked)
            assert [each.error_code for each in answer.groups] == [E.NOT_COORDINATOR]
            assert not broker.coordinator.is_loading
        finally:
            await broker.stop()

    run(main())


def test_a_broker_whose_leadership_has_ended_does_not_name_itself(tmp_path: Path) -> None:
    """UpdateMetadata comes after LeaderAndIsr: between the two it would send clients to itself and
    refuse them with NOT_COORDINATOR."""

    async def main() -> None:
        broker = GroupBroker(tmp_path)
        await broker.start()

        async def named() -> tuple[int, int]:
            request = messages.FindCoordinatorRequest(coordinator_keys=["g"])
            (answer,) = (await broker.ask(find_coordinator, request, 4)).coordinators
            return answer.error_code, answer.node_id

        try:
            hosted = broker.lead_offsets()
            assert broker.coordinator.is_loading
            assert await named() == (E.NONE, 1)
            assert await broker.coordinator.reloaded(hosted) is None
            assert await named() == (E.NONE, 1)
            of_another = replace(hosted.state, leader=2, leader_epoch=1)
            broker.broker.partitions.apply(hosted, of_another)
            assert await named() == (E.COORDINATOR_NOT_AVAILABLE, -1)
            broker.lead_offsets(epoch=2)
            assert broker.coordinator.is_loading
            assert await named() == (E.NONE, 1)
        finally:
            await broker.stop()

    run(main())
