"""Commits of a consumer: of what it returned, or of given offsets; at once or aside.

Owns these methods, which ``Consumer`` inherits. Not automatic commits: see
``client.groups.reader_commits``.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from tidelog.aio.arguments import by_place, is_text, offset_number
from tidelog.aio.consumer_hooks import Call
from tidelog.aio.consumer_queries import ConsumerQueries
from tidelog.aio.consumer_settings import ConsumerSettings
from tidelog.aio.consumer_types import OffsetAndMetadata
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, CommitFailed, Refused, WrongState
from tidelog.client.groups.committed_offsets import Position
from tidelog.client.groups.group_reader import GroupReader
from tidelog.client.groups.reader_commits import COMMIT_LOST
from tidelog.model.topics import TopicPartition


class ConsumerCommits(ConsumerQueries):
    """The commits of one consumer."""

    def __init__(self, settings: ConsumerSettings, call: Call, cluster: Cluster | None) -> None:
        super().__init__(settings, cluster)
        self._call = call
        self._counts = {"polls": 0, "records": 0, "bytes": 0, "commits": 0}

    @abstractmethod
    async def _assigned_ready(self) -> GroupReader:
        """Return the reader of the present subscription."""

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None
    ) -> None:
        """Commit these positions, or those after all returned records.

        Raises CommitFailed when the group has gone on without this consumer.
        """
        reader = await self._assigned_ready()
        if self.settings.group_id is None:
            raise WrongState("a consumer without a group_id cannot commit")
        # Of given offsets the queue is not read: the caller of a blocking ``commit_async`` takes
        # records from it meanwhile, in another thread.
        wanted = reader.controls.places() if offsets is None else _positions(offsets)
        self._counts["commits"] += 1
        try:
            await reader.controls.commit_exactly(wanted)
        except Refused as error:
            if error.code in COMMIT_LOST:
                raise CommitFailed(error.code, error.subject, _LOST) from None
            raise

    async def places(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what ``commit`` without offsets would commit now."""
        return _shown((await self._assigned_ready()).controls.places())

    async def commit_async(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        callback: Callable[[Any, Exception | None], object] | None = None,
    ) -> asyncio.Task[None]:
        """Begin to commit, and return the task. ``callback`` gets the offsets and the error."""
        wanted = await self.places() if offsets is None else checked(offsets)

        async def commit() -> None:
            error: Exception | None = None
            try:
                await self.commit(wanted)
            except ClientError as refused:
                error = refused
                if callback is None:
                    raise
            if callback is not None:
                await self._call(callback, wanted, error)

        return asyncio.get_running_loop().create_task(commit())


_LOST = (
    "the group has gone on without this consumer, and other members have its partitions: it polled "
    "too rarely (max_poll_interval_ms) or sent no heartbeat for session_timeout_ms"
)


def checked(offsets: Any) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return offsets to commit. Raises TypeError and ValueError."""
    commits = by_place(offsets, "offsets")
    for tp, given in commits.items():
        if not isinstance(given, tuple):
            commits[tp] = OffsetAndMetadata(offset_number(given))
            continue
        wanted = OffsetAndMetadata(*given)
        if not isinstance(wanted.metadata or "", str):
            raise TypeError(f"the metadata of a commit must be a str, not {wanted.metadata!r}")
        is_text(wanted.metadata or "", "the metadata of a commit")
        commits[tp] = wanted._replace(offset=offset_number(wanted.offset))
    return commits


def _positions(
    offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
) -> dict[TopicPartition, Position]:
    return {
        tp: Position(offset.offset, offset.leader_epoch, offset.metadata or "")
        for tp, offset in checked(offsets).items()
    }


def _shown(positions: Mapping[TopicPartition, Position]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {
        tp: OffsetAndMetadata(position.offset, position.metadata, position.leader_epoch)
        for tp, position in positions.items()
    }
