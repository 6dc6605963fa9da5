"""The times of batches: until when each one lingers, and when it fails for good.

Owns the timers of the delivery time-outs. Not what follows when one is over: see ``delivery``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidelog.client.producing.send_queue import ProducerBatch, SendQueue


class BatchTimes:
    """The times of one producer's batches, on the loop's clock."""

    def __init__(self, expired: Callable[[SendQueue, ProducerBatch], None]) -> None:
        self._expired = expired
        self._due: dict[ProducerBatch, float] = {}
        self._deadlines: dict[ProducerBatch, asyncio.TimerHandle] = {}

    def linger(self, batch: ProducerBatch, until: float) -> None:
        """Let a batch wait for more records until a time; 0.0: it goes at once."""
        self._due[batch] = until

    def due(self, batch: ProducerBatch) -> float:
        """Return until when a batch lingers; 0.0 for one that was sent before."""
        return self._due.get(batch, 0.0)

    def expire_at(self, deadline: float, queue: SendQueue, batch: ProducerBatch) -> None:
        """Let a batch fail at this time, unless it has its outcome by then."""
        batch.deadline = deadline
        loop = asyncio.get_running_loop()
        self._deadlines[batch] = loop.call_at(deadline, self._expired, queue, batch)

    def went(self, batch: ProducerBatch) -> None:
        """Note that a batch was sent: a retry does not linger."""
        self._due.pop(batch, None)

    def forget(self, batch: ProducerBatch) -> None:
        """Forget a batch that has its outcome, or was taken back."""
        self._due.pop(batch, None)
        timer = self._deadlines.pop(batch, None)
        if timer is not None:
            timer.cancel()

    def expire_when(self, batch: ProducerBatch) -> float | None:
        """Return when the time-out of a batch ends; None: it has its outcome."""
        timer = self._deadlines.get(batch)
        return None if timer is None else timer.when()

    def __len__(self) -> int:
        return len(self._deadlines)
