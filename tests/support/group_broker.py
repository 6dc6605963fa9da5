"""A lone broker that coordinates groups, on real files; its offsets topic comes when asked for."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from tests.support.lone_broker import LoneBroker
from tidelog.broker.coordinator.coordinator import Coordinator
from tidelog.broker.handlers import (
    consumer_group_position,
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
)
from tidelog.groups.table import GroupTable
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import OFFSETS_TOPIC
from tidelog.model.work import finish
from tidelog.network.router import Handler, Router
from tidelog.protocol import codec

GROUP_HANDLERS = [
    module.HANDLER
    for module in (
        consumer_group_position,
        delete_groups,
        describe_groups,
        find_coordinator,
        heartbeat,
        join_group,
        leave_group,
        list_groups,
        offset_commit,
        offset_delete,
        offset_fetch,
        sync_group,
    )
]
BY_KEY = {handler.api_key: handler for handler in GROUP_HANDLERS}


def done(answer: Any) -> Any:
    """What a handler that is made of steps returns; another's answer as it is."""
    return finish(answer) if inspect.isgenerator(answer) else answer


def read_back(module: Any, version: int, answer: Any) -> Any:
    """The response of a handler as a client reads it: parts of it may be bytes already."""
    api_key = module.HANDLER.api_key
    frame = b"".join(codec.encode_response(api_key, version, 0, answer))
    return codec.decode_response(api_key, version, memoryview(frame)[4:])[1]


def statistics(coordinator: Coordinator[GroupTable]) -> dict[str, int]:
    """Return counts: partitions, loading partitions, groups, skipped records."""
    led = coordinator._led.values()
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return {
        "partitions": len(led),
        "partitions_loading": sum(each.error is loading for each in led),
        "groups": sum(map(len, coordinator.tables())),
        "unknown_records": sum(each.table.unknown_records for each in led),
    }


class GroupBroker(LoneBroker):
    """``await start()`` it; ``await ask(handler, request, version)`` is a client without a wire."""

    offsets_isr: tuple[int, ...] = (1,)
    offsets_replicas: tuple[int, ...] = (1,)

    def router(self, extra: Iterable[Handler] = ()) -> Router:
        return super().router([*GROUP_HANDLERS, *extra])

    async def start(self) -> None:
        await super().start()
        # The broker's own: a second one would react to leader changes as well, load and write.
        self.coordinator = self.broker.coordinator
        self.broker.groups.start()
        self.broker.topic_creation.ensure = self._create  # type: ignore[method-assign]

    async def _create(self, name: str, partitions: int, *_: object) -> ErrorCode:
        assert name == OFFSETS_TOPIC
        self.lead_offsets(partitions=partitions)
        return ErrorCode.NONE

    def lead_offsets(self, epoch: int = 0, leader: int = 1, partitions: int = 1) -> Any:
        """Lead the offsets topic (or let broker 2 do so)."""
        return self.lead(
            OFFSETS_TOPIC,
            partitions,
            {"cleanup.policy": "compact"},
            epoch=epoch,
            leader=leader,
            isr=self.offsets_isr,
            replicas=self.offsets_replicas,
        )

    def lead_again(self, epoch: int = 1, partitions: int = 1) -> Any:
        """Another broker led in ``epoch``; in the next one this broker leads again."""
        self.lead_offsets(epoch=epoch, leader=2, partitions=partitions)
        return self.lead_offsets(epoch=epoch + 1, partitions=partitions)

    def ask_now(self, module: Any, request: Any, version: int) -> Any:
        """Call a handler; returns what the router would get: a response or an awaitable."""
        handler = module.HANDLER
        assert version in handler.versions
        context = SimpleNamespace(
            version=version,
            client_id="client",
            client_host="127.0.0.1",
            listener_name="PLAINTEXT",
            connection=SimpleNamespace(is_tidelog=False, is_trusted=False),
        )
        return done(handler.handle(self.broker, request, context))

    async def ask(self, module: Any, request: Any, version: int) -> Any:
        """Call a handler and wait for the response."""
        answer = self.ask_now(module, request, version)
        if asyncio.isfuture(answer) or inspect.iscoroutine(answer):
            return done(await answer)
        return answer

    async def stop(self) -> None:
        await self.coordinator.close()
        await super().stop()
