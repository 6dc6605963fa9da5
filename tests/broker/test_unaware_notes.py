"""Notes on disk of producers without a count: what a broker knows of them after any crash.

A crash is a copy of the log directories, taken while the broker runs: what a kill leaves.
"""

from __future__ import annotations

import errno
import random
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.lone_broker import LoneBroker, Peer, until
from tests.support.produce_fetch import produce, run, running
from tests.support.resized import COUNT, EPOCH, LIFE, count_in, put
from tests.support.storage_logs import FixedClock, QuickDisk
from tidelog.broker.partitions import unaware_writers
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.broker.partitions.unaware_notes import RENEWED_MS
from tidelog.broker.partitions.unaware_writers import ASKED_MS, NEVER
from tidelog.model.errors import ErrorCode
from tidelog.records.builder import NewRecord, build_batch
from tidelog.replication.resize_rules import Named
from tidelog.runtime.seams import Seams
from tidelog.storage.directory.unaware_note import COVERS_MS, decode
from tidelog.storage.names import UNAWARE_WRITERS

BATCH = build_batch([NewRecord(1, b"k", b"v")])
AWARE = Named(COUNT, EPOCH, LIFE)
NOW_MS = 1_700_000_000_000
MINUTE_MS = 60_000


class NoteDisk(QuickDisk):
    """A disk on which a test counts, stops and fails the writes of the notes."""

    def __init__(self) -> None:
        self.writes = 0
        self.fault: int | None = None
        self.gate = threading.Event()
        self.gate.set()

    def replace(self, path: str, content: bytes) -> None:
        if path.endswith(UNAWARE_WRITERS):
            self.gate.wait(30)
            if self.fault is not None:
                raise OSError(self.fault, "a fault of the test", path)
            self.writes += 1
        super().replace(path, content)


def leading(lone: LoneBroker, name: str = "t", partitions: int = 1) -> HostedPartition:
    hosted = lone.lead(name, partitions)
    for each in lone.broker.partitions.by_topic[name].values():
        put(each, undeleted_count=COUNT, resize_epoch=0)
    return hosted


async def send(peer: Peer, topic: str = "t", named: Named | None = None, partition: int = 0) -> int:
    request = produce(BATCH, topic, partition)
    answer = await peer.ask(request if named is None else count_in(request, named), 11)
    return int(answer.responses[0].partition_responses[0].error_code)


def reported(lone: LoneBroker, registration: int = 1) -> dict[str, int]:
    """What heartbeats say by topic; a topic that is not here by its id."""
    writers, names = lone.broker.unaware_writers, {}
    for name, each in lone.broker.partitions.by_topic.items():
        names[next(iter(each.values())).topic_id] = name
    found = [led for _ in range(5) for led in writers.report(registration)]
    return {names.get(led.topic_id, str(led.topic_id)): led.unaware_write_ms for led in found}


@asynccontextmanager
async def after_a_kill(
    folder: Path, clock: FixedClock | None = None
) -> AsyncIterator[tuple[LoneBroker, Peer]]:
    """The next broker on what one that still runs has written."""
    copied = folder.with_name(f"{folder.name}-{random.getrandbits(32)}")
    # A file that is about to get its name may get it during the copy, and counts for nothing.
    shutil.copytree(folder, copied, ignore=shutil.ignore_patterns("*.tmp"))
    seams = Seams(disk=QuickDisk()) if clock is None else Seams(disk=QuickDisk(), clock=clock)
    async with running(copied, seams=seams) as found:
        yield found


def test_a_broker_says_at_once_after_any_end_that_it_has_seen_no_such_producer(
    tmp_path: Path,
) -> None:
    """Red before: unknown for an hour after each start, and unknown counts as seen."""
    folder = tmp_path / "log"

    async def main() -> None:
        async with running(folder) as (lone, peer):
            leading(lone)
            assert await send(peer, named=Named(COUNT, 0, LIFE)) == 0
            async with after_a_kill(folder) as (again, _):
                leading(again)
                assert reported(again) == {"t": NEVER}
        async with running(folder) as (lone, _):
            leading(lone)
            assert reported(lone) == {"t": NEVER}

    run(main())


@pytest.mark.parametrize("led", [True, False], ids=["leader", "follower"])
def test_one_write_is_known_after_a_kill_whoever_leads_then(tmp_path: Path, led: bool) -> None:
    folder, clock = tmp_path / "log", FixedClock(NOW_MS)

    async def main() -> None:
        async with running(folder, seams=Seams(disk=QuickDisk(), clock=clock)) as (lone, peer):
            leading(lone)
            assert await send(peer) == 0
            async with after_a_kill(folder, clock) as (again, _):
                leading(again).is_leader = led
                assert reported(again) == {"t": NOW_MS}
                assert reported(again, 2) == {"t": NOW_MS}, "another controller knows nothing"
            later = FixedClock(NOW_MS + ASKED_MS)
            async with after_a_kill(folder, later) as (again, _):
                leading(again)
                assert reported(again) == {"t": NOW_MS + COVERS_MS}, "no batch came after that"
        async with running(folder, seams=Seams(disk=QuickDisk(), clock=later)) as (lone, _):
            leading(lone)
            assert reported(lone) == {"t": NOW_MS}, "a clean stop says it exactly"

    run(main())


