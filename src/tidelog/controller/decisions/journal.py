"""The step from decided writes to one conditional multi-write of the store.

Owns the conditions: every multi-write checks the node of the controller epoch (promise 22), raises
the store's revision by one, and expects of each node the version that this controller knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.decision import Decision, Put, Write
from tidelog.controller.decisions.nodes import apply
from tidelog.metadata import layout
from tidelog.metadata.records import Counter, TopicHistory
from tidelog.metadata.store import CheckVersion, Create, Delete, Operation, Set, parent

MANY = 500
"""At most this many writes fit into a commit of every store: a state is a few hundred bytes. Own
records of topics do not count: each may take half of a commit."""

PER_OPERATION_BYTES = 64
"""The size of an operation in a request without its path and content, rounded up."""


def with_revision(cluster: ClusterState, writes: Sequence[Write]) -> tuple[Write, ...]:
    """Return the writes of one commit: those decided, and the next revision if it is missing."""
    if any(write.path == layout.REVISION for write in writes):
        return tuple(writes)
    return (*writes, Put(layout.REVISION, Counter(cluster.revision + 1)))


def parts(decision: Decision[Any], most_bytes: int | None) -> Iterator[Sequence[Write]]:
    """Yield the writes of a decision, in their order, for as few commits as the store allows.

    Only a decision that ``splits`` takes several. Encodes each write once more.
    """
    writes = decision.writes
    is_small = len(writes) <= MANY and not any(
        isinstance(write, Put) and isinstance(write.record, TopicHistory) for write in writes
    )
    if most_bytes is None or not decision.splits or is_small:
        yield writes
        return
    start = size = 0
    for position, write in enumerate(writes):
        content = len(layout.encode(write.record)) if isinstance(write, Put) else 0
        # Its own path, and those of parents that may have to be created.
        needed = content + 3 * (len(write.path) + PER_OPERATION_BYTES)
        # A partition and its first state, which follows it, belong into one commit.
        follows = position > start and write.path.startswith(f"{writes[position - 1].path}/")
        if size + needed > most_bytes and position > start and not follows:
            yield writes[start:position]
            start, size = position, 0
        size += needed
    yield writes[start:]


def operations(cluster: ClusterState, writes: Sequence[Write]) -> list[Operation]:
    """Return the operations of one commit, with those that create missing parents.

    A persistent node replaces an ephemeral one at its path: written metadata must not end with a
    session, and an ephemeral node cannot have children.
    """
    multi_write: list[Operation] = []
    if not any(write.path == layout.CONTROLLER_EPOCH for write in writes):
        version = cluster.versions[layout.CONTROLLER_EPOCH]
        # A controller that was deposed writes nothing (promise 22).
        multi_write.append(CheckVersion(layout.CONTROLLER_EPOCH, version))
    versions: dict[str, int] = {}
    for write in writes:
        version = versions.get(write.path, cluster.versions.get(write.path, -1))
        if not isinstance(write, Put):
            multi_write.append(Delete(write.path, version))
            versions[write.path] = -1
            continue
        data = layout.encode(write.record)
        if version >= 0:
            multi_write.append(Set(write.path, data, version))
        else:
            multi_write.extend(_parents(cluster, write.path, versions))
            multi_write.extend(_created(cluster, write.path, data, versions))
        # A record that one commit writes twice has the version of the first write.
        versions[write.path] = version + 1
    return multi_write


def containers(multi_write: Sequence[Operation]) -> list[str]:
    """Return the paths that ``operations`` created besides the writes: nodes without content."""
    return [x.path for x in multi_write if isinstance(x, Create) and not x.data]


def _parents(cluster: ClusterState, path: str, versions: dict[str, int]) -> list[Operation]:
    missing: list[Operation] = []
    above = parent(path)
    while above != "/" and versions.get(above, cluster.versions.get(above, -1)) < 0:
        missing[:0] = _created(cluster, above, b"", versions)
        versions[above] = 0
        above = parent(above)
    return missing


def _created(
    cluster: ClusterState, path: str, data: bytes, versions: Mapping[str, int]
) -> Sequence[Operation]:
    made = Create(path, data)
    version = None if path in versions else cluster.ephemeral.get(path)
    return (made,) if version is None else (Delete(path, version), made)


def committed(
    cluster: ClusterState, multi_write: Sequence[Operation], writes: Sequence[Write]
) -> None:
    """Apply a commit that the store has made durable."""
    written = {write.path for write in writes}
    for path in containers(multi_write):
        # ``apply`` counts the version of a record without content, which looks like a container.
        if path not in written:
            cluster.versions[path] = 0
            cluster.ephemeral.pop(path, None)
    apply(cluster, writes)
