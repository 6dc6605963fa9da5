"""The throttle of moves: one rate for all targets that have not joined, a dynamic default of the
cluster.

Owns its setting and removal. Kafka's tool keeps lists of throttled replicas instead, which outlive
the move (KIP-542); this rate needs none, and is harmless when it is forgotten.
"""

from __future__ import annotations

from tidelog.client.admin.configs import Source, alter_configs, describe_configs
from tidelog.client.cluster import Cluster
from tidelog.model.admin_requests import ResourceType

RATE = "reassignment.throttled.rate"

ALL_BROKERS = ""
"""The resource name of the default of all brokers."""


async def set_rate(cluster: Cluster, bytes_per_second: int) -> None:
    """Limit what each broker sends to targets, and what its own targets fetch. Raises Refused."""
    values = {RATE: str(bytes_per_second)}
    await alter_configs(cluster, ResourceType.BROKER, ALL_BROKERS, set_values=values)


async def rate_of(cluster: Cluster) -> int | None:
    """Return the limit in bytes per second, None if there is none. Raises Refused."""
    found = await describe_configs(cluster, ResourceType.BROKER, ALL_BROKERS)
    default = Source.DYNAMIC_DEFAULT_BROKER_CONFIG
    values = [entry.value for entry in found if entry.name == RATE and entry.source is default]
    return int(values[0]) if values and values[0] else None


async def remove_rate(cluster: Cluster) -> bool:
    """Remove the limit; return whether there was one. Raises Refused."""
    if await rate_of(cluster) is None:
        return False
    await alter_configs(cluster, ResourceType.BROKER, ALL_BROKERS, delete=[RATE])
    return True
