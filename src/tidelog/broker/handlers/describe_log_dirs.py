"""DescribeLogDirs v1-4: the log directories of this broker and the replicas in them.

- Null topics means all. v3+: an error for the whole request; v4+: total and usable bytes of the
  volume.
- ``offset_lag``: how much lower the log end offset is than the high watermark (0 for a leader).
- A copy that a move between log directories makes (``is_future_key``) is listed in its directory:
  ``offset_lag`` is how much it lacks of its replica.
- A failed directory has KAFKA_STORAGE_ERROR and no replicas.
- -1 for the bytes of a volume whose size cannot be read, as below v4.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.work import Work
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.partitions.future_replicas import FutureReplica
    from tidelog.storage.directory.log_directory import LogDirectory

logger = logging.getLogger(__name__)

TOPIC_BYTES, PARTITION_BYTES = 150, 100
"""Memory of a topic and of a replica in a response under construction."""

Answer = messages.DescribeLogDirsResponse


def handle(
    broker: Broker, request: messages.DescribeLogDirsRequest, context: RequestContext
) -> Work[Any]:
    """Describe every directory, in steps. O(all replicas, and segments of the requested ones)."""
    wanted = None
    if request.topics is not None:
        wanted = {topic.topic: set(topic.partitions) for topic in request.topics}
    answer = Answer(results=[])
    for directory in broker.directories:
        futures = list(broker.future_replicas.in_directory(directory))
        result = yield from _directory(directory, wanted, futures)
        answer.results.append(result)
    return answer


def _directory(
    directory: LogDirectory,
    wanted: dict[str, set[int]] | None,
    futures: Sequence[FutureReplica],
) -> Work[Any]:
    result = Answer.DescribeLogDirsResult(log_dir=directory.path)
    if directory.failed is not None:
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return result
    topics: dict[str, Any] = {}
    for key, log in sorted(directory.logs.items()):
        if wanted is not None and key.partition not in wanted.get(key.topic, ()):
            yield None
            continue
        topic = topics.get(key.topic)
        if topic is None:
            topic = topics[key.topic] = Answer.DescribeLogDirsTopic(name=key.topic)
            yield TOPIC_BYTES
        topic.partitions.append(
            Answer.DescribeLogDirsPartition(
                partition_index=key.partition,
                partition_size=log.size,
                offset_lag=max(0, log.high_watermark - log.end_offset),
            )
        )
        yield PARTITION_BYTES
    for future in futures:
        key = future.hosted.key
        if wanted is None or key.partition in wanted.get(key.topic, ()):
            topic = topics.setdefault(key.topic, Answer.DescribeLogDirsTopic(name=key.topic))
            topic.partitions.append(
                Answer.DescribeLogDirsPartition(
                    partition_index=key.partition,
                    partition_size=future.size,
                    offset_lag=future.lag,
                    is_future_key=True,
                )
            )
            yield TOPIC_BYTES + PARTITION_BYTES
    result.topics = list(topics.values())
    try:
        usable, total = directory.free_bytes(), directory.total_bytes()
    except OSError as error:
        # Its replicas may be fine: the response has their sizes, and the other directories.
        logger.warning(
            "cannot read the free space of %(log_dir)s: %(error)s",
            {"log_dir": directory.path, "error": error},
        )
        return result
    result.usable_bytes, result.total_bytes = usable, total
    return result


HANDLER = Handler(ApiKey.DESCRIBE_LOG_DIRS, Scope.CLIENT, handle, most_elements=20_000)
