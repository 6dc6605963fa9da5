"""Watches on a shared store: changes by other programs are noticed, read and taken up.

Owns the watches of the active controller and the order of a check: it reads changed nodes while no
decision is made, so the controller never takes its own writes for external ones. What a change
means: see ``decisions.external_changes``. A store with one owner has no watches. A node that the
controller removes may have children that are not tidelog's:

| the node to remove | result |
|---|---|
| one of a topic that is being deleted | the topic stays while they exist (``undeletable``) |
| any other: of a dead broker, a configuration, a mark or a note | they are removed with it |

Grows with topics and configured entities: one watch for each (ZooKeeper: one request each at the
activation of this controller, and one for each change).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Protocol, TypeVar

from tidelog.controller.consequences import ControllerEvent
from tidelog.controller.decisions import external_changes, soft_state
from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.decision import Remove, Write
from tidelog.controller.decisions.entropy import Entropy
from tidelog.controller.decisions.external_changes import WATCHED, WATCHED_CHILDREN, Taken
from tidelog.controller.decisions.journal import parts
from tidelog.controller.pending import Changes, changes_of, changes_of_reading, kinds_at
from tidelog.controller.performing import NotActive, Performer
from tidelog.controller.written_plan import begin_plan
from tidelog.metadata import layout
from tidelog.metadata.records import ControllerNode
from tidelog.metadata.store import (
    Conflict,
    Delete,
    MetadataStore,
    Node,
    Operation,
    Reason,
    StoreUnavailable,
    Watch,
    parent,
)
from tidelog.model.configs.server import ServerConfigs
from tidelog.model.topics import TopicPartition
from tidelog.runtime.seams import Seams

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

CHECKED_ONCE = 256
"""The most nodes that one check reads: decisions wait that long."""

RETRY_S = 5.0
"""The pause before a failed check is tried again."""

MOST_STRAYS = 1_000
"""The most foreign children of a node that one commit removes with it."""

MOST_CHECKS = 5
"""How often a check reads nodes again that change while it takes them up."""


_EXTERNALLY_WRITTEN = (
    f"{layout.BROKER_CONFIGS}/",
    f"{layout.CONFIG_CHANGES}/",
    layout.REASSIGN_PARTITIONS,
)

WATCHED_ALONE = (layout.CONTROLLER, layout.REASSIGN_PARTITIONS)
"""Nodes that are watched whether they exist or not."""


class NodeChanged(Exception):
    """Another program has written a node of a write; the store did nothing of the write."""

    def __init__(self, conflict: Conflict, operations: Iterable[Operation]) -> None:
        super().__init__(str(conflict))
        self.conflict = conflict
        self.removes = {x.path for x in operations if isinstance(x, Delete)}


class StoreOwner(Performer, Protocol):
    """A controller, as the watches on its store see it."""

    configs: ServerConfigs
    seams: Seams
    store: MetadataStore
    turn: asyncio.Lock
    entropy: Entropy

    async def commit(
        self, decided: Sequence[Write], cluster: ClusterState, *, first: bool = True
    ) -> Changes:
        """Make writes durable and apply them. Raises NotActive and NodeChanged."""

    def send(self, changes: Changes) -> None:
        """Have every control channel send a change."""

    def lose(self, why: str) -> None:
        """Step down, reload from the store, try again."""


class StoreWatches:
    """The watches of one controller, while it is active."""

    def __init__(self, controller: StoreOwner) -> None:
        self._controller = controller
        self._watches: dict[str, Watch] = {}
        self._strays: dict[str, Watch] = {}
        """On nodes that prevent a topic's deletion: they have children that are not tidelog's."""
        self._changed: dict[str, None] = {}
        self._awake = asyncio.Event()
        self._is_new = False

    def begin(self) -> None:
        """Set the watches, and check every node once: it may have changed since it was loaded."""
        self._changed.clear()
        self._is_new = True
        if self._controller.store.is_shared:
            for path in WATCHED:
                self._watch(path, children=True)
            for path in WATCHED_ALONE:
                self._watch(path, children=False)
            self._changed.update(
                dict.fromkeys((*self._content(), *WATCHED, layout.REASSIGN_PARTITIONS))
            )
        self._awake.set()

    def end(self) -> None:
        """Cancel all watches."""
        watches = [*self._watches.values(), *self._strays.values()]
        self._watches, self._strays = {}, {}
        for watch in watches:
            watch.cancel()
        self._changed.clear()

    async def run(self) -> None:
        """Check changed nodes; endless."""
        while True:
            await self._awake.wait()
            self._awake.clear()
            if not self._controller.active:
                continue
            try:
                if self._is_new:
                    await self._controller.settle(ControllerEvent.LOADED)
                    # Only now: after a failure the next attempt does it again.
                    self._is_new = False
                while self._changed:
                    await self._check_some()
                await begin_plan(self._controller)
            except NotActive:
                logger.debug("the store is loaded again, with its changes")
            except Exception:
                # A bug must not end the watch over the store.
                logger.exception("a change of the store could not be taken up")
                await asyncio.sleep(RETRY_S)
                self._awake.set()

    def notice_damaged(self) -> None:
        """Have nodes read and watched whose repair ends a damage that began without a change of the
        store: an operator repairs them, or has done so already."""
        if self._controller.store.is_shared:
            for path in _to_repair(self._controller.cluster):
                if path not in self._watches:
                    self._notice(path)

    def _watch(self, path: str, *, children: bool) -> None:
        if path not in self._watches:
            self._watches[path] = self._new_watch(path, self._notice, children=children)

    def _new_watch(self, path: str, callback: Callable[[str], None], *, children: bool) -> Watch:
        try:
            return self._controller.store.watch(path, callback, children=children)
        except StoreUnavailable as error:
            # Without the watch no change of this node would be taken up.
            self._controller.lose(str(error))
            raise NotActive from error

    def _notice(self, path: str) -> None:
        self._changed[path] = None
        self._awake.set()

    def _content(self) -> set[str]:
        """Return the nodes whose content is watched: known ones and damaged ones."""
        cluster = self._controller.cluster
        paths = {layout.topic(name) for name in cluster.topics}
        paths |= {layout.topic_configs(name) for name in cluster.topic_configs}
        paths |= {layout.broker_configs(name) for name in cluster.broker_configs}
        return paths | cluster.damaged.keys()

    async def _check_some(self) -> None:
        paths = list(islice(self._changed, CHECKED_ONCE))
        for path in paths:
            del self._changed[path]
        try:
            async with self._controller.turn:
                if not self._controller.active:
                    raise NotActive
                await self._check(paths)
            if self._controller.cluster.marked:
                await self._controller.settle(ControllerEvent.MARKED)
        except BaseException:
            self._changed.update(dict.fromkeys(paths))
            raise

    async def resolve(self, changed: NodeChanged) -> None:
        """Take up the changed node that made a write fail. Called in the turn of a change.

        Returns if a new decision may succeed. Raises NotActive if it cannot: other programs do not
        write this node, or it is unchanged. Then the controller steps down and reloads everything.
        """
        path = changed.conflict.path
        is_settled = False
        if changed.conflict.reason is Reason.NOT_EMPTY:
            is_settled = await self._settle_strays(path, changed.removes)
        elif changed.conflict.reason is Reason.EPHEMERAL_PARENT:
            # An ephemeral node has replaced the parent.
            is_settled = _is_external(parent(path)) and await self._check([parent(path)])
        elif _is_external(path):
            is_settled = await self._check([path])
        if not is_settled:
            self._controller.lose(f"another program wrote: {changed}")
            raise NotActive

    async def _settle_strays(self, path: str, removed: Collection[str]) -> bool:
        """Settle foreign children that prevent the removal of a node, by the module's table.

        Return False if there are none.
        """
        names = await self._ask(self._controller.store.children(path))
        strays = [name for name in names if f"{path}/{name}" not in removed]
        if not strays:
            return False
        topic = layout.topic_of(path)
        own = "" if topic is None else layout.topic(topic)
        if topic is None or not any(x == own or x.startswith(f"{own}/") for x in removed):
            await self._remove_below(path, strays, removed)
            return True
        why = (
            f"The metadata node {path} has children that are not tidelog's ({', '.join(strays)}): "
            f"remove them, then delete the topic {topic} again."
        )
        soft_state.keep_topic(self._controller.cluster, topic, why)
        logger.error("%s", why)
        if path not in self._strays:
            self._strays[path] = self._new_watch(path, self._freed, children=True)
        return True

    async def _remove_below(self, path: str, names: list[str], removed: Collection[str]) -> None:
        """Remove the descendants of a node, children first; at most ``MOST_STRAYS`` of them."""
        gone: list[str] = []
        # Each node twice: before its descendants, and after them.
        todo = [(path, True), *((f"{path}/{name}", False) for name in names)]
        while len(todo) > 1 and len(gone) < MOST_STRAYS:
            node, is_empty = todo.pop()
            if is_empty:
                gone.append(node)
                continue
            below = await self._ask(self._controller.store.children(node))
            todo.append((node, True))
            todo += [(f"{node}/{name}", False) for name in below if f"{node}/{name}" not in removed]
        logger.warning(
            "the metadata node %(node)s is removed with the foreign nodes below it: %(children)s",
            {"node": path, "children": ", ".join(gone)},
        )
        controller = self._controller
        # Another program may have removed or added one: then the next attempt finds the others.
        with contextlib.suppress(NodeChanged):
            writes = [Remove(x) for x in gone]
            controller.send(await controller.commit(writes, controller.cluster))

    def _freed(self, path: str) -> None:
        """Try a topic's deletion again: the children changed of a node that prevented it."""
        watch = self._strays.pop(path, None)
        if watch is not None:
            watch.cancel()
        soft_state.free_topic(self._controller.cluster, layout.topic_of(path))
        self._notice(layout.DELETE_TOPICS)

    async def _check(self, paths: Iterable[str]) -> bool:
        """Read nodes and take up the changed ones; return whether there were any.

        Called in the turn of this change.
        """
        controller = self._controller
        named = dict.fromkeys(paths)
        for _ in range(MOST_CHECKS):
            wanted = await self._ask(self._wanted(named))
            nodes = await self._ask(
                asyncio.gather(*(controller.store.get(path) for path in wanted))
            )
            read = dict(zip(wanted, nodes, strict=True))
            # By name in the next round: a watched node is no new child of a watched parent.
            named.update(dict.fromkeys(wanted))
            if layout.CONTROLLER in read:
                self._check_controller_node(read.pop(layout.CONTROLLER))
            changed_nodes = external_changes.changed(controller.cluster, read)
            try:
                if changed_nodes:
                    self._log(await self._take_up(changed_nodes))
            except NodeChanged as changed:
                conflict = changed.conflict
                if conflict.reason is Reason.NOT_EMPTY or not _is_external(conflict.path):
                    await self.resolve(changed)
                # Otherwise a node changed between the read and the write.
                named[conflict.path] = None
            except BaseException:
                self._changed.update(named)
                raise
            else:
                self._watch_known(wanted)
                return bool(changed_nodes)
        controller.lose(
            f"other programs wrote the nodes that it takes up, {MOST_CHECKS} times in a row"
        )
        raise NotActive

    async def _ask(self, answer: Awaitable[Answer]) -> Answer:
        """Wait for a response of the store. Raises NotActive without one."""
        try:
            return await answer
        except StoreUnavailable as error:
            self._controller.lose(str(error))
            raise NotActive from error

    async def _take_up(self, changed_nodes: Mapping[str, Node | None]) -> Taken:
        """Take up changed nodes on a copy, which becomes the state once all its writes are durable.

        Until then no other code reads nodes that may still be corrected: because of a mark that is
        about to be removed, a FULL would leave out the topic, and its replicas would become stale.
        """
        controller = self._controller
        before, draft = controller.cluster, controller.cluster.draft()
        deletes = controller.configs.delete_topic_enable
        now_ms = controller.seams.clock.wall_ms()
        decision = external_changes.take_up(
            draft, changed_nodes, controller.entropy, deletes, now_ms
        )
        committed = Changes()
        for position, part in enumerate(parts(decision, controller.store.max_write_bytes)):
            committed.add(await controller.commit(part, draft, first=not position))
        # External changes count as they are in the new state.
        changes = changes_of(before, external_changes.as_writes(changed_nodes, draft))
        changes.add(committed)
        changes.add(_of_topics(draft, changed_nodes))
        changes.add(_unmarked(before, draft))
        # Brokers know which topics are unreadable: that one is repaired, or gone, is said as well.
        changes.add(changes_of_reading(before.unreadable_topics, before, draft))
        # Also of what cannot be read, which is no write.
        changes.kinds.update(kinds_at(changed_nodes))
        before.adopt(draft)
        controller.send(changes)
        return decision.answer

    def _log(self, taken: Taken) -> None:
        for line in taken.errors:
            logger.error("%s", line)
        for line in taken.notes:
            logger.warning("%s", line)
        for path in taken.to_check:
            self._notice(path)

    def _check_controller_node(self, node: Node | None) -> None:
        """Step down if another controller is active, or a tool removed the node to force an
        election, as in Kafka."""
        controller = self._controller
        record = None if node is None else layout.decode(layout.CONTROLLER, node.data)
        if not isinstance(record, ControllerNode) or record.brokerid != controller.configs.node_id:
            controller.lose(f"{layout.CONTROLLER} is no longer this controller's")
            raise NotActive

    async def _wanted(self, paths: Iterable[str]) -> list[str]:
        """Return the nodes to read: those named, and new or removed children of watched ones.

        Each one is watched before it is read, so that no change falls between.
        """
        wanted: dict[str, None] = {}
        for path in paths:
            if path not in WATCHED:
                wanted[path] = None
                continue
            names = await self._controller.store.children(path)
            there = {f"{path}/{name}" for name in names}
            if path in WATCHED_CHILDREN:
                watched = {x for x in self._watches if x.rpartition("/")[0] == path}
                there = there ^ watched
            wanted.update(dict.fromkeys(sorted(there)))
        for path in wanted:
            if self._is_watched(path):
                self._watch(path, children=False)
        return list(wanted)

    def _is_watched(self, path: str) -> bool:
        return path.rpartition("/")[0] not in (layout.CONFIG_CHANGES, layout.DELETE_TOPICS)

    def _watch_known(self, paths: Iterable[str]) -> None:
        """Watch the nodes whose repair ends a damage; cancel the watches on removed ones."""
        cluster = self._controller.cluster
        repaired = _to_repair(cluster)
        for path in repaired:
            if path not in self._watches:
                self._watch(path, children=False)
                # Once for each watch: its node may have changed since it was read.
                self._notice(path)
        for path in paths:
            if path in repaired or path in WATCHED_ALONE or path in cluster.ephemeral:
                continue
            if path not in cluster.versions and path in self._watches:
                self._watches.pop(path).cancel()


