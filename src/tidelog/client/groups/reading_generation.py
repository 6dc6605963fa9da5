"""What a reader reads in one generation of its group: partitions, metadata, paused and sought.

Owns the partitions that the last join gave, which of them have a position, and the metadata that
they are read with (KIP-253): with these counts and resize epochs a generation fetches. Not the
cycle of joining: see ``group_reader``. Not where positions come from: see ``position_lookup``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from tidelog.client.cluster import Cluster
from tidelog.client.fetching.fetcher import Fetcher
from tidelog.client.groups.committed_offsets import Position
from tidelog.client.groups.first_positions import Resets
from tidelog.client.groups.gating import Gating
from tidelog.client.groups.group_member import GroupMember
from tidelog.client.groups.reader_commits import Commits
from tidelog.client.groups.reader_hooks import ReaderHooks
from tidelog.client.groups.resized_topics import (
    catch_up,
    is_resized,
    ordered_topics,
    reborn,
    stamps_of,
)
from tidelog.client.groups.self_assigned import SelfAssigned
from tidelog.client.metadata import Topic
from tidelog.model.topics import TopicPartition


class ReadingGeneration:
    """The present generation of one reader. ``is_aware=False``: as a stock consumer reads."""

    def __init__(
        self,
        cluster: Cluster,
        member: GroupMember | SelfAssigned,
        fetcher: Fetcher,
        hooks: ReaderHooks,
        commits: Commits,
        resets: Resets,
        gating: Gating,
        *,
        is_aware: bool,
    ) -> None:
        self._cluster = cluster
        self._member = member
        self._fetcher = fetcher
        self._hooks = hooks
        self._commits = commits
        self._resets = resets
        self._gating = gating
        self.is_aware = is_aware
        self.topics: dict[str, Topic] = {}
        """The ordered topics of this generation, by the metadata that it reads with."""
        self.ids: dict[str, UUID] = {}
        """The id of each topic that this member has read, in the newest generation that did."""
        self._reborn_topics: set[str] = set()
        """Topics of this generation that were deleted and created again since this member read
        them: a position of a record in them was committed by one that read the former topic."""
        self._unordered: frozenset[str] = frozenset()
        """Its other topics: one that becomes ordered has gates, and lets the member join again."""
        self.given: list[TopicPartition] = []
        """What the join in flight, or the last one, gave this member."""
        self.assigned: list[TopicPartition] = []
        """What this member has taken up, with and without a position."""
        self.unplaced: list[TopicPartition] = []
        """Assigned partitions without a position yet."""
        self.has_begun = False
        """Whether this generation has its metadata and gates."""
        self._sought: dict[TopicPartition, int] = {}
        """Positions that the application has set before they could be read from."""
        self.paused: set[TopicPartition] = set()
        """Partitions of which nothing is returned; one that goes away is not any more."""

    # From one generation to the next

    def is_outdated(self) -> bool:
        """Whether metadata show another epoch of a topic than this generation reads with."""
        view = self._cluster.view
        if self.topics and is_resized(self.topics, self.assigned, view):
            return True
        return bool(self._unordered) and bool(ordered_topics(view, self._unordered))

    def revoked(self) -> list[TopicPartition]:
        """Return what this member had taken up and was not given again."""
        given = frozenset(self.given)
        return [partition for partition in self.assigned if partition not in given]

    def take_up(self) -> list[TopicPartition]:
        """Take up what the last join gave; return what this member did not have before."""
        had = frozenset(self.assigned)
        added = [partition for partition in self.given if partition not in had]
        self.assigned = list(self.given)
        placed = self._fetcher.positions()
        self.unplaced = [partition for partition in self.given if partition not in placed]
        self.topics, self._unordered, self.has_begun = {}, frozenset(), False
        return added

    def forget(self, partitions: list[TopicPartition] | None) -> None:
        """Stop reading partitions; None: all of them."""
        self._hooks.drop(partitions)
        if partitions is None:
            self._fetcher.assign({})
            if self.assigned:
                self._sought, self.paused = {}, set()
            self.assigned, self.unplaced = [], []
            self.topics, self._unordered = {}, frozenset()
            self._commits.forget_all()
            self.has_begun = False
            return
        self._fetcher.remove(partitions)
        gone = frozenset(partitions)
        self.paused -= gone
        self.assigned = [partition for partition in self.assigned if partition not in gone]
        self.unplaced = [partition for partition in self.unplaced if partition not in gone]
        for partition in partitions:
            self._commits.forget(partition)
            self._sought.pop(partition, None)

    async def begin(self) -> None:
        """Get metadata that are as new as those of the assignment, and begin with its gates."""
        if self.has_begun:
            return
        await catch_up(self._cluster, self._member.assigned_with)
        names = {partition.topic for partition in self.assigned}
        unknown = sorted(name for name in names if name not in self._cluster.view.topics)
        if unknown:
            await self._cluster.describe(unknown)
        self.topics = ordered_topics(self._cluster.view, names) if self.is_aware else {}
        self._unordered = frozenset(names - self.topics.keys() if self.is_aware else ())
        ids = {name: topic.topic_id for name, topic in self.topics.items()}
        # A name that has another id now is another topic, whatever its epochs say.
        self._reborn_topics = {name for name in ids if self.ids.get(name, ids[name]) != ids[name]}
        self.ids |= ids
        positions = self._fetcher.positions()
        stamps = stamps_of(self.topics, positions)
        kept = [partition for partition in positions if partition.topic in self._reborn_topics]
        self._begin_incarnations_again(list({*kept, *reborn(self._fetcher.named(), stamps)}))
        self._fetcher.restamp(stamps)
        self._resets.ordered = frozenset(self.topics)
        self._gating.start(self.topics, self.assigned)
        self.has_begun = True
        sought, later = self._sought, {}
        if self._member.must_join:
            # ``assign`` was called meanwhile, and positions of what the next join gives were set.
            later = {tp: offset for tp, offset in sought.items() if tp not in self.assigned}
        self._sought = later
        self._read_assigned(sought)

    def _begin_incarnations_again(self, partitions: list[TopicPartition]) -> None:
        """Look up positions of kept partitions that were removed and created again meanwhile.

        What was read was the former incarnation; in the new one that offset may be out of range.
        """
        if partitions:
            assigned = self.assigned
            self.forget(partitions)
            # They stay this member's: only what was read of them is forgotten.
            self.assigned = assigned
            self.unplaced += partitions

    def is_of_former(self, partition: TopicPartition, committed: Position) -> bool:
        """Whether a position was committed after a record of a topic that had the name before.

        Commits are by name, so one that was on its way while the topic was created again counts in
        the new one. A birth offset, and one that nothing was read before, has no leader epoch.
        """
        return partition.topic in self._reborn_topics and committed.leader_epoch >= 0

    # Positions

    def read_from(
        self,
        positions: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Begin to read partitions at these positions; ``epochs``: the leader epochs before."""
        self.unplaced = [partition for partition in self.unplaced if partition not in positions]
        self._fetcher.add(positions, epochs, stamps_of(self.topics, positions))
        self._fetcher.pause(self.paused)
        if self._hooks.follows_keys:
            # Their state is loaded by ``poll``.
            self._fetcher.interrupt()

    def seek_later(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read from these positions as soon as these partitions can be read."""
        self._sought.update(positions)
        if self.has_begun:
            self._read_assigned(positions)

    def _read_assigned(self, sought: Mapping[TopicPartition, int]) -> None:
        # Of others this generation has neither counts nor gates: the next one reads them.
        self.read_from({tp: offset for tp, offset in sought.items() if tp in self.assigned})

    def pause_only(self, partitions: Iterable[TopicPartition]) -> None:
        """Return nothing of these partitions, and of all others again."""
        paused = set(partitions)
        self._fetcher.resume(self.paused - paused)
        self._fetcher.pause(paused)
        self.paused = paused
