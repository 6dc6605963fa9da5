"""The rules of moves between the log directories of one broker: pure decisions.

Owns what a request, an event of a copy and the start of a broker do. Not the copy: see
`storage.future`. Not the tasks: see `broker.partitions.future_replicas`.

A request (AlterReplicaLogDirs), the first row that fits:

| the directory, the partition | response | effect |
|---|---|---|
| no directory of this broker | LOG_DIR_NOT_FOUND | |
| a name that can have no ``-future`` directory | INVALID_TOPIC_EXCEPTION | |
| the directory failed; or the replica's | KAFKA_STORAGE_ERROR | |
| a cordoned directory, without the replica or its copy | INVALID_REPLICA_ASSIGNMENT | |
| no replica here | REPLICA_NOT_AVAILABLE | one that is created later goes there |
| its replica has no topic id yet | REPLICA_NOT_AVAILABLE | |
| its replica is there | success | a copy to another directory ends |
| its copy is there | success | |
| any other | success | a copy begins; one to a third directory ends |

An event of a copy:

| event | the copy | its directory |
|---|---|---|
| more was copied, or the log changed meanwhile | goes on | |
| little is left | is to take the place of the log | |
| it took the place | ends | is the replica |
| a request began it, and no directory can be made | ends | is removed |
| no space in its directory | rests, without a place, and is tried again | stays |
| its directory failed | ends | stays, out of service |
| the directory of the log failed, or the log is damaged | ends | stays |
| the request was replaced; the replica was deleted, quarantined | ends | is removed |

A copy that a start finds:

| the replica | the copy |
|---|---|
| none, and a log directory cannot be used: it may be there | stays |
| none; of another topic id; in the same directory | is removed |
| any other | goes on; without space for its directory it rests, and that stays |

One whose ``partition.metadata`` is missing or torn, as a kill or a power loss leaves it, goes on,
too: what a copy has is compared with its replica, and never believed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from tidelog.model.errors import ErrorCode
from tidelog.protocol.primitives import NO_UUID


class MoveAction(Enum):
    """The effect of a request."""

    NOTHING = "nothing"
    REMEMBER = "a new replica goes there"
    END = "the copy ends"
    BEGIN = "a copy begins, another one ends"


@dataclass(frozen=True, slots=True)
class Local:
    """A replica of this broker: its directory, that of its copy, and whether it can be moved."""

    directory: str
    future: str | None = None
    is_offline: bool = False
    topic_id: UUID = NO_UUID


def decide(
    directory: str | None,
    is_failed: bool,
    is_invalid: bool,
    local: Local | None,
    is_cordoned: bool = False,
) -> tuple[ErrorCode, MoveAction]:
    """Decide on a request by the table above. ``directory``: None if this broker has none such."""
    if directory is None:
        return ErrorCode.LOG_DIR_NOT_FOUND, MoveAction.NOTHING
    if is_invalid:
        return ErrorCode.INVALID_TOPIC_EXCEPTION, MoveAction.NOTHING
    if is_failed or (local is not None and local.is_offline):
        return ErrorCode.KAFKA_STORAGE_ERROR, MoveAction.NOTHING
    if is_cordoned and (local is None or directory not in (local.directory, local.future)):
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, MoveAction.NOTHING
    if local is None:
        return ErrorCode.REPLICA_NOT_AVAILABLE, MoveAction.REMEMBER
    if local.topic_id == NO_UUID:
        return ErrorCode.REPLICA_NOT_AVAILABLE, MoveAction.NOTHING
    if local.directory == directory:
        return ErrorCode.NONE, MoveAction.NOTHING if local.future is None else MoveAction.END
    if local.future == directory:
        return ErrorCode.NONE, MoveAction.NOTHING
    return ErrorCode.NONE, MoveAction.BEGIN


class MoveEvent(Enum):
    """What happened to a copy."""

    COPIED = "more was copied"
    CHANGED = "the log changed meanwhile"
    NEAR = "little is left"
    NOT_MADE = "its directory cannot be made"
    MOVED = "it took the place"
    FULL = "no space"
    TARGET_FAILED = "its directory failed"
    SOURCE_FAILED = "the log's directory failed, or the log is damaged"
    UNWANTED = "replaced, or the replica is gone"


class Next(Enum):
    """What follows for a copy."""

    GO_ON = "goes on"
    TAKE_PLACE = "is to take the place of the log"
    REST = "rests"
    END = "ends"
    END_AND_REMOVE = "ends, and its directory is removed"


NEXT = {
    MoveEvent.COPIED: Next.GO_ON,
    MoveEvent.CHANGED: Next.GO_ON,
    MoveEvent.NEAR: Next.TAKE_PLACE,
    MoveEvent.NOT_MADE: Next.END_AND_REMOVE,
    MoveEvent.MOVED: Next.END,
    MoveEvent.FULL: Next.REST,
    MoveEvent.TARGET_FAILED: Next.END,
    MoveEvent.SOURCE_FAILED: Next.END,
    MoveEvent.UNWANTED: Next.END_AND_REMOVE,
}


class Found(Enum):
    """What a start does with a copy."""

    KEEP = "stays"
    REMOVE = "is removed"
    GO_ON = "goes on"


def found_at_start(
    directory: str, topic_id: UUID | None, local: Local | None, all_usable: bool
) -> Found:
    """Decide on a copy in ``directory`` by the table above; ``topic_id`` None: it is unreadable."""
    if local is None:
        return Found.REMOVE if all_usable else Found.KEEP
    if local.directory == directory or local.topic_id == NO_UUID:
        return Found.REMOVE
    if topic_id is not None and topic_id != local.topic_id:
        return Found.REMOVE
    return Found.GO_ON
