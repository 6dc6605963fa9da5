"""The lifecycle of a broker process: start and stop.

Owns the order of both. A start gets the cluster id from a controller, locks and loads the log
directories, listens and registers; the broker is ready when the first control channel has brought
the metadata. A stop gives leadership up (the controller moves it), responds to the requests in
flight, syncs and closes the logs, and writes the marker of a clean stop. Not how the parts are
made: see ``assembly``; not how the log directories are opened and loaded: see
``partitions.log_directories``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from tidelog.broker import handlers
from tidelog.broker.assembly import Given, assemble
from tidelog.broker.broker import Broker
from tidelog.broker.control_plane.session import (
    ControllerSession,
    ControllerUnreachable,
    Identity,
    Reported,
)
from tidelog.broker.coordinator.coordinator import Coordinator
from tidelog.broker.metadata.configurations import ConfigCache
from tidelog.broker.partitions.log_directories import LogDirectories, former_registration
from tidelog.broker.partitions.log_directories import StartFailed as StartFailed
from tidelog.model.configs.addresses import Listener
from tidelog.model.configs.server import ServerConfigs
from tidelog.network import api_versions
from tidelog.network.limits import Limits
from tidelog.network.router import Router
from tidelog.network.server import ListenError, Server
from tidelog.runtime.cluster_secret import ClusterSecret
from tidelog.runtime.descriptors import Descriptors
from tidelog.runtime.seams import Seams
from tidelog.runtime.tls_files import NO_TLS, ProcessTls
from tidelog.storage.checkpoints import DamagedFile

logger = logging.getLogger(__name__)

FIND_CONTROLLER_MS = 60_000
"""How long a start waits for a controller, and again for registration and the first metadata."""

METADATA_WAIT_MS = 5_000
"""Interval of the log lines of a registered start without metadata. Divides the above."""

DEFAULT_DESCRIPTORS = Descriptors(log_files=4096, connections=8192)

STOP_GRACE_S = 5.0
"""How long a stop waits for requests in flight."""

BOOT_ID = "/proc/sys/kernel/random/boot_id"


class BrokerProcess:
    """One broker. ``controllers`` overrides ``controller.quorum.bootstrap.servers``."""

    def __init__(
        self,
        configs: ServerConfigs,
        seams: Seams,
        controllers: Sequence[tuple[str, int]] = (),
        descriptors: Descriptors = DEFAULT_DESCRIPTORS,
        secret: ClusterSecret | None = None,
        belongs_to: str | None = None,
        tls: ProcessTls = NO_TLS,
    ) -> None:
        """``descriptors``: the limits of open files and connections. ``secret``: the cluster secret
        that processes prove to each other; without one all listeners are on loopback.
        ``belongs_to``: the cluster of the log directories, None while they are new. ``tls``: its
        keys; every listener with TLS has some."""
        self._secret, self._belongs_to, self._tls = secret, belongs_to, tls
        self.configs = configs
        self.descriptors = descriptors
        self.seams = seams
        self.ports: dict[str, int] = {}
        """Listener name -> the port that it is bound to."""
        self.broker: Broker
        self.server: Server
        self._controllers = list(controllers or configs.controller_quorum_bootstrap_servers)
        self._directories = LogDirectories(configs, seams)
        self._boot_id = ""
        self.waits_for = "its log directories to be opened"
        """What its start waits for now."""
        self.when_not_notified: Callable[[], None] = lambda: None
        """Called once by a start that is registered and waits long for the metadata."""
        self._session: ControllerSession | None = None
        self._server: Server | None = None
        self._coordinators: tuple[Coordinator[Any], ...] = ()

    async def start(self) -> None:
        """Start and serve. Raises StartFailed after all started parts are stopped again."""
        try:
            await self._start()
        except (ListenError, ControllerUnreachable, DamagedFile) as error:
            await self._undo()
            raise StartFailed(str(error)) from error
        except BaseException:
            await self._undo()
            raise

    async def _start(self) -> None:
        configs, seams = self.configs, self.seams
        session = self._session = ControllerSession(
            self._controllers,
            configs.broker_heartbeat_interval_ms,
            configs.broker_session_timeout_ms,
            configs.request_timeout_ms,
            self._report,
            self._registered,
            lambda: self.broker.partitions.failures(),
            self._secret,
            configs.broker_silence_suspect_ms,
            led_topics=lambda of: self.broker.led_topics(of),
            take_cluster_id=self._take_cluster_id,
            tls=self._tls.to_controllers,
        )
        own = self._belongs_to or ""
        self.waits_for = "a controller"
        cluster_id = await session.discover_cluster_id(FIND_CONTROLLER_MS, configs.node_id, own)
        topic_configs = ConfigCache(configs.node_id, configs.texts)
        self.waits_for = "its logs to be recovered"
        self._boot_id, files = _boot_id(seams), self.descriptors.log_files
        self._directories.open(cluster_id, self._boot_id, files, session.founded_as)
        await self._directories.load(topic_configs)
        broker = self.broker = assemble(
            Given(
                configs=configs,
                seams=seams,
                cluster_id=cluster_id,
                directories=self._directories.all,
                away=tuple(self._directories.away),
                topic_configs=topic_configs,
                session=session,
                secret=self._secret,
                tls=self._tls.to_brokers,
                when_brokers_configured=self._take_limits,
            )
        )
        broker.unaware_writers.when_seen = session.beat_soon
        self._coordinators = broker.coordinator, broker.transactions.coordinator
        self.server = self._server = Server(
            _router(broker),
            broker,
            limits_of(configs, self.descriptors, topic_configs),
            self._secret,
            seams.clock,
        )
        await self._listen(self._server)
        self.waits_for = "a controller to register it and send it metadata"
        for part in (broker.isr_changes, broker.loss_reports, broker.fence_reports):
            part.start()
        for handling in (broker.data_loss, broker.markers.checks):
            handling.start()
        session.start(
            Identity(
                node_id=configs.node_id,
                cluster_id=cluster_id,
                incarnation_id=seams.new_uuid(),
                directory_id=UUID(int=self._directories.all[0].meta.directory_id.int),
                listeners=self._advertised(),
                rack=configs.broker_rack,
                log_dirs=configs.log_dirs,
                cordoned_log_dirs=configs.cordoned_log_dirs,
            )
        )
        await self._until_metadata()
        broker.groups.start()
        broker.maintenance.start()
        broker.future_replicas.start()

    async def _listen(self, server: Server) -> None:
        for one in self.configs.broker_listeners:
            keys = self._tls.listeners.get(one.name)
            self.ports[one.name] = await server.listen(one.name, one.host, one.port, keys)

    def _take_limits(self) -> None:
        if self._server is not None:
            dynamic = self.broker.topic_configs
            self._server.limits = limits_of(self.configs, self.descriptors, dynamic)

    def _advertised(self) -> list[Listener]:
        """Return the advertised listeners, with the bound port for port 0."""
        return [
            replace(one, port=one.port or self.ports.get(one.name, 0))
            for one in self.configs.advertised_listeners
        ]

    def _report(self) -> Reported:
        seen = self.broker.channel.seen_epochs
        return Reported(
            last_stop=min(map(former_registration, self._directories.all)),
            controller_epoch=seen.controller_epoch,
            store_revision=seen.store_revision,
            inventory=self.broker.partitions.inventory(),
        )

    async def _registered(self, broker_epoch: int) -> None:
        for directory in self._directories.all:
            if directory.failed is None:
                durability = self.configs.log_durability
                try:
                    recording = directory.recording_life(self._boot_id, durability=durability)
                    if not await self.broker.log_work.run(None, recording):
                        logger.warning(
                            "%(log_dir)s: no space to record this start",
                            {"log_dir": directory.path},
                        )
                except OSError as error:
                    directory.resources.fail(f"writing to {directory.path} failed: {error}")

    async def _take_cluster_id(self, cluster_id: str) -> bool:
        """Take another cluster id, in all log directories, if they hold nothing."""
        if self.broker.metadata.topics:
            return False
        if not await self._directories.take_cluster_id(cluster_id):
            return False
        logger.warning(
            "this broker, on an empty disk, was given the cluster id %(former)s before the "
            "controller knew that its store is lost; it belongs to cluster %(cluster)s",
            {"former": self.broker.cluster_id, "cluster": cluster_id},
        )
        self.broker.metadata.begin_again(cluster_id)
        return True

    async def _until_metadata(self) -> None:
        """Wait until the controller has sent the metadata. Raises StartFailed.

        A controller that accepts the registration and sends no metadata has a reason (a restored
        store, a damaged znode) and logs it: this broker waits for as long as its session is open.
        """
        is_logged, waited_ms = False, 0
        while not await self._has_metadata():
            waited_ms += METADATA_WAIT_MS
            is_due = waited_ms % FIND_CONTROLLER_MS == 0
            if not self.broker.session.is_open:
                if is_due:
                    raise StartFailed(
                        f"no controller has sent this broker the metadata in {waited_ms} ms"
                    )
                continue
            if not is_logged or is_due:
                logger.warning(
                    "the controller accepted the registration and has sent no metadata for "
                    "%(waited_ms)d ms: see its log or `tidelog doctor`",
                    {"waited_ms": waited_ms},
                )
            if not is_logged:
                is_logged = True
                self.when_not_notified()

    async def _has_metadata(self) -> bool:
        """Wait ``METADATA_WAIT_MS`` for metadata; return whether it came. Raises StartFailed."""
        session, broker = self.broker.session, self.broker
        try:
            async with asyncio.timeout(METADATA_WAIT_MS / 1000):
                while True:
                    channel = broker.channel.present
                    if channel is not None and channel.had_metadata:
                        return True
                    changed = broker.metadata.changed()
                    await asyncio.wait(
                        (changed, session.refusals.failed), return_when=asyncio.FIRST_COMPLETED
                    )
                    if session.refusals.failed.done():
                        raise StartFailed(session.refusals.failed.result())
                    # The handler sets ``had_metadata`` after it has changed the cache.
                    await asyncio.sleep(0)
        except TimeoutError:
            return False

    async def stop(self) -> None:
        """Stop cleanly; a second call does nothing."""
        session = self._session
        if session is None:
            return
        # First, while it still serves: its partitions lose no time between two leaders.
        await self._give_up_leadership(session)
        await self.broker.maintenance.stop()
        await self._undo()

    async def _give_up_leadership(self, session: ControllerSession) -> None:
        configs = self.configs
        if not configs.controlled_shutdown_enable or session.broker_epoch < 0:
            return
        had_controller = session.is_open
        session.ask_to_leave()
        # A heartbeat requests it at once; the controller moves leadership and then agrees.
        limit_s = configs.broker_heartbeat_interval_ms / 1000 + STOP_GRACE_S
        if await _within(limit_s, session.should_shut_down):
            return
        if had_controller and not session.is_responding:
            # It is frozen: a standby controller takes over within a session, and until then no
            # other broker could lead. This one serves meanwhile.
            await _within(configs.broker_session_timeout_ms / 1000, session.should_shut_down)

    async def _undo(self) -> None:
        """Stop the parts that were started, in the reverse order."""
        coordinators, self._coordinators = self._coordinators, ()
        for coordinator in coordinators:
            await coordinator.close()
        session, self._session = self._session, None
        if self._server is not None:
            await self.broker.markers.checks.stop()
            await self.broker.markers.sender.close()
            await self.broker.group_lag.close()
            await self.broker.data_loss.stop()
            await self.broker.loss_reports.stop()
            await self.broker.fence_reports.stop()
            await self.broker.isr_changes.stop()
            await self.broker.inspected_appends.stop()
            # Delayed produce and fetch requests get their responses now.
            self.broker.partitions.close()
            await self.broker.followers.close()
            await self.broker.future_replicas.close()
            await self._server.stop(STOP_GRACE_S)
            # After the requests in flight, which may ask other brokers.
            self.broker.other_brokers.close()
            await self.broker.log_work.settled()  # a last StopReplica syncs names
            await self.broker.commit.settled()
            self._server = None
        broker_epoch = -1 if session is None else session.broker_epoch
        directories, self._directories.all = self._directories.all, []
        for directory in directories:
            if not directory.close(broker_epoch):
                logger.error(
                    "%(log_dir)s was not closed cleanly: %(why)s",
                    {"log_dir": directory.path, "why": directory.failed},
                )
        if session is not None:
            await session.stop()


async def _within(limit_s: float, event: asyncio.Event) -> bool:
    """Wait for an event, no longer than a limit; return whether it has come."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await event.wait()
    return event.is_set()


def _router(broker: Broker) -> Router:
    served = [api_versions.HANDLER, *handlers.HANDLERS]
    return Router(served, lambda: broker.cluster_level.offers_transactions)


def limits_of(configs: ServerConfigs, descriptors: Descriptors, dynamic: ConfigCache) -> Limits:
    """Return the limits of a broker's listeners: never more connections than descriptors."""
    idle_ms = configs.connections_max_idle_ms
    most = dynamic.number("max.connections", configs.max_connections)
    per_ip = dynamic.number("max.connections.per.ip", configs.max_connections_per_ip)
    return Limits(
        max_request_bytes=configs.socket_request_max_bytes,
        queued_request_bytes=configs.queued_max_request_bytes,
        frame_s=configs.request_timeout_ms / 1000,
        max_connections=max(1, min(most, descriptors.connections)),
        max_connections_per_ip=per_ip,
        max_idle_s=idle_ms / 1000 if idle_ms >= 0 else -1,
        backlog=configs.socket_listen_backlog_size,
    )


def _boot_id(seams: Seams) -> str:
    """Return the boot id of the operating system, "" where there is none."""
    try:
        return seams.disk.read(BOOT_ID).decode().strip()
    except OSError:
        return ""