def _to_repair(cluster: ClusterState) -> dict[str, None]:
    """Return the damaged nodes, and those that may be the wrong ones instead."""
    paths: dict[str, None] = {}
    for path, damaged in cluster.damaged.items():
        paths.update(dict.fromkeys((path, *damaged.others)))
        above, _, name = path.rpartition("/")
        if above == layout.TOPICS:
            paths[layout.topic_history(name)] = None
    return paths


def _is_external(path: str) -> bool:
    """Return whether other programs write a node, so that the controller takes up its change."""
    return layout.topic_of(path) is not None or path.startswith(_EXTERNALLY_WRITTEN)


def _of_topics(cluster: ClusterState, changed_nodes: Mapping[str, Node | None]) -> Changes:
    """Return the changes for a topic's changed node: all its partitions."""
    names = [
        path.rpartition("/")[2] for path in changed_nodes if path.startswith(f"{layout.TOPICS}/")
    ]
    return Changes(partitions=_partitions(cluster, names))


def _unmarked(before: ClusterState, after: ClusterState) -> Changes:
    """Return the partitions of topics that are no longer marked: brokers were not sent them."""
    return Changes(partitions=_partitions(after, before.marked - after.marked))


def _partitions(cluster: ClusterState, names: Iterable[str]) -> set[TopicPartition]:
    return {
        TopicPartition(name, index)
        for name in names
        if name in cluster.topics
        for index in cluster.topics[name].partitions
    }
