"""Current leaders in refused Produce and Fetch requests: a client needs no Metadata (KIP-951).

Owns the tags ``current_leader`` and ``node_endpoints`` of Produce v10+ and Fetch v16+. Only a hint:
left out if this broker knows no newer leader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from tidelog.broker.metadata.cache import MetadataCache
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages

FIRST_PRODUCE_VERSION, FIRST_FETCH_VERSION = 10, 16

_Response = messages.ProduceResponse
_Leader = messages.ProduceResponse.LeaderIdAndEpoch
_Fetched = messages.FetchResponse

FENCED = ErrorCode.FENCED_LEADER_EPOCH
FETCH_ERRORS = frozenset((ErrorCode.NOT_LEADER_OR_FOLLOWER, FENCED))
"""Errors of a Fetch after which the client needs the leader, or its epoch."""


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
            of = self._addresses(leaders, listener_name)
            response.node_endpoints = [_Response.NodeEndpoint(*endpoint) for endpoint in of]
        return response

    def name_leaders_of_fetch(self, response: Any, listener_name: str) -> Any:
        """Do the same for a Fetch response, and for FENCED_LEADER_EPOCH: there the leader may be
        this broker, in a newer epoch."""
        leaders: set[int] = set()
        for topic in response.responses:
            for part in topic.partitions:
                if part.error_code in FETCH_ERRORS:
                    leader, epoch = self._leader(topic.topic, part.partition_index)
                    is_fenced = part.error_code == FENCED
                    if leader >= 0 and (is_fenced or leader != self._node_id):
                        part.current_leader = _Fetched.LeaderIdAndEpoch(leader, epoch)
                        leaders.add(leader)
        if leaders:
            of = self._addresses(leaders, listener_name)
            response.node_endpoints = [_Fetched.NodeEndpoint(*endpoint) for endpoint in of]
        return response

    def _addresses(
        self, leaders: set[int], listener_name: str
    ) -> Iterator[tuple[int, str, int, str | None]]:
        return (one for one in self._metadata.addresses(listener_name) if one[0] in leaders)

    def _leader(self, topic: str, index: int) -> tuple[int, int]:
        """Return leader and epoch of the newer of LeaderAndIsr and UpdateMetadata; -1: none."""
        cached = self._metadata.partition(topic, index)
        listed = (-1, -1) if cached is None else (cached.leader, cached.leader_epoch)
        hosted = self._hosted(topic, index)
        if hosted is not None and hosted.state.leader_epoch > listed[1]:
            listed = (hosted.state.leader, hosted.state.leader_epoch)
        return listed
