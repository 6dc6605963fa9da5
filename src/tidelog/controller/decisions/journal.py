"""From decided writes to one conditional multi-write of the store.

Owns the conditions: every multi-write checks the controller epoch's node (promise 22), counts the
store's revision, and expects of each node the version that this controller knows.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.controller.decisions.cluster import Cluster, Put, Write, apply
from tidelog.metadata import layout
from tidelog.metadata.records import Counter
from tidelog.metadata.store import Check, Create, Delete, Operation, Set, parent


def with_revision(cluster: Cluster, writes: Sequence[Write]) -> tuple[Write, ...]:
    """Return the writes of one commit: those decided, and the next revision."""
    return (*writes, Put(layout.REVISION, Counter(cluster.revision + 1)))


def operations(cluster: Cluster, writes: Sequence[Write]) -> list[Operation]:
    """Return the operations of one commit; missing parents are created on the way."""
    found: list[Operation] = []
    if not any(write.path == layout.CONTROLLER_EPOCH for write in writes):
        version = cluster.versions[layout.CONTROLLER_EPOCH]
        found.append(Check(layout.CONTROLLER_EPOCH, version))
    known: dict[str, int] = {}
    for write in writes:
        version = known.get(write.path, cluster.versions.get(write.path, -1))
        if not isinstance(write, Put):
            found.append(Delete(write.path, version))
            known[write.path] = -1
            continue
        data = layout.encode(write.record)
        if version >= 0:
            found.append(Set(write.path, data, version))
        else:
            found.extend(_parents(cluster, write.path, known))
            found.append(Create(write.path, data))
        # A record that one commit writes twice has the version of the first write by then.
        known[write.path] = version + 1
    return found


def containers(found: Sequence[Operation]) -> list[str]:
    """Return the paths that ``operations`` created beside the writes: nodes without content."""
    return [x.path for x in found if isinstance(x, Create) and not x.data]


def _parents(cluster: Cluster, path: str, known: dict[str, int]) -> list[Operation]:
    missing: list[Operation] = []
    above = parent(path)
    while above != "/" and known.get(above, cluster.versions.get(above, -1)) < 0:
        missing.append(Create(above, b""))
        known[above] = 0
        above = parent(above)
    return missing[::-1]


def committed(cluster: Cluster, found: Sequence[Operation], writes: Sequence[Write]) -> None:
    """Take up a commit that the store has made durable."""
    for path in containers(found):
        cluster.versions[path] = 0
    apply(cluster, writes)
