"""What an application does with a reader between its polls: seek, pause, commit.

Owns these methods, a part of ``GroupReader``. Not the cycle of joining, positions and fetching: see
``group_reader``. Not what they change: see ``reading_generation`` and ``reader_commits``.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Iterable, Mapping

from tidelog.client.errors import WrongState
from tidelog.client.fetching.fetcher import Fetcher
from tidelog.client.groups.committed_offsets import Position
from tidelog.client.groups.gating import Gating
from tidelog.client.groups.reader_commits import Commits
from tidelog.client.groups.reader_positions import ReaderPositions
from tidelog.client.groups.reading_generation import ReadingGeneration
from tidelog.model.topics import TopicPartition

logger = logging.getLogger(__name__)


class ReaderControls:
    """The controls of one reader."""

    def __init__(
        self,
        generation: ReadingGeneration,
        fetcher: Fetcher,
        positions: ReaderPositions,
        commits: Commits,
        gating: Gating,
    ) -> None:
        self._generation = generation
        self._fetcher = fetcher
        self._positions = positions
        self._commits = commits
        self._gating = gating

    @property
    def paused(self) -> set[TopicPartition]:
        """The partitions of which nothing is returned."""
        return self._generation.paused

    def pause_only(self, partitions: Iterable[TopicPartition]) -> None:
        """Return nothing of these partitions, and of all others again."""
        self._generation.pause_only(partitions)

    # Commits

    async def commit(self) -> None:
        """Commit the positions after all returned batches, where they have changed.

        A commit of an ended generation is dropped: the next owner of the partition reads these
        records again. Raises CommitRefused with the error of each refused partition; the positions
        of the others are committed.
        """
        self._commits.note()
        await self._commits.up_to(self._positions.all())

    async def commit_up_to(self, positions: Mapping[TopicPartition, int]) -> None:
        """Commit these positions, which may be before the returned batches; like ``commit``."""
        await self._commits.up_to(positions)

    def commit_exactly(
        self, positions: Mapping[TopicPartition, Position], *, is_given: bool
    ) -> Coroutine[None, None, None]:
        """Ask for a commit of these positions, in this order; awaiting waits for its end.

        ``is_given``: by the application; otherwise they are what ``places`` returned. Raises
        Refused also where ``commit`` drops them.
        """
        return self._commits.exactly(positions) if is_given else self._commits.returned(positions)

    def places(self) -> dict[TopicPartition, Position]:
        """Return the positions of the application as they are committed."""
        return {
            partition: Position(offset, self._positions.epoch_before(partition, offset))
            for partition, offset in self._positions.all().items()
        }

    # Positions that the application sets

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at an offset of an assigned partition. Raises ClientError for another one.

        Beyond a shut gate it is delivered when the gate opens; a line in the log says so.
        """
        generation = self._generation
        self._commits.sought(partition)
        if partition in self._fetcher.positions():
            self._positions.set(partition, offset)
        elif partition in generation.assigned or partition in generation.given:
            generation.seek_later({partition: offset})
        else:
            raise WrongState(f"{partition} is not assigned to this consumer: it cannot seek")
        end = self._gating.ends.get(partition)
        if end is not None and end <= offset:
            text = "%s: nothing is delivered from offset %d until its gate opens: %s"
            logger.warning(text, partition, offset, self._gating.why_shut(partition))

    def seek_first(self, positions: Mapping[TopicPartition, int]) -> None:
        """Begin at these offsets in partitions that are not assigned yet."""
        self._generation.seek_later(positions)

    def why_waiting(self) -> dict[TopicPartition, str]:
        """Return what each partition with a shut gate waits for."""
        return {partition: self._gating.why_shut(partition) for partition in self._gating.ends}
