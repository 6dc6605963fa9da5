"""Automatic topic creation: auto.create.topics.enable, and the internal topics.

Owns the creations under way, so that a thousand clients that need one topic cause one request to
the controller; and which defaults a new topic gets.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidelog.broker.control_plane.controller_search import ControllerUnreachable
from tidelog.broker.control_plane.envelopes import ForwardingRefused
from tidelog.client.errors import ClientError
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.requester import THIS_PROCESS
from tidelog.protocol import codec, messages

if TYPE_CHECKING:
    from tidelog.broker.control_plane.session import ControllerSession
    from tidelog.broker.metadata.cache import MetadataCache
    from tidelog.model.configs.server import ServerConfigs

logger = logging.getLogger(__name__)

MAX_UNDER_WAY = 1000
"""Most creations under way at once; beyond that clients get LEADER_NOT_AVAILABLE and retry."""

MAX_REFUSALS = 1000
"""Most refused topics whose reason is kept; each is logged once for each reason."""

DEFAULT_COUNT = -1
CREATE_VERSION = 7
KNOWN_WITHIN_MS = 2_000
"""Longest wait until this broker knows the new topic and its leaders."""


def fill_in(request: messages.CreateTopicsRequest, configs: ServerConfigs) -> None:
    """Put the defaults of this broker's file where a request leaves a number to the cluster.

    They are what clients are shown as the broker's configuration. Those of the controllers' files
    count for brokers of older code alone. A topic with a replica assignment has no numbers.
    """
    for topic in request.topics:
        if topic.assignments:
            continue
        if topic.num_partitions == DEFAULT_COUNT:
            topic.num_partitions = configs.num_partitions
        if topic.replication_factor == DEFAULT_COUNT:
            topic.replication_factor = configs.default_replication_factor


class TopicCreation:
    """Creates topics through the controller, each at most once at a time."""

    def __init__(
        self, session: ControllerSession, metadata: MetadataCache, configs: ServerConfigs
    ) -> None:
        self._session = session
        self._metadata = metadata
        self._configs = configs
        self._timeout_ms = configs.request_timeout_ms
        self._under_way: dict[str, asyncio.Task[ErrorCode]] = {}
        self._refusals: dict[str, str] = {}
        """Why the controller refused a topic last, the oldest first."""

    async def ensure(
        self,
        name: str,
        partitions: int = DEFAULT_COUNT,
        replication_factor: int = DEFAULT_COUNT,
        configs: Mapping[str, str] | None = None,
        advice: str = "",
    ) -> ErrorCode:
        """Create a topic unless it exists; return NONE once this broker knows its leaders.

        Otherwise return why it was refused, or LEADER_NOT_AVAILABLE if they are not known in time.
        ``advice`` follows the controller's reason in the log and in ``why_refused``.
        """
        if name not in self._under_way:
            if len(self._under_way) >= MAX_UNDER_WAY:
                return ErrorCode.LEADER_NOT_AVAILABLE
            work = self._create(name, partitions, replication_factor, configs or {}, advice)
            task = asyncio.get_running_loop().create_task(work, name=f"create-{name}")
            self._under_way[name] = task
            task.add_done_callback(lambda _: self._under_way.pop(name, None))
        return await asyncio.shield(self._under_way[name])

    def why_refused(self, name: str) -> str | None:
        """Return why the controller refused a topic when it was last asked; None if it did not."""
        return self._refusals.get(name)

    def _refused(self, name: str, code: ErrorCode, reason: str) -> None:
        """Log a refusal unless the last one of this topic had the same reason: clients retry."""
        if self._refusals.pop(name, None) != reason:
            logger.warning(
                "topic %(topic)s was refused: %(error)s %(why)s",
                {"topic": name, "error": code.name, "why": reason},
            )
        self._refusals[name] = reason
        if len(self._refusals) > MAX_REFUSALS:
            del self._refusals[next(iter(self._refusals))]

    async def _create(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, str],
        advice: str,
    ) -> ErrorCode:
        request = messages.CreateTopicsRequest
        topic = request.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            configs=[request.CreatableTopicConfig(k, v) for k, v in configs.items()],
        )
        limit_ms = self._timeout_ms
        wanted = request(topics=[topic], timeout_ms=limit_ms)
        fill_in(wanted, self._configs)
        try:
            inner = codec.encode_request(ApiKey.CREATE_TOPICS, CREATE_VERSION, 0, None, wanted)
            encoded = await self._session.forward(b"".join(inner)[4:], THIS_PROCESS, limit_ms)
        except (ControllerUnreachable, ForwardingRefused, ClientError) as error:
            logger.warning(
                "topic %(topic)s could not be created: %(error)s", {"topic": name, "error": error}
            )
            return ErrorCode.LEADER_NOT_AVAILABLE
        _, answer = codec.decode_response(ApiKey.CREATE_TOPICS, CREATE_VERSION, memoryview(encoded))
        result = answer.topics[0]
        code = ErrorCode(result.error_code)
        if code not in (
            ErrorCode.NONE,
            ErrorCode.TOPIC_ALREADY_EXISTS,
            ErrorCode.REQUEST_TIMED_OUT,
        ):
            self._refused(name, code, f"{result.error_message or ''} {advice}".strip())
            if code is ErrorCode.POLICY_VIOLATION:
                # A store restored to an earlier state refuses creations for a while: clients retry.
                return ErrorCode.LEADER_NOT_AVAILABLE
            return code
        self._refusals.pop(name, None)
        return await self._known(name)

    async def _known(self, name: str) -> ErrorCode:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + KNOWN_WITHIN_MS / 1000
        metadata = self._metadata
        while True:
            topic = metadata.topic(name)
            if topic is not None and all(p.leader >= 0 for p in topic.partitions.values()):
                return ErrorCode.NONE
            left = deadline - loop.time()
            if left <= 0:
                return ErrorCode.LEADER_NOT_AVAILABLE
            try:
                async with asyncio.timeout(left):
                    await metadata.changed()
            except TimeoutError:
                return ErrorCode.LEADER_NOT_AVAILABLE
