"""Compaction of many logs: a bad one is quarantined and named, a busy one holds up no other."""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.core import CollectorRegistry
from prometheus_client.exposition import generate_latest

from tests.support.compacted_logs import COMPACTED, fill, is_clean
from tests.support.every_yield import every_yield
from tests.support.lone_broker import LoneBroker, until
from tests.support.storage_logs import NOW_MS, batch, records_of
from tidelog.broker.metrics import BrokerCollector
from tidelog.model.work import Work, finish
from tidelog.runtime.seams import Seams
from tidelog.storage import names
from tidelog.storage.log.changes import LogChange


class Told(ThreadPoolExecutor):
    """A helper that does first what a test says, with the topic that it is to compact."""

    def __init__(self, before: Callable[[str], None]) -> None:
        super().__init__(1)
        self.topics: list[str] = []
        self._before = before

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        topic = Path(args[1].directory).name.removesuffix("-0")
        self.topics.append(topic)
        try:
            self._before(topic)
        except Exception as error:
            failed: Future[Any] = Future()
            failed.set_exception(error)
            return failed
        return super().submit(fn, *args, **kwargs)


@asynccontextmanager
async def told(
    folder: Path, before: Callable[[str], None]
) -> AsyncIterator[tuple[LoneBroker, Told]]:
    """A broker with such a helper."""
    with Told(before) as helper:
        lone = LoneBroker(folder, seams=Seams(processes=helper))
        await lone.start()
        try:
            yield lone, helper
        finally:
            await lone.stop()


def uncleanable(lone: LoneBroker) -> int:
    registry = CollectorRegistry()
    registry.register(BrokerCollector(lone.broker, lone.server))
    text = generate_latest(registry).decode()
    name = "kafka_log_logcleanermanager_uncleanable_partitions_count "
    return int(float(next(x for x in text.splitlines() if x.startswith(name)).split()[1]))


def test_a_log_that_compaction_cannot_rewrite_does_not_end_it_for_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """S7: a timestamp that overflowed ended each round, and the dirtiest log came first."""

    def bad(topic: str) -> None:
        if topic == "bad":
            raise OverflowError("int too big to convert")

    async def main() -> None:
        async with told(tmp_path, bad) as (lone, helper):
            hosted = {name: lone.lead(name, configs=COMPACTED) for name in ("bad", "good")}
            for _ in range(2):
                for each in hosted.values():
                    fill(each)
                await lone.broker.maintenance.cleaning.clean()
            assert is_clean(hosted["good"]) and not is_clean(hosted["bad"])
            assert helper.topics.count("bad") == 1, "it is let alone"
            assert lone.broker.maintenance.cleaning.uncleanable() == [hosted["bad"]]
            assert uncleanable(lone) == 1
            assert hosted["bad"].log.failed is None, "reads and appends go on"

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert "bad-0 cannot be compacted" in caplog.text and "OverflowError" in caplog.text


