"""Changes that others write to a shared store: noticed by watches, read, taken up.

Owns the watches of the active controller and the order of a look: what changed is read while no
decision is made, so its own writes are never taken for another's. What a change means is
``decisions.outside``. A store with one owner is not watched. A node that is to go may have children
that are not tidelog's:

| the node that was to go | what is done |
|---|---|
| one of a topic that is being deleted | the topic stays until they are gone (``undeletable``) |
| any other: of a dead broker, of settings, a mark or a note in vain | they go with it |

Grows with topics and configured entities: one watch for each (ZooKeeper: one request each when this
controller becomes active, one for each change).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Protocol, TypeVar

from tidelog.controller.decisions import external_changes, soft_state
from tidelog.controller.decisions.cluster import Cluster
from tidelog.controller.decisions.decision import Remove, Write
from tidelog.controller.decisions.entropy import Entropy
from tidelog.controller.decisions.external_changes import WATCHED, WATCHED_CHILDREN, Taken
from tidelog.controller.decisions.journal import parts
from tidelog.controller.pending import Changes, changes_of
from tidelog.controller.performing import NotActive, Performer
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

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

LOOKED_AT_ONCE = 256
"""Nodes that one look reads: decisions wait so long."""

RETRY_S = 5.0
"""How soon a look that failed is tried again."""

MOST_STRAYS = 1_000
"""So much of what others put below a node goes with it at a time, in one commit."""

MOST_LOOKS = 5
"""How often nodes are read again that change while they are taken up."""


_WRITTEN_FROM_OUTSIDE = (f"{layout.BROKER_CONFIGS}/", f"{layout.CONFIG_CHANGES}/")


class NodeChanged(Exception):
    """A write met a node that another had written; nothing of it was done."""

    def __init__(self, conflict: Conflict, operations: Iterable[Operation]) -> None:
        super().__init__(str(conflict))
        self.conflict = conflict
        self.removes = {x.path for x in operations if isinstance(x, Delete)}


class StoreOwner(Performer, Protocol):
    """A controller, as the watches on its store see it."""

    configs: ServerConfigs
    store: MetadataStore
    turn: asyncio.Lock
    entropy: Entropy

    async def commit(
        self, decided: Sequence[Write], cluster: Cluster, *, first: bool = True
    ) -> Changes:
        """Make writes durable and apply them. Raises NotActive and NodeChanged."""

    def send(self, changes: Changes) -> None:
        """Have every control channel send a change."""

    def lose(self, why: str) -> None:
        """Step down, reload from the store, try again."""


class StoreWatches:
    """The watches of one controller; they stand while it is active."""

    def __init__(self, controller: StoreOwner) -> None:
        self._controller = controller
        self._watches: dict[str, Watch] = {}
        self._strays: dict[str, Watch] = {}
        """On nodes that keep a topic from being deleted: they have children that are not ours."""
        self._changed: dict[str, None] = {}
        self._awake = asyncio.Event()
        self._is_new = False

    def begin(self) -> None:
        """Watch, and look at everything once: it may have changed since it was loaded."""
        self._changed.clear()
        self._is_new = True
        if self._controller.store.is_shared:
            for path in WATCHED:
                self._watch(path, children=True)
            self._watch(layout.CONTROLLER, children=False)
            self._changed.update(dict.fromkeys((*self._content(), *WATCHED)))
        self._awake.set()

    def end(self) -> None:
        """Watch no more."""
        watches = [*self._watches.values(), *self._strays.values()]
        self._watches, self._strays = {}, {}
        for watch in watches:
            watch.cancel()
        self._changed.clear()

    async def run(self) -> None:
        """Look at what changed, for ever."""
        while True:
            await self._awake.wait()
            self._awake.clear()
            if not self._controller.active:
                continue
            try:
                if self._is_new:
                    await self._controller.complete_topics()
                    self._is_new = False
                while self._changed:
                    await self._look_at_some()
            except NotActive:
                logger.debug("what changed in the store is loaded anew")
            except Exception:
                # A bug must not end the watch over the store.
                logger.exception("a change of the store could not be taken up")
                await asyncio.sleep(RETRY_S)
                self._awake.set()

    def _watch(self, path: str, *, children: bool) -> None:
        if path not in self._watches:
            self._watches[path] = self._new_watch(path, self._notice, children=children)

    def _new_watch(self, path: str, callback: Callable[[str], None], *, children: bool) -> Watch:
        try:
            return self._controller.store.watch(path, callback, children=children)
        except StoreUnavailable as error:
            # A change that nobody hears of would never be taken up.
            self._controller.lose(str(error))
            raise NotActive from error

    def _notice(self, path: str) -> None:
        self._changed[path] = None
        self._awake.set()

    def _content(self) -> set[str]:
        """Return the nodes whose content is watched: what is known, and what is damaged."""
        cluster = self._controller.cluster
        found = {layout.topic(name) for name in cluster.topics}
        found |= {layout.topic_configs(name) for name in cluster.topic_configs}
        found |= {layout.broker_configs(name) for name in cluster.broker_configs}
        return found | cluster.damaged.keys()

    async def _look_at_some(self) -> None:
        paths = list(islice(self._changed, LOOKED_AT_ONCE))
        for path in paths:
            del self._changed[path]
        try:
            async with self._controller.turn:
                if not self._controller.active:
                    raise NotActive
                await self._look(paths)
            if self._controller.cluster.marked:
                # A marked topic may have got its id only now.
                await self._controller.complete_topics()
        except BaseException:
            self._changed.update(dict.fromkeys(paths))
            raise

    async def resolve(self, changed: NodeChanged) -> None:
        """Take up the node that a write met changed. Called in the turn of a change.

        Returns when it may be decided again. Raises NotActive where that would not help: the node
        is none that others write, or is as it is known here. Then everything is loaded anew.
        """
        path = changed.conflict.path
        is_settled = False
        if changed.conflict.reason is Reason.NOT_EMPTY:
            is_settled = await self._settle_strays(path, changed.removes)
        elif changed.conflict.reason is Reason.EPHEMERAL_PARENT:
            # What is above is not what it was: an ephemeral node stands in its place.
            is_settled = _is_from_outside(parent(path)) and await self._look([parent(path)])
        elif _is_from_outside(path):
            is_settled = await self._look([path])
        if not is_settled:
            self._controller.lose(f"another wrote: {changed}")
            raise NotActive

    async def _settle_strays(self, path: str, removed: Collection[str]) -> bool:
        """Settle what keeps a node from being removed and is not tidelog's, by the module's table.

        Return False where there is nothing of the kind.
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
        """Remove what is below a node, children first; of very much only the first."""
        gone: list[str] = []
        # Each node twice: before what is below it, and behind that.
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
            "the metadata node %(node)s goes with what somebody put below it: %(children)s",
            {"node": path, "children": ", ".join(gone)},
        )
        controller = self._controller
        # Another may have removed one of them, or put one more there: it is tried again then.
        with contextlib.suppress(NodeChanged):
            writes = [Remove(x) for x in gone]
            controller.send(await controller.commit(writes, controller.cluster))

    def _freed(self, path: str) -> None:
        """The children of a node changed that kept its topic from being deleted: try again."""
        watch = self._strays.pop(path, None)
        if watch is not None:
            watch.cancel()
        soft_state.free_topic(self._controller.cluster, layout.topic_of(path))
        self._notice(layout.DELETE_TOPICS)

    async def _look(self, paths: Iterable[str]) -> bool:
        """Read nodes and take up what changed; return whether anything did.

        Called in the turn of this change.
        """
        controller = self._controller
        named = dict.fromkeys(paths)
        for _ in range(MOST_LOOKS):
            wanted = await self._ask(self._wanted(named))
            nodes = await self._ask(
                asyncio.gather(*(controller.store.get(path) for path in wanted))
            )
            read = dict(zip(wanted, nodes, strict=True))
            # By name from now on: what is watched already is no new child of a watched node.
            named.update(dict.fromkeys(wanted))
            if layout.CONTROLLER in read:
                self._check_office(read.pop(layout.CONTROLLER))
            found = external_changes.changed(controller.cluster, read)
            try:
                if found:
                    self._say(await self._take_up(found))
            except NodeChanged as changed:
                conflict = changed.conflict
                if conflict.reason is Reason.NOT_EMPTY or not _is_from_outside(conflict.path):
                    await self.resolve(changed)
                # Else something changed once more between the look and the write.
                named[conflict.path] = None
            except BaseException:
                self._changed.update(named)
                raise
            else:
                self._watch_known((*wanted, *controller.cluster.damaged))
                return bool(found)
        controller.lose(f"others write what it takes up, {MOST_LOOKS} times in a row")
        raise NotActive

    async def _ask(self, answer: Awaitable[Answer]) -> Answer:
        """Wait for an answer of the store. Raises NotActive when it gives none."""
        try:
            return await answer
        except StoreUnavailable as error:
            self._controller.lose(str(error))
            raise NotActive from error

    async def _take_up(self, found: Mapping[str, Node | None]) -> Taken:
        """Take up changed nodes on a copy, which becomes the state when all of it is durable.

        Until then nobody reads what may still be put right: a mark that is about to be removed
        would otherwise make a FULL leave the topic out, and its replicas would be stale.
        """
        controller = self._controller
        before, draft = controller.cluster, controller.cluster.draft()
        deletes = controller.configs.delete_topic_enable
        decision = external_changes.take_up(draft, found, controller.entropy, deletes)
        told = Changes()
        for position, part in enumerate(parts(decision, controller.store.max_write_bytes)):
            told.add(await controller.commit(part, draft, first=not position))
        # What was written from outside counts as far as it stands now.
        changes = changes_of(before, external_changes.as_writes(found, draft))
        changes.add(told)
        changes.add(_of_topics(draft, found))
        changes.add(_unmarked(before, draft))
        before.adopt(draft)
        controller.send(changes)
        return decision.answer

    def _say(self, taken: Taken) -> None:
        for line in taken.errors:
            logger.error("%s", line)
        for line in taken.notes:
            logger.warning("%s", line)
        for path in taken.look_at:
            self._notice(path)

    def _check_office(self, node: Node | None) -> None:
        """Resign when another is active, or when a tool removed the node: Kafka's way to elect."""
        controller = self._controller
        record = None if node is None else layout.decode(layout.CONTROLLER, node.data)
        if not isinstance(record, ControllerNode) or record.brokerid != controller.configs.node_id:
            controller.lose(f"{layout.CONTROLLER} is not this controller's any more")
            raise NotActive

    async def _wanted(self, paths: Iterable[str]) -> list[str]:
        """Return what to read: the nodes named, and below a watched one those that are new or gone.

        Each is watched before it is read, so that no change falls in between.
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
        """Watch what is known of these, and what is damaged; forget what is not there any more."""
        cluster = self._controller.cluster
        for path in paths:
            above, _, name = path.rpartition("/")
            if path in cluster.damaged:
                self._watch(path, children=False)
                if above == layout.TOPICS:
                    self._watch(layout.memory(name), children=False)
            elif path == layout.CONTROLLER or path in cluster.ephemeral:
                continue
            elif path not in cluster.versions and path in self._watches:
                self._watches.pop(path).cancel()


def _is_from_outside(path: str) -> bool:
    """Return whether tools write a node, so that its change is taken up one by one."""
    return layout.topic_of(path) is not None or path.startswith(_WRITTEN_FROM_OUTSIDE)


def _of_topics(cluster: Cluster, found: Mapping[str, Node | None]) -> Changes:
    """Return what a topic's changed node concerns: all its partitions."""
    names = [path.rpartition("/")[2] for path in found if path.startswith(f"{layout.TOPICS}/")]
    return Changes(partitions=_partitions(cluster, names))


def _unmarked(before: Cluster, after: Cluster) -> Changes:
    """Return what was told to nobody while its topic was marked for deletion, and is again."""
    return Changes(partitions=_partitions(after, before.marked - after.marked))


def _partitions(cluster: Cluster, names: Iterable[str]) -> set[TopicPartition]:
    return {
        TopicPartition(name, index)
        for name in names
        if name in cluster.topics
        for index in cluster.topics[name].partitions
    }
