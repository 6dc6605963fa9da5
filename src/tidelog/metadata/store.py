"""The metadata store's interface: a tree of nodes with versions, compare-and-set, atomic writes.

Owns what every store promises; one conformance suite tests all of them. Not what the nodes mean:
see ``layout``. Not which controller may write: every write is conditional on a controller epoch.

Rules, those of ZooKeeper: a path is "/" separated and absolute; a node's version is 0 when it is
created and +1 at each set; a node is created under an existing parent and deleted without
children; an ephemeral node has no children and is removed with the session that created it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

ANY_VERSION = -1
"""An expected version that every version meets."""

ROOT = "/"


class Node(NamedTuple):
    """The content of a node, and how often it was set since it was created.

    An ``ephemeral`` node is removed with the session that created it, which may be another one.
    """

    data: bytes
    version: int
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Create:
    """Create a node that does not exist."""

    path: str
    data: bytes
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Set:
    """Replace the content of a node that has this version."""

    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a node that has this version and no children."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class CheckVersion:
    """Fail the whole write unless the node has this version."""

    path: str
    version: int


Operation = Create | Set | Delete | CheckVersion


class Reason(Enum):
    """Why an operation was refused."""

    EXISTS = "the node exists"
    MISSING = "the node does not exist"
    VERSION = "the node has another version"
    NOT_EMPTY = "the node has children"
    EPHEMERAL_PARENT = "the parent is ephemeral"


@dataclass(frozen=True, slots=True)
class Conflict:
    """The first operation that failed; the store did nothing of the write."""

    path: str
    reason: Reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason.value}"


class StoreRefused(Exception):
    """The store cannot be opened: its sentence says why and what to do."""


class StoreUnavailable(Exception):
    """The store did not respond. The outcome of a write is unknown."""


class WriteTooLarge(StoreUnavailable):
    """The write is larger than the store takes; the store did nothing of it."""


class Watch(Protocol):
    """A standing watch; it ends when it is cancelled or the store is closed."""

    def cancel(self) -> None:
        """Stop calling the callback; a second call does nothing."""


class MetadataStore(Protocol):
    """One process's session with the store. Every method may wait for the disk or the network."""

    is_shared: bool
    """Whether other programs than one controller can write to it: then its nodes are watched."""

    max_write_bytes: int | None
    """The most that one ``multi`` may hold, paths and contents; None: any."""

    reachable: bool
    """Whether the store responds now, as far as this session knows; False while it is not open."""

    when_lost: Callable[[str], None] | None
    """Called once in the loop, with the reason, when an open session ended by itself."""

    async def open(self) -> None:
        """Begin the session. Raises StoreRefused or StoreUnavailable."""

    async def close(self) -> None:
        """End the session, its ephemeral nodes and its watches. A second call does nothing."""

    async def get(self, path: str) -> Node | None:
        """Return the node, or None if there is none."""

    async def exists(self, path: str) -> bool:
        """Return whether there is a node."""

    async def children(self, path: str) -> list[str]:
        """Return the names of the node's children, sorted; none if there is no node."""

    async def load(self) -> dict[str, Node]:
        """Return all nodes by path, as they stood at one moment (or nearly: see the store)."""

    async def multi(self, operations: Sequence[Operation]) -> Conflict | None:
        """Do all operations, in order, or none. When it returns None they are durable."""

    def watch(self, path: str, callback: Callable[[str], None], *, children: bool = True) -> Watch:
        """Call ``callback(path)`` in the loop after the node, or the list of its children, changed.

        Without ``children`` a change of the list may cause no call: cheaper where there are many
        children. Several changes in quick succession may cause one call; the session's own changes
        cause calls too.
        """


def parent(path: str) -> str:
    """Return the path of the node above; of "/x" it is "/"."""
    return path.rpartition("/")[0] or ROOT


def why_invalid(path: str) -> str | None:
    """Return one clause that says why ``path`` is no node's path, or None."""
    if path == ROOT:
        return None
    if not path.startswith("/") or path.endswith("/"):
        return "it must begin with / and not end with it"
    if any(part in ("", ".", "..") for part in path[1:].split("/")):
        return "it has an empty or relative part"
    if "\0" in path:
        return "it has a null character"
    return None
