"""Producer ids for idempotent producers, from blocks that the controller hands out.

Owns the block in use. Ids are unique for the life of the cluster: a block that was not used up when
a broker stops is lost, on purpose.
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
    """Hands out producer ids; asks for the next block when one is used up."""

    def __init__(self, session: ControllerSession, node_id: int) -> None:
        self._session = session
        self._node_id = node_id
        self._next = 0
        self._end = 0
        self._asking: asyncio.Task[None] | None = None

    async def next_id(self) -> int:
        """Return an id that nobody had before.

        Raises what ``ControllerSession.request`` raises, and ProducerIdsRefused. However many
        producers ask at once, one block is asked for.
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
