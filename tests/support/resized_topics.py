"""What UpdateMetadata v8 says of a resized topic, for a broker in this process (level 1.5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from tests.support.lone_broker import LoneBroker
from tidelog.protocol import messages


def tell_resized(
    lone: LoneBroker,
    topic: str,
    births: Mapping[int, tuple[int, int]],
    *,
    resize_epoch: int,
    initial: int = 2,
    leaders: Mapping[int, int] | None = None,
    retired: Mapping[int, int] | None = None,
    lineage: Mapping[int, Mapping[str, int]] | None = None,
    topic_id: UUID | None = None,
    ports: Mapping[int, int] | None = None,
) -> None:
    """Tell a broker of partitions with (birth epoch, birth offset), led by broker 1 or another."""
    request = messages.UpdateMetadataRequest
    known = lone.broker.metadata.topic(topic)
    if topic_id is None:
        topic_id = known.topic_id if known is not None else UUID(int=len(topic))
    states: list[Any] = []
    for index, (epoch, offset) in births.items():
        leader = (leaders or {}).get(index, 1)
        states.append(
            request.UpdateMetadataPartitionState(
                partition_index=index,
                leader=leader,
                leader_epoch=0,
                isr=[leader],
                isr_version=0,
                replicas=[leader],
                partition_epoch=index,
                birth_epoch=epoch,
                birth_offset=offset,
                retirement_epoch=(retired or {}).get(index, -1),
                **(lineage or {}).get(index, {}),
            )
        )
    brokers = [
        request.UpdateMetadataBroker(
            id=node_id,
            endpoints=[
                request.UpdateMetadataEndpoint(port=port, host="127.0.0.1", listener="PLAINTEXT")
            ],
        )
        for node_id, port in {1: lone.port, **(ports or {})}.items()
    ]
    update = request(
        controller_id=1,
        max_partition_epoch=len(births),
        topic_states=[
            request.UpdateMetadataTopicState(
                topic_name=topic,
                topic_id=topic_id,
                initial_partition_count=initial,
                undeleted_partition_count=len(births) - len(retired or {}),
                resize_epoch=resize_epoch,
                partition_states=states,
            )
        ],
        live_brokers=brokers,
    )
    lone.broker.metadata.apply(update, complete=False)
