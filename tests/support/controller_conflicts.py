"""Stores that count, and commands of topics sent by hand, for tests of a controller process."""

from __future__ import annotations

from typing import Any

from tests.support.controller_process import RecordedBroker, World, configs, topic
from tests.support.lone_controller import LoneController
from tidelog.metadata.memory import MemoryStore
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.runtime.seams import Seams


async def on(world: World, store: MemoryStore, **texts: str) -> LoneController:
    controller = LoneController(configs(**texts), Seams(), store)
    world.controllers.append(controller)
    await controller.start()
    return controller


def assigned(name: str, *brokers: int, **values: str) -> Any:
    wanted = topic(name, **values)
    wanted.topics[0].assignments = [
        messages.CreateTopicsRequest.CreatableReplicaAssignment(0, list(brokers))
    ]
    return wanted


async def delete(broker: RecordedBroker, *names: str) -> dict[str, ErrorCode]:
    request = messages.DeleteTopicsRequest
    states = [request.DeleteTopicState(name) for name in names]
    answer = await broker.forward(request(topics=states, timeout_ms=25_000), 6)
    return {x.name: ErrorCode(x.error_code) for x in answer.responses}


def topics_told(requests: list[Any]) -> list[tuple[str, str, int]]:
    """(kind of request, topic, leader) of every partition state in the requests."""
    return [
        (type(request).__name__, told.topic_name, state.leader)
        for request in requests
        if not isinstance(request, messages.StopReplicaRequest)
        for told in getattr(request, "topic_states", ())
        for state in told.partition_states
    ]


class CountingStore(MemoryStore):
    """Counts how often everything is loaded."""

    loads = 0

    async def load(self) -> Any:
        self.loads += 1
        return await super().load()
