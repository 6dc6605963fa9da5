"""Changes that others write to a shared store: noticed by watches, read, taken up.

Owns the watches of the active controller and the order of a look: what changed is read while no
decision is made, so its own writes are never taken for another's. What a change means is
``decisions.outside``. A store with one owner is not watched.

Grows with topics and configured entities: one watch for each (ZooKeeper: one request each when this
controller becomes active, one for each change).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

from tidelog.controller.decisions import outside
from tidelog.controller.decisions.journal import parts
from tidelog.controller.decisions.outside import WATCHED, WATCHED_CHILDREN, Taken
from tidelog.controller.pending import Changes, changes_of
from tidelog.controller.serving import NotActive
from tidelog.metadata import layout
from tidelog.metadata.records import ControllerNode
from tidelog.metadata.store import Node, StoreUnavailable, Watch
from tidelog.model.topics import TopicPartition

if TYPE_CHECKING:
    from tidelog.controller.process import Controller

logger = logging.getLogger(__name__)

LOOKED_AT_ONCE = 256
"""Nodes that one look reads: decisions wait so long."""

RETRY_S = 5.0
"""How soon a look that failed is tried again."""


class Outside:
    """The watches of one controller; they stand while it is active."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._watches: dict[str, Watch] = {}
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
        watches, self._watches = self._watches, {}
        for watch in watches.values():
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
            store = self._controller.store
            self._watches[path] = store.watch(path, self._notice, children=children)

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
                taken = await self._look(paths)
            if self._controller.cluster.marked:
                # A marked topic may have got its id only now.
                await self._controller.complete_topics()
        except BaseException:
            self._changed.update(dict.fromkeys(paths))
            raise
        for line in taken.errors:
            logger.error("%s", line)
        for line in taken.notes:
            logger.warning("%s", line)
        for path in taken.look_at:
            self._notice(path)

    async def _look(self, paths: Iterable[str]) -> Taken:
        """Read nodes and take up what changed. Called in the turn of this change."""
        controller = self._controller
        if not controller.active:
            raise NotActive
        cluster = controller.cluster
        try:
            wanted = await self._wanted(paths)
            nodes = await asyncio.gather(*(controller.store.get(path) for path in wanted))
        except StoreUnavailable as error:
            controller.lose(str(error))
            raise NotActive from error
        read = dict(zip(wanted, nodes, strict=True))
        if layout.CONTROLLER in read:
            self._check_office(read.pop(layout.CONTROLLER))
        found = outside.changed(cluster, read)
        taken = Taken()
        if found:
            changes = changes_of(cluster, outside.as_writes(found))
            deletes = controller.configs.delete_topic_enable
            decision = outside.take_up(cluster, found, controller.chance, deletes)
            # Before anything waits: what was made of the state as it was is not sent any more.
            controller.announcements.forget()
            taken = decision.answer
            for part in parts(decision, controller.store.max_write_bytes):
                await controller.commit(part)
            changes.add(self._of_topics(found))
            controller.tell(changes)
        self._watch_known((*wanted, *cluster.damaged))
        return taken

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
            elif path == layout.CONTROLLER:
                continue
            elif path not in cluster.versions and path in self._watches:
                self._watches.pop(path).cancel()

    def _of_topics(self, found: dict[str, Node | None]) -> Changes:
        """Return what a topic's changed node concerns: all its partitions."""
        topics = self._controller.cluster.topics
        names = [path.rpartition("/")[2] for path in found if path.startswith(f"{layout.TOPICS}/")]
        return Changes(
            partitions={
                TopicPartition(name, index)
                for name in names
                if name in topics
                for index in topics[name].partitions
            }
        )
