"""Brokers that lead without logs: they report each fence at once, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from tests.support.controller_process import RecordedBroker, World
from tests.support.lone_controller import LoneController
from tidelog.client.errors import ClientError
from tidelog.protocol import messages


class ReportingBroker(RecordedBroker):
    """A broker whose fences are committed as soon as it takes up a resize epoch."""

    def __init__(self, node_id: int) -> None:
        super().__init__(node_id)
        self.led: dict[tuple[str, int], tuple[int, int]] = {}
        """(leader epoch, resize epoch) of each partition that it leads."""
        self.sealed: set[tuple[str, int]] = set()
        self.reports = True
        self.owed: list[Any] = []
        """The fences that it did not report meanwhile."""
        self.silent: set[tuple[str, int]] = set()
        """Partitions whose fences it never commits, as on a full disk."""
        self.errors: list[int] = []
        """Of its reports."""
        self._registered = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def _handle(self, context: Any, request: Any, more: Any) -> Any:
        response = await super()._handle(context, request, more)
        if isinstance(request, messages.LeaderAndIsrRequest):
            found = list(self._take(request))
            if not self.reports:
                self.owed += found
            elif found:
                self._tasks.append(asyncio.get_running_loop().create_task(self._report(found)))
        return response

    def _take(self, request: messages.LeaderAndIsrRequest) -> Any:
        for topic in request.topic_states:
            for state in topic.partition_states:
                where = topic.topic_name, state.partition_index
                self.sealed.discard(where)
                if state.sealed:
                    self.sealed.add(where)
                if state.leader != self.node_id:
                    self.led.pop(where, None)
                    continue
                known = self.led.get(where)
                self.led[where] = state.leader_epoch, topic.resize_epoch
                if topic.resize_epoch and known != self.led[where] and where not in self.silent:
                    yield messages.ReportFencesRequest.Fence(
                        topic.topic_id,
                        state.partition_index,
                        state.partition_epoch,
                        state.leader_epoch,
                        topic.resize_epoch,
                    )

    def report_owed(self) -> None:
        """Report what it has owed since it ceased to report. The response may come late: on its
        session it leaves after those of earlier requests."""
        owed, self.owed = self.owed, []
        self._tasks.append(asyncio.get_running_loop().create_task(self._report(owed)))

    async def _report(self, fences: list[Any]) -> None:
        # The first requests of a channel may come before the answer to the registration, which has
        # the broker's epoch.
        await self._registered.wait()
        assert self.session is not None
        request = messages.ReportFencesRequest(self.node_id, self.epoch, fences)
        # A session that ends takes its reports with it: they are made again in the next one.
        with contextlib.suppress(ClientError, OSError):
            self.errors.append((await self.session.send(request, 0)).error_code)

    async def register(self, controller_port: int, **changes: Any) -> Any:
        # A new controller knows no report: every fence is reported again.
        self.led.clear()
        self._registered.clear()
        answer = await super().register(controller_port, **changes)
        self._registered.set()
        return answer

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await super().close()

    def shown(self, name: str) -> tuple[int, int, list[int], list[int]] | None:
        """Return what clients of this broker see: count, resize epoch, partitions, retired ones."""
        for request in reversed(self.requests):
            if not isinstance(request, messages.UpdateMetadataRequest):
                continue
            for topic in request.topic_states:
                is_removal = topic.undeleted_partition_count < 0
                if topic.topic_name == name and len(topic.partition_states) > 1 and not is_removal:
                    indexes = [x.partition_index for x in topic.partition_states]
                    retired = [
                        x.partition_index for x in topic.partition_states if x.retirement_epoch >= 0
                    ]
                    return (topic.undeleted_partition_count, topic.resize_epoch, indexes, retired)
        return None


async def reporting(world: World, controller: LoneController, *ids: int) -> list[ReportingBroker]:
    """Register brokers that report."""
    found = []
    for node_id in ids:
        broker = ReportingBroker(node_id)
        world.brokers.append(broker)
        await broker.listen()
        assert (await broker.register(controller.listener_port)).error_code == 0
        found.append(broker)
    return found


def counts(name: str, count: int, timeout_ms: int = 20_000, **changes: Any) -> Any:
    """Return a CreatePartitions request for one topic."""
    request = messages.CreatePartitionsRequest
    asked = request.CreatePartitionsTopic(name=name, count=count, assignments=None)
    return request(topics=[asked], timeout_ms=timeout_ms, **changes)
