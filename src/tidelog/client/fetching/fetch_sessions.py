"""The client's half of a fetch session (KIP-227): which partitions each request must list. Pure.

Owns session id and epoch, and what the broker has cached: of each partition its numbers (count,
resize epoch, partition epoch), too, which are sent again when they change (KIP-253).

| state | next request | after its response |
|---|---|---|
| no session (id 0) | full, epoch 0: asks for a session | id of the response, epoch 1; id 0: stay |
| session id, epoch n | incremental: changed, new and forgotten partitions only | epoch n + 1 |
| error, lost connection | full, epoch 0 | as above |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from tidelog.model.topics import TopicPartition
from tidelog.protocol.primitives import NO_UUID
from tidelog.replication.resize_rules import NOT_NAMED, Named

FULL_EPOCH = 0
"""Session epoch of a full request that asks for a new session."""

FINAL_EPOCH = -1
"""Session epoch of a request without a session, or that ends one."""

MAX_EPOCH = 2**31 - 1


class PartitionFetch(NamedTuple):
    """The fields of one partition in a request; followers use more of them than consumers."""

    offset: int
    max_bytes: int
    leader_epoch: int
    last_epoch: int = -1
    log_start: int = -1
    topic_id: UUID = NO_UUID
    named: Named = NOT_NAMED
    """A follower names none of the three."""


class SessionRequest(NamedTuple):
    """The partitions of one request: those that the broker's session does not have yet."""

    session_id: int
    epoch: int
    wanted: dict[TopicPartition, PartitionFetch]
    forgotten: list[TopicPartition]


class FetchSession:
    """The session with one broker, over one connection."""

    __slots__ = ("_epoch", "_id", "_known")

    def __init__(self) -> None:
        self._id = 0
        self._epoch = FULL_EPOCH
        self._known: dict[TopicPartition, PartitionFetch] = {}

    def ask(self, wanted: Mapping[TopicPartition, PartitionFetch]) -> SessionRequest:
        """Return the request after which the broker's session has exactly these partitions."""
        if self._epoch == FULL_EPOCH:
            self._known = dict(wanted)
            return SessionRequest(self._id, FULL_EPOCH, dict(wanted), [])
        changed = {tp: item for tp, item in wanted.items() if self._known.get(tp) != item}
        forgotten = [tp for tp in self._known if tp not in wanted]
        self._known = dict(wanted)
        return SessionRequest(self._id, self._epoch, changed, forgotten)

    def answered(self, session_id: int) -> None:
        """Apply a response without a session error."""
        if session_id == 0:
            self.reset()
        elif session_id != self._id:
            self._id, self._epoch = session_id, 1
        else:
            self._epoch = 1 if self._epoch == MAX_EPOCH else self._epoch + 1

    def reset(self) -> None:
        """Forget the session: the broker does not know it, or the connection is gone."""
        self._id, self._epoch, self._known = 0, FULL_EPOCH, {}

    def begin_again(self) -> None:
        """Make the next request a full one, which ends the session that the broker may have."""
        self._epoch, self._known = FULL_EPOCH, {}

    @property
    def open_id(self) -> int:
        """The id of the session that the broker has for this client, or 0."""
        return self._id