def test_the_first_batch_waits_for_the_note_and_no_other_one(tmp_path: Path) -> None:
    disk = NoteDisk()

    async def main() -> None:
        async with running(tmp_path, seams=Seams(disk=disk)) as (lone, peer):
            hosted, woken = leading(lone, partitions=2), []
            writers = lone.broker.unaware_writers
            writers.when_seen = lambda: woken.extend(writers.report(1))
            disk.gate.clear()
            other = await Peer.connect(lone.port)
            peer.send(produce(BATCH), 11)
            peer.send(produce(BATCH), 11)
            await until(lambda: woken)
            assert woken[0].unaware_write_ms > NOW_MS, "the controller is sent it before the append"
            assert woken[0].client_ids == ["peer"]
            assert await send(other, named=Named(COUNT, 0, LIFE), partition=1) == 0
            assert hosted.end_offset == 0
            disk.gate.set()
            for first in (0, 1):
                answer = (await peer.receive()).responses[0].partition_responses[0]
                assert (answer.error_code, answer.base_offset) == (0, first)
            before = disk.writes
            for _ in range(20):
                assert await send(peer) == 0
                assert await send(other, partition=1) == 0
            assert disk.writes == before
            other.writer.close()

    run(main())


def test_a_note_is_renewed_and_no_batch_waits_for_that(tmp_path: Path) -> None:
    disk, clock = NoteDisk(), FixedClock(NOW_MS)

    async def main() -> None:
        async with running(tmp_path, seams=Seams(disk=disk, clock=clock)) as (lone, peer):
            leading(lone)
            assert await send(peer) == 0
            before = disk.writes
            clock.now_ms += RENEWED_MS + 1
            disk.gate.clear()
            assert await send(peer) == 0, "the former note covers it"
            disk.gate.set()
            await until(lambda: disk.writes > before)
            clock.now_ms += COVERS_MS - 1
            assert await send(peer) == 0
            async with after_a_kill(tmp_path, clock) as (again, _):
                leading(again)
                assert reported(again) == {"t": clock.now_ms}

    run(main())


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EIO])
def test_a_batch_whose_note_cannot_be_written_is_refused(tmp_path: Path, fault: int) -> None:
    """As it is when it cannot be written itself: a full disk heals, another failure is final."""
    disk = NoteDisk()

    async def main() -> None:
        async with running(tmp_path, seams=Seams(disk=disk)) as (lone, peer):
            hosted = leading(lone)
            disk.fault = fault
            assert await send(peer) == ErrorCode.KAFKA_STORAGE_ERROR
            assert hosted.end_offset == 0
            disk.fault = None
            healed = await send(peer)
            assert healed == (0 if fault == errno.ENOSPC else ErrorCode.KAFKA_STORAGE_ERROR)

    run(main())


def test_each_log_directory_has_its_note(tmp_path: Path) -> None:
    """A disk may be lost: what is on the other one says what was written there."""
    folders = [tmp_path / "a", tmp_path / "b"]

    async def main() -> None:
        config: dict[str, object] = {"log.dirs": ",".join(map(str, folders))}
        async with running(tmp_path, config) as (lone, peer):
            leading(lone, partitions=2)
            for partition in (0, 1):
                assert await send(peer, partition=partition) == 0
            assert {len(decode((each / UNAWARE_WRITERS).read_bytes())) for each in folders} == {1}

    run(main())


