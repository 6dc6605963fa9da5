"""Changes of ``/admin/reassign_partitions``: a plan that another program wrote for old tools.

Owns what each change of the node means, and when the node is written again or removed (KIP-455,
"Compatibility"). Which rows are accepted: see ``reassignments``. The state of a row: see ``plan``.

| the plan known | the node as read | result |
|---|---|---|
| none | rows | they are due: their moves start, or replace the targets of running ones |
| none | empty | it waits for a write |
| none | unreadable, or of a newer version | one log line; it is removed |
| some | other content | it is ignored: a log line; the rows that are left are written back |
| some | removed | the plan is forgotten; its moves go on |

At the start of a controller all rows of the node are due, so they win over the state nodes. A row
that is refused leaves the node with a log line, and the others go on. So do the rows of a topic
that is marked for deletion, below level 1.4 too, where its nodes stay until all brokers confirmed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.decision import Decision, Put, Remove, Write
from tidelog.controller.decisions.moves import AT_ONCE
from tidelog.controller.decisions.nodes import counts_as_none, take, why_none
from tidelog.controller.decisions.plan import WrittenPlan, node_of
from tidelog.controller.decisions.reassignments import Answered, Asked, reassign
from tidelog.metadata import layout
from tidelog.metadata.store import Node
from tidelog.model.topics import by_topic

PATH = layout.REASSIGN_PARTITIONS


@dataclass
class Noticed:
    """A change of the node: what is written because of it, and log lines."""

    writes: list[Write] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def notice(cluster: ClusterState, node: Node | None) -> Noticed:
    """Take up the node as read now, which is not what the cluster knows. Changes the cluster."""
    noticed, running = Noticed(), len(cluster.plan.rows)
    is_none = node is None or counts_as_none(PATH, node)
    former = node_of(cluster.plan) if running else None
    if former is not None and node is not None and not is_none:
        noticed.errors.append(
            f"A second write of {PATH} is ignored: reassignments of {len(former.partitions)} "
            "partitions in it are under way. Write the node again when it is gone."
        )
        noticed.writes.append(Put(PATH, former))
        take(cluster, PATH, Node(layout.encode(former), node.version))
        return noticed
    # Rows whose work is over count for nothing in the plan that replaces them.
    cluster.plan = WrittenPlan()
    take(cluster, PATH, node)
    if PATH in cluster.damaged:
        noticed.errors.append(f"{cluster.damaged[PATH]} It is removed.")
        noticed.writes.append(Remove(PATH))
    elif PATH in cluster.ephemeral:
        noticed.notes.append(why_none(PATH))
    elif node is None and running:
        noticed.notes.append(
            f"{PATH} was removed: its reassignments go on. To end them, cancel them by "
            "AlterPartitionReassignments."
        )
    elif cluster.plan.rows:
        noticed.notes.append(f"{PATH} was written: it names {len(cluster.plan.rows)} partitions")
    return noticed


def due(cluster: ClusterState) -> Iterator[Sequence[Asked]]:
    """Yield the rows to begin, as elements of a long request: of one topic each."""
    plan = cluster.plan
    for places in by_topic(sorted(plan.due)).values():
        asked = [Asked(tp, tuple(plan.rows[tp])) for tp in places]
        for start in range(0, len(asked), AT_ONCE):
            yield asked[start : start + AT_ONCE]


def begin(cluster: ClusterState, elements: Sequence[Sequence[Asked]]) -> Decision[list[Answered]]:
    """Start the moves of rows, or change their targets. A row that left the plan is left out."""
    plan = cluster.plan
    return reassign(
        cluster,
        [
            one
            for element in elements
            for one in element
            if one.where in plan.due and plan.rows[one.where] == list(one.targets or ())
        ],
    )


def is_outdated(cluster: ClusterState) -> bool:
    """Return whether the node is to be written again, or removed. O(1)."""
    if cluster.went_back is not None:
        return False
    return cluster.plan.is_outdated or PATH in cluster.damaged


def brought_up_to_date(cluster: ClusterState) -> Decision[list[str]]:
    """Write the node without the rows whose work is over, or remove it; the answer has log lines.

    A node that cannot be read has no work.
    """
    if not is_outdated(cluster):
        return Decision([])
    lines = [
        f"{count} rows of {PATH} end: the topic {name} is being deleted"
        for name, count in _ended_by_deletions(cluster).items()
    ]
    left = None if PATH in cluster.damaged else node_of(cluster.plan)
    if left is not None:
        return Decision(lines, (Put(PATH, left),))
    lines.append(f"{PATH} is removed: nothing in it is left to do")
    return Decision(lines, (Remove(PATH),))


def _ended_by_deletions(cluster: ClusterState) -> Mapping[str, int]:
    """Count the rows, by topic, whose move was running when their topic was marked."""
    if not cluster.marked:
        return {}
    marked, moves = cluster.marked, cluster.moves
    ended = (x for x in cluster.plan.ended if x.topic in marked and x in moves)
    return Counter(tp.topic for tp in ended)
