"""Whether enough replicas of a led partition are in sync: on how many machines, and how many.

Owns the two minimums as a leader applies them to its committed ISR, and the machines of brokers
(decision 0131). Not the rules: see ``replication.watermark``; not elections: the second minimum
makes no replica eligible.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from tidelog.broker.partitions.state import LeaderAndIsrState
from tidelog.model.racks import Machine, machine_at
from tidelog.model.topics import TopicPartition
from tidelog.replication.watermark import machines_missing
from tidelog.storage.log.partition_log import PartitionLog


class _Broker(Protocol):
    # A live broker: ``metadata.cache.BrokerMetadata``.
    @property
    def node_id(self) -> int: ...
    @property
    def endpoints(self) -> Mapping[str, tuple[str, int]]: ...
    @property
    def rack(self) -> str | None: ...


class _Led(Protocol):
    # ``partition.HostedPartition``.
    key: TopicPartition
    log: PartitionLog
    state: LeaderAndIsrState
    machines: Machines
    required_in_sync: int


class Machines(dict[int, Machine]):
    """The machine of each broker, as UpdateMetadata last named it. A broker that is not listed now
    keeps its machine: while it is in an ISR, its records count there."""

    def take(self, brokers: Iterable[_Broker], listener: str) -> bool:
        """Take over the live brokers; return whether a machine is another one now."""
        before = dict(self)
        for broker in brokers:
            first = next(iter(broker.endpoints.values()), (None, 0))
            host, _ = broker.endpoints.get(listener, first)
            self[broker.node_id] = machine_at(broker.node_id, broker.rack, host)
        return self != before


def lacks_machines(partition: _Led) -> bool:
    """Whether the committed ISR is on fewer machines than ``min.insync.machines``."""
    minimum = partition.log.configs.min_insync_machines
    if minimum <= 1:
        return False
    state = partition.state
    return machines_missing(state.isr, partition.machines, minimum, len(state.replicas)) > 0


def is_too_small(partition: _Led) -> bool:
    """Whether the committed ISR is too small for acks=all: the watermark stands still."""
    return len(partition.state.isr) < partition.required_in_sync or lacks_machines(partition)


def why_too_few(partition: _Led) -> str:
    """Return the sentence of NOT_ENOUGH_REPLICAS."""
    state = partition.state
    if len(state.isr) < partition.required_in_sync:
        return (
            f"{partition.key} has {len(state.isr)} replicas in sync; "
            f"min.insync.replicas asks for {partition.required_in_sync}"
        )
    minimum = min(partition.log.configs.min_insync_machines, len(state.replicas))
    missing = machines_missing(state.isr, partition.machines, minimum, len(state.replicas))
    return (
        f"{partition.key} has replicas in sync on {minimum - missing} of the {minimum} machines "
        "that min.insync.machines asks for"
    )