@pytest.mark.parametrize("content", [None, b"", b"0\n0\ncrc32c: 7\n", b"\xff"])
def test_a_note_that_is_missing_or_damaged_counts_as_a_write_once(
    tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """So does the first start after a version without notes. The next start counts no new hour."""
    clock = FixedClock(NOW_MS)

    async def main() -> None:
        async with running(tmp_path) as (lone, _):
            leading(lone)
            assert decode((tmp_path / UNAWARE_WRITERS).read_bytes()) == {}, "a new directory"
        (tmp_path / UNAWARE_WRITERS).unlink()
        if content is not None:
            (tmp_path / UNAWARE_WRITERS).write_bytes(content)
        for _ in range(2):
            async with running(tmp_path, seams=Seams(disk=QuickDisk(), clock=clock)) as (lone, _p):
                leading(lone)
                leading(lone, "new")
                assert reported(lone) == {"t": NOW_MS, "new": NEVER}
            clock.now_ms += MINUTE_MS

    run(main())


def test_a_note_of_a_clock_that_was_set_back_counts_as_a_write_once(tmp_path: Path) -> None:
    clock = FixedClock(NOW_MS)

    async def main() -> None:
        async with running(tmp_path, seams=Seams(disk=QuickDisk(), clock=clock)) as (lone, peer):
            leading(lone)
            assert await send(peer) == 0
            clock.now_ms -= ASKED_MS
            assert await send(peer) == 0
            assert reported(lone) == {"t": clock.now_ms}
            clock.now_ms -= ASKED_MS
            async with after_a_kill(tmp_path, clock) as (again, _):
                leading(again)
                assert reported(again) == {"t": clock.now_ms}
                clock.now_ms += MINUTE_MS
                async with after_a_kill(Path(again.configs.log_dirs[0]), clock) as (third, _p):
                    leading(third)
                    assert reported(third) == {"t": clock.now_ms - MINUTE_MS}

    run(main())


def test_a_time_that_went_back_is_reported_too(tmp_path: Path) -> None:
    clock = FixedClock(NOW_MS)

    async def main() -> None:
        async with running(tmp_path, seams=Seams(disk=QuickDisk(), clock=clock)) as (lone, peer):
            leading(lone)
            for step in (0, -ASKED_MS):
                clock.now_ms += step
                assert await send(peer) == 0
                assert reported(lone) == {"t": clock.now_ms}
                assert reported(lone) == {}

    run(main())


def test_a_topic_that_is_no_longer_hosted_is_named_for_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that was moved away: the broker that took it knows nothing of such producers."""
    monkeypatch.setattr(unaware_writers, "MOST_FORMER", 2)
    clock = FixedClock(NOW_MS)

    async def main() -> None:
        async with running(tmp_path, seams=Seams(disk=QuickDisk(), clock=clock)) as (lone, peer):
            ids = {}
            for name in ("a", "b", "c"):
                ids[name] = str(leading(lone, name).topic_id)
                assert await send(peer, name) == 0
                clock.now_ms += MINUTE_MS
            kept = {x: clock.now_ms - back * MINUTE_MS for back, x in ((2, "b"), (1, "c"))}
            hosted = dict(lone.broker.partitions.by_topic)
            lone.broker.partitions.by_topic.clear()
            named = {ids[name]: at_ms for name, at_ms in kept.items()}
            assert reported(lone) == named, "the oldest of too many is forgotten"
            assert reported(lone) == {}
            assert reported(lone, 2) == named
            lone.broker.partitions.by_topic.update(hosted)
            clock.now_ms = NOW_MS + ASKED_MS + MINUTE_MS
            lone.broker.partitions.by_topic.clear()
            reported(lone, 3)
            assert reported(lone, 4) == {ids["c"]: kept["c"]}
            lone.broker.partitions.by_topic.update(hosted)

    run(main())


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happened_a_broker_knows_of_the_last_write(tmp_path: Path, seed: int) -> None:
    """Random writes, silences, kills and stops: never earlier than it was, at most one note later,
    and "none" exactly where there was none in the last hour."""
    rng, clock = random.Random(seed), FixedClock(NOW_MS)
    last: dict[str, int] = {}

    async def main() -> None:
        folder = tmp_path / "0"
        for life in range(5):
            seams = Seams(disk=QuickDisk(), clock=clock)
            async with running(folder, seams=seams) as (lone, peer):
                for name in ("a", "b", "c"):
                    leading(lone, name)
                found = reported(lone)
                for name in ("a", "b", "c"):
                    if name in last and found[name] == NEVER:
                        assert last.pop(name) + ASKED_MS <= clock.now_ms, (seed, life)
                    elif name in last:
                        assert last[name] <= found[name] <= last[name] + COVERS_MS, (seed, life)
                        assert found[name] <= clock.now_ms
                        last[name] = found[name]
                    else:
                        assert found[name] == NEVER, (seed, life)
                for _ in range(rng.randrange(12)):
                    clock.now_ms += rng.choice((1, 1_000, RENEWED_MS, COVERS_MS, 2 * COVERS_MS))
                    name, is_aware = rng.choice(("a", "b", "c")), rng.random() < 0.5
                    named = Named(COUNT, 0, LIFE) if is_aware else None
                    assert await send(peer, name, named) == 0
                    if not is_aware:
                        last[name] = clock.now_ms
                clock.now_ms += rng.randrange(ASKED_MS)
                killed = tmp_path / str(life + 1)
                if rng.random() < 0.7:
                    shutil.copytree(folder, killed, ignore=shutil.ignore_patterns("*.tmp"))
            folder = killed if killed.exists() else folder

    run(main())
