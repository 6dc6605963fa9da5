"""A topic that grows and shrinks all the time under load and random faults, and what came of it.

Owns the course: resizes one after another, rounds of faults beside them, elections of preferred
leaders, and the count of everything. Which faults: see `schedule.py`; what clients do and what is
right: see `tests/order`. A round begins when the former one is healed: all replicas are in sync.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.nemesis import FaultyCluster
from tests.chaos.schedule import Kind, Round, schedule
from tests.order.aware_run import RealRun
from tests.order.history import Delivery, Outcome, Resize, Send
from tidelog.client.admin.elections import elect_leaders
from tidelog.client.admin.topics import create_partitions
from tidelog.client.errors import ClientError
from tidelog.client.metadata import Topic
from tidelog.model.admin_requests import ElectionType

LARGEST = 16
BACKLOG = 1_500
"""How many records a group may lack when the next round of faults begins."""
WITHIN_S = 240.0
"""When what must come has come, whatever the faults: a count that is asked for again and again."""
KILLS = (Kind.KILL, Kind.KILL_ALL, Kind.EMPTY)


@dataclass
class Tally:
    """What happened in one run."""

    grown: int = 0
    shrunk: int = 0
    undone: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    unanswered: int = 0
    longest_resize_s: float = 0.0
    """From the first request for a count to its publication, refused requests included."""
    faults: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    elections: int = 0
    removals: int = 0
    acked: int = 0
    longest_gap_s: float = 0.0
    """Between two acknowledgements of any partition."""
    slowest_ack_s: float = 0.0
    slowest_recovery_s: float = 0.0
    """From the end of a round's faults until both writers are acknowledged and all are in sync."""
    slowest_catch_up_s: float = 0.0
    """From that moment until all groups have received all but the last records."""


