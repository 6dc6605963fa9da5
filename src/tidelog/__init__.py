"""tidelog: a Kafka-compatible replicated log whose topics grow and shrink in order.

The public clients: ``from tidelog import Producer, Consumer, Admin`` block their caller, and
``tidelog.aio`` has the same for asyncio. ``tidelog.errors`` has their exceptions. The names here
are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.lazy_names import loader
from tidelog.version import __version__

if TYPE_CHECKING:
    from tidelog.aio.admin_types import (
        ConfigResource,
        ConfigResourceType,
        NewPartitions,
        NewTopic,
        OffsetSpec,
    )
    from tidelog.aio.consumer_types import (
        ConsumerGroupMetadata,
        ConsumerRebalanceListener,
        OffsetAndMetadata,
        OffsetAndTimestamp,
        PartitionKeyRebalanceListener,
    )
    from tidelog.blocking.admin import Admin
    from tidelog.blocking.consumer import Consumer
    from tidelog.blocking.producer import Producer
    from tidelog.client.fetching.consumer_record import ConsumerRecord
    from tidelog.client.producing.record_metadata import RecordMetadata
    from tidelog.client.producing.transaction import PreparedTransaction
    from tidelog.model.topics import TopicPartition

_HOMES = {
    "Admin": "tidelog.blocking.admin",
    "ConfigResource": "tidelog.aio.admin_types",
    "ConfigResourceType": "tidelog.aio.admin_types",
    "Consumer": "tidelog.blocking.consumer",
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
    "Producer": "tidelog.blocking.producer",
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
    "__version__",
]

__getattr__ = loader(__name__, _HOMES)
