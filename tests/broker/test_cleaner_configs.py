"""The configurations of a broker's cleaner: keys of a run, logs at a time, bytes a second."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.compacted_logs import COMPACTED, fill, is_clean
from tests.support.lone_broker import LoneBroker, until
from tests.support.processes import DEADLINE_S
from tidelog.broker.metadata.configurations import DEFAULT_BROKER, EntityType
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.model.work import finish
from tidelog.records.builder import NewRecord, build_batch
from tidelog.runtime.seams import Seams

MIB = 1 << 20
KEYS = 50_000
"""More than 1 MiB has room for at 24 bytes each."""


class Watching(ThreadPoolExecutor):
    """Helpers that note the logs that they compact; ``meeting`` holds each until all are there."""

    def __init__(self, meeting: threading.Barrier | None = None) -> None:
        super().__init__(8)
        self.plans: list[Any] = []
        self.busy = self.most_busy = 0
        self._meeting = meeting

    @property
    def topics(self) -> list[str]:
        return [Path(plan.directory).name.removesuffix("-0") for plan in self.plans]

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.plans.append(args[1])
        self.busy += 1
        self.most_busy = max(self.most_busy, self.busy)
        return super().submit(self._work, fn, *args)

    def _work(self, fn: Any, *args: Any) -> Any:
        try:
            if self._meeting is not None:
                self._meeting.wait(DEADLINE_S)
            return fn(*args)
        finally:
            self.busy -= 1


async def started(folder: Path, helper: Watching, configs: dict[str, Any]) -> LoneBroker:
    lone = LoneBroker(folder, configs, seams=Seams(processes=helper))
    await lone.start()
    return lone


def fill_with_keys(hosted: HostedPartition, count: int) -> None:
    now = int(time.time() * 1000)
    for first in range(0, count, 5_000):
        records = [NewRecord(now, b"%d" % number, b"v") for number in range(first, first + 5_000)]
        assert hasattr(hosted.append(build_batch(records), now), "first_offset")
    hosted.log.roll(now)
    hosted.log.sync()


@pytest.mark.parametrize(("mib", "runs"), [(1, 2), (2, 1)])
def test_the_buffer_says_how_many_keys_a_run_takes(tmp_path: Path, mib: int, runs: int) -> None:
    """L2: each run reads the whole log again, and took a million keys whatever was set."""

    async def main() -> None:
        with Watching() as helper:
            buffer = {"log.cleaner.dedupe.buffer.size": mib * MIB}
            lone = await started(tmp_path, helper, buffer)
            hosted = lone.lead("t", configs=COMPACTED)
            fill_with_keys(hosted, KEYS)
            await lone.broker.maintenance.cleaning.clean()
            assert is_clean(hosted) and helper.topics == ["t"] * runs
            await lone.stop()

    asyncio.run(main())


@pytest.mark.parametrize("threads", [1, 2])
def test_so_many_logs_are_compacted_at_the_same_time(tmp_path: Path, threads: int) -> None:
    """L2: one log at a time, whatever was set."""

    async def main() -> None:
        with Watching(threading.Barrier(threads)) as helper:
            lone = await started(tmp_path, helper, {"log.cleaner.threads": threads})
            hosted = [lone.lead(name, configs=COMPACTED) for name in ("a", "b", "c", "d")]
            for each in hosted:
                fill(each)
            await lone.broker.maintenance.cleaning.clean()
            assert all(map(is_clean, hosted))
            assert sorted(helper.topics) == ["a", "b", "c", "d"], "each by one helper alone"
            assert helper.most_busy == threads
            await lone.stop()

    asyncio.run(main())


def test_a_log_that_takes_long_leaves_the_other_helper_to_the_other_logs(tmp_path: Path) -> None:
    """The other log is compacted again and again while the first one is at work."""
    may_end = threading.Event()

    class Held(Watching):
        def _work(self, fn: Any, *args: Any) -> Any:
            if Path(args[1].directory).name == "long-0":
                assert may_end.wait(DEADLINE_S)
            return super()._work(fn, *args)

    async def main() -> None:
        with Held() as helper:
            configs = {"log.cleaner.threads": 2, "log.cleaner.backoff.ms": 10}
            lone = await started(tmp_path, helper, configs)
            long, short = (lone.lead(name, configs=COMPACTED) for name in ("long", "short"))
            fill(long)
            cleaning = asyncio.create_task(lone.broker.maintenance.cleaning.clean())
            await until(lambda: helper.topics == ["long"])
            for runs in (1, 2):
                fill(short)
                await until(lambda: is_clean(short))
                assert helper.topics == ["long", *["short"] * runs]
            may_end.set()
            await cleaning
            assert is_clean(long)
            await lone.stop()

    asyncio.run(main())


def test_threads_share_the_buffer_and_the_bytes_a_second(tmp_path: Path) -> None:
    """As they are set when a log's turn comes, also while the broker runs."""

    async def main() -> None:
        with Watching() as helper:
            lone = await started(tmp_path, helper, {})
            hosted = lone.lead("t", configs=COMPACTED)

            async def share(**texts: str) -> tuple[int, float, float]:
                named = {f"log.cleaner.{name.replace('_', '.')}": x for name, x in texts.items()}
                changed = [(EntityType.BROKER, DEFAULT_BROKER, named)]
                finish(lone.broker.topic_configs.apply(changed, complete=False))
                fill(hosted)
                await lone.broker.maintenance.cleaning.clean()
                found = helper.plans[-1].share
                return found.buffer_bytes, found.load_factor, found.bytes_per_second

            assert (await share())[:2] == (128 * MIB, 0.9)
            shared = {"threads": "4", "dedupe_buffer_size": str(8 * MIB)}
            limits = {"io_buffer_load_factor": "0.5", "io_max_bytes_per_second": "4e9"}
            assert await share(**shared, **limits) == (2 * MIB, 0.5, 1e9)
            await lone.stop()

    asyncio.run(main())


def test_without_threads_nothing_is_compacted(tmp_path: Path) -> None:
    async def main() -> None:
        with Watching() as helper:
            lone = await started(tmp_path, helper, {"log.cleaner.threads": 0})
            hosted = lone.lead("t", configs=COMPACTED)
            fill(hosted)
            await lone.broker.maintenance.cleaning.clean()
            assert not is_clean(hosted) and not helper.plans
            await lone.stop()

    asyncio.run(main())


def test_a_raised_rate_takes_effect_in_a_run_that_is_at_work(tmp_path: Path) -> None:
    """The run kept the rate of its plan: at 1 B/s only a restart ended it."""
    name = "log.cleaner.io.max.bytes.per.second"

    async def main() -> None:
        with Watching() as helper:
            lone = await started(tmp_path, helper, {name: 1})
            hosted = lone.lead("t", configs=COMPACTED)
            fill(hosted)
            cleaning = asyncio.create_task(lone.broker.maintenance.cleaning.clean())
            await until(lambda: helper.busy == 1)
            changed = [(EntityType.BROKER, DEFAULT_BROKER, {name: "1e12"})]
            finish(lone.broker.topic_configs.apply(changed, complete=False))
            async with asyncio.timeout(DEADLINE_S):
                await cleaning
            assert is_clean(hosted) and helper.topics == ["t"]
            await lone.stop()

    asyncio.run(main())