def test_a_log_whose_index_cannot_be_read_does_not_end_compaction_for_others(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        def nothing(_topic: str) -> None: ...

        with Told(nothing) as helper:
            lone = LoneBroker(tmp_path, seams=Seams(processes=helper))
            await lone.start()
            for name in ("bad", "good"):
                for _ in range(3):
                    fill(lone.lead(name, configs=COMPACTED))
            await lone.stop()
            index = sorted((tmp_path / "bad-0").glob("*.index"))[1]
            index.unlink()
            index.symlink_to(index)  # its size cannot be asked for either
            lone = LoneBroker(tmp_path, seams=Seams(processes=helper))
            await lone.start()
            bad, good = (lone.lead(name, configs=COMPACTED, epoch=1) for name in ("bad", "good"))
            await lone.broker.maintenance.cleaning.clean()
            assert is_clean(good) and not is_clean(bad)
            assert lone.broker.maintenance.cleaning.uncleanable() == [bad]
            await lone.stop()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("error", "quarantined", "out_of_service"),
    [
        (FileNotFoundError(errno.ENOENT, "retention was faster"), False, False),
        (OSError(errno.ENOSPC, "no room"), False, False),
        (OSError(errno.EIO, "a bad sector"), False, True),
        (ValueError("a record that lies"), True, False),
    ],
    ids=["a file is gone", "no room", "a write fails", "anything else"],
)
def test_what_follows_when_a_helper_fails(
    tmp_path: Path, error: Exception, quarantined: bool, out_of_service: bool
) -> None:
    """Only what passes by itself is tried again, and not in the same round."""
    failing = True

    def bad(topic: str) -> None:
        if topic == "bad" and failing:
            half_made.touch()
            raise error

    async def main() -> None:
        nonlocal failing
        async with told(tmp_path, bad) as (lone, helper):
            cleaning = lone.broker.maintenance.cleaning
            hosted, good = (lone.lead(name, configs=COMPACTED) for name in ("bad", "good"))
            fill(hosted)
            fill(good)
            await cleaning.clean()
            assert helper.topics.count("bad") == 1
            assert cleaning.uncleanable() == [hosted] * quarantined
            assert bool(hosted.log.failed) == out_of_service
            if not out_of_service:
                assert is_clean(good)
                assert not half_made.exists(), "what was half made is removed"
            failing = False
            await cleaning.clean()
            assert is_clean(hosted) == (not quarantined and not out_of_service)

    half_made = tmp_path / "bad-0" / names.file_name(0, names.LOG + names.CLEANED)
    asyncio.run(main())


def test_a_log_that_finds_no_room_for_its_next_segment_is_tried_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with told(tmp_path, lambda _: None) as (lone, _):
            hosted = lone.lead("t", configs=COMPACTED)
            fill(hosted)
            cleaning = lone.broker.maintenance.cleaning

            def no_room(_now_ms: int) -> None:
                raise OSError(errno.ENOSPC, "no room")

            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(hosted.log, "roll_overdue", no_room)
                await cleaning.clean()
            assert cleaning.uncleanable() == [] and not is_clean(hosted)
            await cleaning.clean()
            assert is_clean(hosted)

    asyncio.run(main())


@pytest.mark.parametrize("how", ["cut", "begins later"])
def test_a_quarantined_log_that_changed_is_tried_again(tmp_path: Path, how: str) -> None:
    """What was bad in it may be gone."""
    failing = True

    def bad(_topic: str) -> None:
        if failing:
            raise ValueError("a record that lies")

    async def main() -> None:
        nonlocal failing
        async with told(tmp_path, bad) as (lone, helper):
            cleaning = lone.broker.maintenance.cleaning
            hosted = lone.lead("t", configs=COMPACTED)
            fill(hosted)
            fill(hosted)
            await cleaning.clean()
            assert cleaning.uncleanable() == [hosted]
            failing = False
            await cleaning.clean()
            assert cleaning.uncleanable() == [hosted]
            if how == "cut":
                assert finish(hosted.log.truncation(50, NOW_MS)) is None
            else:
                assert hosted.log.advance_start(5) is None
            await cleaning.clean()
            assert cleaning.uncleanable() == [] and helper.topics == ["t", "t"]

    asyncio.run(main())


