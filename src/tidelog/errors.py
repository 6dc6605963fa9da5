"""The exceptions of the public clients, by Kafka's names.

Owns the public names. Not the classes: see ``tidelog.client.errors``.
"""

from __future__ import annotations

from tidelog.client.errors import (
    ClientError as KafkaError,
)
from tidelog.client.errors import (
    ClusterUnreachable as NoBrokersAvailable,
)
from tidelog.client.errors import (
    ConnectionLost as KafkaConnectionError,
)
from tidelog.client.errors import (
    GaveUp as KafkaTimeoutError,
)
from tidelog.client.errors import (
    OffsetOutOfRange as OffsetOutOfRangeError,
)
from tidelog.client.errors import (
    VersionUnsupported as UnsupportedVersionError,
)

__all__ = [
    "KafkaConnectionError",
    "KafkaError",
    "KafkaTimeoutError",
    "NoBrokersAvailable",
    "OffsetOutOfRangeError",
    "UnsupportedVersionError",
]
