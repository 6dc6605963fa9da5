"""Activation: a controller loads the store, raises the controller epoch and writes its node id.

Owns the first write of a controller. It is conditional on the epoch that it loaded, so of two
controllers that try at once one fails; every later write of the earlier controller fails (promise
22), for it expects the version of the earlier epoch's node.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import chain
from uuid import UUID

from tidelog.controller.decisions import levels
from tidelog.controller.decisions.cluster import ClusterState, LoadedStore
from tidelog.controller.decisions.decision import Put, Write
from tidelog.controller.decisions.journal import committed, operations, with_revision
from tidelog.controller.decisions.lost_store import adoption, is_empty, why_no_id
from tidelog.controller.decisions.nodes import load
from tidelog.controller.performing import NotActive
from tidelog.metadata import layout
from tidelog.metadata.memory import MemoryStore
from tidelog.metadata.records import ClusterId, ControllerNode, Counter
from tidelog.metadata.sqlite import SqliteStore
from tidelog.metadata.store import Create, Delete, MetadataStore, Node, StoreRefused
from tidelog.model.configs.resolve import BrokerLayers
from tidelog.model.configs.server import ServerConfigs
from tidelog.model.levels import LATEST, Level
from tidelog.runtime.seams import Seams

_INDISPENSABLE = (
    layout.CLUSTER_ID,
    layout.CONTROLLER_EPOCH,
    layout.PARTITION_EPOCH,
    layout.BROKER_EPOCH,
    layout.REVISION,
)
"""Nodes that every decision needs: a guess could repeat an epoch."""


def open_store(configs: ServerConfigs, seams: Seams) -> MetadataStore:
    """Return the store that ``metadata.store`` names, not open yet."""
    kind, _, place = configs.metadata_store.partition(":")
    if kind == "sqlite":
        return SqliteStore(place, seams.disk, seams.threads)
    if kind == "zookeeper":
        # Imported late: kazoo costs a start on SQLite time and memory for nothing.
        from tidelog.metadata.zookeeper import ZookeeperStore

        return ZookeeperStore(place.removeprefix("//"))
    return MemoryStore()


MOST_LOADS = 3
"""How often an activation loads everything because another controller wrote meanwhile."""


class AnotherActive(Exception):
    """Another controller is active on this store, or was faster: this one stands by."""


async def activate(
    store: MetadataStore,
    layers: BrokerLayers,
    node_id: int,
    cluster_id: UUID,
    wall_ms: int,
    level: Level = LATEST,
    belongs_to: str | None = None,
    elsewhere: Callable[[], Awaitable[str | None]] | None = None,
) -> ClusterState:
    """Load everything and become active; ``cluster_id`` is the id of a new cluster.

    ``belongs_to`` is the cluster whose log directories this process has, if any: an empty store is
    its lost store then. ``elsewhere`` returns why an empty store is the wrong one, or None.

    Raises StoreRefused when a counter is damaged, the level is refused, or the store belongs to
    another cluster than ``belongs_to`` or has lost its cluster id; AnotherActive when another
    controller is active or was faster; NotActive when a persistent node stands at
    ``/controller``; StoreUnavailable when the store does not respond.
    """
    # First: a standby tries often, and to load everything is expensive.
    held = await store.get(layout.CONTROLLER)
    if held is not None and not held.ephemeral:
        raise NotActive(
            f"the metadata node {layout.CONTROLLER} is not ephemeral, so it ends with no session: "
            "remove it unless another program holds it on purpose"
        )
    if held is not None:
        raise AnotherActive("Another controller is active.")
    cluster = ClusterState(layers=layers, level=level)
    load(cluster, await _whole(store))
    _note_loaded(cluster)
    _check_indispensable(cluster)
    refused = levels.why_refused(cluster)
    if refused is not None:
        raise StoreRefused(refused)
    await _check_identity(store, cluster, belongs_to, elsewhere)
    for writes_of_level in chain(levels.marks(cluster), levels.epochs(cluster)):
        await _write(store, cluster, writes_of_level)
    missing = [path for path in layout.CONTAINERS if path not in cluster.versions]
    in_the_way = [Delete(x, cluster.ephemeral.pop(x)) for x in missing if x in cluster.ephemeral]
    cluster.versions.update(dict.fromkeys(missing, 0))
    writes: list[Write] = [
        Put(layout.CONTROLLER_EPOCH, Counter(cluster.controller_epoch + 1)),
        *levels.mark_of_transactions(cluster),
    ]
    if cluster.cluster_id is None:
        writes += _identity(cluster, cluster_id, belongs_to)
    complete = with_revision(cluster, writes)
    multi_write = operations(cluster, complete)
    node = layout.encode(ControllerNode(node_id, str(wall_ms)))
    everything = [
        *in_the_way,
        *(Create(path, b"") for path in missing),
        *multi_write,
        Create(layout.CONTROLLER, node, ephemeral=True),
    ]
    conflict = await store.multi(everything)
    if conflict is not None:
        raise AnotherActive(f"Another controller was faster ({conflict}).")
    cluster.versions[layout.CONTROLLER] = 0
    committed(cluster, multi_write, complete)
    return cluster


def _check_indispensable(cluster: ClusterState) -> None:
    """Raise StoreRefused if a node is damaged or ephemeral that every decision needs."""
    for path in _INDISPENSABLE:
        if path in cluster.damaged:
            raise StoreRefused(
                f"{cluster.damaged[path]} Restore the store from a backup, or repair this node."
            )
    for path in (*_INDISPENSABLE, layout.PRODUCER_IDS):
        if path in cluster.ephemeral:
            raise StoreRefused(
                f"The metadata node {path} is ephemeral: its count would be lost with a session. "
                "Restore the store from a backup, or create it as a persistent node."
            )


def _note_loaded(cluster: ClusterState) -> None:
    """Note what the store had before this controller wrote to it."""
    newest = cluster.counters.get(layout.PARTITION_EPOCH, 0)
    cluster.loaded = LoadedStore(cluster.revision, newest)


async def _check_identity(
    store: MetadataStore,
    cluster: ClusterState,
    belongs_to: str | None,
    elsewhere: Callable[[], Awaitable[str | None]] | None,
) -> None:
    """Raise StoreRefused for the store of another cluster, or of one that is not known."""
    if cluster.cluster_id is not None:
        if belongs_to not in (None, cluster.cluster_id, cluster.past.founded_as):
            raise StoreRefused(_why_not_whose(belongs_to, cluster.cluster_id))
    elif belongs_to is None:
        refused = why_no_id(cluster)
        if refused is None and elsewhere is not None:
            refused = await elsewhere()
        # Another controller may have founded the cluster in this very store meanwhile.
        if refused is not None and await store.get(layout.CLUSTER_ID) is None:
            raise StoreRefused(refused)


def _identity(cluster: ClusterState, new: UUID, belongs_to: str | None) -> list[Write]:
    """Return the writes that give a store without one its cluster id."""
    if belongs_to is None:
        return [Put(layout.CLUSTER_ID, ClusterId(layout.id_text(new)))]
    if not is_empty(cluster):
        return [Put(layout.CLUSTER_ID, ClusterId(belongs_to))]
    return adoption(cluster, belongs_to, "the log directories of this node belong to it")


def _why_not_whose(belongs_to: str | None, cluster_id: str) -> str:
    return (
        f"The log directories belong to cluster {belongs_to}, and the metadata store is of cluster "
        f"{cluster_id}: check log.dirs and metadata.store."
    )


async def _whole(store: MetadataStore) -> dict[str, Node]:
    """Return all nodes as they were between two commits of controllers.

    A load may be no snapshot: a container that was read empty may have a topic since, written by a
    controller that a tool has just deposed. Every commit raises the revision, so an equal revision
    before and after shows that there was no commit; the first write is conditional on it.
    """
    for _ in range(MOST_LOADS):
        before = await store.get(layout.REVISION)
        nodes = await store.load()
        after = nodes.get(layout.REVISION)
        if before == after:
            return nodes
    raise AnotherActive("Another controller is writing.")


async def _write(store: MetadataStore, cluster: ClusterState, writes: Sequence[Write]) -> None:
    """Write before being active: like every write, conditional on the controller epoch."""
    complete = with_revision(cluster, writes)
    multi_write = operations(cluster, complete)
    conflict = await store.multi(multi_write)
    if conflict is not None:
        raise AnotherActive(f"Another controller was faster ({conflict}).")
    committed(cluster, multi_write, complete)
