"""Reassignments: starting, changing, cancelling and listing the moves of partitions.

Owns the client's AlterPartitionReassignments and ListPartitionReassignments (KIP-455).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tidelog.client.admin.sending import TIMEOUT_MS, send_admin
from tidelog.client.cluster import Cluster
from tidelog.client.errors import Refused
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition, topics_field
from tidelog.protocol import messages

ELEMENTS = 4_000
"""The most partitions, replicas and topics of one request: brokers refuse longer ones."""


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A running move: its targets and then the other replicas, and which of them are new or go."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def targets(self) -> tuple[int, ...]:
        """The replicas after the move, the preferred leader first."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)

    def original(self, replicas: Sequence[int]) -> tuple[int, ...]:
        """Return the replicas before the first change, from those that Metadata names now.

        Targets join after the original replicas, so the order is the original one. After a change
        of targets one that had joined looks like an original replica, and is included.
        """
        return tuple(broker for broker in replicas if broker not in self.adding)


async def list_reassignments(
    cluster: Cluster,
    partitions: Iterable[TopicPartition] | None = None,
    timeout_ms: int = TIMEOUT_MS,
) -> dict[TopicPartition, Reassignment]:
    """Return the running moves of these partitions, or (None) all. Raises Refused.

    ``timeout_ms``: how long a broker may look for the controller.
    """
    ask = messages.ListPartitionReassignmentsRequest
    wanted = None
    if partitions is not None:
        wanted = topics_field(
            partitions, ask.ListPartitionReassignmentsTopics, lambda tp: tp.partition
        )
    request = ask(timeout_ms=timeout_ms, topics=wanted)
    answer: messages.ListPartitionReassignmentsResponse = await send_admin(
        cluster, request, lambda answer: [answer], changes=False
    )
    if answer.error_code:
        raise Refused(answer.error_code, "the reassignments", answer.error_message)
    return {
        TopicPartition(topic.name, item.partition_index): Reassignment(
            tuple(item.replicas), tuple(item.adding_replicas), tuple(item.removing_replicas)
        )
        for topic in answer.topics
        for item in topic.partitions
    }


async def alter_reassignments(
    cluster: Cluster, targets: Mapping[TopicPartition, Sequence[int] | None]
) -> dict[TopicPartition, Refused | None]:
    """Start or change moves to these targets, or (None) cancel them; return each outcome.

    Sent in requests of bounded size, one after the other. The first that is refused as a whole
    raises Refused: the former ones are done then.
    """
    alter = messages.AlterPartitionReassignmentsRequest
    outcomes: dict[TopicPartition, Refused | None] = {}
    for some in portions(targets):
        request = alter(
            timeout_ms=TIMEOUT_MS,
            topics=topics_field(
                some,
                alter.ReassignableTopic,
                lambda tp: alter.ReassignablePartition(tp.partition, _listed(targets[tp])),
            ),
        )
        answer: messages.AlterPartitionReassignmentsResponse = await send_admin(
            cluster, request, _items
        )
        outcomes |= {
            tp: Refused(item.error_code, f"partition {tp}", item.error_message)
            if item.error_code
            else None
            for topic in answer.responses
            for item in topic.partitions
            for tp in (TopicPartition(topic.name, item.partition_index),)
        }
        if answer.error_code and not answer.responses:
            raise Refused(answer.error_code, "the reassignment", answer.error_message)
    cluster.forget()
    return outcomes


def is_over(outcome: Refused | None) -> bool:
    """Return whether a cancellation found no move: it was done by then."""
    return outcome is not None and outcome.code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def portions(
    targets: Mapping[TopicPartition, Sequence[int] | None],
) -> Iterator[list[TopicPartition]]:
    """Yield partitions in the order of topics, so that a topic is in few requests."""
    some: list[TopicPartition] = []
    count = 0
    for tp in sorted(targets):
        # Its row, its replicas, and at worst a row of its topic.
        size = 2 + len(targets[tp] or ())
        if some and count + size > ELEMENTS:
            yield some
            some, count = [], 0
        some.append(tp)
        count += size
    if some:
        yield some


def _listed(replicas: Sequence[int] | None) -> list[int] | None:
    return None if replicas is None else list(replicas)


def _items(answer: messages.AlterPartitionReassignmentsResponse) -> list[object]:
    rows: list[object] = [item for topic in answer.responses for item in topic.partitions]
    return rows or [answer]
