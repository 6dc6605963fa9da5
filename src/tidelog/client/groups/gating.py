"""Gates of a member: reports of its positions, questions for those of others.

Owns these requests, one task per generation, and what the fetcher may return. Not the state of a
topic's gates: see ``topic_gates``; not the look-ups of fences: see ``fence_lookups``; not those of
what is left to read after a commit: see ``commits_ahead``. A topic
without children and retired partitions costs nothing.

The order of one position: the application is done with it; with auto-commit it is committed; then
it is reported. It is reported again from time to time, because a new coordinator knows none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.client.fences import DescribedFences
from tidelog.client.fetching.fetcher import Fetcher
from tidelog.client.groups.commits_ahead import CommitsAhead
from tidelog.client.groups.fence_lookups import FenceLookups
from tidelog.client.groups.group_member import GroupMember
from tidelog.client.groups.held_keys import HeldKeys
from tidelog.client.groups.self_assigned import SelfAssigned
from tidelog.client.groups.topic_gates import TopicGates, must_report
from tidelog.client.metadata import Topic
from tidelog.model.topics import TopicPartition, by_topic
from tidelog.runtime.tasks import call_off

logger = logging.getLogger(__name__)

EXCHANGE_MS = 50
"""The shortest time between two requests for positions."""

REPORT_AGAIN_MS = 3_000
"""How often positions that did not change are reported again."""

Commit = Callable[[dict[TopicPartition, int]], Awaitable[None]]


@dataclass(slots=True)
class _Reported:
    """What was reported in a generation, to which coordinator, and since when (the loop's time)."""

    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    coordinator: int | None = None
    at_s: float = 0.0


class Gating:
    """The gates of one member; ``start`` in each generation, ``stop`` before the next."""

    def __init__(
        self,
        cluster: Cluster,
        member: GroupMember | SelfAssigned,
        fetcher: Fetcher,
        commit: Commit | None,
        keys: HeldKeys | None = None,
    ) -> None:
        self._cluster = cluster
        self._member = member
        self._fetcher = fetcher
        self._commit = commit
        self._keys = keys
        """Which partitions' state the application has loaded; None: it has no such listener."""
        self._partitions: list[TopicPartition] = []
        self._positions: Mapping[TopicPartition, int] = {}
        self.has_shut = False
        """Whether less may be delivered than before; the reader takes note, and resets it."""
        self._topics: dict[str, TopicGates] = {}
        self._own: dict[TopicPartition, int] = {}
        self._held: dict[TopicPartition, int] = {}
        """Partitions of this member with a shut gate, and its offset."""
        self._reported = _Reported()
        self._task: asyncio.Task[None] | None = None
        self._problem: ClientError | None = None
        self._changed = asyncio.Event()
        self._lookups = FenceLookups(cluster, self._resolve, self.apply, self._ended)
        self._ahead = CommitsAhead(cluster, self._nothing_left, self._ended)

    def start(self, topics: Mapping[str, Topic], partitions: Iterable[TopicPartition]) -> None:
        """Begin with the ordered topics of a generation, and the partitions of this member."""
        self._partitions = list(partitions)
        own = by_topic(self._partitions)
        alone = self._member.is_alone
        self._topics = {
            name: TopicGates(topic, [tp.partition for tp in own.get(name, ())], is_alone=alone)
            for name, topic in topics.items()
            if name in own
        }
        self._own, self._reported = {}, _Reported(at_s=self._reported.at_s)
        self._positions, self._problem = {}, None
        self.apply()
        if any(not gates.is_resolved for gates in self._topics.values()):
            self._task = asyncio.get_running_loop().create_task(self._keep())
            self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """End the tasks of a generation; its gates stay as they are."""
        task, self._task = self._task, None
        if task is not None:
            await call_off([task])
        await self._lookups.stop()
        await self._ahead.stop()
        # Not before: a look-up that ends meanwhile applies the gates, and without topics that would
        # open all of them under a cooperative member, which reads on while it joins.
        self._topics = {}

    @property
    def is_active(self) -> bool:
        """Whether a topic of this generation has gates."""
        return self._task is not None

    def delivered(self, positions: Mapping[TopicPartition, int]) -> None:
        """Take up the positions of this member, once the application is done with them."""
        self._positions = positions
        own = positions if self._keys is None else self._keys.done_with(positions)
        if self._own != own:
            self._own = dict(own)
            self._changed.set()
        self.apply()

    @property
    def ends(self) -> Mapping[TopicPartition, int]:
        """Up to where gates let partitions of this member be delivered; the others are open."""
        return self._held

    def fences(self) -> dict[TopicPartition, list[int]]:
        """Return the offsets in partitions of this member that gates wait for."""
        return {
            TopicPartition(name, index): offsets
            for name, gates in self._topics.items()
            for index, offsets in gates.fences().items()
        }

    def why_shut(self, partition: TopicPartition) -> str:
        """Return one clause that says what a shut partition waits for."""
        gates = self._topics.get(partition.topic)
        needs = [] if gates is None else gates.waits_for(partition.partition)
        needed = [
            f"{TopicPartition(partition.topic, index)} at "
            f"{'an unknown position' if position < 0 else position} of "
            f"{'an unknown end' if end < 0 else end}"
            for index, position, end in needs
        ]
        return f"{partition} waits for {', '.join(needed) or 'its fences to be known'}"

    def raise_problem(self) -> None:
        """Raise the error that ended the task of this generation: its gates stay shut."""
        if self._problem is not None:
            raise self._problem

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            # A bug: raise it from ``poll``, instead of holding everything back silently.
            self._problem = ClientError(f"gating failed: {error!r}")
            self._fetcher.interrupt()

    def apply(self) -> None:
        """Tell the fetcher how far it may go."""
        held: dict[TopicPartition, int] = {}
        for name, gates in self._topics.items():
            gates.follow(self._cluster.view.topics.get(name))
            own = {tp.partition: offset for tp, offset in self._own.items() if tp.topic == name}
            held.update(
                (TopicPartition(name, index), end) for index, end in gates.ends(own).items()
            )
        self._held = held
        unknown = {name: gates.unknown for name, gates in self._topics.items() if gates.unknown}
        if unknown:
            self._lookups.want(unknown)
            # A member that rests reports its positions again: a gate may wait for them.
            self._changed.set()
        limits = held
        if self._keys is not None:
            limits = self._keys.limits(held, self._partitions)
        before = self._fetcher.gates
        self._fetcher.hold_at(limits)
        if any(end < before.get(tp, inf) for tp, end in limits.items()):
            self.has_shut = True
        if self._keys is not None and self._keys.to_load(self._positions, held):
            # The callback runs inside ``poll``.
            self._fetcher.interrupt()

    async def _keep(self) -> None:
        failures = 0
        backoff = self._cluster.settings.backoff
        while True:
            self._changed.clear()
            try:
                await self._exchange()
            except ClientError as error:
                logger.debug("group %s: no positions are known: %s", self._member.group, error)
                await asyncio.sleep(backoff.pause_s(failures))
                failures += 1
                continue
            failures = 0
            self.apply()
            await asyncio.sleep(EXCHANGE_MS / 1000)
            if self._held or not all(gates.is_resolved for gates in self._topics.values()):
                continue
            # Not ``wait_for``: it may swallow a cancellation that comes with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPORT_AGAIN_MS / 1000):
                    await self._changed.wait()

    def _resolve(self, name: str, fences: dict[int, DescribedFences]) -> None:
        """Take up what the leaders of some partitions of a topic have named."""
        if (gates := self._topics.get(name)) is not None:
            gates.resolve(fences)
            self.apply()

    def _nothing_left(self, partition: TopicPartition, first: int, end: int) -> None:
        """Take up that no committed record is left to read in a part of a partition."""
        if (gates := self._topics.get(partition.topic)) is not None:
            gates.take_nothing(partition.partition, first, end)
            self.apply()

    async def _exchange(self) -> None:
        """Report positions that others may wait for, and ask for those that this one waits for."""
        now = asyncio.get_running_loop().time()
        reported = self._reported
        is_late = now - reported.at_s >= REPORT_AGAIN_MS / 1000
        if is_late or self._cluster.known_coordinator(self._member.group) != reported.coordinator:
            reported.offsets, reported.at_s = {}, now
        report: dict[TopicPartition, int] = {}
        wanted: list[TopicPartition] = []
        for name, gates in self._topics.items():
            for index, upto in gates.reported().items():
                tp = TopicPartition(name, index)
                offset, before = self._own.get(tp), reported.offsets.get(tp)
                if offset is not None and must_report(offset, before, upto):
                    report[tp] = offset
            shut = [tp.partition for tp in self._held if tp.topic == name]
            wanted += [TopicPartition(name, index) for index in gates.wanted(shut)]
        if not report and not wanted:
            return
        if report and self._commit is not None:
            await self._commit(report)
        positions = await self._member.exchange_positions(report, wanted)
        reported.offsets.update(report)
        reported.coordinator = self._cluster.known_coordinator(self._member.group)
        for name, gates in self._topics.items():
            gates.learn(
                {tp.partition: position for tp, position in positions.items() if tp.topic == name}
            )
            shut = [tp.partition for tp in self._held if tp.topic == name]
            short = gates.short_commits(shut)
            self._ahead.want({TopicPartition(name, index): x for index, x in short.items()})