class ResizingRun(RealRun):
    """The clients, the resizes and the faults of one run."""

    patience_s = WITHIN_S

    def __init__(self, faulty: FaultyCluster, topic: str, initial: int, seed: int) -> None:
        super().__init__(faulty.cluster.bootstrap, topic, initial, seed)
        self.tally = Tally()
        # Groups that rebalance half of the time must be able to keep up.
        self.rate = 40.0
        self.faulty = faulty
        self._initial = initial
        self._chance = self.random("course")
        self._acked_at = 0.0
        self._acked_by: Counter[str] = Counter()
        self._received: defaultdict[str, set[int]] = defaultdict(set)
        self._is_over = False
        self._lives: set[tuple[int, int]] = set()
        """Partitions with their epochs: one that comes again has a new one."""

    def note(self, *events: Any) -> None:
        """Add to the history, and count."""
        super().note(*events)
        for event in events:
            if isinstance(event, Send) and event.outcome is Outcome.OK:
                self._count(event)
            elif isinstance(event, Delivery):
                self._received[event.group].add(event.uid)

    def _count(self, send: Send) -> None:
        tally = self.tally
        tally.acked += 1
        self._acked_by[send.writer] += 1
        tally.slowest_ack_s = max(tally.slowest_ack_s, send.done_at - send.sent_at)
        if self._acked_at:
            tally.longest_gap_s = max(tally.longest_gap_s, send.done_at - self._acked_at)
        self._acked_at = send.done_at

    async def course(self, kinds: tuple[Kind, ...], seconds: float) -> None:
        """Run for so long; then let all come to rest, and read what is stored."""
        self.start()
        try:
            await self.until(lambda: self.tally.acked > 50, lambda: "the writers write")
            for group in self.groups:
                for member in group.members:
                    member.settles = False
            resizing = asyncio.create_task(self._resize_for_ever())
            electing = asyncio.create_task(self._elect_for_ever())
            try:
                await self._rounds(kinds, seconds, (resizing, electing))
            finally:
                self._is_over = True
            await asyncio.gather(resizing, electing)
            for group in self.groups:
                for member in group.members:
                    member.settles = True
            await self.finish()
        finally:
            await self.close()

    async def _rounds(
        self, kinds: tuple[Kind, ...], seconds: float, beside: tuple[asyncio.Task[None], ...]
    ) -> None:
        begun = self.now
        for number, found in enumerate(schedule(self._seed, seconds, kinds)):
            for task in beside:
                if task.done():
                    task.result()
            self.check()
            if self.now - begun > seconds:
                return
            said = f"round {number}, {found}"
            print(f"{self.now - begun:5.1f} s: {said}", flush=True)
            await self._do_round(found)
            await self._recover(said)

    async def _do_round(self, found: Round) -> None:
        await self.pause(found.work_s)
        leader = self._chance.choice(sorted(self.faulty.cluster.brokers))
        ranks = self.faulty.ranks(leader)
        for fault in found.faults:
            self.tally.faults[fault.kind.value] += 1
            self.tally.kills += _killed(fault.kind, len(ranks))
            await asyncio.to_thread(self.faulty.begin, fault, ranks)
        since = self.now
        for fault in sorted(found.faults, key=lambda fault: fault.lasts_s):
            await self.pause(max(0.0, fault.lasts_s - (self.now - since)))
            await asyncio.to_thread(self.faulty.end, fault, ranks)

    async def _recover(self, said: str) -> None:
        begun = self.now
        await asyncio.to_thread(self.faulty.until_ready)
        wanted = {each.name: self._acked_by[each.name] + 10 for each in self.writers}
        await self.until(
            lambda: all(self._acked_by[name] >= count for name, count in wanted.items()),
            lambda: f"{self._acked_by}, wanted {wanted} after {said}",
        )
        for topic in (self.topic, "__consumer_offsets"):
            await asyncio.to_thread(self.faulty.cluster.until_in_sync, topic, 3)
        self.tally.slowest_recovery_s = max(self.tally.slowest_recovery_s, self.now - begun)
        # Otherwise groups that rebalance most of the time lag more and more, and retired partitions
        # stay.
        begun = self.now
        await self.until(
            lambda: max(self._backlogs().values()) < BACKLOG,
            lambda: f"the groups lack {self._backlogs()} records after {said}",
        )
        self.tally.slowest_catch_up_s = max(self.tally.slowest_catch_up_s, self.now - begun)

    def _backlogs(self) -> dict[str, int]:
        acked, received = self.tally.acked, self._received
        return {each.name: acked - len(received[each.name]) for each in self.groups}

    async def _elect_for_ever(self) -> None:
        """Ask for the preferred leaders now and then: it may be refused, and moves no record."""
        chance = self.random("elections")
        while not self._is_over:
            await self.pause(chance.uniform(2, 8))
            with contextlib.suppress(ClientError):
                found = await elect_leaders(self._view, ElectionType.PREFERRED, None)
                self.tally.elections += sum(refused is None for refused in found.values())

    async def _resize_for_ever(self) -> None:
        chance = self.random("resizes")
        while not self._is_over:
            present = (await self._view.retry(self._described)).undeleted_partition_count
            counts = [each for each in range(self._initial, LARGEST + 1) if each != present]
            await self.resize(chance.choice(counts))
            await self.pause(chance.choice((0.0, 0.3, 1.0)))

    async def _described(self) -> Topic:
        topic = await super()._described()
        self._lives |= {(index, each.partition_epoch) for index, each in topic.partitions.items()}
        self.tally.removals = len(self._lives) - len(topic.partitions)
        return topic

    async def resize(self, count: int) -> int:
        """Ask for a count until it is the topic's; note the resize, and return its epoch."""
        former = await self._view.retry(self._described)
        begun = self.now
        epoch = former.resize_epoch
        while True:
            self.check()
            said = f"no {count} partitions of {self.topic}: {self.tally.refused}"
            assert self.now - begun < WITHIN_S, said
            topic = await self._ask(count)
            if topic is not None:
                is_done = topic.resize_epoch > epoch and topic.undeleted_partition_count == count
                # The epoch of a resize that is undone and the epoch of its undo are two.
                self.tally.undone += (topic.resize_epoch - epoch - is_done) // 2
                epoch = topic.resize_epoch
                if is_done:
                    break
            await self.pause(0.2)
        self.tally.longest_resize_s = max(self.tally.longest_resize_s, self.now - begun)
        self.tally.grown += count > former.undeleted_partition_count
        self.tally.shrunk += count < former.undeleted_partition_count
        cuts = await self._cuts(topic, max(former.undeleted_partition_count, count))
        self.note(Resize(topic.resize_epoch, count, self.now, cuts))
        return epoch

    async def _ask(self, count: int) -> Topic | None:
        """Ask for a count once; return the topic as it is then, where a broker says it."""
        try:
            outcome = (await create_partitions(self._view, {self.topic: count}, force=True))[
                self.topic
            ]
            if outcome is not None:
                self.tally.refused[_reason(str(outcome))] += 1
        except ClientError:
            self.tally.unanswered += 1
        with contextlib.suppress(ClientError):
            return await self._described()
        return None


def _killed(kind: Kind, brokers: int) -> int:
    if kind is Kind.KILL_ALL:
        return brokers
    return int(kind in KILLS)


def _reason(said: str) -> str:
    """Return what many refusals have in common: the code and the first words, without numbers."""
    code, _, text = (said.partition("': ")[2] or said).partition(": ")
    first = re.split("[:;.] ", text)[0]
    return f"{code}: {re.sub(r'[0-9]+( to [0-9]+|(, [0-9]+)*)', 'N', first)}"
