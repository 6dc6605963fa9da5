"""The controller of one process: opens the store, becomes active, decides, persists, tells.

Owns the order of a change: **decide** (a pure function of ``cluster``), **persist** (one
multi-write that is conditional on the controller epoch), **apply**, then tell brokers and answer.
One change at a time: ``perform`` holds a lock from the decision to its application, so no decision
ever sees half of another. Sessions and channels live only as long as this controller is active.

States: standby (another controller is active) -> active -> (the store failed, or another controller
wrote) inactive -> active or standby again, until stopped. While it is not active every request is
answered NOT_CONTROLLER.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar
from uuid import UUID

from tidelog.controller.activation import AnotherActive, activate, open_store
from tidelog.controller.announcements import Announcements
from tidelog.controller.audit_lines import audit_lines, say
from tidelog.controller.channel_keys import ChannelKeys
from tidelog.controller.decisions import config_effects, deletion
from tidelog.controller.decisions.cluster import Cluster, Decision, Write
from tidelog.controller.decisions.completion import complete
from tidelog.controller.decisions.ephemeral import why_none
from tidelog.controller.decisions.journal import committed, operations, parts, with_revision
from tidelog.controller.decisions.stops import Stop
from tidelog.controller.entropy import Chance
from tidelog.controller.outbox import CANCEL_AGAIN_S, Outbox
from tidelog.controller.pending import Changes, changes_of, unclean_elections
from tidelog.controller.rebalancing import Rebalancing
from tidelog.controller.requests import Sender, epoch_of
from tidelog.controller.routing import limits_of, make_router
from tidelog.controller.serving import NotActive
from tidelog.controller.session_watch import SessionWatch
from tidelog.controller.slices import between_steps, perform_in_slices
from tidelog.controller.store_watches import NodeChanged, Outside
from tidelog.controller.waiting import Waiting
from tidelog.metadata import layout
from tidelog.metadata.store import (
    MetadataStore,
    StoreRefused,
    StoreUnavailable,
    WriteTooLarge,
)
from tidelog.model.configs.definitions import BrokerLayers
from tidelog.model.configs.server import ServerConfigs
from tidelog.network.server import Server
from tidelog.runtime.cluster_secret import ClusterSecret
from tidelog.runtime.seams import Seams

logger = logging.getLogger(__name__)

A = TypeVar("A")

RETRY_S = 0.5
"""How soon a controller that lost its store tries to become active again."""

RETRY_MAX_S = 2.0
"""The longest pause of one that fails, or is lost again, in quick succession: it doubles."""

STEADY_S = 10.0
"""A controller that was active for so long and is lost tries again at once."""

MOST_TRIES = 5
"""How often one decision is made again because a node had changed that it writes."""

STANDBY_LOOK_S = 2.0
"""How often a standby tries, should it not be told that the active controller is gone."""

MANY_GONE = 1_000
"""From so many deleted topics on, those of which every broker has been told are forgotten."""


class Controller:
    """One controller. ``store`` overrules ``metadata.store`` (tests, simulation)."""

    def __init__(
        self,
        configs: ServerConfigs,
        seams: Seams,
        store: MetadataStore | None = None,
        secret: ClusterSecret | None = None,
        belongs_to: str | None = None,
    ) -> None:
        """``secret`` is proved and asked for; without one all listeners must be loopback's.
        ``belongs_to`` is the cluster whose log directories this process has: of no other one does
        it become the controller."""
        self.secret, self._belongs_to = secret, belongs_to
        self.configs = configs
        self.seams = seams
        self.store = store if store is not None else open_store(configs, seams)
        self.chance = Chance(seams)
        self.channel_keys = ChannelKeys(seams.random)
        self.sender = Sender(configs.node_id, configs.inter_broker_listener_name)
        self.cluster = Cluster()
        self.unclean_elections = 0
        """How many this controller has decided since its start."""
        self.session_watch = SessionWatch(self)
        self.outboxes: dict[int, Outbox] = {}
        self.announcements = Announcements()
        self.activated = asyncio.Event()
        self.listener_port = -1
        self.server: Server | None = None
        self.turn = asyncio.Lock()
        """Held from a decision to its application."""
        self._waiting = Waiting()
        self._gone: dict[str, int] = {}
        """Topics that are deleted, and the revision that says it: a broker may not know of it."""
        self._channels = 0
        self._lost = asyncio.Event()
        self._pause_s = 0.0
        self._active_since_ms: int | None = None
        self._store_failed = False
        self._controller_changed = asyncio.Event()
        self._outside = Outside(self)
        self._rebalancing = Rebalancing(self)
        self._said = self._why_lost = ""
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def active(self) -> bool:
        """Whether this controller owns the metadata now; ``activated`` is the event of it."""
        return self.activated.is_set()

    # -- life

    async def start(self) -> None:
        """Open the store, become active or stand by for the active controller, and listen.

        A store that does not answer is tried again until it does, and a line says so. Raises
        StoreRefused with one line, and ListenError. Nothing is left behind when it raises.
        """
        try:
            try:
                await self._open_store()
                await self._activate()
            except AnotherActive as other:
                logger.info(
                    "controller %(controller)s stands by: %(why)s",
                    {"controller": self.configs.node_id, "why": other},
                )
                self._lost.set()
            except (StoreUnavailable, NotActive) as error:
                self._failed(error)
            self.server = Server(
                make_router(), self, limits_of(self.configs), self.secret, self.seams.clock
            )
            for listener in self.configs.controller_listeners:
                port = await self.server.listen(listener.name, listener.host, listener.port)
                self.listener_port = port if self.listener_port < 0 else self.listener_port
        except BaseException:
            await self.stop()
            raise
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self.session_watch.run(), name="controller-sessions"),
            loop.create_task(self._outside.run(), name="controller-outside"),
            loop.create_task(self._rebalancing.run(), name="controller-rebalancing"),
            loop.create_task(self._stay_active(), name="controller-activity"),
        ]
        for task in self._tasks:
            task.add_done_callback(_say_end)

    async def stop(self) -> None:
        """Stop serving, close the channels and the store. A second call does nothing."""
        while pending := [task for task in self._tasks if not task.done()]:
            for task in pending:
                task.cancel()
            await asyncio.wait(pending, timeout=CANCEL_AGAIN_S)
        self._tasks = []
        await self._resign()
        if self.server is not None:
            await self.server.stop()
            self.server = None
        async with self.turn:
            await self.store.close()

    async def _open_store(self) -> None:
        await self.store.open()
        self.store.when_lost = self.lose
        self._store_failed = False
        # Told when the active controller's node comes or goes: a standby tries at once then.
        self.store.watch(layout.CONTROLLER, lambda _: self._controller_changed.set())

    async def _activate(self) -> None:
        self._lost.clear()
        layers = BrokerLayers(static=self.configs.texts)
        wall_ms = self.seams.clock.wall_ms()
        cluster_id = self.chance.new_uuid()
        configs = self.configs
        node, level, own = configs.node_id, configs.level, self._belongs_to
        self.cluster = await activate(self.store, layers, node, cluster_id, wall_ms, level, own)
        self._channels = 0
        # The channels are new: once a broker is told everything, it knows of what went before.
        going = {node.name for node in self.cluster.deletions.values()}
        self._note_gone({*self._gone, *going}, self.cluster.revision)
        self.announcements.forget()
        try:
            # Before any channel opens: what the next leaders go by.
            await self.carry_out(config_effects.of_a_start)
            # Marks of topics to be deleted, from a controller of a lower level or from a tool.
            await self.carry_out(self._act_on_marks)
            self.session_watch.begin()
            self._outside.begin()
            if self._lost.is_set():
                raise NotActive("its session with the store ended meanwhile")
        except BaseException:
            # What has begun must not outlive this try: watches are of this session of the store.
            await self._resign()
            raise
        self._said = ""
        self._active_since_ms = self.seams.clock.monotonic_ms()
        self.activated.set()
        logger.info(
            "controller %(controller)s is active, epoch %(controller_epoch)s, "
            "revision %(revision)s",
            {
                "controller": self.configs.node_id,
                "controller_epoch": self.cluster.controller_epoch,
                "revision": self.cluster.revision,
            },
        )
        for line in (*self.cluster.damaged.values(), *map(why_none, self.cluster.ephemeral)):
            logger.error("%s", line)

    async def _resign(self) -> None:
        self.activated.clear()
        self.session_watch.end()
        self._outside.end()
        outboxes, self.outboxes = self.outboxes, {}
        for outbox in outboxes.values():
            await outbox.close()
        self._waiting.give_up()

    async def _stay_active(self) -> None:
        while True:
            await self._lost.wait()
            self._back_off()
            await self._resign()
            while not self.active:
                await self._try_to_activate()

    def _back_off(self) -> None:
        """Pause before the next try, unless this controller was active for a while."""
        since, now = self._active_since_ms, self.seams.clock.monotonic_ms()
        is_steady = since is None or now - since >= STEADY_S * 1000
        self._pause_s = 0.0 if is_steady else self._longer_pause_s()

    def _longer_pause_s(self) -> float:
        return min(RETRY_MAX_S, max(RETRY_S, 2 * self._pause_s))

    async def _try_to_activate(self) -> None:
        self._controller_changed.clear()
        await asyncio.sleep(self._pause_s)
        try:
            async with self.turn:
                if self._store_failed:
                    await self.store.close()
                    await self._open_store()
                await self._activate()
        except AnotherActive:
            self._pause_s = 0.0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STANDBY_LOOK_S):
                    await self._controller_changed.wait()
        except StoreUnavailable as error:
            self._pause_s = RETRY_S
            self._failed(error)
        except (StoreRefused, NotActive) as error:
            self._pause_s = self._longer_pause_s()
            self._failed(error)
        except Exception as error:
            # Whatever it was: a controller that gives up trying is inactive until a restart.
            logger.exception("not active")
            self._pause_s = self._longer_pause_s()
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Say why this controller is not active; the next try is by a new session of the store."""
        self._store_failed = True
        self._lost.set()
        # It is tried twice a second: a line for each reason, not for each try.
        why = str(error) or self._why_lost
        if why != self._said:
            self._said = why
            logger.error("not active, trying again: %(why)s", {"why": why})

    # -- decide, persist, apply

    async def perform(
        self,
        decide: Callable[[Cluster], Decision[A]],
        applied: Callable[[A], None] = lambda _: None,
    ) -> tuple[A, int]:
        """Decide, make it durable, apply it; return the answer and the revision it stands in.

        ``decide`` gets the state and must not wait or keep it; ``applied`` gets the answer before
        anybody else decides. Raises NotActive: then the outcome is unknown.
        """
        # A caller that goes away must not leave a write that is made and not applied.
        work = asyncio.get_running_loop().create_task(self._perform(decide, applied))
        work.add_done_callback(_look_at)
        return await asyncio.shield(work)

    async def _perform(
        self, decide: Callable[[Cluster], Decision[A]], applied: Callable[[A], None]
    ) -> tuple[A, int]:
        async with self.turn:
            if not self.active:
                raise NotActive
            answer = await self.carry_out(decide)
            applied(answer)
            return answer, self.cluster.revision

    async def carry_out(self, decide: Callable[[Cluster], Decision[A]]) -> A:
        """Decide, and make it durable; called in the turn of a change.

        Where a node had changed that it writes, that is taken up and it is decided again. One of
        which a part is durable already is not: everything is loaded anew, and what it left is
        finished then. Raises NotActive: then the outcome is unknown.
        """
        for _ in range(MOST_TRIES):
            decision = decide(self.cluster)
            try:
                for position, part in enumerate(parts(decision, self.store.max_write_bytes)):
                    if part:
                        self.tell(await self.commit(part, self.cluster, first=not position))
            except NodeChanged as changed:
                await self._outside.resolve(changed)
            else:
                return decision.answer
        self.lose(f"others write what it writes, {MOST_TRIES} times in a row")
        raise NotActive

    async def commit(
        self, decided: Sequence[Write], cluster: Cluster, *, first: bool = True
    ) -> Changes:
        """Make writes durable and apply them to ``cluster``; return what brokers must be told.

        Called in the turn of a change. Raises NotActive when the outcome is unknown, or this
        controller's epoch is gone: everything will be loaded anew. Raises NodeChanged when nothing
        was done, for another has written a node; only of a ``first`` part of a decision.
        """
        writes = with_revision(cluster, decided)
        await between_steps(writes)
        found = operations(cluster, writes)
        await between_steps(writes)
        # Of the state before them: that stays as it is until they are applied.
        changes, lines = changes_of(cluster, writes), audit_lines(cluster, writes)
        unclean = unclean_elections(cluster, writes)
        await between_steps(writes)
        try:
            conflict = await self.store.multi(found)
        except WriteTooLarge:
            # Nothing was done, and nothing else is in doubt: who asked is told.
            raise
        except StoreUnavailable as error:
            self.lose(str(error))
            raise NotActive from error
        if conflict is not None and conflict.path != layout.CONTROLLER_EPOCH and first:
            raise NodeChanged(conflict, found)
        if conflict is not None:
            self.lose(f"another wrote: {conflict}")
            raise NotActive
        say(lines)
        self.unclean_elections += unclean
        committed(cluster, found, writes)
        return changes

    def tell(self, changes: Changes) -> None:
        """Have every broker told of what changed, and stands in the state now."""
        self._note_gone(changes.gone, self.cluster.revision)
        self.announcements.forget()
        for outbox in self.outboxes.values():
            outbox.notice(changes)

    async def complete_topics(self) -> None:
        """Fill in what topics' nodes lack, as far as it is known now.

        A topic that is marked for deletion and had no id until now moves to the queue with ids.
        """
        if self.active:
            lines, _ = await self.perform(lambda cluster: complete(cluster, self.chance))
            for line in lines:
                logger.warning("%s", line)
        if self.active and self.cluster.marked and self.cluster.went_back is None:
            await self.perform(self._act_on_marks)

    def _act_on_marks(self, cluster: Cluster) -> Decision[list[str]]:
        if cluster.went_back is not None:
            return Decision([])
        return deletion.take_up(cluster, self.configs.delete_topic_enable)

    async def reached(self, revision: int, limit_ms: float) -> bool:
        """Wait until every live broker has been told of ``revision``; False if it took too long."""
        return await self._waiting.until(lambda: self._all_reached(revision), limit_ms)

    async def until_free(self, names: Sequence[str], limit_ms: float) -> None:
        """Wait until all of these names are free for new topics, or for as long as it may take."""
        await self._waiting.until(lambda: all(map(self.is_free, names)), limit_ms)

    def is_free(self, name: str) -> bool:
        """Return whether every live broker knows that the former topic of this name is gone.

        Else a coordinator could take a position in the next one for one in the former, and remove
        it. A deletion that an earlier active controller began counts until its replicas are gone.
        """
        return name not in self._gone or self._all_know(self._gone[name])

    def _all_know(self, revision: int) -> bool:
        # Those that a former active controller spoke with have no channel at first.
        silent = self.cluster.brokers.keys() - self.outboxes.keys() - self.cluster.suspected
        return not silent and self._all_reached(revision)

    def _note_gone(self, names: Iterable[str], revision: int) -> None:
        self._gone.update(dict.fromkeys(names, revision))
        if len(self._gone) > MANY_GONE:
            self._gone = {x: at for x, at in self._gone.items() if not self._all_know(at)}

    def _all_reached(self, revision: int) -> bool:
        return all(
            broker in self.cluster.suspected or outbox.reached >= revision
            for broker, outbox in self.outboxes.items()
        )

    def lose(self, why: str, level: int = logging.ERROR) -> None:
        """Be active no more, load everything anew, and try to become active again."""
        if self.active:
            logger.log(
                level,
                "controller %(controller)s is not active any more: %(why)s",
                {"controller": self.configs.node_id, "why": why},
            )
        self.activated.clear()
        self._why_lost = why
        # What was seen of the store is not to be trusted any more: a new session loads it anew.
        self._store_failed = True
        self._lost.set()

    # -- the outboxes' office

    def next_channel_number(self) -> int:
        """Return the number of the next control channel of this controller epoch."""
        self._channels += 1
        return self._channels

    def channel_key(self, broker: int) -> UUID:
        """Return the key that a broker was given, or will be with its answer."""
        cluster = self.cluster
        epoch = epoch_of(cluster, broker)
        return self.channel_keys.of(broker, cluster.controller_epoch, epoch)

    def told(self) -> None:
        """A broker has been told of a newer revision."""
        self._waiting.look()

    async def stopped(self, broker: int, stops: Collection[Stop]) -> None:
        """A broker confirmed that these replicas are stopped, or gone."""

        def decide(cluster: Cluster, part: Sequence[Sequence[Stop]]) -> Decision[list[None]]:
            confirmed = [stop for of_topic in part for stop in of_topic]
            deletion.note_confirmed(cluster, broker, confirmed)
            return deletion.confirm(cluster, broker, confirmed)

        with contextlib.suppress(NotActive):
            by_topic = deletion.by_topic(stops)
            await perform_in_slices(self, by_topic, deletion.cost_of_confirmation, decide)


def _say_end(task: asyncio.Task[None]) -> None:
    """Say it when a task that runs for ever has ended by an error."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.critical(
            "%(task)s has ended: restart this controller", {"task": task.get_name()}, exc_info=error
        )


def _look_at(work: asyncio.Task[Any]) -> None:
    """Look at what a task raised whose caller may be gone, so that the loop does not complain."""
    if not work.cancelled():
        work.exception()
