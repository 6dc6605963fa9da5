"""The choice between several directories of one partition: the replica, or left of an earlier one.

Owns the rule, which is pure (docs/decisions/0045). Not the quarantine of the other directories: see
its caller. The first row that fits decides:

| a directory of the partition | is |
|---|---|
| without a topic id and without a record, ever | what is left of a creation that failed |
| replaced by another one, as that one says | what is left of a deletion that failed |
| copied by another one, as that one says | what is left of a move to another log directory |
| the only one that is neither | the replica |
| one of several, each of another topic id | undecided: the controller knows which topic exists |
| any other one of several | undecidable: the directory is refused at the start |

The end of a log, its leader epochs and its dates prove nothing: of two copies the one that must
never lead may be the longer one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tidelog.protocol.primitives import NO_UUID
from tidelog.storage.checkpoints import PartitionMetadata

Place = TypeVar("Place")

UNFINISHED = "what is left of a creation that failed"
REPLACED = "what is left of a deletion that failed"
MOVED = "what is left of a move to another log directory"


@dataclass(frozen=True, slots=True)
class FoundReplica(Generic[Place]):
    """One directory of a partition: its place, and its ``partition.metadata``."""

    place: Place
    metadata: PartitionMetadata | None
    is_unfinished: bool


@dataclass(frozen=True, slots=True)
class Choice(Generic[Place]):
    """``left``: directories to quarantine, and what each is. ``kept``: the replica, or several
    among which the controller decides; none when there is no way to decide."""

    kept: Sequence[Place]
    left: Sequence[tuple[Place, str]]


def judge(copies: Sequence[FoundReplica[Place]]) -> Choice[Place]:
    """Judge the copies of one partition by the table above. O(their number squared)."""
    left = [(copy.place, UNFINISHED) for copy in copies if copy.is_unfinished]
    finished = [copy for copy in copies if not copy.is_unfinished]
    replaced = {
        created
        for copy in finished
        if copy.metadata is not None
        for created in copy.metadata.replaces
    }
    moved = {copy.metadata.copy_of for copy in finished if copy.metadata is not None}
    living = []
    for copy in finished:
        if copy.metadata is not None and copy.metadata.created in replaced:
            left.append((copy.place, REPLACED))
        elif copy.metadata is not None and copy.metadata.created in moved - {None}:
            left.append((copy.place, MOVED))
        else:
            living.append(copy)
    if not living:
        # Each one is replaced by another one: no order of events leads to that.
        return Choice((), ()) if finished else Choice((copies[0].place,), left[1:])
    ids = {copy.metadata.topic_id for copy in living if copy.metadata is not None} - {NO_UUID}
    if len(living) > 1 and len(ids) < len(living):
        return Choice((), ())
    return Choice([copy.place for copy in living], left)
