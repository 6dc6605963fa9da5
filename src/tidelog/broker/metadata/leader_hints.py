"""Current leaders in Produce responses with an error: a producer needs no Metadata (KIP-951).

Owns the tags ``current_leader`` and ``node_endpoints`` of Produce v10+. (Fetch has the latter from
v16 on, which is not served.) Only a hint: left out if this broker knows no newer leader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tidelog.broker.metadata.cache import MetadataCache
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages

FIRST_PRODUCE_VERSION = 10

_Response = messages.ProduceResponse
_Leader = messages.ProduceResponse.LeaderIdAndEpoch


class LeaderState(Protocol):
    """What LeaderAndIsr says of a partition that is hosted here."""

    @property
    def leader(self) -> int: ...

    @property
    def leader_epoch(self) -> int: ...


class Hosted(Protocol):
    """A partition that is hosted here."""

    @property
    def state(self) -> LeaderState: ...


class LeaderHints:
    """The leaders of partitions that this broker does not lead, as far as it knows them."""

    def __init__(
        self,
        node_id: int,
        metadata: MetadataCache,
        hosted: Callable[[str, int], Hosted | None],
    ) -> None:
        """``hosted`` finds a partition of this broker."""
        self._node_id = node_id
        self._metadata = metadata
        self._hosted = hosted

    def why_not_here(self, topic: str, partition: int) -> ErrorCode:
        """Return the error for a partition that is not led here."""
        if self._metadata.partition(topic, partition) is not None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self._hosted(topic, partition) is not None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def name_leaders(self, response: Any, listener_name: str) -> Any:
        """Add the current leaders of partitions with NOT_LEADER_OR_FOLLOWER to a Produce response.

        No lookup for a response without that error. O(partitions of the response).
        """
        leaders: set[int] = set()
        for topic in response.responses:
            for part in topic.partition_responses:
                if part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    leader, epoch = self._leader(topic.name, part.index)
                    if leader >= 0 and leader != self._node_id:
                        part.current_leader = _Leader(leader, epoch)
                        leaders.add(leader)
        if leaders:
            response.node_endpoints = [
                _Response.NodeEndpoint(node_id, host, port, rack)
                for node_id, host, port, rack in self._metadata.addresses(listener_name)
                if node_id in leaders
            ]
        return response

    def _leader(self, topic: str, index: int) -> tuple[int, int]:
        """Return leader and epoch of the newer of LeaderAndIsr and UpdateMetadata; -1: none."""
        cached = self._metadata.partition(topic, index)
        known = (-1, -1) if cached is None else (cached.leader, cached.leader_epoch)
        hosted = self._hosted(topic, index)
        if hosted is not None and hosted.state.leader_epoch > known[1]:
            known = (hosted.state.leader, hosted.state.leader_epoch)
        return known
