"""Fetch requests of a follower (KIP-227) to a leader in this process."""

from __future__ import annotations

from typing import Any

from tests.support.led_partition import TOPIC_ID
from tests.support.lone_broker import LoneBroker
from tidelog.broker.fetching.follower_session import FollowerSession
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.protocol import messages

LIFE = 22


def ask(
    session: tuple[int, int],
    offsets: dict[int, int] | None = None,
    *,
    forget: tuple[int, ...] = (),
    wait_ms: int = 0,
    life: int = LIFE,
    epoch: int = 1,
) -> Any:
    """A fetch of follower 2 that names some partitions at some offsets."""
    request = messages.FetchRequest
    parts = [
        request.FetchPartition(index, epoch, offset, -1, 0, 2**20)
        for index, offset in (offsets or {}).items()
    ]
    return request(
        replica_id=2,
        max_wait_ms=wait_ms,
        min_bytes=1,
        session_id=session[0],
        session_epoch=session[1],
        topics=[request.FetchTopic("t", partitions=parts, follower_topic_id=TOPIC_ID)]
        if parts
        else [],
        forgotten_topics_data=[request.ForgottenTopic("t", partitions=list(forget))]
        if forget
        else [],
        replica_broker_epoch=life,
    )


def told(answer: Any) -> dict[int, Any]:
    return {part.partition_index: part for t in answer.responses for part in t.partitions}


def partition(lone: LoneBroker, index: int) -> HostedPartition:
    found = lone.broker.partitions.get("t", index)
    assert found is not None
    return found


def session_of(lone: LoneBroker) -> FollowerSession:
    return lone.broker.follower_sessions._sessions[2]
