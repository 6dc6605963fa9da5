"""A broker's session with the active controller: registration, heartbeats, requests.

Owns the one connection for this broker's requests to the controller. Not the controller's commands:
see ``control_channel``; not the requests of clients: see ``envelopes``. The first request on each
new connection is BrokerRegistration, which identifies the broker; heartbeats keep it alive.

States: seeking (no controller found, or it refused this broker) -> registered -> seeking, until
stopped. A caller that needs the controller waits up to its own deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID

from tidelog.broker.control_plane.controller_search import ControllerSearch
from tidelog.broker.control_plane.controller_search import (
    ControllerUnreachable as ControllerUnreachable,
)
from tidelog.broker.control_plane.envelopes import Check, Envelopes, unchecked
from tidelog.broker.control_plane.heartbeat_pace import HeartbeatPace
from tidelog.broker.control_plane.quorum import Quorum
from tidelog.broker.control_plane.refused_registrations import RefusedRegistrations
from tidelog.client.connecting.connection import ClientConnection
from tidelog.client.errors import ClientError, ConnectionLost, error_code
from tidelog.model.configs.addresses import Listener
from tidelog.model.configs.server import PROTOCOLS
from tidelog.model.errors import ErrorCode
from tidelog.model.levels import HIGHEST
from tidelog.model.registration import FormerRegistration
from tidelog.network.requester import Requester
from tidelog.protocol import messages
from tidelog.protocol.primitives import NO_UUID
from tidelog.runtime.backoff import steady
from tidelog.runtime.cluster_secret import ClusterSecret
from tidelog.runtime.tls_files import TlsFiles

logger = logging.getLogger(__name__)

RETRY_MS = 100
"""First pause between two attempts to find the controller; doubles up to ``RETRY_MAX_MS``."""

CHECK_AGAIN_MS = 20
"""First pause between two requests for the cluster id, before there is a session; later ones are
a tenth of the time waited so far."""

SAY_AFTER_MS = 3_000
"""After this time without a controller the log names the addresses that a start waits for."""

RETRY_MAX_MS = 500
MAX_UNANSWERED = 16
"""Most heartbeats without a response yet."""

REGISTRATION_VERSION = HEARTBEAT_VERSION = 0


@dataclass(frozen=True, slots=True)
class Identity:
    """What identifies one process of one broker. ``listeners`` are the advertised ones."""

    node_id: int
    cluster_id: str
    incarnation_id: UUID
    directory_id: UUID
    listeners: Sequence[Listener]
    rack: str | None
    log_dirs: Sequence[str] = ()
    cordoned_log_dirs: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Reported:
    """The state that a broker reports in a registration."""

    last_stop: FormerRegistration
    controller_epoch: int
    store_revision: int
    inventory: list[Any]
    """``messages.BrokerRegistrationRequest.InventoryTopic``, one per topic."""


def _none() -> None:
    """Return no failures."""


def _no_topics(_registration: int) -> list[Any]:
    """Return no topics."""
    return []


async def _keeps_its_own(_cluster_id: str) -> bool:
    """Take no other cluster id."""
    return False


class ControllerSession:
    """The session of one broker process; created once, started once."""

    def __init__(
        self,
        controllers: Sequence[tuple[str, int]],
        heartbeat_ms: int,
        session_timeout_ms: int,
        request_timeout_ms: int,
        report: Callable[[], Reported],
        when_registered: Callable[[int], Awaitable[None]],
        failures: Callable[[], Any] = _none,
        secret: ClusterSecret | None = None,
        silence_ms: int | None = None,
        led_topics: Callable[[int], list[Any]] = _no_topics,
        take_cluster_id: Callable[[str], Awaitable[bool]] = _keeps_its_own,
        tls: TlsFiles | None = None,
    ) -> None:
        """``report`` is called for each registration, for each heartbeat ``failures`` (tag 10000)
        and ``led_topics`` (tag 10001, with the number of the registration);
        ``when_registered`` gets the broker epoch, and no control channel opens before it has
        returned. ``secret`` is proved on each connection. ``silence_ms`` is
        ``broker.silence.suspect.ms`` of the broker's own file; None: it is not compared.
        ``take_cluster_id`` gets the right id of this cluster where the controller says that this
        broker's id was a mistake; it returns whether the broker has taken it. ``tls``: see
        ``ControllerSearch``."""
        self._secret = secret
        self._pace = HeartbeatPace(heartbeat_ms, silence_ms)
        # The broker leaves a controller that is silent for two thirds of the session: the session
        # still lasts then, and a controller that paused for half of a session keeps its brokers.
        self.search = ControllerSearch(controllers, session_timeout_ms * 2 // 3, secret, tls)
        self._timeout_ms = request_timeout_ms
        self._report = report
        self._when_registered = when_registered
        self._failures = failures
        self._led_topics = led_topics
        self._take_cluster_id = take_cluster_id
        self._identity: Identity | None = None
        self._connection: ClientConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._waiting: dict[asyncio.Future[ClientConnection], None] = {}
        self._unanswered = 0
        self._why_ended: ConnectionLost | None = None
        self._stopping = False
        self._want_shut_down = False
        # Set to send the next heartbeat at once, or when the connection has ended.
        self._woken = asyncio.Event()
        self.quorum = Quorum(self.search)
        self._envelopes = Envelopes(self.registered, self.search, self._woken.set, secret)
        self.should_shut_down = asyncio.Event()
        self.broker_epoch = -1
        self.channel_key = NO_UUID
        """What the controller must send to open a control channel; NO_UUID: it gave no key."""
        self._registering: asyncio.Future[None] | None = None
        self.registrations = 0
        self.refusals = RefusedRegistrations()
        self.founded_as = ""
        """Of ``discover_cluster_id``: what the cluster was called before it was known."""

    async def discover_cluster_id(self, timeout_ms: int, broker: int = -1, own: str = "") -> str:
        """Ask any controller for the id of the cluster. Raises ControllerUnreachable.

        ``own``: the cluster of this ``broker``'s log directories, "" while they are new.
        """
        loop = asyncio.get_running_loop()
        begun = loop.time()
        is_logged = False
        while True:
            try:
                connection = await self.search.connect_next()
                try:
                    request = messages.DescribeClusterRequest(broker_id=broker, own_cluster_id=own)
                    answer = await self.search.ask(connection, request, 0)
                finally:
                    connection.close()
                if answer.error_code == ErrorCode.NONE and answer.cluster_id:
                    self.founded_as = answer.founded_as
                    return str(answer.cluster_id)
            except ClientError as error:
                logger.debug("no controller yet: %s", error)
            waited_ms = (loop.time() - begun) * 1000
            if waited_ms > timeout_ms:
                raise ControllerUnreachable(self.search.unreachable())
            if waited_ms > SAY_AFTER_MS and not is_logged:
                is_logged = True
                logger.warning("%s Waiting for it.", self.search.unreachable())
            # When a whole cluster starts, a broker finds the controller at most a tenth later than
            # possible.
            await asyncio.sleep(min(max(CHECK_AGAIN_MS, waited_ms / 10), RETRY_MAX_MS) / 1000)

    def start(self, identity: Identity) -> None:
        """Begin to seek the active controller and to register with it."""
        self._identity = identity
        self._task = asyncio.get_running_loop().create_task(self._run(), name="controller-session")

    async def stop(self) -> None:
        """End the session: the controller will suspect this broker once it is silent."""
        self._stopping = self._envelopes.is_stopping = True
        if self._connection is not None:
            self._connection.close("this broker stops")
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        for waiting in self._waiting:
            waiting.cancel()

    async def registration_settled(self) -> None:
        """Wait for the response to a registration under way: it has the channel key, and
        the controller may open the channel before the response has arrived."""
        if self._registering is not None:
            await asyncio.shield(self._registering)

    @property
    def is_open(self) -> bool:
        """Whether this broker is registered with an active controller now."""
        return self._connection is not None and not self._connection.closed

    @property
    def is_responding(self) -> bool:
        """Whether the active controller answers this broker's heartbeats."""
        return self.is_open and self._unanswered < MAX_UNANSWERED

    def ask_to_leave(self) -> None:
        """Ask for controlled shutdown in each heartbeat from now on: see ``should_shut_down``."""
        self._want_shut_down = True
        self._woken.set()

    def beat_soon(self) -> None:
        """Send the next heartbeat at once: it has something to report."""
        self._woken.set()

    async def registered(self, timeout_ms: int) -> ClientConnection:
        """Wait until this broker is registered. Raises ControllerUnreachable."""
        if self._connection is not None and not self._connection.closed:
            return self._connection
        future: asyncio.Future[ClientConnection] = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        future.add_done_callback(lambda done: self._waiting.pop(done, None))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await future
        except TimeoutError:
            raise ControllerUnreachable(self.search.unreachable()) from None

    async def request(self, request: Any, timeout_ms: int | None = None) -> Any:
        """Send a request of a broker to the active controller and return its response.

        Raises ControllerUnreachable when there is none in time, ClientError when the connection
        broke: then the outcome is unknown, and the caller decides whether to retry.
        """
        limit = self._timeout_ms if timeout_ms is None else timeout_ms
        connection = await self.registered(limit)
        return await connection.send(request, None, limit)

    async def forward(
        self, inner: bytes, requester: Requester, timeout_ms: int, check: Check = unchecked
    ) -> bytes:
        """Forward a client's request: see ``Envelopes.forward``. Raises as ``request`` does."""
        return await self._envelopes.forward(inner, requester, timeout_ms, check)

    async def _run(self) -> None:
        backoff = steady(RETRY_MS, RETRY_MAX_MS)
        failures = 0
        while not self._stopping:
            try:
                connection = await self.search.connect_next(self._ended)
                try:
                    if await self._register(connection):
                        failures = 0
                        await self._beat(connection)
                finally:
                    connection.close("the session with this controller has ended")
                    self._connection = None
                    self._envelopes.close()
            except Exception as error:
                # Also an invalid response, or a bug: without a session the broker is useless.
                self.search.failed(error)
            if self._stopping:
                return
            await asyncio.sleep(backoff.pause_s(failures))
            failures += 1

    async def _register(self, connection: ClientConnection) -> bool:
        request = self._registration()
        self._registering = settled = asyncio.get_running_loop().create_future()
        try:
            answer = await self.search.ask(connection, request, REGISTRATION_VERSION)
            error = ErrorCode(answer.error_code)
            if error is ErrorCode.NONE:
                self.broker_epoch, self.channel_key = answer.broker_epoch, answer.channel_key
                self._pace.asked_for(answer.heartbeat_ms, connection.peer)
                await self._when_registered(answer.broker_epoch)
        finally:
            # Also after a failure: a control channel that opens early waits for this.
            self._registering = None
            settled.set_result(None)
        if error is ErrorCode.NONE:
            self.registrations += 1
            self.refusals.over()
            self.search.found()
            # Only now, with the broker epoch in use: requests that wait name it.
            self._connection = connection
            logger.info(
                "registered with %(controller)s, broker epoch %(broker_epoch)s",
                {"controller": connection.peer, "broker_epoch": self.broker_epoch},
            )
            for waiting in list(self._waiting):
                if not waiting.done():
                    waiting.set_result(connection)
            return True
        why = f"{connection.peer} refused the registration of broker {request.broker_id}: "
        if error is ErrorCode.INCONSISTENT_CLUSTER_ID:
            error = await self._wrong_id(connection)
        if error is not ErrorCode.NONE:
            self.refusals.add(error, why)
        return False

    async def _wrong_id(self, connection: ClientConnection) -> ErrorCode:
        """Take the cluster's right id, if the controller says that ours was its own mistake.

        Returns what is wrong still. A controller that has just learnt of its mistake loads its
        store again, and answers NOT_CONTROLLER meanwhile: that proves nothing about our id.
        """
        identity = self._identity
        assert identity is not None
        request = messages.DescribeClusterRequest(broker_id=identity.node_id)
        answer = await self.search.ask(connection, request, 0)
        if answer.error_code != ErrorCode.NONE:
            return ErrorCode(answer.error_code)
        is_mistake = answer.founded_as == identity.cluster_id
        if not is_mistake or not await self._take_cluster_id(answer.cluster_id):
            return ErrorCode.INCONSISTENT_CLUSTER_ID
        self._identity = replace(identity, cluster_id=answer.cluster_id)
        return ErrorCode.NONE

    def _registration(self) -> messages.BrokerRegistrationRequest:
        identity = self._identity
        assert identity is not None
        reported = self._report()
        request = messages.BrokerRegistrationRequest
        return request(
            broker_id=identity.node_id,
            cluster_id=identity.cluster_id,
            incarnation_id=identity.incarnation_id,
            listeners=[
                request.Listener(x.name, x.host, x.port, PROTOCOLS.index(x.security_protocol))
                for x in identity.listeners
            ],
            rack=identity.rack,
            last_life_ended=int(
                # The first registration said how the former process ended; since then this one lost
                # nothing.
                FormerRegistration.SAME if self.registrations else reported.last_stop
            ),
            highest_seen=request.HighestSeen(reported.controller_epoch, reported.store_revision),
            inventory=reported.inventory,
            highest_level=HIGHEST.name,
            directory_id=identity.directory_id,
            log_dirs=list(identity.log_dirs),
            cordoned_log_dirs=list(identity.cordoned_log_dirs),
            # A store that was lost would begin at 1 again, and leaders count no fetch of a broker
            # epoch that is lower than the one before.
            broker_epoch=self.broker_epoch,
        )

    async def _beat(self, connection: ClientConnection) -> None:
        """Send heartbeats at their interval until the connection ends.

        Responses come in order, so one may wait for those of earlier requests. That must not make
        this broker silent: the next heartbeat does not wait for it.
        """
        while not connection.closed:
            self._woken.clear()
            if self._unanswered < MAX_UNANSWERED:
                self._send_heartbeat(connection)
            pause_s = self._pace.ms / (10_000 if self._want_shut_down else 1000)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._woken.wait()
        if self._why_ended is not None:
            raise self._why_ended

    def _send_heartbeat(self, connection: ClientConnection) -> None:
        identity = self._identity
        assert identity is not None
        request = messages.BrokerHeartbeatRequest(
            broker_id=identity.node_id,
            broker_epoch=self.broker_epoch,
            want_shut_down=self._want_shut_down,
            failures=self._failures(),
            led_topics=self._led_topics(self.registrations),
        )
        answer = connection.submit(request, HEARTBEAT_VERSION, self.search.least_ms)
        self._unanswered += 1
        answer.add_done_callback(partial(self._heartbeat_answered, connection))

    def _heartbeat_answered(
        self, connection: ClientConnection, future: asyncio.Future[Any]
    ) -> None:
        self._unanswered -= 1
        if future.cancelled() or future.exception() is not None:
            # The connection ended: ``_run`` logs that once, with the reason.
            return
        answer = future.result()
        if answer.error_code != ErrorCode.NONE:
            connection.close(f"responded to a heartbeat with {error_code(answer.error_code).name}")
        elif answer.should_shut_down:
            self.should_shut_down.set()

    def _ended(self, why: ConnectionLost) -> None:
        self._why_ended = why
        self._woken.set()


async def ask_once(session: ControllerSession, request: Any, name: str) -> Any | None:
    """Send a request of a broker, for a caller that retries; None: no response, or refused."""
    try:
        answer = await session.request(request)
    except (ClientError, ControllerUnreachable) as error:
        logger.info("%(request)s got no response: %(error)s", {"request": name, "error": error})
        return None
    if answer.error_code != ErrorCode.NONE:
        logger.info(
            "%(request)s was refused: %(error)s",
            {"request": name, "error": error_code(answer.error_code).name},
        )
        return None
    return answer
