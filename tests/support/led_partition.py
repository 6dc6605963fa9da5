"""A broker in this process that leads a partition, its appends, and the end of a test of it."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.lone_broker import LoneBroker
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.records.builder import NewRecord, build_batch

TOPIC_ID = uuid.uuid5(uuid.NAMESPACE_OID, "t")
LAG_MS = 200


class Session:
    """A controller's answers to AlterIsr, one after the other; the last one for ever."""

    def __init__(self, *answers: Callable[[Any], Any]) -> None:
        self.broker_epoch = 10
        self.asked: list[Any] = []
        self._answers = list(answers)

    async def request(self, request: Any) -> Any:
        (topic,) = request.topics
        (part,) = topic.partitions
        assert topic.topic_id == TOPIC_ID
        self.asked.append(part)
        answer = self._answers[0] if len(self._answers) == 1 else self._answers.pop(0)
        return answer(part)


def answer(
    error: ErrorCode, version: int = 1, isr: tuple[int, ...] | None = None, epoch: int = 1
) -> Callable[[Any], Any]:
    """One partition's answer; ``isr`` None is what was proposed."""

    def of(asked: Any) -> Any:
        response = messages.AlterIsrResponse
        part = response.PartitionData(
            error_code=int(error),
            leader_id=1,
            leader_epoch=epoch,
            isr=list(asked.new_isr if isr is None else isr),
            isr_version=version,
        )
        return response(topics=[response.TopicData("t", [part])])

    return of


@asynccontextmanager
async def running(folder: Path, session: Session | None = None) -> AsyncIterator[LoneBroker]:
    lone = LoneBroker(folder, {"replica.lag.time.max.ms": LAG_MS})
    await lone.start()
    if session is not None:
        lone.session = session
        lone.broker.isr_changes.start()
    try:
        yield lone
    finally:
        await lone.broker.isr_changes.stop()
        await lone.stop()


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def lead(lone: LoneBroker, isr: tuple[int, ...] = (1, 2, 3), **changes: Any) -> HostedPartition:
    return lone.lead("t", epoch=1, isr=isr, replicas=(1, 2, 3), **changes)


def append(hosted: HostedPartition, count: int = 1) -> None:
    now_ms = int(time.time() * 1000)
    for _ in range(count):
        hosted.append(build_batch([NewRecord(now_ms, None, b"x")]), now_ms)
