"""Responses of a producer that do not come: when to look for another leader, or to divide.

Owns the two timers, and what is asked of brokers then. Not which requests are open: see
``flights``; not what is sent again, and where: see ``delivery`` and ``lanes``.

After ``LATE_S`` without a response a broker may wait for replicas of one partition. If it greets on
another connection its partitions are divided, so that the others do not wait, too. That needs an
identity: what is sent again is written once. After ``SILENT_S`` a broker may have been replaced:
other brokers are asked for metadata.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial

from tidelog.client.cluster import Cluster
from tidelog.client.errors import ConnectionLost
from tidelog.client.producing.broker_work import BrokerWork
from tidelog.client.producing.earliest_timer import EarliestTimer
from tidelog.client.producing.flights import Flights
from tidelog.client.producing.lanes import Lane
from tidelog.client.producing.send_queue import SendQueue
from tidelog.client.producing.settings import SendSettings


class Unanswered:
    """The watch over the requests in flight of one producer.

    ``give_up`` lets what queues have in flight be sent again, and says why.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: SendSettings,
        flights: Flights,
        work: BrokerWork,
        give_up: Callable[[SendQueue, str], None],
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._flights = flights
        self._work = work
        self._give_up = give_up
        self._silence = EarliestTimer(self._search_for_silent)
        self._lateness = EarliestTimer(self._search_for_late)

    def watch(self) -> None:
        """Search when what is on its way now has had no response for too long."""
        now = asyncio.get_running_loop().time()
        idempotent = self._settings.idempotent
        if idempotent and self._lateness.at is None and self._flights.under_way:
            self._lateness.set(self._flights.next_late(now))
        if self._silence.at is not None:
            return
        waits = idempotent or self._settings.acks == 0 or self._flights.connecting
        if waits and (search_at := self._flights.next_search(now)) is not None:
            self._silence.set(search_at)

    def stop(self) -> None:
        """Search no longer."""
        self._silence.stop()
        self._lateness.stop()

    def _search_for_silent(self) -> None:
        """Ask for metadata when a broker does not answer: another one may lead by then."""
        if silent := self._flights.silent(asyncio.get_running_loop().time()):
            self._work.run("silent", partial(self._ask_others, silent))
        self.watch()

    async def _ask_others(self, silent: set[int]) -> None:
        """Ask other brokers than those that are silent for metadata."""
        for node_id in silent:
            if (broker := self._cluster.view.brokers.get(node_id)) is not None:
                self._cluster.note_silent(broker.peer)
        await self._cluster.refresh()

    def _search_for_late(self) -> None:
        now = asyncio.get_running_loop().time()
        lanes = self._flights.lanes
        for node_id in self._flights.late(now):
            if lanes.is_divided(node_id):
                lanes.divide(node_id, now)
            elif self._flights.held_up(node_id, self._cluster.view):
                self._work.run(("divide", node_id), partial(self._divide, node_id))
        lanes.join(now)
        self.watch()

    async def _divide(self, node_id: int) -> None:
        """Divide the partitions of a broker that greets, and send what they wait for again."""
        with contextlib.suppress(ConnectionLost):
            await self._cluster.connection(node_id, Lane(node_id, 1).purpose)
            if queues := self._flights.held_up(node_id, self._cluster.view):
                self._flights.lanes.divide(node_id, asyncio.get_running_loop().time())
                for queue in queues:
                    self._give_up(queue, f"broker {node_id} waited for replicas of a partition")
