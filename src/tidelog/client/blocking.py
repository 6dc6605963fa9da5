"""A blocking interface for callers without an event loop, such as Spark's tasks.

Owns one background thread with one event loop, and the reading of ranges as a plain iterator. Other
coroutines of this package run with ``call``.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from tidelog.client.cluster import Cluster, ClusterSettings
from tidelog.client.errors import GaveUp
from tidelog.client.fetching.batches import Fetched
from tidelog.client.fetching.fetch_requests import FetchOptions
from tidelog.client.fetching.fetcher import Fetcher
from tidelog.client.offsets import IsolationLevel
from tidelog.model.topics import TopicPartition

Result = TypeVar("Result")

POLL_MS = 500
STOP_TIMEOUT_S = 10.0


class LoopThread:
    """An event loop in a daemon thread; ``run`` blocks the caller until a coroutine is done."""

    def __init__(
        self, new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    ) -> None:
        self._loop = new_loop()
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name="tidelog-client", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def start(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Start a coroutine on the loop; any thread can wait for its future."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call_soon(self, work: Callable[[], object]) -> None:
        """Call a function on the loop; no thread waits for it."""
        self._loop.call_soon_threadsafe(work)

    def run(self, work: Coroutine[Any, Any, Result], timeout_s: float | None = None) -> Result:
        """Run a coroutine to its end and return its result, or raise its exception.

        An interruption or a timeout cancels it.
        """
        future = self.start(work)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on the loop."""
        return threading.current_thread() is self._thread

    @property
    def stopped(self) -> bool:
        """Whether ``stop`` was called."""
        return self._stopped

    def stop(self) -> None:
        """End the loop and its thread; a second call does nothing."""
        if self._stopped:
            return
        self._stopped = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        if not self.is_current:
            self._thread.join(STOP_TIMEOUT_S)


class BlockingCluster:
    """A ``Cluster`` with its own thread, opened at construction; close it, or use ``with``.

    Raises ClusterUnreachable when no bootstrap address responds within ``open_timeout_ms``.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        settings: ClusterSettings | None = None,
        *,
        open_timeout_ms: int | None = None,
    ) -> None:
        self._thread = LoopThread()
        try:
            self.cluster = self._thread.run(self._made(bootstrap, settings, open_timeout_ms))
        except BaseException:
            self._thread.stop()
            raise

    async def _made(
        self,
        bootstrap: str | Sequence[str],
        settings: ClusterSettings | None,
        open_timeout_ms: int | None,
    ) -> Cluster:
        cluster = Cluster(bootstrap, settings)
        try:
            await cluster.open(open_timeout_ms)
        except BaseException:
            await cluster.close()
            raise
        return cluster

    def __enter__(self) -> BlockingCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, work: Coroutine[Any, Any, Result], timeout_s: float | None = None) -> Result:
        """Run a coroutine that uses ``self.cluster`` and return its result.

        Example: ``client.call(list_offsets(client.cluster, {partition: LATEST}))``.
        """
        return self._thread.run(work, timeout_s)

    def read_ranges(
        self,
        ranges: Mapping[TopicPartition, tuple[int, int]],
        *,
        epochs: Mapping[TopicPartition, int] | None = None,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        options: FetchOptions | None = None,
        idle_timeout_ms: int = 120_000,
    ) -> Iterator[Fetched]:
        """Yield the raw batches of each partition from its start up to (not including) its end.

        Later batches are prefetched while the caller works. Batches may contain records below
        ``Fetched.offset`` or past the end of the range: skip those. ``epochs``: the leader epochs
        of the records before the starts, where known: a leader of an earlier epoch is not used, and
        one of a later epoch is checked for truncation (KIP-320). Raises OffsetOutOfRange for
        records that are gone, GaveUp when nothing arrives for ``idle_timeout_ms``. Closing the
        iterator stops the fetching.
        """
        wanted = {tp: bounds for tp, bounds in ranges.items() if bounds[0] < bounds[1]}
        if not wanted:
            return
        fetcher = self.call(self._begin(wanted, epochs, isolation, options))
        try:
            idle_ms = 0
            while not fetcher.finished():
                pieces = self.call(fetcher.poll(POLL_MS))
                idle_ms = 0 if pieces else idle_ms + POLL_MS
                if idle_ms >= idle_timeout_ms:
                    left = {
                        str(tp): (position, wanted[tp][1])
                        for tp, position in fetcher.positions().items()
                        if position < wanted[tp][1]
                    }
                    raise GaveUp(f"nothing was read within {idle_timeout_ms} ms of {left}")
                yield from pieces
        finally:
            if not self._thread.stopped:
                self.call(fetcher.close())

    async def _begin(
        self,
        wanted: Mapping[TopicPartition, tuple[int, int]],
        epochs: Mapping[TopicPartition, int] | None,
        isolation: IsolationLevel,
        options: FetchOptions | None,
    ) -> Fetcher:
        fetcher = Fetcher(self.cluster, isolation=isolation, options=options)
        fetcher.assign(
            {tp: start for tp, (start, _) in wanted.items()},
            {tp: end for tp, (_, end) in wanted.items()},
            epochs,
        )
        return fetcher

    def close(self) -> None:
        """Close all connections and end the thread; a second call does nothing."""
        if self._thread.stopped:
            return
        try:
            self._thread.run(self.cluster.close(), STOP_TIMEOUT_S)
        finally:
            self._thread.stop()
