"""A whole cluster: controllers, three brokers and their clients, under random faults.

Owns the course of one run of 60 simulated seconds: clients and faults for the first 42 or so, then
everything heals, comes to rest in bounded time and is checked. Not the faults: see
``cluster.faults``; the checks during the run: ``cluster.journal`` and ``cluster.disks``; the checks
after it: ``cluster.verdict``.
"""

from __future__ import annotations

import asyncio
import random
import traceback
from collections.abc import Callable
from uuid import UUID

from tests.simulation.clients import SimulatedProducer, SimulatedReader, read_whole, send_once
from tests.simulation.cluster import verdict
from tests.simulation.cluster.audit import Auditor
from tests.simulation.cluster.clients import (
    TEMPORARY,
    Administrator,
    ClusterTarget,
    GroupBook,
    Outside,
    target,
)
from tests.simulation.cluster.disks import DiskWatch
from tests.simulation.cluster.faults import Faults
from tests.simulation.cluster.faults_members import MemberFaults
from tests.simulation.cluster.journal import StateWatch
from tests.simulation.cluster.leftovers import Leftovers
from tests.simulation.cluster.members import GROUP_CONFIGS, Group
from tests.simulation.cluster.mover import Mover
from tests.simulation.cluster.moves import MoveWatch
from tests.simulation.cluster.nodes import Cluster
from tests.simulation.cluster.operator import Operator
from tests.simulation.cluster.replay import Recording
from tests.simulation.cluster.rolls import begin_mixed, levels_of
from tests.simulation.history import History
from tests.simulation.kernel import NetworkProfile, ProcessKilled, World
from tests.simulation.kernel.loop import START_SECONDS
from tests.simulation.scenarios.course import GROUP_TOPICS, MIXED_SHARE, Course, course_of
from tests.simulation.scenarios.result import Findings, Result
from tidelog.metadata import layout
from tidelog.model.levels import LATEST

SESSION_TIMEOUT_SECONDS = 6.0
RECOVERY_SECONDS = SESSION_TIMEOUT_SECONDS + 2.0
"""Promise 24: leaders within ``broker.session.timeout.ms`` + 2 s after the last fault."""

REST_SECONDS = 60.0
"""Within so long after the faults everything else has come to rest: ISRs, clients."""

SEGMENTS = {"segment.bytes": "4000", "index.interval.bytes": "300"}


