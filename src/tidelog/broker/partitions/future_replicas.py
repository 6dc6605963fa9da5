"""Moves of replicas between the log directories of this broker (AlterReplicaLogDirs).

Owns the copies under way: one task each, of which ``reassignment.parallel.copies`` have a place,
the smallest first, and two use a thread at a time. Not the rules: see
`replication.future_replicas`; not the files: see `storage.future`; not the directories of copies
that begin: see `future_places`; not the throttle: see `copy_rate`. While its segments are copied a
log is not compacted: old bytes beside new ones could bring back deleted keys.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.broker.partitions.copy_rate import CopyRate
from tidelog.broker.partitions.future_places import Beginning, FuturePlaces, Made
from tidelog.broker.partitions.state import Role
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.model.work import Work
from tidelog.replication.copying import CopyQueue
from tidelog.replication.future_replicas import (
    NEXT,
    Found,
    Local,
    MoveAction,
    MoveEvent,
    Next,
    decide,
    found_at_start,
)
from tidelog.runtime.tasks import call_off
from tidelog.storage.checkpoints import DamagedFile, decode_partition_metadata
from tidelog.storage.future import places
from tidelog.storage.future.mirror import Mirror, Overtaken, SourceFailed
from tidelog.storage.future.moving import Move, taking_place
from tidelog.storage.names import why_no_future
from tidelog.storage.segments.soundness import Unsound

if TYPE_CHECKING:
    from uuid import UUID

    from tidelog.broker.metadata.configurations import ConfigCache
    from tidelog.broker.partitions.group_commit import GroupCommit
    from tidelog.broker.partitions.log_work import LogWork
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.broker.partitions.registry import Partitions
    from tidelog.model.configs.server import ServerConfigs
    from tidelog.runtime.seams import Seams
    from tidelog.storage.directory.log_directory import LogDirectory
    from tidelog.storage.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

PARALLEL_COPIES = "reassignment.parallel.copies"

THREADS = 2
"""Threads that copy at a time: they share the pool with the syncs of logs."""

REST_S = 10.0
"""How long a copy rests whose directory is full."""

CHECKED_S = 1.0
"""How often it is checked, while copies wait, whether one makes no progress."""

RETRY_S = 0.1
"""Pause after the log changed meanwhile, or grew faster than it was copied."""

MOST_UNSOUND = 3
"""So often bytes may look damaged that a read then finds sound; then the copy rests."""


@dataclass(eq=False, slots=True)
class FutureReplica:
    """A copy of a replica in another log directory."""

    hosted: HostedPartition
    target: LogDirectory
    was_left: bool = False  # by an earlier process: its request was answered
    mirror: Mirror | None = None
    is_wanted: bool = True
    unsound: int = 0
    said: str = ""
    """The last reason for a rest: it is logged once."""
    placed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def size(self) -> int:
        return 0 if self.mirror is None else self.mirror.size

    @property
    def lag(self) -> int:
        log = self.hosted.log
        end = log.start_offset if self.mirror is None else self.mirror.end_offset
        return max(0, log.end_offset - max(end, log.start_offset))


Part = Callable[[FutureReplica], Awaitable[MoveEvent]]


class FutureReplicas:
    """The moves between the log directories of one broker. Used on its event loop."""

    def __init__(
        self,
        configs: ServerConfigs,
        dynamic: ConfigCache,
        partitions: Partitions,
        log_work: LogWork,
        commit: GroupCommit,
        seams: Seams,
    ) -> None:
        self._configs = configs
        self._dynamic = dynamic
        self._partitions = partitions
        self._log_work = log_work
        self._commit = commit
        self._seams = seams
        self._copies: dict[TopicPartition, FutureReplica] = {}
        self._queue: CopyQueue[TopicPartition] = CopyQueue()
        self._tasks: dict[asyncio.Task[None], TopicPartition] = {}
        self._checking: asyncio.Task[None] | None = None
        self._threads = asyncio.Semaphore(THREADS)
        self._rate = CopyRate(dynamic, seams.clock)
        self._places = FuturePlaces(log_work, seams.disk)

    def __len__(self) -> int:
        return len(self._copies)

    def in_directory(self, directory: LogDirectory) -> Iterator[FutureReplica]:
        """Yield the copies in a log directory. O(copies)."""
        return (copy for copy in self._copies.values() if copy.target is directory)

    def start(self) -> None:
        """Go on with the copies that an earlier process left, or remove them."""
        # A directory that cannot be read may hold the replica of which this is a copy (promise 20).
        directories = self._partitions.directories
        usable = not self._partitions.away and all(d.failed is None for d in directories)
        for directory in directories:
            for key, path in list(directory.futures.items()):
                hosted = self._partitions.get(*key)
                local = None if hosted is None else self._local(hosted)
                topic_id = _topic_id(directory, path)
                verdict = found_at_start(directory.path, topic_id, local, usable)
                if directory.failed is not None or verdict is Found.KEEP:
                    logger.warning("%(path)s stays: its replica is not here", {"path": path})
                elif verdict is Found.REMOVE or hosted is None or key in self._copies:
                    logger.info("%(path)s is removed: it is no copy of a replica", {"path": path})
                    self._remove(directory, key, directory.futures.pop(key))
                else:
                    self._begin(hosted, directory, True)

    async def close(self) -> None:
        """Stop all; the next start goes on with them."""
        checks = [] if self._checking is None else [self._checking]
        await call_off([*self._tasks, *self._places.tasks, *checks])
        for copy in list(self._copies.values()):
            self._let_go(copy)

    # -- requests

    def alter(self, key: TopicPartition, path: str) -> ErrorCode:
        """Move a replica to the log directory ``path``."""
        target = next((d for d in self._partitions.directories if _same(d.path, path)), None)
        hosted = self._partitions.get(*key)
        local = None if hosted is None else self._local(hosted)
        error, action = decide(
            None if target is None else target.path,
            target is not None and target.failed is not None,
            why_no_future(key) is not None,
            local,
            target is not None and self._partitions.configs.is_cordoned(target.path),
        )
        if target is None:
            return error
        if action is MoveAction.REMEMBER:
            self._partitions.new_replicas.prefer(key, target)
        elif action is not MoveAction.NOTHING and hosted is not None:
            if key in self._copies:
                self._end(self._copies[key], MoveEvent.UNWANTED)
            if action is MoveAction.BEGIN:
                self._begin(hosted, target)
        return error

    def beginnings(self, key: TopicPartition) -> Sequence[Made]:
        """Return the directories of copies of a partition that are still made: a kill forgets a
        move whose directory is not. The last one is that of the present copy."""
        return self._places.under_way(key)

    def _local(self, hosted: HostedPartition) -> Local:
        future = self._copies.get(hosted.key)
        metadata = hosted.log.metadata
        return Local(
            self._partitions.directory_of(hosted).path,
            None if future is None else future.target.path,
            hosted.role is Role.OFFLINE,
            *(() if metadata is None else (metadata.topic_id,)),
        )

    # -- one copy

    def _begin(self, hosted: HostedPartition, target: LogDirectory, was_left: bool = False) -> None:
        copy = self._copies[hosted.key] = FutureReplica(hosted, target, was_left)
        logger.info(
            "%(partition)s moves from %(from_dir)s to %(to_dir)s: %(size)d bytes",
            {
                "partition": hosted.key,
                "from_dir": self._partitions.directory_of(hosted).path,
                "to_dir": target.path,
                "size": hosted.log.size,
            },
        )
        assert hosted.log.metadata is not None
        if hosted.key not in target.futures:
            target.futures[hosted.key] = places.new_path(target, hosted.key, self._seams.new_uuid())
        path = target.futures[hosted.key]
        made = partial(self._begun, copy, path)
        self._places.add(Beginning(hosted.key, target, path, hosted.log.metadata, made))

    def _begun(self, copy: FutureReplica, path: str, error: Exception | None) -> Exception | None:
        """Go on with a copy when its directory was made, or ``error`` says why not; return what
        its request is answered with: one that was replaced meanwhile has not failed."""
        if not copy.is_wanted:
            self._remove(copy.target, copy.hosted.key, path)
            return None
        resources, is_missing = copy.target.resources, isinstance(error, FileNotFoundError)
        if isinstance(error, OSError) and not (is_missing or resources.is_full(error)):
            resources.fail(f"{path} cannot be made: {error}")
            self._end(copy, MoveEvent.TARGET_FAILED)
        elif error is None or copy.was_left:
            # A move that was answered is not given up for want of space: it rests (``_prepare``).
            self._spawn(self._run(copy), copy.hosted.key, "future-replica")
            return None
        else:
            self._end(copy, MoveEvent.NOT_MADE)
        return error

    def _spawn(self, work: Coroutine[Any, Any, None], key: TopicPartition, name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = key
        task.add_done_callback(self._tasks.pop)

    async def _run(self, copy: FutureReplica) -> None:
        try:
            following = Next.GO_ON
            while following not in (Next.END, Next.END_AND_REMOVE):
                if following is Next.REST:
                    self._let_go(copy)
                    await asyncio.sleep(REST_S)
                await self._until_placed(copy)
                part = self._take_place if following is Next.TAKE_PLACE else self._copy_more
                following = NEXT[await self._event_of(copy, part)]
        except Exception:
            logger.exception("the copy of %(partition)s ends", {"partition": copy.hosted.key})
            self._end(copy, MoveEvent.UNWANTED)

    async def _until_placed(self, copy: FutureReplica) -> None:
        key = copy.hosted.key
        while copy.is_wanted and not self._queue.has_place(key):
            copy.placed.clear()
            self._queue.add(key, copy.hosted.log.size)
            self._give_places()
            if not self._queue.has_place(key):
                self._let_go(copy, stays=True)
                if self._checking is None:
                    self._checking = asyncio.get_running_loop().create_task(self._check_places())
                await copy.placed.wait()

    async def _check_places(self) -> None:
        """Give the places of copies without progress to those that wait: one timer for all."""
        try:
            while self._queue.waiting:
                await asyncio.sleep(CHECKED_S)
                self._give_places()
        finally:
            self._checking = None

    def _give_places(self) -> None:
        limit = self._dynamic.number(PARALLEL_COPIES, self._configs.reassignment_parallel_copies)
        turn = self._queue.turn(max(1, limit), self._seams.clock.monotonic_ms())
        for key in turn.begin:
            if key in self._copies:
                self._copies[key].placed.set()

    async def _event_of(self, copy: FutureReplica, part: Part) -> MoveEvent:
        """Do the next part of a copy; return what has happened."""
        log = copy.hosted.log
        if not copy.is_wanted:
            return MoveEvent.UNWANTED
        try:
            if copy.target.failed is not None:
                event = MoveEvent.TARGET_FAILED
            elif copy.hosted.offline_reason is not None or log.failed is not None:
                event = MoveEvent.SOURCE_FAILED
            else:
                event = await part(copy)
        except Overtaken:
            event = MoveEvent.CHANGED
        except Unsound as error:
            event = await self._check_damage(copy, str(error))
        except SourceFailed as failure:
            event = self._unreadable(copy, failure.error)
        except OSError as error:
            event = self._refused(copy, error)
        if not copy.is_wanted:
            return MoveEvent.UNWANTED
        if event is MoveEvent.CHANGED:
            await asyncio.sleep(RETRY_S)
        elif NEXT[event] is Next.END:
            self._end(copy, event)
        return event

    async def _copy_more(self, copy: FutureReplica) -> MoveEvent:
        mirror = copy.mirror
        if mirror is None:
            return await self._prepare(copy)
        most = await self._rate.allowance()
        async with self._threads:
            if not copy.is_wanted:
                return MoveEvent.UNWANTED
            # Of the log as it is now: it may have changed while this waited for a thread.
            before, steps = mirror.size, mirror.plan(most)
            await self._log_work.run(None, mirror.in_thread(partial(mirror.run, steps)))
            is_near = copy.is_wanted and mirror.left() <= most
            if is_near:
                # So that the sync of the end, for which syncs of the log wait, has little to do.
                await self._log_work.run(None, mirror.in_thread(mirror.flush))
        self._count(copy, mirror.size - before)
        return MoveEvent.NEAR if is_near else MoveEvent.COPIED

    def _count(self, copy: FutureReplica, size: int) -> None:
        now_ms = self._seams.clock.monotonic_ms()
        if size > 0:
            self._queue.progressed(copy.hosted.key, now_ms)
            self._rate.charge(size, now_ms)

    async def _prepare(self, copy: FutureReplica) -> MoveEvent:
        """Make the directory of a copy; from now on its log is not compacted."""
        log, target, key = copy.hosted.log, copy.target, copy.hosted.key
        assert log.metadata is not None
        # First: from here on no compaction swaps bytes that may have been copied.
        log.is_mirrored = True
        await self._log_work.until_free(log)
        if not copy.is_wanted:
            return MoveEvent.UNWANTED  # the next replica of the name may have a copy there by now
        if key not in target.futures:
            target.futures[key] = places.new_path(target, key, self._seams.new_uuid())
        path = target.futures[key]
        made = partial(places.make, self._seams.disk, path, log.metadata)
        await self._log_work.run(None, _one(made))
        if not copy.is_wanted:
            self._remove(target, key, path)  # it ended before there was a directory to remove
        else:
            copy.mirror = Mirror(self._seams.disk, log, path)
        return MoveEvent.COPIED

    async def _take_place(self, copy: FutureReplica) -> MoveEvent:
        log = copy.hosted.log
        await self._log_work.until_free(log)
        if copy.mirror is None or log.closed or not copy.is_wanted:
            return MoveEvent.CHANGED
        origin = self._partitions.directory_of(copy.hosted)
        new_created = partial(self._partitions.new_replicas.new_created, copy.target)
        installed = partial(self._install, copy, log)
        move = Move(
            copy.mirror, log, origin, copy.target, new_created, lambda: copy.is_wanted, installed
        )
        moved = await self._log_work.run(log, taking_place(move))
        if moved is None:
            return MoveEvent.CHANGED
        logger.info(
            "%(partition)s has moved from %(from_dir)s to %(to_dir)s",
            {"partition": moved.partition, "from_dir": origin.path, "to_dir": copy.target.path},
        )
        return MoveEvent.MOVED

    def _install(self, copy: FutureReplica, former: PartitionLog, log: PartitionLog) -> None:
        copy.target.futures.pop(log.partition, None)
        copy.hosted.log = log
        self._log_work.hand_over(former, log)
        # Syncs of the log waited for the move, and requests for them.
        self._commit.want(copy.hosted)

    async def _check_damage(self, copy: FutureReplica, why: str) -> MoveEvent:
        """Read what looks damaged as a client would: a read that finds damage takes the log out of
        service. The bytes may also have been cut meanwhile."""
        log, mirror = copy.hosted.log, copy.mirror
        await self._log_work.until_free(log)
        if mirror is not None and log.start_offset <= mirror.end_offset < log.end_offset:
            log.read(mirror.end_offset, 1)
        if log.failed is not None:
            return MoveEvent.SOURCE_FAILED
        copy.unsound += 1
        return MoveEvent.CHANGED if copy.unsound <= MOST_UNSOUND else self._rests(copy, why)

    def _unreadable(self, copy: FutureReplica, error: OSError) -> MoveEvent:
        """The log cannot be read: as in any read, a failure that does not pass is final."""
        resources = copy.hosted.log.resources
        if resources.is_full(error):
            return self._rests(copy, str(error))
        resources.fail(f"a read of {copy.hosted.log.path} failed: {error}")
        return MoveEvent.SOURCE_FAILED

    def _refused(self, copy: FutureReplica, error: OSError) -> MoveEvent:
        """The directory of a copy refuses a write: the replica has nothing to do with it."""
        if not copy.is_wanted:
            return MoveEvent.UNWANTED
        if isinstance(error, FileNotFoundError):
            # An operator has removed it.
            self._let_go(copy, stays=True)
            copy.target.futures.pop(copy.hosted.key, None)
            return MoveEvent.CHANGED
        if copy.target.resources.is_full(error):
            return self._rests(copy, str(error))
        copy.target.resources.fail(f"a copy in {copy.target.path} failed: {error}")
        return MoveEvent.TARGET_FAILED

    def _rests(self, copy: FutureReplica, why: str) -> MoveEvent:
        if why != copy.said:
            copy.said = why
            logger.warning(
                "the copy of %(partition)s in %(to_dir)s rests, and is tried again every "
                "%(seconds)d s: %(why)s",
                {
                    "partition": copy.hosted.key,
                    "to_dir": copy.target.path,
                    "seconds": REST_S,
                    "why": why,
                },
            )
        return MoveEvent.FULL

    # -- the end of a copy

    def unhosted(self, key: TopicPartition) -> None:
        """A replica was deleted or quarantined: its copy is none any more."""
        if key in self._copies:
            self._end(self._copies[key], MoveEvent.UNWANTED)

    def _let_go(self, copy: FutureReplica, *, stays: bool = False) -> None:
        """Let the log be compacted, and another copy have the place (or ``stays`` in the queue)."""
        copy.hosted.log.is_mirrored = False
        if copy.mirror is not None:
            copy.mirror.let_go()
            copy.mirror = None
        if not stays and copy.hosted.key in self._queue:
            self._queue.remove(copy.hosted.key)
            self._give_places()

    def _end(self, copy: FutureReplica, event: MoveEvent) -> None:
        key = copy.hosted.key
        if self._copies.get(key) is not copy:
            return
        copy.is_wanted = False
        del self._copies[key]
        self._let_go(copy)
        copy.placed.set()
        if NEXT[event] is Next.END_AND_REMOVE and key in copy.target.futures:
            self._remove(copy.target, key, copy.target.futures.pop(key))
        if event is not MoveEvent.MOVED:
            logger.warning(
                "the move of %(partition)s to %(to_dir)s ends: %(why)s",
                {"partition": key, "to_dir": copy.target.path, "why": event.value},
            )

    def _remove(self, directory: LogDirectory, key: TopicPartition, path: str) -> None:
        if directory.failed is not None:
            return
        try:
            places.remove(directory, key, path)
        except OSError as error:
            directory.resources.fail(f"{path} cannot be removed: {error}")
            return
        self._spawn(self._forget(directory), key, "future-replica-removed")

    async def _forget(self, directory: LogDirectory) -> None:
        """Make a removal durable: a power loss must not bring back a copy that has ended."""
        try:
            await self._log_work.run(None, directory.syncing_names())
        except OSError as error:
            directory.resources.fail(f"names in {directory.path} cannot be synced: {error}")


def _one(call: Callable[[], None]) -> Work[None]:
    yield call


def _same(path: str, other: str) -> bool:
    return path.rstrip("/") == other.rstrip("/")


def _topic_id(directory: LogDirectory, path: str) -> UUID | None:
    try:
        return decode_partition_metadata(places.metadata_of(directory, path)).topic_id
    except (OSError, DamagedFile):
        return None
