"""The public admin client that blocks: each method of ``tidelog.aio.Admin``, run on the loop.

Owns the way to the loop. Not arguments and results: see ``tidelog.aio.admin``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack

from tidelog.aio.admin import Admin as AsyncAdmin
from tidelog.aio.cluster_configs import ClusterConfigs
from tidelog.blocking.loop import ClientLoop

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


def _blocking(
    method: Callable[Concatenate[AsyncAdmin, Arguments], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Admin, Arguments], Result]:
    """Return a method that runs one of the asyncio client, and waits for its result."""

    @wraps(method)
    def call(self: Admin, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return self._loop.run(method(self._inner, *args, **kwargs))

    return call


class Admin:
    """Administers a cluster. It connects when it is made; close it, or use ``with``.

    Its methods are those of ``tidelog.aio.Admin``, with the same arguments, results and errors.
    """

    def __init__(self, **configs: Unpack[ClusterConfigs]) -> None:
        self._inner = AsyncAdmin(**configs)
        self._loop = ClientLoop()
        try:
            self._loop.run(self._inner.start())
        except BaseException:
            self._loop.leave()
            raise

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; a second call does nothing."""
        if not self._loop.has_left:
            try:
                self._loop.run(self._inner.close())
            finally:
                self._loop.leave()

    list_topics = _blocking(AsyncAdmin.list_topics)
    describe_topics = _blocking(AsyncAdmin.describe_topics)
    create_topics = _blocking(AsyncAdmin.create_topics)
    delete_topics = _blocking(AsyncAdmin.delete_topics)
    create_partitions = _blocking(AsyncAdmin.create_partitions)
    set_partition_count = _blocking(AsyncAdmin.set_partition_count)
    delete_records = _blocking(AsyncAdmin.delete_records)
    list_offsets = list_partition_offsets = _blocking(AsyncAdmin.list_offsets)
    alter_partition_reassignments = _blocking(AsyncAdmin.alter_partition_reassignments)
    list_partition_reassignments = _blocking(AsyncAdmin.list_partition_reassignments)
    elect_leaders = _blocking(AsyncAdmin.elect_leaders)
    describe_cluster = _blocking(AsyncAdmin.describe_cluster)
    describe_log_dirs = _blocking(AsyncAdmin.describe_log_dirs)
    describe_configs = _blocking(AsyncAdmin.describe_configs)
    alter_configs = incremental_alter_configs = _blocking(AsyncAdmin.alter_configs)
    list_groups = list_consumer_groups = _blocking(AsyncAdmin.list_groups)
    describe_groups = describe_consumer_groups = _blocking(AsyncAdmin.describe_groups)
    delete_groups = delete_consumer_groups = _blocking(AsyncAdmin.delete_groups)
    list_group_offsets = list_consumer_group_offsets = _blocking(AsyncAdmin.list_group_offsets)
    alter_group_offsets = alter_consumer_group_offsets = _blocking(AsyncAdmin.alter_group_offsets)
    delete_group_offsets = delete_consumer_group_offsets = _blocking(
        AsyncAdmin.delete_group_offsets
    )
