"""Commits of a consumer: of what it returned, or of given offsets; at once or aside.

Owns these methods, which ``Consumer`` inherits. Not automatic commits: see
``client.groups.reader_commits``.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any

from tidelog.aio.arguments import by_place, is_text, offset_number
from tidelog.aio.commits_aside import Callback, CommitsAside, Offsets, explained
from tidelog.aio.consumer_queries import ConsumerQueries
from tidelog.aio.consumer_settings import ConsumerSettings
from tidelog.aio.consumer_types import OffsetAndMetadata
from tidelog.client.cluster import Cluster
from tidelog.client.errors import WrongState
from tidelog.client.groups.committed_offsets import Position
from tidelog.client.groups.group_reader import GroupReader
from tidelog.model.topics import TopicPartition


class ConsumerCommits(ConsumerQueries):
    """The commits of one consumer."""

    def __init__(self, settings: ConsumerSettings, cluster: Cluster | None) -> None:
        super().__init__(settings, cluster)
        self.aside = CommitsAside()
        self._counts = {"polls": 0, "records": 0, "bytes": 0, "commits": 0}

    @abstractmethod
    async def _assigned_ready(self) -> GroupReader:
        """Return the reader of the present subscription."""

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None
    ) -> None:
        """Commit these positions, or those after all returned records.

        Raises CommitFailed when the group has gone on without this consumer, and Refused with
        REBALANCE_IN_PROGRESS while it joins again: poll, then commit.
        """
        given = None if offsets is None else checked(offsets)
        reader = await self._assigned_ready()
        # Given offsets need nothing of what is not returned: that would decode records.
        wanted = _places(reader) if given is None else given
        self._counts["commits"] += 1
        with explained():
            await _asked(reader, self.settings.group_id, wanted, is_given=given is not None)

    async def places(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what ``commit`` without offsets would commit now."""
        return _places(await self._assigned_ready())

    async def commit_async(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        callback: Callback | None = None,
    ) -> asyncio.Task[None]:
        """Begin to commit, and return the task. ``callback`` gets the offsets and the error.

        Commits are made in the order of the calls. ``close`` waits for them up to its
        ``timeout_ms``; then the error is WrongState.
        """
        given = None if offsets is None else checked(offsets)
        reader = await self._assigned_ready()
        wanted = _places(reader) if given is None else given
        self._counts["commits"] += 1
        ask = partial(_asked, reader, self.settings.group_id, wanted, is_given=given is not None)
        return self.aside.begin(ask, wanted, callback)


def _places(reader: GroupReader) -> dict[TopicPartition, OffsetAndMetadata]:
    return {
        tp: OffsetAndMetadata(place.offset, place.metadata, place.leader_epoch)
        for tp, place in reader.controls.places().items()
    }


def _asked(
    reader: GroupReader, group: str | None, offsets: Offsets, *, is_given: bool
) -> Coroutine[None, None, None]:
    """Ask for a commit: it has its place in their order, and awaiting waits for its end.

    ``is_given``: by the application; otherwise they are what ``_places`` returned.
    """
    if group is None:
        raise WrongState("a consumer without a group_id cannot commit")
    positions = {
        tp: Position(offset.offset, offset.leader_epoch, offset.metadata or "")
        for tp, offset in offsets.items()
    }
    return reader.controls.commit_exactly(positions, is_given=is_given)


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
