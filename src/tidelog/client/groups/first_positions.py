"""Positions of partitions in which a group has committed nothing: auto.offset.reset, committed.

Owns the reset of the partitions of one topic, and the errors of partitions without a position. Not
what is committed: see ``committed_offsets``.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, Refused
from tidelog.client.fetching.resets import OffsetReset, reset_offsets
from tidelog.client.groups.committed_offsets import CommitRefused
from tidelog.client.groups.group_member import GroupMember
from tidelog.client.groups.reader_commits import Commits
from tidelog.client.groups.self_assigned import SelfAssigned
from tidelog.client.offsets import FoundOffset, IsolationLevel
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

Offsets = dict[TopicPartition, int]


class Resets:
    """The resets of one reader. ``ordered``: the topics whose keys keep their order over resizes.

    Of these topics a member commits a position before it is read from: otherwise the rebalance of a
    resize would reset again, and skip records.
    """

    def __init__(
        self,
        cluster: Cluster,
        policy: OffsetReset,
        isolation: IsolationLevel,
        member: GroupMember | SelfAssigned,
        commits: Commits,
    ) -> None:
        self.ordered: Container[str] = ()
        self.policy = policy
        self._cluster = cluster
        self._isolation = isolation
        self._member = member
        self._commits = commits

    def _commits_first(self, topic: str) -> bool:
        return topic in self.ordered and isinstance(self._member, GroupMember)

    async def within(self, partition: TopicPartition, offset: int) -> None:
        """Take up a reset of a partition that had a position before, out of range."""
        if self._commits_first(partition.topic):
            await self._commits.reset(partition, offset)

    async def of_topic(
        self, partitions: list[TopicPartition], begin: Callable[[Offsets], None]
    ) -> dict[TopicPartition, Refused]:
        """Look up the starts or ends of one topic's partitions, and begin; return the errors.

        Without a commit each partition begins as soon as its leader has answered.
        """
        failed: dict[TopicPartition, ClientError] = {}
        commits_first = self._commits_first(partitions[0].topic)

        def taken(offsets: Mapping[TopicPartition, FoundOffset]) -> None:
            if not commits_first:
                begin({tp: place.offset for tp, place in offsets.items()})

        offsets = await reset_offsets(
            self._cluster, self.policy, partitions, self._isolation, failed=failed, taken=taken
        )
        if commits_first:
            positions = {tp: place.offset for tp, place in offsets.items()}
            try:
                await self._commits.up_to(positions)
            except CommitRefused as error:
                failed.update(error.errors)
            except ClientError as error:
                failed.update(dict.fromkeys(positions, error))
            # Where the generation is over nothing was committed, and nothing is read.
            committed = self._commits.committed
            begin({tp: offset for tp, offset in positions.items() if committed.get(tp) == offset})
        return {tp: refused(tp, error) for tp, error in failed.items()}


def refused(partition: TopicPartition, error: ClientError) -> Refused:
    """Return an error as the refusal of one partition."""
    if isinstance(error, Refused):
        return error
    return Refused(ErrorCode.NETWORK_EXCEPTION, str(partition), str(error))


def no_position(group: str, partition: TopicPartition) -> Refused:
    """Return the error of a partition without a committed offset, where nothing resets it."""
    reason = f"group {group!r} has no committed offset" if group else "no offset was set"
    return Refused(ErrorCode.OFFSET_OUT_OF_RANGE, str(partition), reason)
