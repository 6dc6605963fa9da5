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
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar
from uuid import UUID

from tidelog.controller.activation import AnotherActive, activate
from tidelog.controller.decisions import deletion, registration
from tidelog.controller.decisions.cluster import Cluster, Decision
from tidelog.controller.decisions.condition import counts
from tidelog.controller.decisions.journal import committed, operations, with_revision
from tidelog.controller.decisions.sessions import Condition, Sessions
from tidelog.controller.outbox import CANCEL_AGAIN_S, Outbox
from tidelog.controller.pending import audit_lines, changes_of
from tidelog.controller.requests import Sender
from tidelog.controller.routing import make_router
from tidelog.controller.serving import NotActive
from tidelog.controller.waiting import Waiting
from tidelog.metadata import layout
from tidelog.metadata.memory import MemoryStore
from tidelog.metadata.sqlite import SqliteStore
from tidelog.metadata.store import MetadataStore, StoreRefused, StoreUnavailable
from tidelog.model.config_definitions import BrokerLayers
from tidelog.model.server_configs import ServerConfigs
from tidelog.network.connection import Connection
from tidelog.network.limits import Limits
from tidelog.network.server import Server
from tidelog.runtime.seams import Seams

logger = logging.getLogger(__name__)
audit = logging.getLogger("tidelog.audit")

A = TypeVar("A")

MIN_PAUSE_MS = 10
"""The shortest pause between two looks at the sessions."""

RETRY_S = 0.5
"""How soon a controller that lost its store tries to become active again."""

STANDBY_LOOK_S = 2.0
"""How often a standby tries, should it not be told that the active controller is gone."""


class Chance:
    """The randomness of decisions, drawn from the process's seam."""

    def __init__(self, seams: Seams) -> None:
        self._seams = seams

    def new_uuid(self) -> UUID:
        """Return a random id."""
        return self._seams.new_uuid()

    def below(self, bound: int) -> int:
        """Return a random number from 0 on, below ``bound``."""
        return self._seams.random.randrange(bound)


def open_store(configs: ServerConfigs, seams: Seams) -> MetadataStore:
    """Return the store that ``metadata.store`` names, not yet open."""
    kind, _, place = configs.metadata_store.partition(":")
    if kind == "sqlite":
        return SqliteStore(place, seams.disk, seams.threads)
    if kind == "zookeeper":
        # Imported late: kazoo costs a start on SQLite time and memory for nothing.
        from tidelog.metadata.zookeeper import ZookeeperStore

        return ZookeeperStore(place.removeprefix("//"))
    return MemoryStore()


