"""A topic that its controller resizes by its load: writers that are busy and quiet in turn.

Owns the load, the topic's configuration, and the end of autoscaling. Not the decision: see
``tidelog.controller.decisions.autoscaling``.
"""

from __future__ import annotations

import asyncio

from tests.simulation.cluster.elastic import MOST, NAME, Elastic
from tests.simulation.cluster.resizer import Resizer
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages

REQUEST = messages.IncrementalAlterConfigsRequest
SET, OF_A_TOPIC = 0, 2

CONFIGS = {
    "partitions.auto": "true",
    "partitions.auto.target.bytes.per.second": "250",
    "partitions.auto.max": str(MOST),
    "partitions.auto.grow.cooldown.ms": "500",
    "partitions.auto.shrink.cooldown.ms": "1500",
}
"""The load is above and far below the target in turn: the topic doubles, and halves again."""

BUSY, QUIET = (25.0, 6.0, 10.0), (1.5, 10.0, 16.0)
"""Records a second of a writer, and the shortest and longest time that it lasts."""


class Autoscaled(Elastic):
    """The clients of such a topic."""

    def start(self) -> list[asyncio.Task[None]]:
        """Start the clients, and what changes their rate."""
        return [*super().start(), asyncio.create_task(self._vary_load())]

    async def _vary_load(self) -> None:
        rng = self.random("load")
        while True:
            for rate, shortest, longest in (BUSY, QUIET):
                self.rate = rate
                await asyncio.sleep(rng.uniform(shortest, longest))


class Mover(Resizer):
    """An administrator that moves partitions, and asks for no count."""

    async def _ask(self, count: int) -> None:
        await self._move()

    async def end_autoscaling(self) -> None:
        """Let the topic stay as it is from now on; tries again until the controller has said so."""
        wanted = REQUEST.AlterableConfig(
            name="partitions.auto", config_operation=SET, value="false"
        )
        topic = REQUEST.AlterConfigsResource(
            resource_type=OF_A_TOPIC, resource_name=NAME, configs=[wanted]
        )
        await self._outside.until(
            REQUEST(resources=[topic]),
            lambda answer: answer.responses[0].error_code == ErrorCode.NONE,
        )
