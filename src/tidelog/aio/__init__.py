"""The public clients for asyncio: producer, consumer and admin, on the loop that runs.

Owns arguments, results and lifecycle of these classes. Not the protocol work: see
``tidelog.client``. The classes of ``tidelog.blocking`` stand on these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.lazy_names import loader

if TYPE_CHECKING:
    from tidelog.aio.admin import Admin
    from tidelog.aio.admin_types import (
        ConfigResource,
        ConfigResourceType,
        NewPartitions,
        NewTopic,
        OffsetSpec,
    )
    from tidelog.aio.consumer import Consumer
    from tidelog.aio.consumer_types import (
        ConsumerGroupMetadata,
        ConsumerRebalanceListener,
        OffsetAndMetadata,
        OffsetAndTimestamp,
        PartitionKeyRebalanceListener,
    )
    from tidelog.aio.producer import Producer
    from tidelog.client.fetching.consumer_record import ConsumerRecord
    from tidelog.client.producing.record_metadata import RecordMetadata
    from tidelog.client.producing.transaction import PreparedTransaction
    from tidelog.model.topics import TopicPartition

_HOMES = {
    "Admin": "tidelog.aio.admin",
    "ConfigResource": "tidelog.aio.admin_types",
    "ConfigResourceType": "tidelog.aio.admin_types",
    "Consumer": "tidelog.aio.consumer",
    "ConsumerGroupMetadata": "tidelog.aio.consumer_types",
    "ConsumerRebalanceListener": "tidelog.aio.consumer_types",
    "ConsumerRecord": "tidelog.client.fetching.consumer_record",
    "NewPartitions": "tidelog.aio.admin_types",
    "NewTopic": "tidelog.aio.admin_types",
    "OffsetAndMetadata": "tidelog.aio.consumer_types",
    "OffsetAndTimestamp": "tidelog.aio.consumer_types",
    "OffsetSpec": "tidelog.aio.admin_types",
    "PartitionKeyRebalanceListener": "tidelog.aio.consumer_types",
    "PreparedTransaction": "tidelog.client.producing.transaction",
    "Producer": "tidelog.aio.producer",
    "RecordMetadata": "tidelog.client.producing.record_metadata",
    "TopicPartition": "tidelog.model.topics",
}

__all__ = [
    "Admin",
    "ConfigResource",
    "ConfigResourceType",
    "Consumer",
    "ConsumerGroupMetadata",
    "ConsumerRebalanceListener",
    "ConsumerRecord",
    "NewPartitions",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetSpec",
    "PartitionKeyRebalanceListener",
    "PreparedTransaction",
    "Producer",
    "RecordMetadata",
    "TopicPartition",
]

__getattr__ = loader(__name__, _HOMES)
