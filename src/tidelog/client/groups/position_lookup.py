"""The look-up of a reader's positions: what its group has committed, or where a reset begins.

Owns the task that looks them up beside ``poll``, and the errors of partitions without a position:
the next poll raises them, and the task tries again after a pause. A topic that does not exist is
named once. Not what is committed: see
``committed_offsets``. Not a reset: see ``first_positions``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from tidelog.client.cluster import Cluster
from tidelog.client.errors import Refused
from tidelog.client.fetching.resets import OffsetReset
from tidelog.client.groups.committed_offsets import PartitionsRefused, look_up_committed
from tidelog.client.groups.first_positions import Resets, no_position
from tidelog.client.groups.group_member import GroupMember
from tidelog.client.groups.membership import MemberState
from tidelog.client.groups.reader_commits import Commits
from tidelog.client.groups.reading_generation import ReadingGeneration
from tidelog.client.groups.resized_topics import looked_up_apart
from tidelog.client.groups.self_assigned import SelfAssigned
from tidelog.client.metadata import ClusterMetadata
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition, by_topic
from tidelog.runtime.tasks import call_off, retrieve_error

Errors = dict[TopicPartition, Refused]


class PositionLookup:
    """The look-up of one reader; one task at a time."""

    def __init__(
        self,
        cluster: Cluster,
        member: GroupMember | SelfAssigned,
        generation: ReadingGeneration,
        commits: Commits,
        resets: Resets,
    ) -> None:
        self.task: asyncio.Task[None] | None = None
        self._cluster = cluster
        self._member = member
        self.generation = generation
        self._commits = commits
        self.resets = resets
        self._missing = MissingTopics()
        self.not_before = 0.0
        """When the next attempt may begin, on the loop's clock."""

    def go_on(self, *, may_begin: bool) -> None:
        """Look up missing positions while other partitions are read; raises a previous error.

        ``may_begin``: whether no join is in flight, whose partitions would be others.
        """
        task = self.task
        if task is not None and task.done():
            self.task = None
            task.result()
        loop = asyncio.get_running_loop()
        is_wanted = may_begin and self._member.state is MemberState.JOINED
        if self.task is None and is_wanted and loop.time() >= self.not_before:
            self.task = loop.create_task(self.place())
            self.task.add_done_callback(retrieve_error)

    def step_ms(self, most_ms: int) -> int:
        """Return how long a poll may wait before ``go_on`` is due again, at most so long."""
        return most_ms if self.task is None else min(most_ms, self._cluster.settings.backoff.max_ms)

    async def stop(self) -> None:
        """End the look-up: the generation is over. The next one begins at once."""
        task, self.task = self.task, None
        if task is not None:
            await call_off([task])
        self.not_before = 0.0

    async def place(self) -> None:
        """Look up positions, then read. Raises the errors of partitions without a position."""
        try:
            errors = await self.look_up()
        finally:
            backoff_s = self._cluster.settings.backoff.max_ms / 1000
            self.not_before = asyncio.get_running_loop().time() + backoff_s
        if errors:
            raise PartitionsRefused(self._member.group, errors)
        self._member.positioned()

    async def look_up(self) -> Errors:
        """Start reading each partition as soon as its position is known; return the errors.

        A part that fails is an error of its partitions, and the error of all if every part fails.
        """
        await self.generation.begin()
        self._missing.note(self._member.topics, self._cluster.view)
        wanted = list(self.generation.unplaced)
        if self._member.is_alone:
            return self._without_answer(await self._reset(wanted, {}))
        parts = looked_up_apart(self._cluster.view, wanted)
        outcomes = await asyncio.gather(*map(self._look_up_part, parts), return_exceptions=True)
        errors: Errors = {}
        failures: list[BaseException] = []
        for part, outcome in zip(parts, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                failures.append(outcome)
                if isinstance(outcome, Refused):
                    errors.update(dict.fromkeys(part, outcome))
            else:
                errors.update(outcome)
        final = [failure for failure in failures if not isinstance(failure, Refused)]
        if final or (failures and len(failures) == len(parts)):
            raise (final or failures)[0]
        return self._without_answer(errors)

    async def _look_up_part(self, wanted: list[TopicPartition]) -> Errors:
        generation = self.generation
        # A transaction of the former owner may be about to commit a later one (KIP-447).
        listed, errors = await look_up_committed(
            self._cluster, self._member.group, wanted, require_stable=True
        )
        committed = {
            partition: position
            for partition, position in listed.items()
            if not generation.is_of_former(partition, position)
        }
        offsets = {partition: position.offset for partition, position in committed.items()}
        self._commits.committed.update(offsets)
        # One that the application has sought meanwhile has its position.
        unplaced = generation.unplaced
        wanted = [
            partition
            for partition in wanted
            if partition in unplaced and partition not in committed
        ]
        epochs = {partition: position.leader_epoch for partition, position in committed.items()}
        generation.read_from(offsets, epochs)
        return await self._reset(wanted, errors)

    async def _reset(self, wanted: list[TopicPartition], errors: Errors) -> Errors:
        """Start reading what has no committed offset where the policy says; return all errors.

        One request per topic, so that a topic that is deleted, or has no leader, does not delay
        others. Grows with partitions.
        """
        missing = [partition for partition in wanted if partition not in errors]
        errors = dict(errors)
        if self.resets.policy is OffsetReset.NONE:
            group = self._member.group
            errors.update({partition: no_position(group, partition) for partition in missing})
            return errors
        begin = self.generation.read_from
        for failed in await asyncio.gather(
            *(self.resets.of_topic(partitions, begin) for partitions in by_topic(missing).values())
        ):
            errors.update(failed)
        return errors

    def _without_answer(self, errors: Errors) -> Errors:
        """Return the errors with those of partitions of which nothing is known."""
        for partition in self.generation.unplaced:
            unanswered = Refused(
                ErrorCode.UNKNOWN_SERVER_ERROR, str(partition), "no broker responded"
            )
            errors.setdefault(partition, unanswered)
        return errors


logger = logging.getLogger(__name__)


class MissingTopics:
    """Those that one reader has named; one that was there meanwhile is named again."""

    def __init__(self) -> None:
        self._named: set[str] = set()

    def note(self, wanted: Iterable[str], view: ClusterMetadata) -> None:
        """Name the wanted topics of which metadata say that they do not exist, each once."""
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        listed = {name: view.topics[name] for name in wanted if name in view.topics}
        missing = {name for name, topic in listed.items() if topic.error == unknown}
        for name in sorted(missing - self._named):
            text = "topic %r does not exist: its records are read as soon as it is created"
            logger.warning(text, name)
        self._named = missing
