"""Methods of the blocking clients that are those of the asyncio ones, derived in one place.

Owns which methods these are, and in which way each one runs. Not their arguments, results and
docstrings, which are those of ``tidelog.aio``: ``derived_methods.pyi`` shows them to editors and to
type checkers. ``python -m tests.support.blocking_stubs`` writes it, and ``make check`` compares.
Not the methods that differ: see ``consumer``, ``producer`` and ``admin``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

from tidelog.aio.admin import Admin as AsyncAdmin
from tidelog.aio.consumer import Consumer as AsyncConsumer
from tidelog.aio.producer import Producer as AsyncProducer
from tidelog.blocking.caller_thread import CallerThread
from tidelog.blocking.loop import ClientLoop

Method = Callable[..., Any]


def _waits(method: Method) -> Method:
    """Run a coroutine method on the loop, and wait for its result."""

    @wraps(method)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self._wait(method(self._client, *args, **kwargs))

    return call


def _does(method: Method) -> Method:
    """Call a method that does not wait on the loop, where its state is."""

    @wraps(method)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self._caller.do(method, self._client, *args, **kwargs)

    return call


def _does_outside_callbacks(method: Method) -> Method:
    """Do the same, and raise WrongState in a callback."""
    does = _does(method)

    @wraps(method)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        self._caller.refuse_in_callback(method.__name__)
        return does(self, *args, **kwargs)

    return call


def _reads(method: Method) -> Method:
    """Call a method that reads one value in the thread of the caller."""

    @wraps(method)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return method(self._client, *args, **kwargs)

    return call


class ConsumerMethods:
    """The methods of a consumer that differ only in that they block."""

    def __init__(self, caller: CallerThread, client: AsyncConsumer) -> None:
        self._caller = caller
        self._wait = caller.wait
        self._client = client

    subscribe = _does_outside_callbacks(AsyncConsumer.subscribe)
    assign = _does_outside_callbacks(AsyncConsumer.assign)
    subscription = _reads(AsyncConsumer.subscription)
    assignment = _does(AsyncConsumer.assignment)
    group_metadata = _does(AsyncConsumer.group_metadata)
    seek = _does(AsyncConsumer.seek)
    position = _waits(AsyncConsumer.position)
    pause = _does(AsyncConsumer.pause)
    resume = _does(AsyncConsumer.resume)
    paused = _reads(AsyncConsumer.paused)
    waiting = _does(AsyncConsumer.waiting)
    highwater = _reads(AsyncConsumer.highwater)
    commit = _waits(AsyncConsumer.commit)
    committed = _waits(AsyncConsumer.committed)
    topics = _waits(AsyncConsumer.topics)
    partitions_for_topic = _waits(AsyncConsumer.fetch_partitions)
    offsets_for_times = _waits(AsyncConsumer.offsets_for_times)
    beginning_offsets = _waits(AsyncConsumer.beginning_offsets)
    end_offsets = _waits(AsyncConsumer.end_offsets)
    bootstrap_connected = _reads(AsyncConsumer.bootstrap_connected)
    metrics = _does(AsyncConsumer.metrics)


class ProducerMethods:
    """The transactions of a producer: each call comes after the records before it."""

    def __init__(
        self, wait: Callable[[Coroutine[Any, Any, Any]], Any], client: AsyncProducer
    ) -> None:
        self._wait = wait
        self._client = client

    init_transactions = _waits(AsyncProducer.init_transactions)
    begin_transaction = _waits(AsyncProducer.begin_transaction)
    send_offsets_to_transaction = _waits(AsyncProducer.send_offsets_to_transaction)
    commit_transaction = _waits(AsyncProducer.commit_transaction)
    abort_transaction = _waits(AsyncProducer.abort_transaction)
    prepare = _waits(AsyncProducer.prepare)
    complete_transaction = _waits(AsyncProducer.complete_transaction)


class AdminMethods:
    """The methods of an admin client, which differ only in that they block."""

    def __init__(self, loop: ClientLoop, client: AsyncAdmin) -> None:
        self._wait = loop.run
        self._client = client

    list_topics = _waits(AsyncAdmin.list_topics)
    describe_topics = _waits(AsyncAdmin.describe_topics)
    create_topics = _waits(AsyncAdmin.create_topics)
    delete_topics = _waits(AsyncAdmin.delete_topics)
    create_partitions = _waits(AsyncAdmin.create_partitions)
    set_partition_count = _waits(AsyncAdmin.set_partition_count)
    delete_records = _waits(AsyncAdmin.delete_records)
    list_offsets = list_partition_offsets = _waits(AsyncAdmin.list_offsets)
    alter_partition_reassignments = _waits(AsyncAdmin.alter_partition_reassignments)
    list_partition_reassignments = _waits(AsyncAdmin.list_partition_reassignments)
    elect_leaders = _waits(AsyncAdmin.elect_leaders)
    describe_cluster = _waits(AsyncAdmin.describe_cluster)
    describe_log_dirs = _waits(AsyncAdmin.describe_log_dirs)
    describe_configs = _waits(AsyncAdmin.describe_configs)
    alter_configs = incremental_alter_configs = _waits(AsyncAdmin.alter_configs)
    list_groups = list_consumer_groups = _waits(AsyncAdmin.list_groups)
    describe_groups = describe_consumer_groups = _waits(AsyncAdmin.describe_groups)
    delete_groups = delete_consumer_groups = _waits(AsyncAdmin.delete_groups)
    list_group_offsets = list_consumer_group_offsets = _waits(AsyncAdmin.list_group_offsets)
    alter_group_offsets = alter_consumer_group_offsets = _waits(AsyncAdmin.alter_group_offsets)
    delete_group_offsets = delete_consumer_group_offsets = _waits(AsyncAdmin.delete_group_offsets)
