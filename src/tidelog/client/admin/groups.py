"""Groups: listing, describing and deleting them, and deleting their offsets.

Owns these requests. Not committed offsets: see ``client.groups.committed_offsets``.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tidelog.client.cluster import Cluster
from tidelog.client.connecting.giving_up import unless_taken_over
from tidelog.client.coordinators import ask_coordinator
from tidelog.client.errors import (
    ClientError,
    ConnectionLost,
    GaveUp,
    ListingIncomplete,
    Refused,
    RequestTimedOut,
    TakenOver,
    error_code,
)
from tidelog.client.groups.consumer_protocol import PROTOCOL_TYPE, decode_assignment
from tidelog.client.metadata import NO_LEADER, ClusterMetadata
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import OFFSETS_TOPIC, TopicPartition, topics_field
from tidelog.protocol import messages

SILENT_COORDINATOR_S = 3.0
"""So long a list of groups waits at most for a broker that is silent: others replace it within 2 s,
if there are others."""

REPEATED = "the request was repeated, and the first one may have deleted the group"

LONGEST_S = 5.0
"""How long the whole list may take where silent brokers are left out."""


@dataclass(frozen=True, slots=True)
class GroupListing:
    """One group as its coordinator lists it; ``state`` and ``kind`` are "" from old brokers."""

    group_id: str
    protocol_type: str
    state: str
    kind: str


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """One member of a group and its assignment."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group with its members. ``state`` is Kafka's: Stable, Empty, Dead …"""

    group_id: str
    state: str
    protocol_type: str
    assignor: str
    coordinator: int
    members: tuple[MemberDescription, ...]


class GroupListings(list[GroupListing]):
    """Groups, as Kafka's ListConsumerGroupsResult: ``valid`` are those that were listed, and
    ``errors`` has one error for each broker that did not list its groups."""

    def __init__(self, valid: Iterable[GroupListing], errors: Iterable[ClientError]) -> None:
        super().__init__(valid)
        self.errors = list(errors)

    @property
    def valid(self) -> list[GroupListing]:
        """The groups that were listed."""
        return list(self)


async def list_all_groups(
    cluster: Cluster, states: Iterable[str] = (), *, raise_errors: bool = True
) -> GroupListings:
    """Return the groups of all brokers within ``LONGEST_S``: one that is silent hides no other.

    Raises ListingIncomplete when a broker that coordinates groups did not list them, unless
    ``raise_errors`` is False; GaveUp when no broker responds.
    """
    failed: dict[int, ClientError] = {}
    try:
        async with asyncio.timeout(LONGEST_S):
            groups = await list_groups(cluster, states, failed=failed)
    except TimeoutError:
        raise GaveUp(f"no broker listed its groups within {LONGEST_S:.0f} s") from None
    errors = [error for _, error in sorted(failed.items())]
    if errors and raise_errors:
        raise ListingIncomplete(groups, errors)
    return GroupListings(groups, errors)


async def list_groups(
    cluster: Cluster,
    states: Iterable[str] = (),
    unlisted: list[str] | None = None,
    failed: dict[int, ClientError] | None = None,
) -> list[GroupListing]:
    """Return the groups of all brokers, sorted by id. Raises Refused, ConnectionLost.

    A broker that does not respond is left out as soon as it coordinates no group: all others are
    asked again then, because they have its groups. With ``unlisted`` or ``failed`` one that still
    coordinates some is left out after ``SILENT_COORDINATOR_S``. ``unlisted`` collects lines about
    what is not listed, ``failed`` the errors of brokers (by id) that did not list their groups.
    """
    if not cluster.view.brokers:
        raise ConnectionLost("no broker is known to be alive")
    deposed: set[int] = set()
    end_s = math.inf
    if unlisted is not None or failed is not None:
        end_s = asyncio.get_running_loop().time() + SILENT_COORDINATOR_S

    async def of(node_id: int) -> list[GroupListing]:
        search = partial(_coordinates_no_longer, cluster, node_id, end_s)
        try:
            return await unless_taken_over(groups_of(cluster, node_id, states), search)
        except TakenOver:
            deposed.add(node_id)
            raise

    async def attempt() -> list[list[GroupListing]]:
        nodes = [node_id for node_id in cluster.view.brokers if node_id not in deposed]
        results = await asyncio.gather(*(of(node_id) for node_id in nodes), return_exceptions=True)
        for node_id, result in zip(nodes, results, strict=True):
            if (
                isinstance(result, ClientError)
                and not isinstance(result, TakenOver)
                and failed is not None
            ):
                failed[node_id] = result
            elif isinstance(result, BaseException):
                raise result
        return [result for result in results if not isinstance(result, BaseException)]

    listings = await cluster.retry(attempt, retry_on=lambda error: isinstance(error, TakenOver))
    if unlisted is not None:
        unlisted += _unlisted(await cluster.describe([OFFSETS_TOPIC]), deposed)
    if failed is not None and deposed:
        leads = _led_by(await cluster.describe([OFFSETS_TOPIC]))
        for node_id in deposed:
            if line := _why_unlisted(leads, node_id):
                failed[node_id] = RequestTimedOut(line)
    by_id = {group.group_id: group for groups in listings for group in groups}
    return [by_id[group_id] for group_id in sorted(by_id)]


