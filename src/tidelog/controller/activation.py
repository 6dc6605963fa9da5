"""Becoming the active controller: load the store, raise the controller epoch, name oneself.

Owns the first write of a controller. It is conditional on the epoch that was loaded, so of two
controllers that try at once one fails; every later write of an earlier controller fails (promise
22), for it expects the earlier epoch's node.
"""

from __future__ import annotations

from uuid import UUID

from tidelog.controller.decisions.cluster import Cluster, Put, Write, load
from tidelog.controller.decisions.journal import committed, operations, with_revision
from tidelog.metadata import layout
from tidelog.metadata.records import ClusterId, ControllerNode, Counter
from tidelog.metadata.store import Create, MetadataStore, StoreRefused
from tidelog.model.config_definitions import BrokerLayers

_INDISPENSABLE = (
    layout.CLUSTER_ID,
    layout.CONTROLLER_EPOCH,
    layout.PARTITION_EPOCH,
    layout.BROKER_EPOCH,
    layout.REVISION,
)
"""Nodes without which nothing can be decided: guessing one could repeat an epoch."""


class AnotherActive(Exception):
    """Another controller is active on this store, or was faster: stand by."""


async def activate(
    store: MetadataStore, layers: BrokerLayers, node_id: int, cluster_id: UUID, wall_ms: int
) -> Cluster:
    """Load everything and become active; ``cluster_id`` names a cluster that is new.

    Raises StoreRefused when a counter is damaged, AnotherActive when another is active or was
    faster, StoreUnavailable when the store does not answer.
    """
    if await store.exists(layout.CONTROLLER):
        # Looked at first: a standby asks often, and loading everything costs.
        raise AnotherActive("Another controller is active.")
    cluster = Cluster(layers=layers)
    load(cluster, await store.load())
    for path in _INDISPENSABLE:
        if path in cluster.damaged:
            raise StoreRefused(
                f"{cluster.damaged[path]} Restore the store from a backup, or repair this node."
            )
    missing = [path for path in layout.CONTAINERS if path not in cluster.versions]
    cluster.versions.update(dict.fromkeys(missing, 0))
    writes: list[Write] = [Put(layout.CONTROLLER_EPOCH, Counter(cluster.controller_epoch + 1))]
    if cluster.cluster_id is None:
        writes.append(Put(layout.CLUSTER_ID, ClusterId(layout.id_text(cluster_id))))
    complete = with_revision(cluster, writes)
    found = operations(cluster, complete)
    node = layout.encode(ControllerNode(node_id, str(wall_ms)))
    everything = [
        *(Create(path, b"") for path in missing),
        *found,
        Create(layout.CONTROLLER, node, ephemeral=True),
    ]
    conflict = await store.multi(everything)
    if conflict is not None:
        raise AnotherActive(f"Another controller was faster ({conflict}).")
    cluster.versions[layout.CONTROLLER] = 0
    committed(cluster, found, complete)
    return cluster
