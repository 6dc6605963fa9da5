"""The metadata store of the simulated cluster: one tree, sessions that may expire, a bad network.

Owns what a ZooKeeper does to its clients: answers take time, a session ends a while after its
process, a store that is cut off answers nothing, and a write whose answer was lost may have been
made. Also owns the journal of all writes that were made, for the checkers. What the nodes mean is
the product's.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.simulation.kernel import Process, ProcessKilled, World
from tidelog.metadata.memory import MemoryStore, MemoryTree
from tidelog.metadata.store import (
    ROOT,
    Conflict,
    Node,
    Operation,
    StoreUnavailable,
    Watch,
    parent,
)

if TYPE_CHECKING:
    from tests.simulation.cluster.nodes import ControllerNode

TOOL = "a tool"
"""The writer to the store beside the controllers, which checks no epoch."""

SESSION_SECONDS = 4.0
"""How long a session outlives the last sign of its process, as ``metadata.zookeeper`` has it."""


@dataclass(frozen=True)
class Commit:
    """One write that was made: when (virtual seconds), by which session and which controller."""

    at: float
    session: int
    controller: str
    operations: tuple[Operation, ...]


class JournalTree(MemoryTree):
    """The nodes, and every write that was made on them, in order."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.journal: list[Commit] = []
        self.owners: dict[int, str] = {}
        """Session -> the process whose session it is."""
        self.when_written: Callable[[Commit], None] = lambda _: None

    def apply(self, session: int, operations: Sequence[Operation]) -> Conflict | None:
        conflict = super().apply(session, operations)
        owner = self.owners.get(session, "no owner")
        what = conflict.path if conflict is not None else "made"
        self.world.trace.event("commit", owner, session, len(operations), what)
        if conflict is None:
            now = self.world.loop.time()
            commit = Commit(now, session, owner, tuple(operations))
            self.journal.append(commit)
            self.when_written(commit)
        return conflict

    def copy(self) -> dict[str, Any]:
        """Return a backup: all nodes that do not end with a session."""
        return {path: kept for path, kept in self.nodes.items() if kept.session is None}

    def put_back(self, copy: dict[str, Any]) -> None:
        """Put a backup in the place of all nodes. There may be no session."""
        assert not self.watches, "a process with a watch would not notice"
        self.world.trace.event("put-back", len(copy))
        self.nodes = dict(copy)
        self.names = {path: set() for path in copy}
        for path in copy:
            if path != ROOT:
                self.names[parent(path)].add(path.rpartition("/")[2])


class SimulatedStore(MemoryStore):
    """One session of one controller process with the tree.

    ``reachable`` goes with the link: a store that is cut off raises ``StoreUnavailable`` after a
    while; so does a write whose answer is lost, be it made or not.
    """

    def __init__(
        self, tree: JournalTree, node: ControllerNode, process: Process, rng: random.Random
    ) -> None:
        super().__init__(tree)
        self.tree: JournalTree = tree
        self._node = node
        self._process = process
        self._rng = rng

    async def open(self) -> None:
        await self._travel()
        await super().open()
        assert self._session is not None
        self.tree.owners[self._session] = self._process.name + "@" + self._process.host
        self._node.sessions.append(self)

    async def close(self) -> None:
        await super().close()
        if self in self._node.sessions:
            self._node.sessions.remove(self)

    async def get(self, path: str) -> Node | None:
        await self._travel()
        return await super().get(path)

    async def children(self, path: str) -> list[str]:
        await self._travel()
        return await super().children(path)

    async def load(self) -> dict[str, Node]:
        await self._travel()
        return await super().load()

    async def multi(self, operations: Sequence[Operation]) -> Conflict | None:
        await self._travel()
        if self._node.slow_store_s:
            await asyncio.sleep(self._node.slow_store_s)
        fate = self._node.fate_of_a_write()
        if fate == "lost":
            raise StoreUnavailable("the write was lost on its way")
        if fate == "killed before":
            self._die()
        conflict = await super().multi(operations)
        if fate == "killed after":
            self._die()
        if fate == "unknown":
            raise StoreUnavailable("the answer to a write was lost")
        await self._travel()
        return conflict

    def _die(self) -> None:
        self._process.kill()
        raise ProcessKilled("a write to the store")

    def watch(self, path: str, callback: Callable[[str], None], **options: Any) -> Watch:
        # Called in the session's own process, some time after the change.
        def later(changed: str) -> None:
            if self._process.alive:
                self._process.call(
                    asyncio.get_running_loop().call_later, self._delay(), callback, changed
                )

        return super().watch(path, later, **options)

    def expire(self) -> None:
        """The session ends by itself, and its process is notified (when it runs)."""
        session, self._session = self._session, None
        self.reachable = False
        if self in self._node.sessions:
            self._node.sessions.remove(self)
        if session is None:
            return
        self.tree.end_session(session)
        if self._process.alive and self.when_lost is not None:
            loop = asyncio.get_running_loop()
            self._process.call(loop.call_soon, self.when_lost, "the session expired")

    @property
    def session(self) -> int | None:
        """The number of the open session."""
        return self._session

    def _delay(self) -> float:
        return self._rng.uniform(0.0002, 0.004)

    async def _travel(self) -> None:
        if self._node.cut_off:
            self.reachable = False
            await asyncio.sleep(self._rng.uniform(0.5, 2.0))
            raise StoreUnavailable("the store does not answer")
        await asyncio.sleep(self._delay())
        self.reachable = self._session is not None
