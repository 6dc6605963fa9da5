"""The controllers of the cluster, by their own responses to DescribeQuorum and DescribeCondition.

Owns the round of requests to all of them, and how the responses make one. Not the connections: see
``controller_search``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from tidelog.model.errors import ErrorCode
from tidelog.model.topics import METADATA_TOPIC
from tidelog.protocol import messages

CONTROLLERS_MS = 1_000
"""How long the controllers have to respond: one that hangs delays a response by this."""

VERSION = 1
"""In which controllers are asked."""

_Request = messages.DescribeQuorumRequest
_Partition = messages.DescribeQuorumResponse.PartitionData


class AsksControllers(Protocol):
    """The search of a broker for its controllers."""

    async def ask_all(self, request: Any, version: int, timeout_ms: int) -> list[Any]: ...

    async def ask_each(
        self, request: Any, version: int, timeout_ms: int
    ) -> list[tuple[str, Any | None]]: ...


class Quorum:
    """What the controllers say. Requests that arrive during a round share it, so that clients
    cannot multiply the connections to the controllers."""

    def __init__(self, controllers: AsksControllers) -> None:
        self._controllers = controllers
        self._asking: dict[str, asyncio.Task[list[Any]]] = {}

    async def answers(self) -> list[Any]:
        """Return the responses of the round that is under way, or of one that begins now."""
        return await self._shared("quorum", self._round)

    async def conditions(self) -> list[dict[str, Any]]:
        """Return what each configured controller says of itself, also while it is not active.

        ``controller_id`` and ``active`` are null where it does not respond; ``why`` says why it
        cannot be active, if it does.
        """
        return await self._shared("conditions", self._check)

    async def _shared(
        self, kind: str, ask: Callable[[], Coroutine[Any, Any, list[Any]]]
    ) -> list[Any]:
        under_way = self._asking.get(kind)
        if under_way is None or under_way.done():
            under_way = asyncio.get_running_loop().create_task(ask())
            self._asking[kind] = under_way
        return await asyncio.shield(under_way)

    async def _check(self) -> list[Any]:
        request = messages.DescribeConditionRequest(subjects=["controller"])
        answers = await self._controllers.ask_each(request, 0, CONTROLLERS_MS)
        return [{"address": address, **_of_itself(answer)} for address, answer in answers]

    async def _round(self) -> list[Any]:
        topic = _Request.TopicData(METADATA_TOPIC, [_Request.PartitionData(0)])
        request = _Request(topics=[topic])
        return await self._controllers.ask_all(request, VERSION, CONTROLLERS_MS)


def _of_itself(answer: Any | None) -> dict[str, Any]:
    """Return what a controller says of itself; older code refuses while it is not active."""
    condition: Any = {}
    if answer is not None and answer.error_code == ErrorCode.NONE:
        condition = json.loads(answer.condition)
    elif answer is not None:
        condition = {"active": False}
    is_active = condition.get("active", True) if condition else None
    return {
        "controller_id": condition.get("controller_id"),
        "active": is_active,
        "why": condition.get("why"),
    }


def refused(index: int, error: ErrorCode) -> Any:
    """Return a partition with an error."""
    return _Partition(
        partition_index=index, error_code=error, leader_id=-1, leader_epoch=-1, high_watermark=-1
    )


def merged(answers: Sequence[Any]) -> Any:
    """Return the partition as the active controller has it, with the others as observers. Pure.

    Of two that say they are active, the one with the higher epoch is.
    """
    parts = [one.topics[0].partitions[0] for one in answers if one.topics]
    active = [one for one in parts if one.error_code == ErrorCode.NONE]
    if not active:
        return refused(0, ErrorCode.LEADER_NOT_AVAILABLE)
    leader = max(active, key=lambda one: one.leader_epoch)
    others = {
        replica.replica_id
        for part in parts
        if part is not leader
        for replica in (*part.observers, *part.current_voters)
    }
    observer = messages.DescribeQuorumResponse.ReplicaState
    return _Partition(
        partition_index=0,
        leader_id=leader.leader_id,
        leader_epoch=leader.leader_epoch,
        high_watermark=leader.high_watermark,
        current_voters=leader.current_voters,
        observers=[observer(node_id, -1) for node_id in sorted(others - {leader.leader_id})],
    )
