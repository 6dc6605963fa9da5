"""The controller process: it opens the store, becomes active, and serves the controller listeners.

Owns the lifecycle, the server with its router, and the attempts to become active. Not the state
nor how it changes: see ``controller``.

States: standby (another controller is active) -> active -> (the store failed, or another controller
wrote) inactive -> active or standby again, until stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial

from tidelog.controller import handlers
from tidelog.controller.activation import AnotherActive, activate, open_store
from tidelog.controller.controller import Controller
from tidelog.controller.decisions.nodes import why_none
from tidelog.controller.founding import known_elsewhere
from tidelog.controller.outbox import CANCEL_AGAIN_S
from tidelog.controller.performing import NotActive
from tidelog.controller.rebalancing import Rebalancing
from tidelog.controller.retired import RetiredPartitions
from tidelog.metadata import layout
from tidelog.metadata.store import MetadataStore, StoreRefused, StoreUnavailable
from tidelog.model.configs.resolve import BrokerLayers
from tidelog.model.configs.server import ServerConfigs
from tidelog.network import api_versions
from tidelog.network.limits import Limits
from tidelog.network.router import Router
from tidelog.network.server import Server
from tidelog.runtime.backoff import Backoff
from tidelog.runtime.cluster_secret import ClusterSecret
from tidelog.runtime.seams import Seams
from tidelog.runtime.tls_files import NO_TLS, ProcessTls, TlsFiles

logger = logging.getLogger(__name__)

RETRY_MS = 500
"""The pause before a controller that lost its store tries to become active again."""

RETRY_MAX_MS = 2_000
"""The longest pause between attempts that fail in quick succession: it doubles up to this."""

STEADY_S = 10.0
"""A controller that was active for at least this long tries again without a pause."""

STANDBY_CHECK_S = 2.0
"""The longest time between two attempts of a standby that misses the store's notification."""