def test_a_log_that_is_deleted_is_neither_quarantined_nor_a_fault_of_its_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its directory is renamed while a helper works in it; what the helper meets is not logged."""

    async def main() -> None:
        def deleted(_topic: str) -> None:
            lone.broker.partitions.stop("t", 0, delete=True)
            raise OSError(errno.EIO, "what it read is gone")

        async with told(tmp_path, deleted) as (lone, helper):
            cleaning = lone.broker.maintenance.cleaning
            hosted = lone.lead("t", configs=COMPACTED)
            fill(hosted)
            await cleaning.clean()
            assert helper.topics == ["t"]
            assert cleaning.uncleanable() == []
            assert [each.failed for each in lone.broker.directories] == [None]

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert not caplog.records


def test_a_deleted_log_is_not_quarantined(tmp_path: Path) -> None:
    def bad(_topic: str) -> None:
        raise ValueError("a record that lies")

    async def main() -> None:
        async with told(tmp_path, bad) as (lone, _):
            cleaning = lone.broker.maintenance.cleaning
            hosted = lone.lead("t", configs=COMPACTED)
            fill(hosted)
            await cleaning.clean()
            assert cleaning.uncleanable() == [hosted]
            lone.broker.partitions.stop("t", 0, delete=True)
            await cleaning.clean()
            assert cleaning.uncleanable() == []

    asyncio.run(main())


def test_a_log_that_is_cut_while_it_is_compacted_is_not_quarantined(tmp_path: Path) -> None:
    """The helper read a file that became shorter: that is no damage."""
    cuts = [50]

    async def main() -> None:
        def cut(_topic: str) -> None:
            if cuts:
                assert finish(hosted.log.truncation(cuts.pop(), NOW_MS)) is None
                raise ValueError("a batch that ends too early")

        async with told(tmp_path, cut) as (lone, helper):
            cleaning = lone.broker.maintenance.cleaning
            hosted = lone.lead("t", configs=COMPACTED)
            fill(hosted)
            fill(hosted)
            await cleaning.clean()
            assert cleaning.uncleanable() == [] and not is_clean(hosted)
            await cleaning.clean()
            assert helper.topics == ["t", "t"] and hosted.log.first_dirty_offset > 0

    asyncio.run(main())


def test_a_helper_that_is_late_leaves_no_file_with_the_next_replica_of_the_name(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        def born_again(topic: str) -> None:
            lone.broker.partitions.stop("t", 0, delete=True)
            lone.lead("t", configs=COMPACTED)
            for suffix in names.SEGMENT_SUFFIXES:
                name = names.file_name(0, suffix + names.CLEANED)
                (tmp_path / f"{topic}-0" / name).write_bytes(b"of the former log")
            raise ValueError("a batch of another log")

        async with told(tmp_path, born_again) as (lone, helper):
            fill(lone.lead("t", configs=COMPACTED))
            await lone.broker.maintenance.cleaning.clean()
            assert helper.topics == ["t"]
            assert not list((tmp_path / "t-0").glob(f"*{names.CLEANED}"))

    asyncio.run(main())


def test_what_no_controller_has_spoken_of_is_not_compacted(tmp_path: Path) -> None:
    """Its topic's configuration may be another by now."""

    async def main() -> None:
        with Told(lambda _: None) as helper:
            lone = LoneBroker(tmp_path, seams=Seams(processes=helper))
            await lone.start()
            fill(lone.lead("t", configs=COMPACTED))
            await lone.broker.maintenance.keep_configs()
            await lone.stop()
            lone = LoneBroker(tmp_path, seams=Seams(processes=helper))
            await lone.start()
            hosted = lone.broker.partitions.get("t", 0)
            assert hosted is not None and hosted.log.configs.compacted and not hosted.assigned
            await lone.broker.maintenance.cleaning.clean()
            assert helper.topics == []
            lone.lead("t", configs=COMPACTED, epoch=1)
            await lone.broker.maintenance.cleaning.clean()
            assert helper.topics == ["t"]
            await lone.stop()

    asyncio.run(main())


def test_what_waits_too_long_in_the_active_segment_is_compacted(tmp_path: Path) -> None:
    """S10: nothing is appended to the log, so a look at it begins the next segment."""

    async def main() -> None:
        async with told(tmp_path, lambda _: None) as (lone, helper):
            lag = {"cleanup.policy": "compact", "max.compaction.lag.ms": "1"}
            hosted = lone.lead("t", configs=lag)
            for _ in range(2):
                hosted.append(batch(1, key=b"k"), NOW_MS)
            hosted.log.sync()
            await lone.broker.maintenance.cleaning.clean()
            assert helper.topics == ["t"] and is_clean(hosted)
            assert [record.offset for record in records_of(hosted.log)] == [1]

    asyncio.run(main())


