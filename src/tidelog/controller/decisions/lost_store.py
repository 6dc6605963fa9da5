"""Lost stores: an empty store is not the store of a new cluster until something proves it.

Owns when a store counts as empty, and the step from an empty store to the oldest possible copy of a
cluster's store: one that knows the cluster's id and nothing else. It then goes on like any store
that has gone back in time: see ``restoration``. Not which evidence there is: see ``founding``.
Source: docs/decisions/0085.

| the store has | the evidence | result |
|---|---|---|
| nothing | none | a new cluster, founded |
| nothing, or a cluster without anything | of a cluster | the lost store of that cluster |
| topics, and no cluster id | of a cluster | the id is put back |
| topics, and no cluster id | none | refused |
| a cluster with topics | of another cluster | the broker is refused |
"""

from __future__ import annotations

from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.decision import Decision, Put, Write
from tidelog.metadata import layout
from tidelog.metadata.records import ClusterId, WentBack
from tidelog.model.ways_out import RESTORED

WAYS_OUT = (
    "Nothing is created, deleted or commanded. Stop this controller and put a backup in the place "
    f"of the store, or start every broker and see {RESTORED}."
)


def is_empty(cluster: ClusterState) -> bool:
    """Return whether nothing was ever created in a store, apart from the cluster itself."""
    return (
        cluster.went_back is None
        and not cluster.damaged
        and not cluster.topics
        and not cluster.topic_histories
        and not cluster.deletions
        and not cluster.marked
        and not cluster.topic_configs
        and not cluster.broker_configs
        and cluster.producer_ids is None
        and not cluster.counters.get(layout.PARTITION_EPOCH, 0)
    )


def lost(cluster_id: str, witness: str) -> str:
    """Return the sentence about the lost store of a cluster; ``witness``: what shows it."""
    return (
        f"The metadata store of cluster {cluster_id} is lost: {witness}, and this store is empty. "
        f"{WAYS_OUT}"
    )


def adoption(cluster: ClusterState, cluster_id: str, witness: str) -> list[Write]:
    """Return the writes that make an empty store the lost store of a cluster."""
    mark = WentBack(lost(cluster_id, witness), founded_as=cluster.cluster_id or "")
    # The mark first: no part of this leaves the id of a cluster on a store that may command.
    return [Put(layout.WENT_BACK, mark), Put(layout.CLUSTER_ID, ClusterId(cluster_id))]


def adopt(cluster: ClusterState, cluster_id: str, witness: str) -> Decision[bool]:
    """Decide about evidence of another cluster; the answer is whether its store is lost."""
    if not is_empty(cluster) or cluster.cluster_id == cluster_id:
        return Decision(False)
    return Decision(True, tuple(adoption(cluster, cluster_id, witness)))


def why_no_id(cluster: ClusterState) -> str | None:
    """Return a sentence if a store without a cluster id is not an empty one, or None."""
    if cluster.cluster_id is not None or is_empty(cluster):
        return None
    return (
        f"The metadata store has topics or counters and no node {layout.CLUSTER_ID}: restore the "
        "store from a backup, or create the node again with the cluster.id that meta.properties in "
        "the log directories of the brokers names."
    )
