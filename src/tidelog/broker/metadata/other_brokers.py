"""Requests of this broker to another one, as a client of its listener between brokers.

Owns the connection for one question of some requests, and its time limit. Not a follower's
fetches: see `following.source_fetcher`. Not the controller: see `control_plane.session`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidelog.client.connecting.connection import connect
from tidelog.client.errors import ClientError
from tidelog.model.api_keys import ApiKey

if TYPE_CHECKING:
    from tidelog.broker.metadata.cache import MetadataCache
    from tidelog.model.configs.server import ServerConfigs
    from tidelog.runtime.cluster_secret import ClusterSecret

logger = logging.getLogger(__name__)

ANSWER_MS = 1_000
"""Limit of a whole question, from the connection to the last response."""


@dataclass(frozen=True, slots=True)
class OtherBrokers:
    """What is needed to ask another broker."""

    metadata: MetadataCache
    configs: ServerConfigs
    secret: ClusterSecret | None

    async def ask(
        self, broker: int, purpose: str, api: ApiKey, version: int, requests: Iterable[Any]
    ) -> list[Any]:
        """Send requests to a broker, one after another; return the responses that came in time.

        ``purpose`` is the client id, and stands in the log. Network errors are not raised.
        """
        known = self.metadata.brokers.get(broker)
        name = self.configs.inter_broker_listener_name
        endpoint = None if known is None else known.endpoints.get(name)
        found: list[Any] = []
        if endpoint is None:
            return found
        connection = None
        try:
            async with asyncio.timeout(ANSWER_MS / 1000):
                connection = await connect(
                    *endpoint,
                    client_id=f"{purpose}-{self.configs.node_id}",
                    connect_timeout_ms=ANSWER_MS,
                    secret=self.secret,
                )
                spoken = connection.version_of(api, version)
                for request in requests:
                    # One by one: those before a failure count.
                    response = await connection.send(request, spoken, ANSWER_MS)
                    found.append(response)
        except (ClientError, TimeoutError) as error:
            logger.debug("broker %d did not respond for %s: %s", broker, purpose, error)
        finally:
            if connection is not None:
                connection.close("its responses are here")
        return found
