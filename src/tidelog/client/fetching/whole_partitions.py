"""A reader of whole partitions: every batch between two offsets of each, once.

Owns the end of such a reading, and what happens to records that go meanwhile. Not the requests: see
``fetcher``. Memory is bounded by the fetcher: ``PREFETCH_BYTES`` and a response of each leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping

from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, GaveUp, Refused
from tidelog.client.fetching.batches import Fetched
from tidelog.client.fetching.fetch_requests import FetchOptions
from tidelog.client.fetching.fetcher import Fetcher, OffsetReset
from tidelog.client.offsets import IsolationLevel
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

PREFETCH_BYTES = 32 * 1024 * 1024
RESPONSE_BYTES = 8 * 1024 * 1024
POLL_MS = 500
POLL_BYTES = 4 * 1024 * 1024


async def read_whole(
    cluster: Cluster,
    ranges: Mapping[TopicPartition, tuple[int, int]],
    *,
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    gone: set[TopicPartition] | None = None,
) -> AsyncGenerator[Fetched, None]:
    """Yield the batches of each partition from its first offset up to (not including) its second.

    Those of one partition come in order, those of several in any. The first and the last
    ``Fetched`` may hold records outside of the range. Where retention has removed records the
    reading goes on at the log start. A partition that metadata no longer list is added to ``gone``,
    and not read further; without ``gone`` it is an error. Raises ClientError, GaveUp when nothing
    arrives for ``default.api.timeout.ms`` and ``request.timeout.ms``. Close the iterator
    (``contextlib.aclosing``) when it is left early.
    """
    wanted = {tp: bounds for tp, bounds in ranges.items() if bounds[0] < bounds[1]}
    fetcher = Fetcher(
        cluster,
        isolation=isolation,
        reset=OffsetReset.EARLIEST,
        options=FetchOptions(max_bytes=RESPONSE_BYTES),
        prefetch_bytes=PREFETCH_BYTES,
    )
    loop = asyncio.get_running_loop()
    # After that the fetcher has reported what is unknown: an error that says more.
    settings = cluster.settings
    limit_s = (settings.default_api_timeout_ms + settings.request_timeout_ms) / 1000
    try:
        fetcher.assign(
            {tp: begin for tp, (begin, _) in wanted.items()},
            {tp: end for tp, (_, end) in wanted.items()},
        )
        last = loop.time()
        while not fetcher.finished():
            try:
                pieces = await fetcher.poll(POLL_MS, POLL_BYTES)
            except ClientError as error:
                if not await _drop_removed(cluster, fetcher, error, gone):
                    raise
                continue
            if pieces:
                last = loop.time()
            elif loop.time() - last > limit_s:
                raise GaveUp(f"nothing was read within {limit_s:.0f} s of {_left(fetcher, wanted)}")
            for piece in pieces:
                yield piece
    finally:
        await fetcher.close()


async def _drop_removed(
    cluster: Cluster, fetcher: Fetcher, error: ClientError, gone: set[TopicPartition] | None
) -> bool:
    """Stop reading the partitions that metadata no longer list; return whether there are any."""
    is_unknown = isinstance(error, Refused) and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if gone is None or not is_unknown:
        return False
    assigned = fetcher.positions()
    view = await cluster.describe(sorted({tp.topic for tp in assigned}))
    listed = {name: topic.partitions for name, topic in view.topics.items() if not topic.error}
    # A topic that was deleted is no partition that was removed.
    removed = {tp for tp in assigned if tp.topic in listed and tp.partition not in listed[tp.topic]}
    fetcher.remove(removed)
    gone |= removed
    return bool(removed)


def _left(fetcher: Fetcher, wanted: Mapping[TopicPartition, tuple[int, int]]) -> str:
    left = [
        f"{tp} at {position} of {wanted[tp][1]}"
        for tp, position in fetcher.positions().items()
        if position < wanted[tp][1]
    ]
    return ", ".join(left[:3]) + (f" and {len(left) - 3} more" if len(left) > 3 else "")