class ClusterRun:
    """One run of the scenario."""

    def __init__(
        self, seed: int, course: Course | None = None, enough: Callable[[str], bool] | None = None
    ) -> None:
        """The run ends with the first finding of a watcher that is ``enough``, if there is one."""
        self.seed = seed
        self.has_enough = False
        self.course = course or Course()
        self.world = World(seed, NetworkProfile(tearing=0.05), max_steps=6_000_000)
        self.rng: random.Random = self.world.random("chaos")
        self.durability = self.course.durability or self.rng.choice(
            ("replicated", "replicated", "sync")
        )
        controllers = self.course.controllers or self.rng.choice((1, 2, 2))
        drawn = self.rng.random() < 0.4
        self.unclean = drawn if self.course.unclean is None else self.course.unclean
        self.history = History()
        self.story: list[str] = []
        self.found: list[str] = []
        self.cluster = Cluster(self.world, controllers, self.course.brokers, self._configs())
        levels = self.world.random("levels")
        drawn = levels.random() < MIXED_SHARE
        self.mixed = drawn if self.course.mixed is None else self.course.mixed
        if self.mixed:
            self.say(f"levels: {begin_mixed(self.cluster, levels)}")
        self.states = StateWatch(self.cluster, self.say)
        self.disks = DiskWatch(self.states.assigned, self.states.life_without_id)
        self.states.id_on_disk = self.disks.id_of
        self.states.forgot_its_id = self.disks.forgot_its_id
        for broker in self.cluster.brokers:
            self.disks.watch(broker)
        self.move_watch: MoveWatch | None = None
        if self.course.moves:
            self.move_watch = MoveWatch(self.cluster, self.states, self.disks)
        self.leftovers = Leftovers(self.cluster, self.states, self.disks)
        self.recording = Recording(self.cluster)
        self.faults = self._make_faults(levels)
        self.audit = Auditor(
            self.cluster,
            self.states,
            self.disks,
            self.faults.corruptions,
            self.history,
            self.faults.disks_failed,
            self.world.random("audit"),
        )
        self.outside = Outside(self.cluster, self.world.random("outside"), self.states)
        self.admin = Administrator(self.outside)
        self.mover = self._make_mover()
        self.operator = Operator(
            self.cluster, self.states, self.faults.corruptions, self.audit, self.admin
        )
        self.verdict = verdict.Verdict(self.cluster, self.states, self.history)
        self.states.when_buried = self._buried
        self.targets: list[ClusterTarget] = []
        self.producers: list[SimulatedProducer] = []
        self.readers: list[SimulatedReader] = []
        self.loner = GroupBook(self.outside, "loner", "plain", self.world.random("group"))
        self.group = Group(self.outside, self.history, "readers", GROUP_TOPICS, 3)
        drawing = self.world.random("members")
        self.member_faults = MemberFaults(
            self.group, self.admin, self.world, drawing, self.say, self.course.members
        )
        self.asked_starts: dict[str, int] = {}
        """Partition -> the highest offset that DeleteRecords was asked for."""
        self.lives = 0
        if enough is not None:
            self._end_with(enough)

    def _make_mover(self) -> Mover:
        course = self.course
        pause, fewest = course.movers_pause, course.fewest_replicas
        return Mover(self.outside, self.world.random("mover"), self.say, pause, fewest)

    def _end_with(self, enough: Callable[[str], bool]) -> None:
        for watcher in (self, self.states, self.disks, self.mover, self.move_watch):
            if watcher is not None:
                watcher.found = Findings(enough, self._end)

    def _end(self) -> None:
        self.has_enough = True
        self.world.loop.stop()

    def _make_faults(self, levels: random.Random) -> Faults:
        """Return the faults as this course wants them, on what is watched already."""
        found = Faults(
            self.cluster,
            self.states,
            self.recording,
            self.history,
            self.rng,
            self.say,
            self.course.weights,
            synced=self.durability == "sync",
            careful=self.course.careful,
        )
        found.corruptions.kinds = self.course.corrupted
        found.when_wiped = self.disks.forget
        found.rolls = levels
        return found

    def _configs(self) -> dict[str, str]:
        fetch_bytes = self.course.fetch_bytes or self.rng.choice((500, 1 << 20))
        return {
            "replica.fetch.max.bytes": str(fetch_bytes),
            "log.durability": self.durability,
            **GROUP_CONFIGS,
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "3",
            "default.replication.factor": "3",
            "min.insync.replicas": "2",
            "replica.lag.time.max.ms": "2500",
            "stale.partition.delete.delay.ms": "2000",
            "log.segment.delete.delay.ms": "1000",
            "delete.topic.retry.ms": "1000",
            "delete.topic.enable": str(self.course.deletes).lower(),
            "log.flush.offset.checkpoint.interval.ms": "2000",
            "replica.high.watermark.checkpoint.interval.ms": "2000",
        }

    def say(self, line: str) -> None:
        """Script the story of the run: what a person reads first."""
        self.story.append(f"{self.world.loop.time() - START_SECONDS:9.3f} {line}")

    def _buried(self, broker: int) -> None:
        """Only a broker that was silent for its session is dead (docs/design/who-may-lead.md)."""
        now = self.world.loop.time()
        node = self.cluster.broker(broker)
        silent = 0.0 if node.ready else now - node.ended_at
        if now > self.faults.unquiet_until and silent < SESSION_TIMEOUT_SECONDS - 1.0:
            self.found.append(
                f"death_takes_its_time: broker {broker} was taken for dead after {silent:.1f} s"
            )

    # --- the course ----------------------------------------------------------------------------

    def run(self) -> Result:
        with self.world as world:
            try:
                world.loop.run_until_complete(self._main())
            except (Exception, ProcessKilled):
                if not self.has_enough:
                    self.found.append(f"the run ended with an error:\n{traceback.format_exc()}")
            self.found += [f"unhandled: {line}" for line in world.loop.unhandled]
            found = [
                *self.found,
                *self.states.found,
                *self.disks.found,
                *self.mover.found,
                *(self.move_watch.found if self.move_watch is not None else ()),
                *self.verdict.found,
                *[f"no_step_back: {line}" for line in self.outside.metadata.steps_back],
                *self.verdict.of_history(),
            ]
            story = "\n".join(self.story[-150:])
            return Result(
                "cluster",
                self.seed,
                world.digest(),
                list(dict.fromkeys(found)),
                f"{story}\n...\n{world.trace.tail(10)}",
                self._counts(),
            )

    def _counts(self) -> dict[str, int]:
        return {
            "faults": sum(self.faults.counts.values()),
            "acked": sum(producer.acked for producer in self.producers),
            "reads": len(self.history.reads),
            "elections": self.states.elections,
            "unclean": len(self.states.unclean),
            "replayed": self.recording.replayed,
            "deletions": self.disks.deleted,
            "commits": self.loner.commits,
            "generations": len({share.generation for share in self.group.book.shares}),
            "group commits": len(self.group.book.commits),
            "slow stops": sum(node.slow_stops for node in self.cluster.nodes),
            "corruptions": len(self.faults.corruptions.corruptions),
            "given up": self.operator.given_up,
            "audits": self.audit.reads,
            "lives": sum(node.starts for node in self.cluster.nodes),
            "rolled": self.faults.steps,
            **(self.move_watch.counts() if self.move_watch is not None else {}),
            "strays kept": self.leftovers.kept(),
            "brokers emptied": self.mover.emptied,
            **{f"struck {name}": count for name, count in self.faults.struck.items()},
        }

    async def _main(self) -> None:
        self.cluster.start()
        await self._until(lambda: all(node.ready for node in self.cluster.nodes), "ready", 30)
        await self._create_topics()
        background = self._start_clients()
        if self.mixed:
            self.faults.begin("roll")
        troubles = asyncio.create_task(self.member_faults.run())
        moving = asyncio.create_task(self.mover.run()) if self.course.moves else None
        await self.faults.run(self.course.seconds, self.course.pause)
        troubles.cancel()
        if moving is not None:
            if moving.done():
                moving.result()
            moving.cancel()
        await self.faults.heal()
        self.member_faults.heal()
        await self._recover()
        if self.mixed and self.faults.rolls.random() < 0.5:
            await self._finish_roll()
        # The clients go on for a while, on what the faults have left.
        await asyncio.sleep(
            max(0.0, self.course.end_seconds - (self.world.loop.time() - START_SECONDS))
        )
        for task in background:
            if task.done():
                task.result()
            task.cancel()
        await self._come_to_rest()

    async def _until(self, condition: Callable[[], bool], what: str, seconds: float) -> None:
        try:
            await self.world.until(condition, seconds)
        except TimeoutError:
            refused = {node.host: node.refused[-1] for node in self.cluster.nodes if node.refused}
            out = self.states.out_of_sync()
            raise AssertionError(
                f"recovery_is_bounded: not in {seconds} s: {what}; out of sync: {out} {refused}"
            ) from None

    async def _create_topics(self) -> None:
        await self.admin.create("plain", 2, 3, {**SEGMENTS, "min.insync.replicas": "2"})
        await self.admin.create("loose", 1, 3, {**SEGMENTS, "min.insync.replicas": "1"})
        await self.admin.create("pair", 1, 2, {**SEGMENTS, "min.insync.replicas": "2"})

    # --- clients -------------------------------------------------------------------------------

    def _start_clients(self) -> list[asyncio.Task[None]]:
        places = (("plain", 0), ("plain", 1), ("loose", 0), ("pair", 0))
        self.targets = [target(self.outside, topic, index) for topic, index in places]
        work = []
        self.producing = []
        for where in self.targets:
            for number in range(2 if where.topic == "plain" else 1):
                acks = 1 if where.topic == "loose" and self.rng.random() < 0.4 else -1
                self._produce(where, f"p{number}", acks)
            reader = SimulatedReader(
                self.history, self.world.random(f"reader/{where.name}"), where, "r"
            )
            self.readers.append(reader)
            work.append(asyncio.create_task(reader.run()))
        self.group.start()
        work.append(asyncio.create_task(self.loner.run()))
        work.append(asyncio.create_task(self.audit.run()))
        if self.course.deletes:
            work.append(asyncio.create_task(self._churn()))
        work.append(asyncio.create_task(self._administer()))
        work.append(asyncio.create_task(self._send_odd_ones()))
        return work

    def _produce(self, where: ClusterTarget, name: str, acks: int) -> None:
        producer = SimulatedProducer(
            self.history,
            self.world.random(f"producer/{where.name}/{name}"),
            where,
            name,
            codecs=(0, 0, 0, 1),
            acks=acks,
        )
        self.producers.append(producer)
        self.producing.append(asyncio.create_task(producer.run(1_000_000, 0.6)))

    async def _send_odd_ones(self) -> None:
        """One-shot writes, some of them with a wrong CRC."""
        rng = self.world.random("odd")
        for number in range(1_000_000):
            await asyncio.sleep(rng.uniform(0, 3))
            where = rng.choice(self.targets)
            await send_once(self.history, where, "odd", number, corrupt=rng.random() < 0.4)

    async def _churn(self) -> None:
        """Create a topic, write to it, read it, delete it: again and again under one name."""
        rng = self.world.random("churn")
        former: list[UUID] = []
        while True:
            self.lives += 1
            last = layout.id_text(former[-1]) if former else ""
            await self.admin.create(TEMPORARY, 1, 3, {"min.insync.replicas": "2"}, last)
            topic_id = await self.admin.id_of(TEMPORARY, former)
            former.append(topic_id)
            where = target(self.outside, TEMPORARY, 0, f"@{self.lives}", topic_id)
            for number in range(rng.randint(0, 8)):
                await send_once(self.history, where, "t", number, size=100)
            if rng.random() < 0.7:
                await asyncio.sleep(rng.uniform(0, 3))
            # Everything acknowledged in this life must still be there, and nothing of another.
            self.history.finals.append(await read_whole(where, seconds=1_000))
            await self.admin.delete(topic_id)
            if rng.random() < 0.5:
                await asyncio.sleep(rng.uniform(0, 2))

    async def _administer(self) -> None:
        rng = self.world.random("admin")
        while True:
            await asyncio.sleep(rng.uniform(0.5, 5))
            what = rng.choice(("elect", "records", "configs", "unclean"))
            where = rng.choice(self.targets)
            if what == "elect":
                await self.admin.elect(where.topic, where.partition, unclean=False)
            elif what == "records":
                acked = [
                    write.offset
                    for write in self.history.writes
                    if write.partition == where.name and write.offset >= 0
                ]
                if acked:
                    offset = rng.choice(acked)
                    highest = max(self.asked_starts.get(where.name, 0), offset)
                    self.asked_starts[where.name] = highest
                    await self.admin.delete_records(where, offset)
            elif what == "configs":
                size = str(rng.choice((3_000, 4_000, 9_000)))
                await self.admin.configure(where.topic, "segment.bytes", size)
            elif self.unclean:
                await self._be_unclean(rng)

    async def _be_unclean(self, rng: random.Random) -> None:
        name = "unclean.leader.election.enable"
        await self.admin.configure("loose", name, rng.choice(("true", "false")))
        if rng.random() < 0.3:
            self.states.unclean_asked = True
            await self.admin.elect("loose", 0, unclean=True)

    # --- the end -------------------------------------------------------------------------------

    async def _recover(self) -> None:
        """Promise 24: everything is up, then leaders soon, then all in sync."""
        await self._until(lambda: all(node.ready for node in self.cluster.nodes), "ready", 30)
        self.say("all are up")
        await self._until_led("leaders")
        self.say("all have leaders")
        await self._until(self.faults.all_in_sync, "full ISRs", REST_SECONDS)
        self.say("all are in sync")
        if self.move_watch is not None:
            await self._end_moves(self.move_watch)

    async def _end_moves(self, watch: MoveWatch) -> None:
        """Every move completes or is cancelled, and what it leaves is exact."""
        await self.mover.finish()
        try:
            await self.world.until(lambda: not watch.left(), REST_SECONDS)
        except TimeoutError:
            self.found.append(f"a_move_ends_exactly: not in {REST_SECONDS} s: {watch.left()}")
            return
        try:
            async with asyncio.timeout(RECOVERY_SECONDS):
                await self.mover.until_none_is_listed()
        except TimeoutError:
            self.found.append("a_move_ends_exactly: moves are listed that the store does not have")
        self.say("all moves have ended")

    async def _finish_roll(self) -> None:
        """With no fault under way a roll up goes through, and nothing but its restarts is felt."""
        assert await self.faults.roll_to(LATEST.name), "the last roll was given up"
        for node in self.cluster.nodes:
            assert node.ready, f"{node.host} did not start at {node.level}: {node.refused[-1:]}"
        await self._until_led("leaders after the last roll")
        await self._until(self.faults.all_in_sync, "full ISRs after the last roll", REST_SECONDS)
        self.say(f"levels: {levels_of(self.cluster)}")

    async def _until_led(self, what: str) -> None:
        """Wait until each partition's leader by the store answers as such. Promise 24."""
        end = self.world.loop.time() + RECOVERY_SECONDS
        missing = await self._unled()
        while missing:
            if self.world.loop.time() > end:
                raise AssertionError(
                    f"recovery_is_bounded: not in {RECOVERY_SECONDS} s: {what} of {missing}"
                )
            await self.operator.look()
            await asyncio.sleep(0.02)
            missing = await self._unled()

    async def _unled(self) -> list[str]:
        return [
            str(place)
            for place, known in list(self.states.places.items())
            if self.states.place(place.topic, place.partition) == place
            and (
                known.state.leader < 0
                or not await self.outside.is_led(place.topic, place.partition, known.state.leader)
            )
        ]

    async def _come_to_rest(self) -> None:
        for producer in self.producers:
            producer.finish()
        await self._until(
            lambda: all(task.done() for task in self.producing), "producers answered", REST_SECONDS
        )
        for task in self.producing:
            task.result()
        await self._until(self.faults.all_in_sync, "full ISRs", REST_SECONDS)
        self.say("producers are answered")
        self.verdict.restarts(self.producers)
        self.verdict.readers(self.readers)
        async with asyncio.timeout(REST_SECONDS):
            await self.loner.last_look()
        self.verdict.loner(self.loner)
        async with asyncio.timeout(REST_SECONDS):
            await self.audit.last_look()
        await self._until(self.faults.all_in_sync, "full ISRs", REST_SECONDS)
        for where in self.targets:
            final = await read_whole(where, seconds=REST_SECONDS)
            self.history.finals.append(final)
            self.verdict.start(final, self.asked_starts.get(where.name, 0))
        await self._settle_group()
        await self._clear_up()
        await self._until(self.verdict.replicas_agree, "replicas alike", REST_SECONDS)
        self.verdict.followers(self.audit)
        self.verdict.replicas()
        self.verdict.lives()
        self.verdict.metadata()
        self.verdict.group(self.group, self.asked_starts)

    async def _clear_up(self) -> None:
        """What was moved away, deleted or stale has left the disks."""
        try:
            await self.world.until(lambda: not self.leftovers.left(), REST_SECONDS)
        except TimeoutError:
            self.found.append(
                f"no_copy_is_left_over: not in {REST_SECONDS} s: {self.leftovers.left()}"
            )

    async def _settle_group(self) -> None:
        """Promise 24: consumers catch up. Nothing is written any more."""
        finals = {final.partition: final for final in self.history.finals}
        ends = {where.name: finals[where.name].end for where in self.targets}
        try:
            async with asyncio.timeout(REST_SECONDS):
                await self.group.settled(ends)
        except TimeoutError:
            self.found.append(
                f"recovery_is_bounded: not in {REST_SECONDS} s: the group is "
                f"{self.group.last_seen} instead of stable at {ends}"
            )
        self.say("the group has everything")


def run_cluster(seed: int) -> Result:
    """Run the cluster scenario once."""
    return ClusterRun(seed, course_of(seed)).run()