async def _coordinates_no_longer(cluster: Cluster, node_id: int, end_s: float) -> str:
    """Return a line when a broker is not waited for any longer, otherwise ""."""
    if (broker := cluster.view.brokers.get(node_id)) is not None:
        cluster.note_silent(broker.peer)
    view = await cluster.describe([OFFSETS_TOPIC], timeout_ms=0)
    if node_id not in view.brokers:
        return f"broker {node_id} is not among the live brokers"
    if asyncio.get_running_loop().time() >= end_s:
        return f"broker {node_id} did not respond"
    topic = view.topics.get(OFFSETS_TOPIC)
    if topic is None or topic.error not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        return ""
    # A partition without a leader has no coordinator: waiting for this broker would not help.
    if node_id in {partition.leader for partition in topic.partitions.values()}:
        return ""
    return f"broker {node_id} did not respond, and coordinates no group"


def _unlisted(view: ClusterMetadata, silent: Collection[int]) -> list[str]:
    """Return a line for each reason why groups are not listed."""
    leaders = _led_by(view)
    lines = (_why_unlisted(leaders, leader) for leader in (NO_LEADER, *sorted(silent)))
    return [line for line in lines if line]


def _led_by(view: ClusterMetadata) -> list[int]:
    """Return the leader of each partition of the offsets topic."""
    topic = view.topics.get(OFFSETS_TOPIC)
    return [state.leader for state in topic.partitions.values()] if topic is not None else []


def _why_unlisted(leaders: Sequence[int], leader: int) -> str:
    """Return why the groups of a leader are not listed; "" when it coordinates none."""
    count = leaders.count(leader)
    if not count:
        return ""
    led = f"are led by broker {leader}, which did not respond"
    why = "have no leader" if leader == NO_LEADER else led
    return (
        f"{count} of {len(leaders)} partitions of {OFFSETS_TOPIC} {why}: "
        "their groups are not listed"
    )


async def groups_of(
    cluster: Cluster, node_id: int, states: Iterable[str] = ()
) -> list[GroupListing]:
    """Return the groups that one broker coordinates. Raises Refused, ConnectionLost."""
    request = messages.ListGroupsRequest(states_filter=list(states))

    async def attempt() -> messages.ListGroupsResponse:
        answer: messages.ListGroupsResponse = await cluster.send(node_id, request)
        if answer.error_code:
            raise Refused(answer.error_code, f"the groups of broker {node_id}")
        return answer

    answer = await cluster.retry(attempt)
    return [
        GroupListing(g.group_id, g.protocol_type, g.group_state, g.group_type)
        for g in answer.groups
    ]


async def describe_group(cluster: Cluster, group: str) -> GroupDescription:
    """Return one group; an unknown group is described as Dead, as Kafka does.

    Raises Refused.
    """
    request = messages.DescribeGroupsRequest(groups=[group])
    try:
        answer: messages.DescribeGroupsResponse = await ask_coordinator(
            cluster, group, request, lambda answer: int(answer.groups[0].error_code)
        )
    except Refused as error:
        # Kafka responds with this code from version 6 on; before, the state is Dead.
        if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return GroupDescription(group, "Dead", "", "", await cluster.coordinator(group), ())
    item = answer.groups[0]
    readable = item.protocol_type in (PROTOCOL_TYPE, "")
    members = tuple(
        MemberDescription(
            member_id=member.member_id,
            instance_id=member.group_instance_id,
            client_id=member.client_id,
            host=member.client_host,
            assignment=tuple(decode_assignment(bytes(member.member_assignment)))
            if readable
            else (),
        )
        for member in item.members
    )
    coordinator = await cluster.coordinator(group)
    return GroupDescription(
        group, item.group_state, item.protocol_type, item.protocol_data, coordinator, members
    )


async def delete_group(cluster: Cluster, group: str) -> None:
    """Delete a group without members, its offsets included.

    Raises Refused; the reason of a GROUP_ID_NOT_FOUND says when an earlier attempt may have
    deleted it.
    """
    request = messages.DeleteGroupsRequest(groups_names=[group])
    await _delete(cluster, group, request, lambda answer: int(answer.results[0].error_code))


async def _delete(
    cluster: Cluster, group: str, request: Any, error_of: Callable[[Any], int]
) -> Any:
    """Send a deletion to the coordinator of a group; it may be carried out twice."""
    attempts = 0

    def again() -> Any:
        nonlocal attempts
        attempts += 1
        return request

    try:
        return await ask_coordinator(cluster, group, again, error_of)
    except Refused as refused:
        if attempts == 1 or refused.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        raise Refused(refused.code, refused.subject, REPEATED) from None


async def delete_offsets(
    cluster: Cluster, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, Refused | None]:
    """Delete a group's committed offsets; return the outcome of each partition.

    What the coordinator could not do now is asked for again. Raises Refused as ``delete_group``.
    """
    delete = messages.OffsetDeleteRequest
    topics = topics_field(
        partitions,
        delete.OffsetDeleteRequestTopic,
        lambda tp: delete.OffsetDeleteRequestPartition(tp.partition),
    )
    request = delete(group_id=group, topics=topics)
    answer: messages.OffsetDeleteResponse = await _delete(
        cluster, group, request, _error_of_offsets
    )
    outcomes: dict[TopicPartition, Refused | None] = {}
    for topic in answer.topics:
        for item in topic.partitions:
            tp = TopicPartition(topic.name, item.partition_index)
            refused = Refused(item.error_code, str(tp)) if item.error_code else None
            outcomes[tp] = refused
    return outcomes


def _error_of_offsets(answer: messages.OffsetDeleteResponse) -> int:
    """Return the error of a whole response, or one of a partition that is worth another try."""
    parts = [item for topic in answer.topics for item in topic.partitions]
    passing = (item.error_code for item in parts if error_code(item.error_code).retriable)
    return int(answer.error_code or next(passing, 0))
