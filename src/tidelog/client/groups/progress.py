"""Progress of groups by their coordinators: positions, owners, signs of life (KIP-253).

Owns the request of tools for it, DescribeCondition with the subject "group". Not the requests of
members: see ``group_positions``. Not what follows from positions: see ``gated``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidelog.client.cluster import Cluster
from tidelog.client.coordinators import ask_coordinator
from tidelog.client.errors import Refused, VersionUnsupported, json_of
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages

GROUP = "group"
"""The subject of a request; the group and the topics follow it."""

COORDINATOR = "coordinator"


@dataclass(frozen=True, slots=True)
class MemberProgress:
    """A member: whether it is aware of resizes (None: not known), and its last sign of life."""

    member_id: str
    client_id: str
    host: str
    aware: bool | None
    silent_ms: int | None
    """The time since its last request; 0 while one is delayed at the coordinator."""
    session_timeout_ms: int


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """The position of a group in a partition, as gates see it; None: it is not known."""

    member: str | None = None
    position: int | None = None
    is_commit: bool = False
    """It is the committed offset: of a member that knows no resizes, or of no member."""
    still_ms: int | None = None
    """The time since the position changed."""


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """What a coordinator says of a group; ``state`` is Kafka's."""

    group: str
    state: str
    members: Mapping[str, MemberProgress] = field(default_factory=dict)
    partitions: Mapping[TopicPartition, PartitionProgress] = field(default_factory=dict)


async def describe_progress(
    cluster: Cluster, group: str, topics: Iterable[str]
) -> GroupProgress | None:
    """Return the progress of a group in some topics; None from a server that does not say it.

    A group that does not exist has the state Dead, as in ``describe_group``. Raises Refused,
    ConnectionLost.
    """
    request = messages.DescribeConditionRequest(subjects=[GROUP, group, *topics])
    try:
        answer: messages.DescribeConditionResponse = await ask_coordinator(
            cluster, group, request, lambda answer: int(answer.error_code)
        )
    except VersionUnsupported:
        return None
    except Refused as error:
        if error.code == ErrorCode.GROUP_ID_NOT_FOUND:
            return GroupProgress(group, "Dead")
        raise
    progress = json_of(answer, answer.condition, f"the progress of group {group!r}")
    # A broker of an older version forwards the request to its controller.
    return read_progress(progress) if progress.get("role") == COORDINATOR else None


def read_progress(progress: Mapping[str, Any]) -> GroupProgress:
    """Return what a response says."""
    return GroupProgress(
        progress["group"],
        progress["state"],
        {
            member_id: MemberProgress(
                member_id,
                member["client_id"],
                member["host"],
                member["aware"],
                member["silent_ms"],
                member["session_timeout_ms"],
            )
            for member_id, member in progress["members"].items()
        },
        {
            TopicPartition(row["topic"], row["partition"]): PartitionProgress(
                row["member"], row["position"], row["is_commit"], row["still_ms"]
            )
            for row in progress["partitions"]
        },
    )
