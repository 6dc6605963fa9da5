"""A topic that grows and shrinks while faults strike: its clients and its history (KIP-253).

Owns where the clients of ``tests.order.aware_clients`` run, the resizes that the store has, and
the history that the order checker is given. Not the requests to resize: see ``resizer``. Not the
checks: see ``tests.order.checks``.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import traceback
from typing import Any

from tests.order.aware_clients import GroupOfMembers, Member, Writer
from tests.order.consumer_members import (
    ConsumerMember,
    CooperativeKeysMember,
    CooperativeMember,
)
from tests.order.history import (
    Commit,
    CommitsLost,
    Delivery,
    History,
    MetadataSeen,
    Outcome,
    Resize,
    Send,
    Stored,
    UncleanElection,
)
from tests.order.public_writers import SimulatedWriter
from tests.simulation.cluster import store
from tests.simulation.cluster.clients import Outside
from tests.simulation.cluster.disks import record_values
from tests.simulation.cluster.journal import Place, StateWatch
from tests.simulation.cluster.members import OFFSETS_TOPIC
from tests.simulation.cluster.nodes import PORT, BrokerNode
from tests.simulation.cluster.nodes import Cluster as Nodes
from tests.simulation.cluster.resize_watch import ResizeWatch, fences_of
from tests.simulation.kernel import World
from tests.simulation.kernel.world import VirtualClock
from tidelog.client.cluster import Cluster, ClusterSettings
from tidelog.client.errors import ClientError
from tidelog.client.fetching.fetcher import OffsetReset
from tidelog.metadata import layout
from tidelog.metadata.records import PartitionNode, PartitionState, ResizeKind, TopicHistory
from tidelog.metadata.store import Create, Delete, Set
from tidelog.runtime.backoff import Backoff

NAME = "elastic"
INITIAL = 2
MOST = 8


class Elastic:
    """What the clients of the topic share: its history, and its resizes as the store has them."""

    def __init__(self, world: World, nodes: Nodes, states: StateWatch, outside: Outside) -> None:
        self.world = world
        self.nodes = nodes
        self.states = states
        self.outside = outside
        self.history = History(INITIAL)
        self.topic = NAME
        self.rate = 12.0
        self.clock = VirtualClock(world.loop)
        self.watch = ResizeWatch(NAME, INITIAL, nodes, states)
        self.found = self.watch.found
        self.stored: TopicHistory | None = None
        self.undone = 0
        self.uids = itertools.count(1)
        self.groups: dict[str, GroupOfMembers] = {}
        self.writers: list[Writer] = []
        self._published = 0
        self._lives: dict[str, int] = {}
        before = nodes.tree.when_written
        nodes.tree.when_written = lambda commit: (before(commit), self.take(commit))[0]
        unclean = states.when_unclean
        states.when_unclean = lambda place: (unclean(place), self.unclean(place))[0]

    @property
    def now(self) -> float:
        return self.world.loop.time()

    def random(self, name: str) -> random.Random:
        """Return a source of randomness of its own."""
        return self.world.random(f"elastic/{name}")

    async def pause(self, seconds: float) -> None:
        """Let virtual time pass."""
        await asyncio.sleep(seconds)

    def note(self, *events: Any) -> None:
        """Add to the history."""
        self.history.events += events

    @property
    def resizes(self) -> int:
        """How many resizes were published, without those that were undone."""
        return sum(not each.is_undone for each in self.history.of(Resize))

    # --- the store -------------------------------------------------------------------------------

    def take(self, commit: store.Commit) -> None:
        """Take up a write: a plan that is published is a resize."""
        try:
            self._take(commit)
        except Exception:
            # The store would answer the controller with it.
            self.found.append(f"the watch of resizes failed:\n{traceback.format_exc()}")

    def _take(self, commit: store.Commit) -> None:
        before, made, states, gone = self.stored, {}, {}, []
        for operation in commit.operations:
            if f"/{NAME}" not in operation.path:
                continue
            found = layout.partition_of(operation.path)
            if isinstance(operation, Delete) and found is not None:
                gone.append(found[1])
            if not isinstance(operation, Create | Set) or not operation.data:
                continue
            record = layout.decode(operation.path, operation.data)
            if isinstance(record, TopicHistory):
                self._take_removals(record)
                self.stored = record
                self._take_publication(record, commit.at)
            elif isinstance(record, PartitionNode) and isinstance(operation, Create):
                assert found is not None
                made[found[1]] = record
            elif isinstance(record, PartitionState):
                assert found is not None
                states[found[1]] = record
        if self.stored is not None and (made or self.stored is not before):
            self.watch.take(before, self.stored, made)
        self.watch.take_moves(before, self.stored, states, gone)

    def _take_publication(self, record: TopicHistory, at: float) -> None:
        plan = record.resize
        if plan is None or not plan.published or plan.resize_epoch <= self._published:
            return
        self._published = plan.resize_epoch
        is_undone = plan.kind is ResizeKind.UNDO
        self.undone += is_undone
        listed = range(max(plan.from_count, plan.to_count))
        cuts = {} if is_undone else self._cuts(plan.resize_epoch, listed)
        self.note(Resize(plan.resize_epoch, plan.to_count, at, cuts, is_undone))

    def _take_removals(self, record: TopicHistory) -> None:
        """What is purged as drained was not kept for a group that had committed nothing yet."""
        known = {} if self.stored is None else self.stored.former
        gone = {index: each for index, each in record.former.items() if known.get(index) != each}
        if not gone:
            return
        committed = {each.group for each in self.history.of(Commit)}
        for name, group in self.groups.items():
            if name not in committed:
                ends = {index: each.end_offset for index, each in gone.items()}
                group.registration.positions.update(ends)

    def unclean(self, place: Place) -> None:
        """Take up an unclean election."""
        if place.topic == NAME:
            self.note(UncleanElection(place.partition, self.now))
        elif place.topic == OFFSETS_TOPIC:
            self.note(CommitsLost(self.now))
            for group in self.groups.values():
                group.store.is_fencing = False

    def _cuts(self, resize_epoch: int, listed: range) -> dict[int, int]:
        """Return the fence or seal of each partition: all are committed before it is published."""
        cuts = {}
        for index in listed:
            offset = next(
                (
                    fence.offset
                    for node in self.nodes.brokers
                    if (fences := fences_of(node, NAME, index)) is not None
                    and (fence := fences.of(resize_epoch)) is not None
                ),
                None,
            )
            if offset is None:
                self.found.append(
                    f"fences_come_first: resize epoch {resize_epoch} was published, and no broker "
                    f"has its fence of {NAME}-{index}"
                )
            else:
                cuts[index] = offset
        return cuts

    # --- clients ---------------------------------------------------------------------------------

    def cluster(self, name: str, metadata_max_age_ms: int = 300_000) -> Cluster:
        """Return a client's view of the cluster, with all brokers to begin with."""
        settings = ClusterSettings(
            client_id=name,
            request_timeout_ms=5_000,
            connect_timeout_ms=2_000,
            metadata_max_age_ms=metadata_max_age_ms,
            backoff=Backoff(50, 500, self.world.random(f"client/{name}")),
        )
        return Cluster([f"{node.host}:{PORT}" for node in self.nodes.brokers], settings)

    def start(self) -> list[asyncio.Task[None]]:
        """Start the writers, two groups, and the polls of metadata.

        One writer is the public producer. The members of one group are public consumers with state
        of keys, those of the other cooperative ones, or they stand on the group's reader alone.
        """
        draw = self.random("kinds")
        soon, late = draw.sample((SimulatedWriter, Writer), 2)
        self.writers = [soon(self, "w1", 1_000), late(self, "w2", 300_000)]
        keyed = draw.choice((ConsumerMember, CooperativeKeysMember))
        other = draw.choice((CooperativeMember, Member))
        self.groups = {
            "all": GroupOfMembers(self, "all", OffsetReset.EARLIEST, 2, keyed),
            "newest": GroupOfMembers(self, "newest", OffsetReset.LATEST, 2, other),
        }
        work = [writer.run() for writer in self.writers]
        work += [member.run() for group in self.groups.values() for member in group.members]
        return [asyncio.create_task(each) for each in [*work, self._poll_metadata()]]

    async def _poll_metadata(self) -> None:
        rng = self.world.random("elastic/metadata")
        while True:
            await asyncio.sleep(rng.uniform(0.1, 0.6))
            node = rng.choice(self.nodes.brokers)
            life = node.life
            try:
                topic = await self.outside.topic_of(node, NAME)
            except (ClientError, OSError):
                continue
            if topic.undeleted_partition_count >= 0 and life == node.life:
                broker = self._lives.setdefault(life, len(self._lives))
                count = topic.undeleted_partition_count
                self.note(MetadataSeen(broker, topic.resize_epoch, count, self.now))

    # --- the end ---------------------------------------------------------------------------------

    def left(self) -> list[str]:
        """Return what members have not received yet: partition, position and end, by group."""
        missing = []
        for name, group in self.groups.items():
            positions: dict[int, int] = {}
            for member in group.members:
                found = {} if member.reader is None else member.reader.positions()
                positions.update((where.partition, at) for where, at in found.items())
                if member.in_hand:
                    missing.append(f"{member.name} has {member.in_hand} pieces in hand")
            for index in self.states.topics[NAME].partitions:
                ends = [log.high_watermark for log in self._logs(index)]
                end, at = max(ends, default=0), positions.get(index, -1)
                if at < end:
                    missing.append(f"{name}: {index} at {at} of {end}")
        errors = [
            f"{member.name}: {member.last_error}"
            for group in self.groups.values()
            for member in group.members
            if missing and member.last_error
        ]
        return missing + errors

    def _logs(self, index: int) -> list[Any]:
        found = (_log_of(node, index) for node in self.nodes.brokers)
        return [log for log in found if log is not None]

    def note_what_is_stored(self) -> None:
        """Add the records of all replicas, and what was acknowledged where nothing is any more."""
        starts: dict[int, int] = {}
        for index in self.states.topics[NAME].partitions:
            for node in self.nodes.brokers:
                found = record_values(node.machine.disk, NAME, index)
                self.note(
                    *(Stored(index, offset, int(value), node.host) for offset, value in found)
                )
            starts[index] = max((log.start_offset for log in self._logs(index)), default=0)
        for send in self.history.of(Send):
            if send.offset >= 0 and send.offset < starts.get(send.partition, 1 << 62):
                self.note(Stored(send.partition, send.offset, send.uid, "its acknowledgement"))

    def counts(self) -> dict[str, int]:
        """How much happened."""
        sends = self.history.of(Send)
        published = [each.count for each in self.history.of(Resize) if not each.is_undone]
        counts = [INITIAL, *published]
        growths = sum(after > before for before, after in itertools.pairwise(counts))
        return {
            "resizes": self.resizes,
            "growths": growths,
            "shrinks": len(counts) - 1 - growths,
            "undone": self.undone,
            "elastic sends": len(sends),
            "elastic acked": sum(send.outcome is Outcome.OK for send in sends),
            "elastic deliveries": len(self.history.of(Delivery)),
            "elastic commits": len(self.history.of(Commit)),
            "removed": 0 if self.stored is None else len(self.stored.former),
        }


def _log_of(node: BrokerNode, index: int) -> Any:
    if not node.ready or node.running is None:
        return None
    hosted = node.running.broker.partitions.by_topic.get(NAME, {}).get(index)
    return None if hosted is None else hosted.log