class ControllerProcess:
    """One controller with its server. ``store`` replaces ``metadata.store`` (tests, simulation)."""

    def __init__(
        self,
        configs: ServerConfigs,
        seams: Seams,
        store: MetadataStore | None = None,
        secret: ClusterSecret | None = None,
        belongs_to: str | None = None,
        *,
        is_new: bool = False,
        tls: ProcessTls = NO_TLS,
    ) -> None:
        """Connections prove ``secret``; without one all listeners must be on loopback addresses.
        ``belongs_to`` is the cluster of this process's log directories: it becomes the controller
        of no other cluster. ``is_new``: the caller has proof that the cluster is new. ``tls``: its
        keys; every listener with TLS has some."""
        self.configs, self.seams = configs, seams
        self._secret, self._tls = secret, tls
        store = store if store is not None else open_store(configs, seams)
        self.controller = Controller(configs, seams, store, secret, tls.to_brokers)
        founding = self.controller.founding
        founding.is_proven, founding.belongs_to = is_new, belongs_to
        self.listener_port = -1
        self.server: Server | None = None
        self._rebalancing = Rebalancing(self.controller)
        self.retired = RetiredPartitions(self.controller)
        self._failures = 0
        """Failed attempts in a row, without a steady time of being active between them."""
        self._active_since_ms: int | None = None
        self._controller_changed = asyncio.Event()
        self._logged_reason = ""
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Open the store, become active or stand by for the active controller, and listen.

        While the store does not respond, the process tries again and logs why. Raises StoreRefused
        with one line, and ListenError; then it leaves nothing open.
        """
        controller = self.controller
        try:
            try:
                await self._open_store()
                await self._activate()
            except AnotherActive as other:
                logger.info(
                    "controller %(controller)s stands by: %(why)s",
                    {"controller": self.configs.node_id, "why": other},
                )
                controller.activity.lost.set()
            except (StoreUnavailable, NotActive) as error:
                self._failed(error)
            router, limits = (
                Router([api_versions.HANDLER, *handlers.HANDLERS]),
                limits_of(self.configs),
            )
            self.server = Server(router, controller, limits, self._secret, self.seams.clock)
            for listener in self.configs.controller_listeners:
                port = await self.server.listen(
                    *(listener.name, listener.host, listener.port),
                    self._tls.listeners.get(listener.name),
                )
                self.listener_port = port if self.listener_port < 0 else self.listener_port
        except BaseException:
            await self.stop()
            raise
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(controller.session_watch.run(), name="controller-sessions"),
            loop.create_task(controller.store_watches.run(), name="controller-store-watches"),
            loop.create_task(self._rebalancing.run(), name="controller-rebalancing"),
            loop.create_task(controller.resizes.run(), name="controller-resizes"),
            loop.create_task(self.retired.run(), name="controller-retired-partitions"),
            loop.create_task(controller.autoscaling.run(), name="controller-autoscaling"),
            loop.create_task(self._stay_active(), name="controller-activity"),
        ]
        for task in self._tasks:
            task.add_done_callback(_log_end)

    async def stop(self) -> None:
        """Stop serving, close the channels and the store. A second call does nothing."""
        while pending := [task for task in self._tasks if not task.done()]:
            for task in pending:
                task.cancel()
            await asyncio.wait(pending, timeout=CANCEL_AGAIN_S)
        self._tasks = []
        await self.controller.resign()
        if self.server is not None:
            await self.server.stop()
            self.server = None
        async with self.controller.turn:
            # A decision that is being written ends first: otherwise its outcome would be unknown.
            await self.controller.store.close()

    async def _open_store(self) -> None:
        controller = self.controller
        await controller.store.open()
        controller.store.when_lost = controller.lose
        controller.activity.trusts_store = True
        # The active controller's node comes or goes: a standby then tries at once.
        controller.store.watch(layout.CONTROLLER, lambda _: self._controller_changed.set())

    async def _activate(self) -> None:
        controller, configs = self.controller, self.configs
        controller.activity.lost.clear()
        cluster = await activate(
            controller.store,
            BrokerLayers(static=configs.texts),
            configs.node_id,
            controller.entropy.new_uuid(),
            self.seams.clock.wall_ms(),
            configs.level,
            controller.founding.belongs_to,
            partial(known_elsewhere, configs.controller_quorum_bootstrap_servers, *self._ends),
        )
        await controller.begin(cluster)
        self._logged_reason = ""
        self._active_since_ms = self.seams.clock.monotonic_ms()
        logger.info(
            "controller %(controller)s is active, epoch %(controller_epoch)s, "
            "revision %(revision)s",
            {
                "controller": configs.node_id,
                "controller_epoch": controller.cluster.controller_epoch,
                "revision": controller.cluster.revision,
            },
        )
        cluster = controller.cluster
        for line in (*cluster.damaged.values(), *map(why_none, cluster.ephemeral)):
            logger.error("%s", line)

    async def _stay_active(self) -> None:
        while True:
            await self.controller.activity.lost.wait()
            self._back_off()
            await self.controller.resign()
            while not self.controller.active:
                await self._try_to_activate()

    @property
    def _ends(self) -> tuple[ClusterSecret | None, TlsFiles | None]:
        return self._secret, self._tls.to_controllers

    def _back_off(self) -> None:
        """Pause before the next attempt, unless this controller was active for a while."""
        since, now = self._active_since_ms, self.seams.clock.monotonic_ms()
        is_steady = since is None or now - since >= STEADY_S * 1000
        self._failures = 0 if is_steady else self._failures + 1

    @property
    def _pause_s(self) -> float:
        backoff = Backoff(RETRY_MS, RETRY_MAX_MS, self.seams.random)
        return backoff.pause_s(self._failures - 1) if self._failures else 0.0

    async def _try_to_activate(self) -> None:
        controller = self.controller
        # Before the attempt: a change during it lets the next one follow at once.
        self._controller_changed.clear()
        await asyncio.sleep(self._pause_s)
        try:
            async with controller.turn:
                if not controller.activity.trusts_store:
                    await controller.store.close()
                    await self._open_store()
                await self._activate()
        except AnotherActive:
            self._failures = 0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STANDBY_CHECK_S):
                    await self._controller_changed.wait()
        except StoreUnavailable as error:
            self._failures = 1
            self._failed(error)
        except (StoreRefused, NotActive) as error:
            self._failures += 1
            self._failed(error)
        except Exception as error:
            # Any error is caught: a controller that stops trying stays inactive until a restart.
            logger.exception("not active")
            self._failures += 1
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Log why this controller is not active; the next attempt opens a new store session."""
        controller = self.controller
        controller.activity.distrust_store()
        # Attempts come twice a second: one line for each reason, not for each attempt.
        why = str(error) or controller.activity.why_lost
        if why != self._logged_reason:
            self._logged_reason = why
            logger.error("not active, trying again: %(why)s", {"why": why})


def limits_of(configs: ServerConfigs) -> Limits:
    """Return the limits of a controller's listeners."""
    return Limits(
        max_request_bytes=configs.socket_request_max_bytes,
        queued_request_bytes=configs.queued_max_request_bytes,
        frame_s=configs.request_timeout_ms / 1000,
        max_connections=configs.max_connections,
        max_connections_per_ip=configs.max_connections_per_ip,
        # Heartbeats decide about sessions, and brokers may be silent on a standby for long.
        max_idle_s=-1,
        backlog=configs.socket_listen_backlog_size,
    )


def _log_end(task: asyncio.Task[None]) -> None:
    """Log the error that ended a task which should run until the process stops."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.critical(
            "%(task)s has ended: restart this controller", {"task": task.get_name()}, exc_info=error
        )
