"""Questions of this broker to other ones, over one kept connection to each of them.

Owns these connections, the time limit of a question, and the back-off from a broker that does not
respond. Not the requests: see ``leader_offsets`` and ``leader_fences``. Not a follower's fetches:
see ``following.source_fetcher``. Not the controller: see ``control_plane.session``.

The first question opens a connection, and later ones share it; the responses on it are in order.

| event | consequence |
|---|---|
| more than ``AT_ONCE`` questions to a broker | the others wait, within their limits |
| a request without a response within the limit of its question | the connection is closed |
| no connection can be opened, it is lost, or a question reaches its limit | a back-off begins |
| a question within the back-off | no responses, at once |
| no question for ``IDLE_S`` | the connection is closed |
| an API that the broker did not serve when the connection began | no responses, at once; where it \
``may_serve_later``, the connection is closed and a back-off begins |
| the metadata have another address of the broker, or none | the same, and no back-off |
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tidelog.client.connecting.connection import connect
from tidelog.client.errors import ClientError, ConnectionLost, VersionUnsupported
from tidelog.model.api_keys import ApiKey
from tidelog.runtime.backoff import Backoff

if TYPE_CHECKING:
    import random

    from tidelog.broker.metadata.cache import MetadataCache
    from tidelog.client.connecting.connection import ClientConnection
    from tidelog.model.configs.server import ServerConfigs
    from tidelog.runtime.cluster_secret import ClusterSecret
    from tidelog.runtime.tls_files import TlsFiles

logger = logging.getLogger(__name__)

ANSWER_MS = 1_000
"""Limit of a whole question, from the connection to the last response, unless another is given; and
of a connection attempt."""

AT_ONCE = 5
"""Questions with a request in flight to one broker."""

IDLE_S = 20.0
"""How long a connection is kept without a question: longer than a scraper of ``/metrics`` pauses
as a rule (15 s)."""

PAUSE_MS, MOST_PAUSE_MS = 100, 800
"""The back-off. Its most, with the jitter, is less than a second: what is asked every second is
asked each time."""


class OtherBrokers:
    """What a broker asks other brokers with. It has no task; ``close`` ends its connections."""

    def __init__(
        self,
        metadata: MetadataCache,
        configs: ServerConfigs,
        secret: ClusterSecret | None,
        randomness: random.Random,
        answer_ms: int = ANSWER_MS,
        *,
        may_serve_later: bool = False,
        tls: TlsFiles | None = None,
    ) -> None:
        """``answer_ms``: the limit of a question. ``may_serve_later``: what is asked comes with the
        level of the cluster, which each broker learns at its own time."""
        self._may_serve_later = may_serve_later
        self._answer_ms = answer_ms
        self._metadata = metadata
        self._listener = configs.inter_broker_listener_name
        self._client_id = f"broker-{configs.node_id}"
        self._secret, self._tls = secret, tls
        self._backoff = Backoff(PAUSE_MS, MOST_PAUSE_MS, randomness)
        self._others: dict[int, _Other] = {}
        self._is_closed = False

    async def ask(
        self, broker: int, purpose: str, api: ApiKey, version: int, requests: Iterable[Any]
    ) -> list[Any]:
        """Send requests to a broker, one after another; return the responses that came in time.

        ``purpose`` stands in the log. Network errors are not raised.
        """
        answers: list[Any] = []
        other = self._other(broker)
        if other is None or other.is_pausing:
            return answers
        loop = asyncio.get_running_loop()
        end = loop.time() + self._answer_ms / 1000
        connection = None
        other.begin()
        try:
            async with asyncio.timeout_at(end):
                connection = await other.connected()
                spoken = connection.version_of(api, version)
                for request in requests:
                    # One by one: those before a failure count.
                    left_ms = max(1, int((end - loop.time()) * 1000))
                    answers.append(await connection.send(request, spoken, left_ms))
                    other.responded()
        except (ClientError, TimeoutError) as error:
            # An API that the broker does not serve is no reason to wait before the next question.
            is_unserved = connection is not None and isinstance(error, VersionUnsupported)
            if not is_unserved:
                other.failed()
            elif self._may_serve_later:
                other.begin_again(f"the broker did not serve {api.name} when it began")
            logger.debug("broker %d did not respond for %s: %s", broker, purpose, error)
        finally:
            other.end()
        return answers

    def brokers_changed(self) -> None:
        """Close the connections to brokers that the metadata do not have at their addresses."""
        for broker, other in list(self._others.items()):
            if self._endpoint(broker) != other.endpoint:
                del self._others[broker]
                other.close("the metadata do not have this address now")

    def close(self) -> None:
        """Close all connections; later questions have no responses."""
        self._is_closed = True
        others, self._others = self._others, {}
        for other in others.values():
            other.close("this broker stops")

    def _other(self, broker: int) -> _Other | None:
        endpoint = self._endpoint(broker)
        if endpoint is None or self._is_closed:
            return None
        if broker not in self._others:
            self._others[broker] = _Other(
                endpoint,
                self._client_id,
                self._secret,
                self._backoff,
                asyncio.get_running_loop(),
                self._tls,
            )
        return self._others[broker]

    def _endpoint(self, broker: int) -> tuple[str, int] | None:
        listed = self._metadata.brokers.get(broker)
        return None if listed is None else listed.endpoints.get(self._listener)


class _Other:
    """One other broker at one address: the connection to it, and the back-off."""

    def __init__(
        self,
        endpoint: tuple[str, int],
        client_id: str,
        secret: ClusterSecret | None,
        backoff: Backoff,
        loop: asyncio.AbstractEventLoop,
        tls: TlsFiles | None,
    ) -> None:
        self.endpoint = endpoint
        self._client_id = client_id
        self._secret, self._tls = secret, tls
        self._backoff = backoff
        self._loop = loop
        self._connection: ClientConnection | None = None
        self._opening = asyncio.Lock()
        self._questions = 0
        self._idle: asyncio.TimerHandle | None = None
        self._failures = 0
        self._pause_ends = loop.time()
        self._closed_why = ""

    @property
    def is_pausing(self) -> bool:
        """Whether the back-off has not passed yet."""
        return self._loop.time() < self._pause_ends

    def begin(self) -> None:
        """A question begins."""
        self._questions += 1
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def end(self) -> None:
        """A question has ended."""
        self._questions -= 1
        if not self._questions and not self._closed_why:
            self._idle = self._loop.call_later(IDLE_S, self._close_idle)

    async def connected(self) -> ClientConnection:
        """Return the open connection; open one if there is none. Raises ClientError.

        A question that waits while another one opens the connection opens it itself when that
        other one was cancelled.
        """
        async with self._opening:
            if self._connection is not None and not self._connection.closed:
                return self._connection
            if self.is_pausing or self._closed_why:
                raise ConnectionLost(self._closed_why or "another question has just failed")
            self._connection = await connect(
                *self.endpoint,
                client_id=self._client_id,
                max_in_flight=AT_ONCE,
                connect_timeout_ms=ANSWER_MS,
                secret=self._secret,
                tls=self._tls,
            )
            if self._closed_why:
                self._connection.close(self._closed_why)
            return self._connection

    def responded(self) -> None:
        """A response came: there is nothing to back off from."""
        self._failures = 0
        self._pause_ends = self._loop.time()

    def failed(self) -> None:
        """Begin a back-off; the questions that fail with one connection count as one failure."""
        if not self.is_pausing:
            self._pause_ends = self._loop.time() + self._backoff.pause_s(self._failures)
            self._failures += 1

    def begin_again(self, why: str) -> None:
        """Close the connection and begin a back-off; the next one knows what is served then."""
        self.failed()
        if self._connection is not None:
            self._connection.close(why)

    def close(self, why: str) -> None:
        """Close for ever; questions under way end without further responses."""
        self._closed_why = why
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._connection is not None:
            self._connection.close(why)

    def _close_idle(self) -> None:
        self._idle = None
        if self._connection is not None:
            self._connection.close("no question for a while")
