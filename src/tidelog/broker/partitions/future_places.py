"""The directories of copies that begin, made before their requests are answered.

Owns the trips of threads that make them, one at a time in each log directory, so that a disk that
hangs holds up no other. Not the copies: see `future_replicas`; not the files: see
`storage.future.places`. The name of a directory is durable before its request is answered: after
a kill or a power loss the next start goes on with the move. Its content may be lost, and is
written again then.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from tidelog.model.work import Work
from tidelog.storage.future import places

if TYPE_CHECKING:
    from tidelog.broker.partitions.log_work import LogWork
    from tidelog.model.topics import TopicPartition
    from tidelog.runtime.disk import Disk
    from tidelog.storage.checkpoints import PartitionMetadata
    from tidelog.storage.directory.log_directory import LogDirectory

logger = logging.getLogger(__name__)

PER_TRIP = 256
"""Most directories that one trip of a thread makes, with one sync of their names."""

Made = asyncio.Future["Exception | None"]


@dataclass(eq=False, slots=True)
class Beginning:
    """The directory of a copy, until it is made."""

    key: TopicPartition
    directory: LogDirectory
    path: str
    metadata: PartitionMetadata
    ended: Callable[[Exception | None], Exception | None]
    """Called after the trip that made it, or failed to; returns the result of ``made``."""
    made: Made = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    error: Exception | None = None


class FuturePlaces:
    """The beginnings of copies on one broker. Used on its event loop."""

    def __init__(self, log_work: LogWork, disk: Disk) -> None:
        self._log_work = log_work
        self._disk = disk
        self._waiting: dict[str, deque[Beginning]] = {}
        """By log directory. One that is here has a task."""
        self._open: dict[TopicPartition, list[Beginning]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, beginning: Beginning) -> None:
        """Have the directory of a copy made."""
        self._open.setdefault(beginning.key, []).append(beginning)
        waiting = self._waiting.get(beginning.directory.path)
        if waiting is not None:
            waiting.append(beginning)
            return
        self._waiting[beginning.directory.path] = waiting = deque([beginning])
        trips = self._make_all(beginning.directory, waiting)
        task = asyncio.get_running_loop().create_task(trips, name="future-places")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def under_way(self, key: TopicPartition) -> Sequence[Made]:
        """Return what is still made for a partition; the last one is that of its present copy."""
        return [beginning.made for beginning in self._open.get(key, ())]

    @property
    def tasks(self) -> Sequence[asyncio.Task[None]]:
        """The trips: a stop of the broker calls them off."""
        return list(self._tasks)

    async def _make_all(self, directory: LogDirectory, waiting: deque[Beginning]) -> None:
        trip: list[Beginning] = []
        try:
            while waiting:
                trip = [waiting.popleft() for _ in range(min(PER_TRIP, len(waiting)))]
                try:
                    await self._log_work.run(None, _making(self._disk, directory, trip))
                except Exception as error:
                    if not isinstance(error, OSError):
                        logger.exception("no copy begins in %(path)s", {"path": directory.path})
                    for beginning in trip:
                        beginning.error = beginning.error or error
                for beginning in trip:
                    self._end(beginning)
        finally:
            del self._waiting[directory.path]
            for beginning in (*trip, *waiting):
                if not beginning.made.done():  # a stop of the broker leaves it
                    self._close(beginning)
                    beginning.made.cancel()

    def _end(self, beginning: Beginning) -> None:
        try:
            error = beginning.ended(beginning.error)
        except Exception as failure:
            logger.exception("no copy begins in %(path)s", {"path": beginning.path})
            error = failure
        self._close(beginning)
        beginning.made.set_result(error)

    def _close(self, beginning: Beginning) -> None:
        mates = self._open[beginning.key]
        mates.remove(beginning)
        if not mates:
            del self._open[beginning.key]


def _making(disk: Disk, directory: LogDirectory, trip: Sequence[Beginning]) -> Work[None]:
    yield partial(_make, disk, trip)
    yield from directory.syncing_names(always=True)


def _make(disk: Disk, trip: Sequence[Beginning]) -> None:
    for beginning in trip:
        try:
            places.make(disk, beginning.path, beginning.metadata)
        except OSError as error:
            beginning.error = error
