"""The machines of a partition's replicas in sync, as far as the controller knows them.

Owns the count for reports and for the begin of a resize. No election rests on it, and a leader
counts by what it knows (decision 0131).
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.registration import address_on
from tidelog.model.racks import Machine, machine_at
from tidelog.replication.watermark import machines_missing

INTER_BROKER, PLAINTEXT = "inter.broker.listener.name", "PLAINTEXT"


def missing_machines(
    cluster: ClusterState, isr: Iterable[int], min_insync_machines: int, replicas: int
) -> int:
    """Return how many machines an ISR lacks for acks=all. A dead member counts as no machine."""
    if min_insync_machines <= 1:
        return 0
    members = tuple(isr)
    return machines_missing(members, _machines(cluster, members), min_insync_machines, replicas)


def _machines(cluster: ClusterState, brokers: Iterable[int]) -> dict[int, Machine]:
    # As leaders do: by the listener between brokers, which this controller's file names, too.
    listener = cluster.layers.static.get(INTER_BROKER, PLAINTEXT)
    machines = {}
    for broker in brokers:
        node = cluster.brokers.get(broker)
        if node is not None:
            address = address_on(node, listener)
            host = None if address is None else address.host
            machines[broker] = machine_at(broker, node.rack, host)
    return machines
