"""The fetcher: reads assigned partitions from their leaders, prefetching within bounds.

Owns positions, one Fetch in flight per leader (on its own connection), fetch sessions and buffers.
Returns whole raw batches (``Fetched``), which the caller decodes. Not groups and commits: see
``client.groups``.

Bounds: a partition is fetched while less than ``2 * partition_bytes`` of it are buffered, and any
partition while less than ``prefetch_bytes`` are; each response in flight adds at most ``max_bytes``
(and one larger batch). While there is nothing to return, a partition of which nothing is buffered
adds one response of ``partition_bytes`` above that: what fills the limit may be paused, or not
asked for. Grows with partitions per response.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterable, Mapping
from typing import Any

from tidelog.client import offsets
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, LogTruncated, OffsetOutOfRange, Refused, error_code
from tidelog.client.fetching.assigned import FetchedPartition
from tidelog.client.fetching.batches import Fetched
from tidelog.client.fetching.fetch_requests import (
    SESSION_ERRORS,
    FetchOptions,
    ask_for_newer,
    ask_leader,
    end_session,
    fetched_of,
)
from tidelog.client.fetching.fetch_room import is_asked_for, with_room
from tidelog.client.fetching.fetch_sessions import FetchSession
from tidelog.client.fetching.resets import OffsetReset as OffsetReset
from tidelog.client.fetching.resets import reset_of, reset_offsets
from tidelog.client.fetching.truncation import ask_ends, must_ask, was_cut
from tidelog.client.offsets import IsolationLevel
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages
from tidelog.replication.resize_rules import NOT_NAMED, Named
from tidelog.runtime.tasks import call_off

logger = logging.getLogger(__name__)

PREFETCH_BYTES = 64 * 1024 * 1024


class Fetcher:
    """Reads partitions; ``poll`` returns fetched batches. Close it to end its fetch sessions.

    ``reset`` applies when a position is out of range: NONE raises from ``poll``. The error of a
    partition is raised once, and the partition stops until ``seek``; with ``again_after_ms`` it is
    fetched again after that time, and an error is then raised again. ``on_reset`` is called with
    each position of a reset, before anything is fetched there.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        reset: OffsetReset = OffsetReset.NONE,
        options: FetchOptions | None = None,
        prefetch_bytes: int = PREFETCH_BYTES,
        again_after_ms: int | None = None,
        on_reset: Callable[[TopicPartition, int], Awaitable[None]] | None = None,
    ) -> None:
        self._cluster = cluster
        self._isolation = isolation
        self._reset = reset
        self._options = options or FetchOptions()
        self._prefetch_bytes = prefetch_bytes
        self._on_reset = on_reset
        self._again_after_s = float("inf") if again_after_ms is None else again_after_ms / 1000
        self._assigned: dict[TopicPartition, FetchedPartition] = {}
        self._sessions: dict[int, FetchSession] = {}
        self._tasks: dict[int | str, asyncio.Task[None]] = {}
        self._buffered_bytes = 0
        self._gates: Mapping[TopicPartition, int] = {}
        self._only: Container[TopicPartition] | None = None
        """What the last ``poll`` asked for; None: everything."""
        self._is_interrupted = False
        self._incarnations = 0
        self._changed: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    # The assignment

    def assign(
        self,
        positions: Mapping[TopicPartition, int],
        stops: Mapping[TopicPartition, int] | None = None,
        epochs: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Read exactly these partitions, starting at these offsets.

        ``stops``: do not fetch at or past these offsets (the last batch may reach over them).
        ``epochs``: the leader epochs of the records before the offsets, where known. Prefetched
        batches are dropped, also those of partitions that stay assigned.
        """
        for partition in list(self._assigned):
            self._drop(partition)
        for partition, offset in positions.items():
            state = self._read_from(partition, offset, (epochs or {}).get(partition, -1))
            state.stop = (stops or {}).get(partition)
        self._start()

    def add(
        self,
        positions: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int] | None = None,
        named: Mapping[TopicPartition, Named] | None = None,
    ) -> None:
        """Also read these partitions; partitions that are already assigned do not change.

        ``named``: the counts and epochs of an aware reader's requests (KIP-253).
        """
        for partition, offset in positions.items():
            if partition not in self._assigned:
                state = self._read_from(partition, offset, (epochs or {}).get(partition, -1))
                state.named = (named or {}).get(partition, NOT_NAMED)
                state.gate = self._gates.get(partition)
        self._start()

    def _read_from(self, partition: TopicPartition, offset: int, epoch: int) -> FetchedPartition:
        self._incarnations += 1
        state = FetchedPartition(partition, offset, offset, None, self._incarnations, epoch, epoch)
        self._assigned[partition] = state
        return state

    def hold_at(self, gates: Mapping[TopicPartition, int]) -> None:
        """Return these partitions only up to there; beyond they are fetched, as memory allows."""
        if gates == self._gates:
            return
        self._gates = dict(gates)
        for partition, state in self._assigned.items():
            state.gate = gates.get(partition)
        self._start()
        self._wake()

    @property
    def gates(self) -> Mapping[TopicPartition, int]:
        """Where ``hold_at`` holds partitions."""
        return self._gates

    def interrupt(self) -> None:
        """Let a ``poll`` that waits return without a batch."""
        self._is_interrupted = True
        self._wake()

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Do not read these partitions any longer."""
        for partition in self._assigned.keys() & partitions:
            self._drop(partition)

    def named(self) -> dict[TopicPartition, Named]:
        """Return the counts and epochs that requests name."""
        return {partition: state.named for partition, state in self._assigned.items()}

    def restamp(self, named: Mapping[TopicPartition, Named]) -> None:
        """Name other counts and epochs in requests; others name none."""
        for partition, state in self._assigned.items():
            state.named = named.get(partition, NOT_NAMED)

    def seek(self, partition: TopicPartition, offset: int, epoch: int = -1) -> None:
        """Continue at another offset; prefetched batches and an error are dropped."""
        before = self._assigned[partition]
        self._drop(partition)
        state = self._read_from(partition, offset, epoch)
        state.stop, state.paused = before.stop, before.paused
        state.named, state.gate = before.named, before.gate
        self._start()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no batches of these partitions until ``resume``; positions stay."""
        for partition in self._assigned.keys() & partitions:
            self._assigned[partition].paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Continue with paused partitions."""
        for partition in self._assigned.keys() & partitions:
            self._assigned[partition].paused = False
        self._start()
        self._wake()

    def position(self, partition: TopicPartition) -> int:
        """Return the offset after the last batch that ``poll`` returned."""
        return self._assigned[partition].position

    def positions(self) -> dict[TopicPartition, int]:
        """Return the positions of all assigned partitions."""
        return {partition: item.position for partition, item in self._assigned.items()}

    def epoch_before(self, partition: TopicPartition, offset: int) -> int:
        """Return the leader epoch of the record before a position; -1 for any other offset."""
        state = self._assigned.get(partition)
        return -1 if state is None or state.position != offset else state.epoch

    @property
    def buffered_bytes(self) -> int:
        """Bytes that are fetched and not yet returned by ``poll``."""
        return self._buffered_bytes

    def finished(self) -> bool:
        """Whether every partition has a stop and has reached it."""
        return all(s.stop is not None and s.position >= s.stop for s in self._assigned.values())

    # Polling

    async def poll(
        self,
        timeout_ms: int,
        max_bytes: int | None = None,
        only: Container[TopicPartition] | None = None,
    ) -> list[Fetched]:
        """Return buffered batches, waiting up to ``timeout_ms`` for the first; advance positions.

        One ``Fetched`` of each partition in turn, until none is left or ``max_bytes`` are reached.
        ``only``: of these partitions; what is fetched of others stays here, within the limit, and
        these are fetched although others fill it.
        Raises the error of a partition once (OffsetOutOfRange, Refused); ``seek`` restarts it.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        self._only = only
        while True:
            self._raise_problem()
            taken = self._take(max_bytes, only)
            self._start()
            left_s = deadline - loop.time()
            if taken or left_s <= 0 or self._closed or self._is_interrupted:
                self._is_interrupted = False
                return taken
            self._changed = loop.create_future()
            await asyncio.wait([self._changed], timeout=left_s)
            self._changed = None

    async def close(self) -> None:
        """Stop fetching and end the sessions that brokers keep for this reader."""
        self._closed = True
        self._wake()
        if self._timer is not None:
            self._timer.cancel()
        await call_off(self._tasks.values())
        await asyncio.gather(
            *(
                end_session(self._cluster, node_id, session.open_id, self._options)
                for node_id, session in self._sessions.items()
                if session.open_id
            )
        )
        self._sessions.clear()

    def _take(self, max_bytes: int | None, only: Container[TopicPartition] | None) -> list[Fetched]:
        taken: list[Fetched] = []
        size = 0
        ready = [s for s in self._assigned.values() if s.is_ready() and is_asked_for(s, only)]
        while ready and (max_bytes is None or size < max_bytes):
            for state in ready:
                fetched = state.take()
                if fetched is None:
                    continue
                size += len(fetched.records)
                self._free(state, len(fetched.records))
                taken.append(fetched)
                if max_bytes is not None and size >= max_bytes:
                    break
            ready = [s for s in ready if s.is_ready()]
        for fetched in taken:
            # Partitions just returned go to the end of the order: none starves another.
            self._assigned[fetched.partition] = self._assigned.pop(fetched.partition)
        return taken

    def _raise_problem(self) -> None:
        for state in self._assigned.values():
            if state.problem is not None and not state.buffered:
                problem, state.problem = state.problem, None
                # Stopped until ``seek``, or for so long.
                state.not_before = asyncio.get_running_loop().time() + self._again_after_s
                raise problem

    def _free(self, state: FetchedPartition, size: int) -> None:
        state.buffered_bytes -= size
        self._buffered_bytes -= size

    def _drop(self, partition: TopicPartition) -> None:
        state = self._assigned.pop(partition)
        self._free(state, state.buffered_bytes)

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    # Prefetching

    def _start(self) -> None:
        """Start every request that can be started; called after every change of state."""
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        groups: dict[int, list[FetchedPartition]] = {}
        unplaced: list[FetchedPartition] = []
        earliest: float | None = None
        for state in with_room(
            self._assigned.values(),
            self._only,
            buffered_bytes=self._buffered_bytes,
            prefetch_bytes=self._prefetch_bytes,
            partition_bytes=self._options.partition_bytes,
        ):
            if state.not_before > now:
                if state.not_before != float("inf"):
                    earliest = min(earliest or state.not_before, state.not_before)
            elif state.leader >= 0:
                groups.setdefault(state.leader, []).append(state)
            elif state.waits_for not in self._tasks:
                unplaced.append(state)
        if unplaced and "leaders" not in self._tasks:
            self._run("leaders", self._find_leaders(unplaced))
        for node_id, group in groups.items():
            if node_id not in self._tasks:
                self._run(node_id, self._fetch(node_id, group))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if earliest is not None:
            self._timer = loop.call_later(max(0.0, earliest - now) + 0.001, self._start)

    def _run(self, key: int | str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[key] = task
        task.add_done_callback(lambda done: self._ended(key, done))

    def _ended(self, key: int | str, task: asyncio.Task[None]) -> None:
        self._tasks.pop(key, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            # A bug: raise it from ``poll``, instead of stopping silently.
            for state in self._assigned.values():
                state.problem = state.problem or ClientError(f"fetching failed: {error!r}")
        self._start()
        self._wake()

    async def _find_leaders(self, unplaced: list[FetchedPartition]) -> None:
        unasked: dict[int, list[FetchedPartition]] = {}
        for state in unplaced:
            try:
                least = state.least_epoch(
                    asyncio.get_running_loop().time(), self._cluster.settings.metadata_max_age_ms
                )
                leader = await self._cluster.leader(state.partition, least)
            except ClientError as error:
                if isinstance(error, Refused) and error.code == ErrorCode.UNKNOWN_LEADER_EPOCH:
                    state.lagging_since = state.lagging_since or asyncio.get_running_loop().time()
                self._failed(state, error)
            else:
                state.leader_epoch, state.lagging_since = leader.leader_epoch, None
                if leader.leader_epoch < state.fetch_epoch:
                    state.fetch_epoch = -1
                if must_ask(state.fetch_epoch, state.leader_epoch, state.asked_in):
                    unasked.setdefault(leader.leader, []).append(state)
                else:
                    state.leader = leader.leader
        for node_id, group in unasked.items():
            for state in group:
                state.waits_for = f"truncation {node_id}"
            if state.waits_for not in self._tasks:
                self._run(state.waits_for, self._search_for_cuts(node_id, group))

    async def _search_for_cuts(self, node_id: int, group: list[FetchedPartition]) -> None:
        """Check a new leader for truncation before the first fetch from it (KIP-320)."""
        epochs = {state.partition: state.fetch_epoch for state in group}
        try:
            leader_epochs = {state.partition: state.leader_epoch for state in group}
            ends = await ask_ends(self._cluster, node_id, epochs, leader_epochs)
        except ClientError as error:
            for state in group:
                self._failed(state, error)
            return
        for state in group:
            end = ends.get(state.partition, ErrorCode.UNKNOWN_SERVER_ERROR)
            if self._assigned.get(state.partition) is not state:
                continue
            if isinstance(end, ErrorCode):
                self._failed(state, Refused(end, str(state.partition)))
            elif was_cut(state.fetch_offset, end):
                self._cut(state, end)
            else:
                state.leader, state.asked_in = node_id, state.leader_epoch

    def _cut(self, state: FetchedPartition, end: offsets.EpochEnd) -> None:
        """Continue where the log was truncated, or stop the partition without a reset policy."""
        problem = LogTruncated(state.partition, state.fetch_offset, end.end_offset)
        if self._reset is OffsetReset.NONE:
            state.problem = problem
            self._wake()
            return
        logger.warning("%s", problem)
        self._buffered_bytes -= state.cut_back(end)

    async def _fetch(self, node_id: int, group: list[FetchedPartition]) -> None:
        session = self._sessions.setdefault(node_id, FetchSession())
        incarnations = {state.partition: state.incarnation for state in group}
        wanted = {state.partition: state.wanted(self._options.partition_bytes) for state in group}
        for state in group:
            state.busy = True
        try:
            answer = await ask_leader(
                self._cluster, node_id, session, wanted, self._isolation, self._options
            )
        except ClientError as error:
            session.reset()
            for state in group:
                self._failed(state, error)
            return
        finally:
            for state in group:
                state.busy = False
        if answer.error_code:
            session.reset()
            if answer.error_code not in SESSION_ERRORS:
                for state in group:
                    self._failed(state, Refused(answer.error_code, str(state.partition)))
            return
        session.answered(answer.session_id)
        for topic in answer.responses:
            for data in topic.partitions:
                partition = TopicPartition(topic.topic, data.partition_index)
                state = self._assigned.get(partition)  # type: ignore[assignment]
                if state is not None and incarnations.get(partition) == state.incarnation:
                    await self._take_in(node_id, state, data)

    async def _take_in(
        self, node_id: int, state: FetchedPartition, data: messages.FetchResponse.PartitionData
    ) -> None:
        code = error_code(data.error_code)
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            await self._out_of_range(state)
            return
        if code:
            self._failed(state, Refused(code, str(state.partition)))
            if code == ErrorCode.INVALID_PARTITION_METADATA and "metadata" not in self._tasks:
                self._run("metadata", self._ask_again(node_id, state.partition.topic))
            return
        state.failures, state.failing_since, state.is_said = 0, None, False
        try:
            fetched = fetched_of(
                state.partition,
                state.fetch_offset,
                data,
                self._isolation,
                former_formats=self._options.former_formats,
            )
        except ClientError as error:
            self._failed(state, error)
            return
        if fetched is None:
            return
        self._buffered_bytes += state.add(fetched)
        self._wake()

    async def _ask_again(self, node_id: int, topic: str) -> None:
        """Ask the broker that refused a resize epoch for metadata: it knows the newer one."""
        await ask_for_newer(self._cluster, node_id, topic)
        self.interrupt()

    async def _out_of_range(self, state: FetchedPartition) -> None:
        tp = state.partition
        reset = reset_of(self._cluster.view.partition(tp), state.fetch_offset, self._reset)
        if reset is OffsetReset.NONE:
            state.problem = OffsetOutOfRange(tp, state.fetch_offset)
            self._wake()
            return
        try:
            starts = await reset_offsets(self._cluster, reset, [tp], self._isolation)
            # What ``seek`` or ``remove`` has replaced meanwhile goes on nowhere by itself.
            if self._on_reset is not None and self._assigned.get(tp) is state:
                await self._on_reset(tp, starts[tp].offset)
        except ClientError as error:
            self._failed(state, error)
            return
        # Of a state that ``seek`` has replaced meanwhile nothing is read any more.
        state.reset_to(starts[tp].offset)

    def _failed(self, state: FetchedPartition, error: ClientError) -> None:
        """Record a failure: find the leader again after a back-off, or stop the partition."""
        now = asyncio.get_running_loop().time()
        if state.fails_for_good(error, now, self._cluster.settings.default_api_timeout_ms):
            self._wake()
            return
        self._cluster.forget()
        state.not_before = now + state.pause_s(error, self._cluster.settings.backoff)
        state.failures += 1
