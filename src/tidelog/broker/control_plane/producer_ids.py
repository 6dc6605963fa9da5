"""Producer ids for idempotent producers, from blocks that the controller allocates.

Owns the current block. An id is never used twice in a cluster: the rest of the block is lost when
the broker stops, on purpose.
"""

from __future__ import annotations

import asyncio

from tidelog.broker.control_plane.session import ControllerSession
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages


class ProducerIdsRefused(Exception):
    """The controller refused a block; ``code`` says why."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(f"the controller refused a block of producer ids: {code.name}")
        self.code = code


class ProducerIds:
    """Allocates producer ids; requests the next block when the current one is used up."""

    def __init__(self, session: ControllerSession, node_id: int) -> None:
        self._session = session
        self._node_id = node_id
        self._next = 0
        self._end = 0
        self._asking: asyncio.Task[None] | None = None

    async def next_id(self) -> int:
        """Return an id that was never used before.

        Raises what ``ControllerSession.request`` raises, and ProducerIdsRefused. Concurrent callers
        share one request for a block.
        """
        while self._next == self._end:
            if self._asking is None or self._asking.done():
                self._asking = asyncio.get_running_loop().create_task(self._ask())
            await asyncio.shield(self._asking)
        self._next += 1
        return self._next - 1

    async def _ask(self) -> None:
        request = messages.AllocateProducerIdsRequest(
            broker_id=self._node_id, broker_epoch=self._session.broker_epoch
        )
        answer = await self._session.request(request)
        if answer.error_code != ErrorCode.NONE:
            raise ProducerIdsRefused(ErrorCode(answer.error_code))
        self._next = answer.producer_id_start
        self._end = answer.producer_id_start + answer.producer_id_len
