"""The watch over broker sessions: it suspects and expires silent brokers.

Owns the connection of each broker's session, and the watch over all of them: it replaces suspected
brokers where that is safe, and expires dead ones. What silence means: see ``decisions.sessions``.
It checks the event loop too: a blocked loop receives no heartbeats. While the store does not answer
it suspects no broker: heartbeats are refused then, so that brokers look for another controller.
Registrations, heartbeats and
AlterIsr count only on the connection that the broker registered on: requests on an older connection
belong to a session that ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Set
from typing import Protocol

from tidelog.controller.channels import Channels
from tidelog.controller.consequences import ControllerEvent
from tidelog.controller.decisions import registration, soft_state
from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.decision import Decision
from tidelog.controller.decisions.sessions import BrokerPlace, Patience, Proofs, Sessions
from tidelog.controller.outbox import Outbox
from tidelog.controller.performing import NotActive, Performer
from tidelog.controller.requests import inter_broker_address
from tidelog.metadata.store import MetadataStore
from tidelog.model.configs.server import ServerConfigs
from tidelog.network.router import Peer
from tidelog.runtime.seams import Seams

logger = logging.getLogger(__name__)

MIN_PAUSE_MS = 10
"""The shortest pause between two checks of the sessions."""

LISTEN_S = 0.1
"""How long a controller reads unread requests before it acts on a silence."""

HURRIED_LISTEN_S = 0.02
"""The same where other brokers have just responded."""

LISTEN_TURNS = 4
"""Turns of the loop after that: one reads and the next serves, whatever time each takes."""

SEEK_MS = 1_000
"""How long a broker may take to come back once the store answers again: twice the longest pause of
a broker that seeks its controller."""

RETRY_S = 0.5
"""The pause before a failed check is tried again."""


class SessionOwner(Performer, Protocol):
    """A controller, as its sessions see it."""

    configs: ServerConfigs
    seams: Seams
    channels: Channels
    store: MetadataStore


class SessionWatch:
    """The sessions of one controller; they end when it is no longer active."""

    def __init__(self, controller: SessionOwner) -> None:
        configs = controller.configs
        self.sessions = Sessions(
            Patience(
                configs.broker_session_grace_ms,
                configs.broker_silence_suspect_ms,
                configs.broker_session_timeout_ms,
            )
        )
        self._controller = controller
        self._peers: dict[int, Peer] = {}
        self._changed = asyncio.Event()
        self._judged_ms = 0
        """The time of the last check of the sessions."""

        self._without_store = False
        self._next_check: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Begin the presumed session of every registered broker, which may time out."""
        now = self._now_ms()
        for broker in self._controller.cluster.brokers:
            self.sessions.presume(broker, now)
        self._check()
        self._changed.set()

    def end(self) -> None:
        """Forget all sessions."""
        if self._next_check is not None:
            self._next_check.cancel()
        self._peers.clear()
        self.sessions.clear()
        self._without_store = False

    async def opened(self, broker: int, peer: Peer, new_channel: bool) -> None:
        """Begin the session of a broker that registered on ``peer``, and its channel if it is new.

        A broker that is new to this controller gets its first FULL by that channel.
        """
        controller = self._controller
        self._peers[broker] = peer
        peer.on_close(lambda: self._closed(broker, peer))
        soft_state.note_session(controller.cluster, broker)
        self.received(broker, is_answered=False)
        channels = controller.channels
        if channels.has(broker) and not new_channel:
            return
        former = channels.remove(broker)
        if former is not None:
            await former.close()
        # While the former one closed, the broker may have expired, or have registered again.
        is_known = broker in controller.cluster.brokers
        if controller.active and is_known and not channels.has(broker):
            channels.open(broker)

    def answered(self, broker: int, peer: Peer) -> None:
        """Count silence from now: the registration on ``peer`` has its response."""
        if self.is_session_of(broker, peer):
            self.received(broker)

    def received(self, broker: int, *, is_answered: bool = True) -> bool:
        """Note a sign of life of a broker; return whether that ended a suspicion.

        Until its registration ``is_answered`` its silence causes no suspicion.
        """
        was_suspected = soft_state.end_suspicion(self._controller.cluster, broker)
        session = self.sessions.by_broker.get(broker)
        if session is None or session.presumed or session.closed_ms is not None:
            # The next check of its silence is due earlier than the one that is scheduled.
            self._changed.set()
        self.sessions.received(broker, self._now_ms(), is_answered=is_answered)
        return was_suspected

    def is_session(self, peer: Peer) -> bool:
        """Return whether a connection is the one that carries a broker's heartbeats."""
        return any(open_peer is peer for open_peer in self._peers.values())

    def is_session_of(self, broker: int, peer: Peer) -> bool:
        """Return whether a broker registered on this connection, and on none since."""
        return self._peers.get(broker) is peer

    def _closed(self, broker: int, peer: Peer) -> None:
        if self._peers.get(broker) is not peer:
            # The broker has begun another session.
            return
        del self._peers[broker]
        self.sessions.closed(broker, self._now_ms())
        self._changed.set()

    async def run(self) -> None:
        """Judge the sessions whenever one may have changed its condition; endless."""
        while True:
            try:
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._until_next_change_s()):
                        await self._changed.wait()
                await self.judge()
            except NotActive:
                await asyncio.sleep(RETRY_S)
            except Exception:
                # A bug in one decision must not stop the watch over all brokers.
                logger.exception("the sessions could not be checked")
                await asyncio.sleep(RETRY_S)

    def _now_ms(self) -> int:
        return self._controller.seams.clock.monotonic_ms()

    def _until_next_change_s(self) -> float:
        sessions = self.sessions
        if self._without_store:
            return sessions.patience.check_ms / 1000
        now = self._now_ms()
        # As of the last check: changes while it acted are still to be judged.
        judged = self._judged_ms
        changes = [
            session.next_change_ms(judged, sessions.patience) - now
            for session in sessions.by_broker.values()
        ]
        # A session that a heartbeat prolongs is judged when it would have ended: no busy loop.
        return max(MIN_PAUSE_MS, min(changes, default=sessions.patience.timeout_ms)) / 1000

    def _check(self) -> None:
        """Check whether the loop was blocked, now and periodically."""
        if self._next_check is not None:
            self._next_check.cancel()
        stood_ms = self.sessions.check(self._now_ms())
        if stood_ms:
            logger.warning(
                "the controller's loop was blocked for %(stood_ms)s ms: silences count from now",
                {"stood_ms": stood_ms},
            )
        pause_s = self.sessions.patience.check_ms / 1000
        self._next_check = asyncio.get_running_loop().call_later(pause_s, self._check)

    async def judge(self) -> None:
        """Replace suspected brokers and expire dead ones. Raises NotActive."""
        self._check()
        # One time for all sessions: those that fall silent while this acts are judged next.
        now = self._judged_ms = self._now_ms()
        if self._waits_for_store(now):
            return
        lost = self.sessions.without_connection(now) - self._controller.cluster.suspected
        if lost:
            await self._replace(lost, "the connection of its session is closed")
        if self._silent(now):
            # Silence is read again after that: an unread heartbeat is none.
            await self._listen()
            silent = self._silent(self._now_ms())
            self.sessions.suspect(silent)
            if silent:
                patience = self.sessions.patience
                await self._replace(silent, f"it was silent for {patience.silence_ms} ms")
        if self.sessions.to_expire(now):
            await self._listen()
            if self.sessions.to_expire(self._now_ms()):
                await self._expire()

    async def hurry(
        self, proofs: Callable[[], Proofs], can_spare: Callable[[Set[int]], bool]
    ) -> bool:
        """Suspect the brokers that are silent to heartbeats and to a request, if that is safe and
        what waits ``can_spare`` them; return whether any is.

        Raises NotActive.
        """
        now = self._now_ms()
        if self._waits_for_store(now) or not self._silent_to_requests(now, proofs(), can_spare):
            return False
        # Others have responded just now: what is unread is from the last turns of the loop.
        await self._listen(HURRIED_LISTEN_S)
        silent = self._silent_to_requests(self._now_ms(), proofs(), can_spare)
        self.sessions.suspect(silent)
        if silent:
            await self._replace(silent, "it does not respond, and a closed resize waits for it")
        return bool(silent)

    def _silent(self, now_ms: int) -> set[int]:
        """Return the brokers to suspect for their silence."""
        places = self._places()
        return self.sessions.silent(now_ms, places, self._own_place(places))

    def _silent_to_requests(
        self, now_ms: int, proofs: Proofs, can_spare: Callable[[Set[int]], bool]
    ) -> set[int]:
        places = self._places()
        own = self._own_place(places)
        silent = self.sessions.silent_to_requests(now_ms, proofs, places, own)
        return silent if silent and can_spare(silent) else set()

    def _own_place(self, places: Mapping[int, BrokerPlace]) -> BrokerPlace | None:
        configs = self._controller.configs
        # A controller in a process of its own does not know which brokers are beside it.
        return places.get(configs.node_id) if configs.is_broker else None

    def _places(self) -> dict[int, BrokerPlace]:
        """Return the machine of each registered broker that has a rack."""
        cluster = self._controller.cluster
        listener = self._controller.channels.sender.inter_broker_listener
        return {
            broker: BrokerPlace(node.rack, address.host)
            for broker, node in cluster.brokers.items()
            if node.rack is not None
            and (address := inter_broker_address(cluster, broker, listener)) is not None
        }

    def _waits_for_store(self, now_ms: int) -> bool:
        """Return whether the store does not answer: nothing could be decided then."""
        was_without = self._without_store
        self._without_store = not self._controller.store.reachable
        if self._without_store and not was_without:
            logger.warning("the metadata store does not answer: no broker is suspected meanwhile")
        elif was_without and not self._without_store:
            logger.info("the metadata store answers again: silences count from now")
            self.sessions.excuse(now_ms, SEEK_MS)
        return self._without_store

    async def _replace(self, brokers: set[int], why: str) -> None:
        controller = self._controller
        for broker in sorted(brokers):
            # One that asked to leave has left: that is no fault of its.
            is_leaving = broker in controller.cluster.shutting_down
            logger.log(
                logging.INFO if is_leaving else logging.WARNING,
                f"broker %(broker)s {'has left' if is_leaving else 'is suspected'}: %(why)s",
                {"broker": broker, "why": why},
            )
        soft_state.suspect(controller.cluster, brokers)
        await controller.perform(registration.replace_unfit)
        controller.changed(ControllerEvent.SUSPECTED)

    async def _listen(self, seconds: float = LISTEN_S) -> None:
        """Serve requests that came meanwhile: a controller that was stopped or busy for as long as
        a session lasts has unread heartbeats of that time."""
        await asyncio.sleep(seconds)
        for _ in range(LISTEN_TURNS):
            await asyncio.sleep(0)

    async def _expire(self) -> None:
        def decide(cluster: ClusterState) -> Decision[list[int]]:
            # Computed again: a broker may have registered while this waited for its turn.
            dead = sorted(self.sessions.to_expire(self._now_ms()))
            expired = registration.expire(cluster, dead)
            return Decision(dead, expired.writes, expired.splits)

        controller = self._controller
        timeout_ms = self.sessions.patience.timeout_ms
        closing: list[Outbox] = []

        def forget(dead: list[int]) -> None:
            # In the turn of the expiry: a broker that registers next reports all of this again.
            for broker in dead:
                logger.warning(
                    "broker %(broker)s is dead: silent for %(silent_ms)s ms",
                    {"broker": broker, "silent_ms": timeout_ms},
                )
                self.sessions.forget(broker)
                # A silent session ends too: later requests on it come from an expired incarnation.
                self._peers.pop(broker, None)
                soft_state.forget(controller.cluster, broker)
                outbox = controller.channels.remove(broker)
                if outbox is not None:
                    closing.append(outbox)

        dead, _ = await controller.perform(decide, forget)
        for outbox in closing:
            await outbox.close()
        if dead:
            await controller.settle(ControllerEvent.EXPIRED)