def test_a_log_that_is_always_the_dirtiest_keeps_no_other_waiting(tmp_path: Path) -> None:
    async def main() -> None:
        def again(topic: str) -> None:
            if topic == "busy" and len(helper.topics) < 20:
                loop.call_soon(fill, busy)

        loop = asyncio.get_running_loop()
        async with told(tmp_path, again) as (lone, helper):
            lazy = lone.lead("lazy", configs=COMPACTED)
            fill(lazy, 300, 300)
            await lone.broker.maintenance.cleaning.clean()
            fill(lazy)  # a tenth of it is dirty
            busy = lone.lead("busy", configs=COMPACTED)
            fill(busy)
            helper.topics.clear()
            await lone.broker.maintenance.cleaning.clean()
            assert helper.topics[:2] == ["busy", "lazy"], helper.topics

    asyncio.run(main())


def test_a_log_that_retention_fails_for_does_not_end_it_for_others(tmp_path: Path) -> None:
    async def main() -> None:
        configs = {"segment.ms": "1", "retention.bytes": "1", "retention.ms": "-1"}
        lone = LoneBroker(tmp_path)
        await lone.start()
        bad, good = (lone.lead(name, configs=configs) for name in ("bad", "good"))
        for hosted in (bad, good):
            fill(hosted)
            fill(hosted)

        def unreadable(*_: object, **__: object) -> None:
            raise OverflowError("a bug")

        bad.log.housekeeping = unreadable  # type: ignore[method-assign,assignment]
        await lone.broker.maintenance.check_retention()
        assert (bad.start_offset, good.start_offset > 0) == (0, True)
        await lone.stop()

    asyncio.run(main())


def test_what_a_helper_has_compacted_waits_for_another_change_of_the_log(tmp_path: Path) -> None:
    """It comes while a thread takes a part in retention: neither is lost."""
    may_go, held = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        assert may_go.wait(30)

    async def main() -> None:
        async with told(tmp_path, lambda _: None) as (lone, helper):
            hosted = lone.lead("t", configs=COMPACTED)
            fill(hosted)
            log = hosted.log

            def other_change() -> Work[None]:
                log.change = LogChange.REMOVAL
                yield hold
                log.change = None

            cleaning = asyncio.create_task(lone.broker.maintenance.cleaning.clean())
            changing = asyncio.create_task(lone.broker.log_work.run(log, other_change()))
            await until(lambda: held.is_set() and bool(helper.topics))
            await asyncio.wrap_future(helper.submit(lambda *_: None, *[None, _Plan]))
            assert not is_clean(hosted) and not cleaning.done()
            may_go.set()
            await changing
            await cleaning
            assert is_clean(hosted) and log.failed is None

    asyncio.run(main())


class _Plan:
    directory = "after-0"


MANY = 37


def test_so_many_logs_are_looked_at_in_a_turn(tmp_path: Path, monkeypatch: Any) -> None:
    """S7: a broker may have thousands, and each look takes the lists of all its segments."""

    async def main() -> None:
        lone = LoneBroker(tmp_path)
        await lone.start()
        lone.lead("t", MANY, configs=COMPACTED)
        looked = 0
        seen = [0]

        def plan(*_: object) -> None:
            nonlocal looked
            looked += 1

        def look() -> None:
            seen.append(looked)
            asyncio.get_running_loop().call_soon(look)

        monkeypatch.setattr(lone.broker.maintenance.cleaning, "_plan", plan)
        look()
        await lone.broker.maintenance.cleaning.clean()
        await asyncio.sleep(0)
        assert looked == MANY
        assert max(after - before for before, after in pairwise(seen)) <= 1
        await lone.stop()

    with every_yield():
        asyncio.run(main())