class Controller:
    """One controller. ``store`` overrules ``metadata.store`` (tests, simulation)."""

    def __init__(
        self, configs: ServerConfigs, seams: Seams, store: MetadataStore | None = None
    ) -> None:
        self.configs = configs
        self.seams = seams
        self.store = store if store is not None else open_store(configs, seams)
        self.chance = Chance(seams)
        self.sender = Sender(configs.node_id, configs.inter_broker_listener_name)
        self.cluster = Cluster()
        self.sessions = Sessions(configs.broker_session_grace_ms, configs.broker_session_timeout_ms)
        self.outboxes: dict[int, Outbox] = {}
        self.peers: dict[int, Connection] = {}
        self.activated = asyncio.Event()
        self.listener_port = -1
        self.server: Server | None = None
        self._turn = asyncio.Lock()
        self._waiting = Waiting()
        self._channels = 0
        self._lost = asyncio.Event()
        self._store_failed = False
        self._controller_changed = asyncio.Event()
        self._sessions_changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def active(self) -> bool:
        """Whether this controller owns the metadata now; ``activated`` is the event of it."""
        return self.activated.is_set()

    def statistics(self) -> Mapping[str, int]:
        """Return counts for metrics; those of the cluster only while active. Walks over all
        partitions."""
        found = {"active": int(self.active), "epoch": self.cluster.controller_epoch}
        return {**found, **counts(self.cluster)} if self.active else found

    # -- life

    async def start(self) -> None:
        """Open the store, become active or stand by for the active controller, and listen.

        Raises StoreRefused or StoreUnavailable with one line, and ListenError. Nothing is left
        behind when it raises.
        """
        await self._open_store()
        try:
            try:
                await self._activate()
            except AnotherActive as other:
                logger.info("controller %s stands by: %s", self.configs.node_id, other)
                self._lost.set()
            self.server = Server(make_router(), self, _limits(self.configs))
            for listener in self.configs.controller_listeners:
                port = await self.server.listen(listener.name, listener.host, listener.port)
                self.listener_port = port if self.listener_port < 0 else self.listener_port
        except BaseException:
            await self.stop()
            raise
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._watch_sessions(), name="controller-sessions"),
            loop.create_task(self._stay_active(), name="controller-activity"),
        ]

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
        async with self._turn:
            await self.store.close()

    async def _open_store(self) -> None:
        await self.store.open()
        self.store.when_lost = self._lose
        self._store_failed = False
        # Told when the active controller's node comes or goes: a standby tries at once then.
        self.store.watch(layout.CONTROLLER, lambda _: self._controller_changed.set())

    async def _activate(self) -> None:
        layers = BrokerLayers(static=self.configs.texts)
        wall_ms = self.seams.clock.wall_ms()
        cluster_id = self.chance.new_uuid()
        self.cluster = await activate(self.store, layers, self.configs.node_id, cluster_id, wall_ms)
        now = self.seams.clock.monotonic_ms()
        for broker in self.cluster.brokers:
            self.sessions.heard(broker, now)
        self.cluster.presumed = set(self.cluster.brokers)
        self._channels = 0
        self._lost.clear()
        self.activated.set()
        self._sessions_changed.set()
        logger.info(
            "controller %s is active, epoch %s, revision %s",
            self.configs.node_id,
            self.cluster.controller_epoch,
            self.cluster.revision,
        )
        for damaged in self.cluster.damaged.values():
            logger.error("%s", damaged)

    async def _resign(self) -> None:
        self.activated.clear()
        self.peers.clear()
        self.sessions.by_broker.clear()
        outboxes, self.outboxes = self.outboxes, {}
        for outbox in outboxes.values():
            await outbox.close()
        self._waiting.give_up()

    async def _stay_active(self) -> None:
        while True:
            await self._lost.wait()
            await self._resign()
            while not self.active:
                await self._try_to_activate()

    async def _try_to_activate(self) -> None:
        self._controller_changed.clear()
        try:
            async with self._turn:
                if self._store_failed:
                    await self.store.close()
                    await self._open_store()
                await self._activate()
        except AnotherActive:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STANDBY_LOOK_S):
                    await self._controller_changed.wait()
        except (StoreRefused, StoreUnavailable) as error:
            logger.error("not active: %s", error)
            self._store_failed = True
            await asyncio.sleep(RETRY_S)
        except Exception:
            # Whatever it was: a controller that gives up trying is inactive until a restart.
            logger.exception("not active")
            self._store_failed = True
            await asyncio.sleep(RETRY_S)

    # -- decide, persist, apply

    async def perform(self, decide: Callable[[Cluster], Decision[A]]) -> tuple[A, int]:
        """Decide, make it durable, apply it; return the answer and the revision it stands in.

        ``decide`` gets the state and must not wait or keep it. Raises NotActive: then the outcome
        is unknown.
        """
        # A caller that goes away must not leave a write that is made and not applied.
        work = asyncio.get_running_loop().create_task(self._perform(decide))
        work.add_done_callback(_look_at)
        return await asyncio.shield(work)

    async def _perform(self, decide: Callable[[Cluster], Decision[A]]) -> tuple[A, int]:
        async with self._turn:
            if not self.active:
                raise NotActive
            decision = decide(self.cluster)
            if not decision.writes:
                return decision.answer, self.cluster.revision
            writes = with_revision(self.cluster, decision.writes)
            found = operations(self.cluster, writes)
            try:
                conflict = await self.store.multi(found)
            except StoreUnavailable as error:
                self._lose(str(error))
                raise NotActive from error
            if conflict is not None:
                self._lose(f"another controller wrote: {conflict}")
                raise NotActive
            changes = changes_of(self.cluster, writes)
            for line in audit_lines(self.cluster, writes):
                audit.warning("%s", line)
            committed(self.cluster, found, writes)
            for outbox in self.outboxes.values():
                outbox.notice(changes)
            return decision.answer, self.cluster.revision

    async def reached(self, revision: int, limit_ms: float) -> bool:
        """Wait until every live broker has been told of ``revision``; False if it took too long."""
        return await self._waiting.until(lambda: self._all_reached(revision), limit_ms)

    def _all_reached(self, revision: int) -> bool:
        return all(
            broker in self.cluster.suspected or outbox.reached >= revision
            for broker, outbox in self.outboxes.items()
        )

    def _lose(self, why: str) -> None:
        if self.active:
            logger.error("controller %s is not active any more: %s", self.configs.node_id, why)
        self.activated.clear()
        # What was seen of the store is not to be trusted any more: a new session loads it anew.
        self._store_failed = True
        self._lost.set()

    # -- the outboxes' office

    def next_channel_number(self) -> int:
        """Return the number of the next control channel of this controller epoch."""
        self._channels += 1
        return self._channels

    def told(self) -> None:
        """A broker has been told of a newer revision."""
        self._waiting.look()

    async def deleted(self, broker: int, gone: dict[UUID, Collection[int] | None]) -> None:
        """A broker confirmed that partitions of deleted topics are gone."""
        with contextlib.suppress(NotActive):
            await self.perform(lambda cluster: deletion.confirm(cluster, broker, gone))

    # -- sessions

    async def opened(self, broker: int, peer: Connection, new_channel: bool) -> None:
        """A broker registered on ``peer``: its session begins, and its channel if it is a new life.

        A broker that this controller did not know before gets its first FULL by that channel.
        """
        self.peers[broker] = peer
        peer.on_close(lambda: self._closed(broker, peer))
        self.cluster.presumed.discard(broker)
        self.heard(broker)
        former = self.outboxes.get(broker)
        if former is not None and not new_channel:
            return
        if former is not None:
            del self.outboxes[broker]
            await former.close()
        if self.active and broker in self.cluster.brokers and broker not in self.outboxes:
            configs = self.configs
            self.outboxes[broker] = Outbox(
                self, broker, configs.controller_socket_timeout_ms, configs.delete_topic_retry_ms
            )

    def heard(self, broker: int) -> None:
        """A broker gave a sign of life."""
        self.cluster.suspected.discard(broker)
        self.sessions.heard(broker, self.seams.clock.monotonic_ms())

    def is_session(self, peer: Connection) -> bool:
        """Return whether a connection is the one that carries a broker's heartbeats."""
        return any(known is peer for known in self.peers.values())

    def _closed(self, broker: int, peer: Connection) -> None:
        if self.peers.get(broker) is not peer:
            # The broker has opened another session since.
            return
        del self.peers[broker]
        self.sessions.closed(broker, self.seams.clock.monotonic_ms())
        self._sessions_changed.set()

    async def _watch_sessions(self) -> None:
        while True:
            self._sessions_changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._until_next_change_s()):
                    await self._sessions_changed.wait()
            try:
                await self._judge_sessions()
            except NotActive:
                await asyncio.sleep(RETRY_S)
            except Exception:
                # A bug in one decision must not stop the watch over all brokers.
                logger.exception("the sessions could not be judged")
                await asyncio.sleep(RETRY_S)

    def _until_next_change_s(self) -> float:
        sessions = self.sessions
        now = self.seams.clock.monotonic_ms()
        changes = [
            session.next_change_ms(now, sessions.grace_ms, sessions.timeout_ms) - now
            for session in sessions.by_broker.values()
        ]
        # A session that a heartbeat prolongs is looked at when it would have ended: no spinning.
        return max(MIN_PAUSE_MS, min(changes, default=sessions.timeout_ms)) / 1000

    async def _judge_sessions(self) -> None:
        now = self.seams.clock.monotonic_ms()
        dead = self.sessions.in_condition(Condition.DEAD, now)
        suspected = self.sessions.in_condition(Condition.SUSPECTED, now)
        if suspected - self.cluster.suspected:
            logger.warning("suspected: brokers %s", sorted(suspected - self.cluster.suspected))
            self.cluster.suspected |= suspected
            await self.perform(registration.replace_unfit)
            self._waiting.look()
        for broker in dead:
            await self._bury(broker)

    async def _bury(self, broker: int) -> None:
        def decide(cluster: Cluster) -> Decision[bool]:
            session = self.sessions.by_broker.get(broker)
            now = self.seams.clock.monotonic_ms()
            grace, timeout = self.sessions.grace_ms, self.sessions.timeout_ms
            if session is None or session.condition(now, grace, timeout) is not Condition.DEAD:
                # It has registered again while this waited for its turn.
                return Decision(False)
            return Decision(True, registration.bury(cluster, [broker]).writes)

        is_dead, _ = await self.perform(decide)
        if not is_dead:
            return
        logger.warning("broker %s is dead: silent for %s ms", broker, self.sessions.timeout_ms)
        self.sessions.forget(broker)
        self._forget(broker)
        outbox = self.outboxes.pop(broker, None)
        if outbox is not None:
            await outbox.close()
        self._waiting.look()

    def _forget(self, broker: int) -> None:
        cluster = self.cluster
        for kept in (cluster.suspected, cluster.presumed, cluster.shutting_down):
            kept.discard(broker)
        cluster.inventories.pop(broker, None)
        cluster.broken = {(x, where) for x, where in cluster.broken if x != broker}


def _look_at(work: asyncio.Task[Any]) -> None:
    """Look at what a task raised whose caller may be gone, so that the loop does not complain."""
    if not work.cancelled():
        work.exception()


def _limits(configs: ServerConfigs) -> Limits:
    return Limits(
        max_request_bytes=configs.socket_request_max_bytes,
        queued_request_bytes=configs.queued_max_request_bytes,
        max_connections=configs.max_connections,
        max_connections_per_ip=configs.max_connections_per_ip,
        # Sessions are judged by heartbeats; a standby's brokers may be silent for long.
        max_idle_s=-1,
        backlog=configs.socket_listen_backlog_size,
    )
