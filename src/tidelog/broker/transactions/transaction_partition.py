"""What transactional ids need of their own in one led partition of ``__transaction_state``.

Owns the effects that only these tables have: markers that are to be written, and fresh producer
ids; and the deadlines that a load sets, in steps. Not when the ids are served and how they are
written: see ``coordinator.led_partition``; not how markers reach the leaders: see the sender of
markers, which has the form of ``SendsMarkers``.
Order: the record of a decision is committed before its markers are sent. A load finds each decision
whose end is not in the log, and its markers are sent again. When leadership ends, so do the markers
and the waits for producer ids; the next coordinator begins with what the log says.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from tidelog.broker.control_plane.producer_ids import ProducerIdsRefused
from tidelog.broker.control_plane.session import ControllerUnreachable
from tidelog.broker.coordinator.pending_response import give
from tidelog.client.errors import ClientError
from tidelog.model.effects import Answer
from tidelog.model.errors import ErrorCode
from tidelog.runtime import pace
from tidelog.transactions import limits
from tidelog.transactions.decision import AllocateProducerId, SendMarkers, TransactionEffect
from tidelog.transactions.events import Event, InitProducerId, InitProducerIdResult, MarkersWritten

if TYPE_CHECKING:
    from tidelog.broker.coordinator.table import Shell
    from tidelog.runtime.clock import Clock
    from tidelog.transactions.table import TransactionTable

logger = logging.getLogger(__name__)

MAX_ALLOCATING = 1_000
"""Most requests of one partition that wait for a producer id; more get
COORDINATOR_LOAD_IN_PROGRESS."""


class SendsMarkers(Protocol):
    """What writes markers: ``marker_sender``."""

    def send(
        self,
        state_partition: int,
        coordinator_epoch: int,
        markers: SendMarkers,
        written: Callable[[], None],
        /,
    ) -> None:
        """Write markers until all are durable; then call ``written`` once, on the loop."""

    def stop(self, state_partition: int, /) -> None:
        """Forget the markers of a coordinator that was deposed."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the own parts of all partitions use."""

    clock: Clock
    next_id: Callable[[], Awaitable[int]]
    """Return a producer id that was never used."""
    markers: Callable[[], SendsMarkers | None]
    spawn: Callable[[Coroutine[Any, Any, None], str], None]
    """Start a task that ends with the coordinator at the latest."""


class TransactionPartition:
    """The own part of one led partition: a ``coordinator.table.OwnPart``."""

    def __init__(self, shell: Shell[TransactionTable], parts: Parts) -> None:
        self._shell = shell
        self._parts = parts
        self._to_send: deque[SendMarkers] = deque()
        """At most one for each id: nothing else is decided before its markers are written."""
        self._is_sending = False
        self._allocating: set[InitProducerId] = set()

    def decide(self, transactional_id: str, event: Event) -> None:
        """Decide an event at once."""
        self._shell.decide_now(transactional_id, event)

    def carry_out(self, effect: TransactionEffect) -> None:
        """Let markers be sent, or a producer id be allocated."""
        if isinstance(effect, SendMarkers):
            self._to_send.append(effect)
            self.send_soon()
        else:
            assert isinstance(effect, AllocateProducerId), effect
            self._allocate(effect)

    def close(self) -> None:
        """Forget the markers, and refuse the requests that wait for a producer id."""
        self._to_send.clear()
        markers = self._parts.markers()
        if markers is not None:
            markers.stop(self._shell.hosted.partition)
        waiting, self._allocating = self._allocating, set()
        for request in waiting:
            _refuse(request, self._shell.state)

    async def before_loaded(self) -> None:
        """Set the deadlines of all ids, in turns of the loop."""
        shell, state = self._shell, self._shell.hosted.state
        shell.table.has_lost = state.is_unclean_leader or state.has_debt
        if shell.state is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            await pace.run(shell.table.settle(shell.now()), self._parts.clock)

    async def after_loaded(self) -> None:
        """Do nothing: what was decided follows from ``Table.loaded``."""

    # Markers -----------------------------------------------------------------------------------

    def send_soon(self) -> None:
        """Send the markers that wait, in later turns of the loop: a load may find the decisions of
        very many ids at once."""
        if self._to_send and not self._is_sending:
            self._is_sending = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        self._is_sending = False
        markers, turn = self._parts.markers(), pace.Turn(self._parts.clock)
        if markers is None:
            return
        while self._to_send:
            effect = self._to_send.popleft()
            try:
                self._send_one(markers, effect)
            except Exception:
                # A bug must not leave a transaction undecided for readers until the next leader.
                named = {"transactional_id": effect.transactional_id}
                logger.exception("the markers of %(transactional_id)s could not be sent", named)
                loop = asyncio.get_running_loop()
                loop.call_later(limits.RETRY_MS / 1000, self._send_again, effect)
            if turn.is_over:
                break
        self.send_soon()

    def _send_one(self, markers: SendsMarkers, effect: SendMarkers) -> None:
        hosted, written = self._shell.hosted, partial(self._written, effect)
        if effect.partitions:
            markers.send(hosted.partition, hosted.leader_epoch, effect, written)
        else:
            written()

    def _send_again(self, effect: SendMarkers) -> None:
        if self._shell.state is ErrorCode.NONE:
            self._to_send.append(effect)
            self.send_soon()

    def _written(self, effect: SendMarkers) -> None:
        event = MarkersWritten(effect.producer, effect.committed)
        self._shell.decide(effect.transactional_id, event)

    # Producer ids ------------------------------------------------------------------------------

    def _allocate(self, effect: AllocateProducerId) -> None:
        request = effect.request
        if len(self._allocating) >= MAX_ALLOCATING:
            _refuse(request, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            return
        self._allocating.add(request)
        self._parts.spawn(self._allocated(effect.transactional_id, request), "producer-id")

    async def _allocated(self, transactional_id: str, request: InitProducerId) -> None:
        error = ErrorCode.UNKNOWN_SERVER_ERROR
        try:
            async with asyncio.timeout(limits.WAIT_MS / 1000):
                producer_id = await self._parts.next_id()
            error = ErrorCode.NONE
        except (TimeoutError, ControllerUnreachable, ProducerIdsRefused, ClientError) as why:
            named = {"transactional_id": transactional_id, "why": str(why) or "no answer in time"}
            logger.warning("no producer id for %(transactional_id)s: %(why)s", named)
            error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        finally:
            is_waiting = request in self._allocating
            self._allocating.discard(request)
            if is_waiting and error is not ErrorCode.NONE:
                _refuse(request, error)
        if is_waiting:
            self._shell.decide(transactional_id, request.with_new_id(producer_id))


def _refuse(request: InitProducerId, error: ErrorCode) -> None:
    give(Answer(request.pending_response, InitProducerIdResult(error)))
