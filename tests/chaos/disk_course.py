"""One broker on two log directories whose disk refuses one call at a time, life after life.

Owns the server, its work and the books. A round is two lives: the first has a call that fails at
its start, and if it comes up some while it works and one at its stop; the second starts on what
that left, without a fault. Then everything is there again, and the books are held against the
topics:

- what was acknowledged is there, at its offset; nothing that was never sent is anywhere;
- of two directories one goes on: only the one that was struck may be out of service;
- a start ends well, or with one line that says why, and never with a traceback.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.lone_broker import Peer
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.server import TidelogNode
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.records.builder import NewRecord, build_batch
from tidelog.records.reader import read_all

ERRORS = (errno.EIO, errno.ENOSPC, errno.EMFILE)
STREAM, KEYED = "stream", "keyed"
PARTITIONS = 4
KEYS = 5
MET_WITHIN_S = 4.0
"""How long a life works to meet a call that is to fail: then it is not met, which is no fault."""


class Site(NamedTuple):
    """A kind of call that a life makes in one of its phases: start, work or stop."""

    phase: str
    call: str
    kind: str


class Strike(NamedTuple):
    """One call that fails."""

    site: Site
    error: int

    def __str__(self) -> str:
        site = self.site
        return f"{site.phase}: {site.call} {site.kind} {errno.errorcode[self.error]}"


class Books:
    """What was sent to each partition, and what of it was acknowledged where."""

    def __init__(self) -> None:
        self.acked: dict[tuple[str, int], dict[int, bytes]] = {}
        self.sent: dict[tuple[str, int], set[bytes]] = {}
        self._count = 0

    def next_value(self) -> bytes:
        self._count += 1
        return b"%08d" % self._count + b"." * 1500

    def why_wrong(self, where: tuple[str, int], found: dict[int, bytes]) -> list[str]:
        """Return what of a partition is not as the books have it."""
        sent, acked = self.sent.get(where, set()), self.acked.get(where, {})
        wrong = [f"{where}: {o} was never sent" for o, v in found.items() if v not in sent]
        twice = [v for v, times in Counter(found.values()).items() if times > 1]
        wrong += [f"{where}: {v[:8]!r} is there twice" for v in twice]
        if where[0] == STREAM:
            lost = [o for o, value in acked.items() if found.get(o) != value]
            return wrong + [f"{where}: {o} was acknowledged and is not there" for o in lost]
        # Compacted: of each key the newest, or a later one whose answer was no acknowledgement.
        newest = {key_of(value): o for o, value in sorted(acked.items())}
        last = {key_of(value): o for o, value in sorted(found.items())}
        lost_keys = [key for key, o in newest.items() if last.get(key, -1) < o]
        return wrong + [f"{where}: the newest of key {key!r} is not there" for key in lost_keys]


def key_of(value: bytes) -> bytes:
    return b"%d" % (int(value[:8]) % KEYS)


class Course:
    """The lives of one server. ``folder`` is its own."""

    def __init__(self, folder: Path, seed: int, durability: str) -> None:
        self.node = TidelogNode(folder / "node")
        self._folder = folder / "strikes"
        self._folder.mkdir()
        self._places = [self.node.data / name for name in ("one", "two")]
        self.node.configure(
            {
                "log.dirs": ",".join(map(str, self._places)),
                "log.durability": durability,
                "log.cleaner.backoff.ms": 100,
                "log.retention.check.interval.ms": 300,
                "log.flush.scheduler.interval.ms": 300,
                "log.segment.delete.delay.ms": 100,
                "stale.partition.delete.delay.ms": 100,
            }
        )
        self.node.run_with(
            "tests.support.struck_server",
            {"TIDELOG_STRIKES": str(self._folder), "TIDELOG_STRIKES_BELOW": str(self.node.data)},
        )
        self.books = Books()
        self.chance = random.Random(seed)
        self.struck: list[str] = []
        self.failures: list[str] = []
        self._said = 0
        self._topics = 0

    # -- strikes

    def arm(self, strike: Strike | None) -> Path | None:
        """Have a call fail in one of the directories, which is returned."""
        self.disarm()
        if strike is None:
            return None
        place = self.chance.choice(self._places)
        aside = self._folder / "strike.new"
        aside.write_text(f"{strike.error} {strike.site.call} {strike.site.kind} {place}/\n")
        aside.rename(self._folder / "strike")
        return place

    def is_armed(self) -> bool:
        return (self._folder / "strike").exists()

    def disarm(self) -> None:
        (self._folder / "strike").unlink(missing_ok=True)

    def met(self) -> str:
        """Return, and forget, what was struck since the last time."""
        self.disarm()
        file = self._folder / "struck"
        said = file.read_text() if file.exists() else ""
        file.unlink(missing_ok=True)
        return said.strip()

    def seen(self, phase: str) -> set[Site]:
        """Return, and forget, the calls that were met since the last time."""
        file = self._folder / "seen"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return {Site(phase, *line.split()) for line in lines}

    def wrong(self, what: str) -> None:
        self.failures.append(what)

    # -- lives

    async def survey(self) -> set[Site]:
        """Live twice without a fault; return the calls that were met."""
        self.node.start()
        await self._make_topics()
        sites = self.seen("start")
        await self._work(rounds=4)
        sites |= self.seen("work")
        assert self.node.stop() == 0, self.node.said("stops")
        sites |= self.seen("stop")
        self.node.start()
        sites |= self.seen("start")
        await self._work(rounds=2)
        await self._check("without a fault")
        self.node.kill()
        self.seen("")
        self.node.start()
        sites |= self.seen("start")
        self._look("without a fault")
        assert self.node.stop() == 0, self.node.said("stops")
        return sites

    async def round(self, start: Strike | None, work: Iterable[Strike], stop: Strike | None) -> int:
        """Live two lives; return how many strikes were met."""
        name = " | ".join(map(str, (start, *work, stop)))
        met = 0
        place = self.arm(start)
        self.node.launch()
        is_up = self._until_up_or_ended(name)
        said = self.met()
        met += bool(said)
        damaged = {place} if said and place is not None else set()
        if is_up:
            met += await self._struck_work(work, damaged, name)
            met += self._struck_stop(stop, name)
        self.node.launch()
        if not self._until_up_or_ended(f"the start without a fault after {name}, {said}"):
            raise AssertionError("\n".join(self.failures))
        await self._check(name)
        # At times it ends without a clean stop: the next start, a struck one, has to recover.
        if self.chance.random() < 0.5:
            self.node.kill()
        elif self.node.stop() != 0:
            self.wrong(self.node.said(f"stops without a fault after {name}"))
        self._look(name)
        return met

    def _until_up_or_ended(self, name: str) -> bool:
        node = self.node
        wait_until(node._ready_or_ended, DEADLINE_S, lambda: node.said(f"is up or ends: {name}"))
        status = node.program.exit_status()
        self._look(name)
        if status is None:
            return True
        line = node.log.read_text().rstrip().rpartition("\n")[2]
        if status != 1 or not line.startswith("tidelog"):
            self.wrong(node.said(f"ends with 1 and one line ({name}): {status}"))
        return False

    async def _struck_work(self, strikes: Iterable[Strike], damaged: set[Path], name: str) -> int:
        met = 0
        for strike in strikes:
            place = self.arm(strike)
            deadline = asyncio.get_running_loop().time() + MET_WITHIN_S
            while self.is_armed() and asyncio.get_running_loop().time() < deadline:
                await self._work(rounds=1)
            said = self.met()
            met += bool(said)
            if said and place is not None:
                damaged.add(place)
            # What failed comes to light, and the rest goes on.
            served = await self._work(rounds=1)
            if self.node.program.exit_status() is not None:
                self.wrong(self.node.said(f"goes on: {name}, {said}"))
                return met
            for where, is_served in served.items():
                homes = {
                    each for each in self._places if (each / f"{where[0]}-{where[1]}").exists()
                }
                if homes and not homes & damaged and not is_served:
                    self.wrong(
                        self.node.said(f"serves {where}, which no fault met: {name}, {said}")
                    )
        return met

    def _struck_stop(self, strike: Strike | None, name: str) -> int:
        self.arm(strike)
        status = self.node.stop()
        said = self.met()
        if status not in (0, 1):
            self.wrong(self.node.said(f"stops: {status}, {name}, {said}"))
        self._look(name)
        return bool(said)

    def _look(self, name: str) -> None:
        log = self.node.log.read_text(errors="replace")
        fresh, self._said = log[self._said :], len(log)
        if "Traceback" in fresh:
            self.wrong(f"a traceback: {name}:\n{fresh[fresh.index('Traceback') - 400 :][:4000]}")

    # -- work

    async def _make_topics(self) -> None:
        await self._create(STREAM, PARTITIONS, {"segment.bytes": "20000"})
        # Each closed segment is looked at for compaction as soon as it is there.
        keyed = {"cleanup.policy": "compact", "segment.bytes": "20000"}
        await self._create(KEYED, 2, keyed | {"min.cleanable.dirty.ratio": "0.01"})

    async def _create(self, name: str, partitions: int, configs: dict[str, str]) -> int:
        request = messages.CreateTopicsRequest
        config = request.CreatableTopicConfig
        topic = request.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[config(*each) for each in configs.items()],
        )
        answer = await self._ask(request(topics=[topic], timeout_ms=10_000), 5)
        return -1 if answer is None else int(answer.topics[0].error_code)

    async def _ask(self, request: Any, version: int) -> Any:
        """Ask on a connection of its own; None when there was no answer."""
        try:
            peer = await Peer.connect(self.node.port)
        except OSError:
            return None
        try:
            return await peer.ask(request, version)
        except OSError:
            return None
        finally:
            peer.writer.close()

    async def _work(self, rounds: int) -> dict[tuple[str, int], bool]:
        """Produce, read, look up, make and delete; return which partitions took the last batch."""
        served: dict[tuple[str, int], bool] = {}
        for _ in range(rounds):
            for topic, count in ((STREAM, PARTITIONS), (KEYED, 2)):
                for index in range(count):
                    served[topic, index] = await self._produce(topic, index)
            for index in range(PARTITIONS):
                await self._read((STREAM, index))
            await self._look_up()
            await self._come_and_go()
        return served

    async def _produce(self, topic: str, index: int) -> bool:
        values = [self.books.next_value() for _ in range(6)]
        self.books.sent.setdefault((topic, index), set()).update(values)
        records = build_batch([NewRecord(-1, key_of(value), value) for value in values])
        request = messages.ProduceRequest
        data = request.TopicProduceData(
            name=topic, partition_data=[request.PartitionProduceData(index=index, records=records)]
        )
        answer = await self._ask(request(acks=-1, timeout_ms=10_000, topic_data=[data]), 8)
        if answer is None:
            return False
        said = answer.responses[0].partition_responses[0]
        if said.error_code:
            return False
        acked = self.books.acked.setdefault((topic, index), {})
        for delta, value in enumerate(values):
            acked[said.base_offset + delta] = value
        return True

    async def _read(self, where: tuple[str, int]) -> dict[int, bytes] | str:
        """Return all values of a partition, or why it cannot be read."""
        topic, index = where
        found: dict[int, bytes] = {}
        offset, request = 0, messages.FetchRequest
        while True:
            part = request.FetchPartition(
                partition=index, fetch_offset=offset, partition_max_bytes=1 << 20
            )
            asked = request.FetchTopic(topic=topic, partitions=[part])
            answer = await self._ask(
                request(
                    replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=[asked]
                ),
                7,
            )
            if answer is None:
                return "no answer"
            said = answer.responses[0].partitions[0]
            if said.error_code:
                return ErrorCode(said.error_code).name
            values = {x.offset: bytes(x.value or b"") for x in read_all(said.records or b"")}
            found |= {at: value for at, value in values.items() if at >= offset}
            if not values or max(values) < offset:
                return found
            offset = max(values) + 1

    async def _read_whole(self, where: tuple[str, int], name: str) -> dict[int, bytes]:
        """Read a partition as soon as it is led."""
        async with asyncio.timeout(DEADLINE_S):
            while isinstance(found := await self._read(where), str):
                if self.node.program.exit_status() is not None:
                    raise AssertionError(self.node.said(f"serves {where}, {found}: {name}"))
        return found

    async def _look_up(self) -> None:
        request = messages.ListOffsetsRequest
        parts = [request.ListOffsetsPartition(index, timestamp=1) for index in range(PARTITIONS)]
        topic = request.ListOffsetsTopic(name=STREAM, partitions=parts)
        await self._ask(request(replica_id=-1, topics=[topic]), 2)
        await self._ask(messages.DescribeLogDirsRequest(topics=None), 1)

    async def _come_and_go(self) -> None:
        """A topic of a name that was used before comes, is written to, and goes."""
        name = f"passing{self._topics % 3}"
        self._topics += 1
        if await self._create(name, 2, {}) != 0:
            return
        for index in (0, 1):
            await self._produce(name, index)
            self.books.acked.pop((name, index), None)
        await self._ask(messages.DeleteTopicsRequest(topic_names=[name], timeout_ms=5_000), 3)

    # -- books

    async def _check(self, name: str) -> None:
        """Hold the books against the topics: nothing is wanting, nothing is struck."""
        for topic, count in ((STREAM, PARTITIONS), (KEYED, 2)):
            for index in range(count):
                found = await self._read_whole((topic, index), name)
                for each in self.books.why_wrong((topic, index), found)[:5]:
                    self.wrong(f"{name}: {each}")


def sample(sites: Iterable[Site], chance: random.Random, most: int) -> list[Strike]:
    """Return strikes in a random order, each site with each error; at most so many."""
    strikes = [Strike(site, error) for site in sorted(sites) for error in ERRORS]
    chance.shuffle(strikes)
    return strikes[:most]


def seed_of_run(*, fixed: int | None) -> int:
    """``TIDELOG_SEED``, or the fixed seed, or without one any."""
    seed = random.SystemRandom().randrange(2**32) if fixed is None else fixed
    return int(os.environ.get("TIDELOG_SEED", str(seed)))
