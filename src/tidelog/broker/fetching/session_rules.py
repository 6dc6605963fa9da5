"""The rules that fetch sessions (KIP-227) of clients and of followers have in common.

Owns the epochs, the request that a session expects next, and the walk over the partitions that a
request adds, changes and forgets. Not the sessions: see ``client_sessions``, ``follower_session``.

| session id | epoch | meaning |
|---|---|---|
| 0 | -1 | no session: the request names all partitions |
| n | -1 | the same, and session n ends |
| any | 0 | a new session with the partitions of the request (session n ends) |
| n | e > 0 | session n, which expects epoch e; the request changes its partitions |
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Protocol

from tidelog.broker.partitions.resize_checks import named_by
from tidelog.model.errors import ErrorCode
from tidelog.replication.resize_rules import Named
from tidelog.runtime import pace

if TYPE_CHECKING:
    from tidelog.protocol import messages

NO_SESSION = 0
FINAL_EPOCH = -1
INITIAL_EPOCH = 0
MAX_INT32 = 2**31 - 1

UNUSABLE = -2
"""The epoch of a session while a request is applied to it: no request with it is served."""


class Session(Protocol):
    """One session, as the rules see it."""

    id: int
    epoch: int

    def take(
        self,
        topic: messages.FetchRequest.FetchTopic,
        asked: messages.FetchRequest.FetchPartition,
    ) -> int:
        """Add or change one partition; return by how many bytes the session has grown."""

    def forget(self, topic: messages.FetchRequest.ForgottenTopic, index: int) -> int:
        """Forget one partition; return by how many bytes the session has grown."""


def next_epoch(epoch: int) -> int:
    """Return the session epoch of the next request."""
    return 1 if epoch == MAX_INT32 else epoch + 1


def why_not_next(session: Session | None, session_id: int, epoch: int) -> ErrorCode | None:
    """Return why a request with this session id and epoch is not the next one of a session."""
    if session is None or session.id != session_id:
        return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    if session.epoch != epoch or epoch == UNUSABLE:
        return ErrorCode.INVALID_FETCH_SESSION_EPOCH
    return None


def applied(
    session: Session,
    request: messages.FetchRequest,
    *,
    forgets: bool = True,
) -> Generator[int, None, int]:
    """Add, change and forget the partitions that a request names. Yields after each part of
    them, and returns at the end, by how many bytes the session has grown.
    """
    take, part = session.take, pace.PART
    grown = seen = 0
    # Plain loops: a generator for each would cost as much as what is done for one partition.
    for topic in request.topics:
        for asked in topic.partitions:
            grown += take(topic, asked)
            seen += 1
            if not seen % part:
                yield grown
                grown = 0
    for former in request.forgotten_topics_data if forgets else ():
        for index in former.partitions:
            grown += session.forget(former, index)
            seen += 1
            if not seen % part:
                yield grown
                grown = 0
    return grown


def named_in(
    topic: messages.FetchRequest.FetchTopic, asked: messages.FetchRequest.FetchPartition
) -> Named:
    """Return the numbers of one partition in a request."""
    return named_by(topic.undeleted_partition_count, topic.resize_epoch, asked.partition_epoch)
