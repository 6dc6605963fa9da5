"""Which of several directories of one partition is the replica, and which are left of other lives.

Owns the rule, which is pure (docs/decisions/0045); what it sets aside is set aside by its caller.
Of the first row that fits a directory:

| a directory of the partition | is |
|---|---|
| without a topic id and without a record, ever | what is left of a creation that failed |
| named by another one as what that one replaces | what is left of a deletion that failed |
| the only one that is neither | the replica |
| one of several, each of another topic id | undecided: the controller knows which topic lives |
| one of several else | nobody can tell: no start |

How far a log goes, its leader epochs and its dates prove nothing: of two copies the one that must
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


@dataclass(frozen=True, slots=True)
class Copy(Generic[Place]):
    """One directory of a partition: where it is, and what it says of itself."""

    place: Place
    metadata: PartitionMetadata | None
    is_unfinished: bool


@dataclass(frozen=True, slots=True)
class Judgement(Generic[Place]):
    """``left``: what is to be set aside, and what it is. ``kept``: the replica, or several of which
    the controller says which one it is; none when nobody can tell."""

    kept: Sequence[Place]
    left: Sequence[tuple[Place, str]]


def judge(copies: Sequence[Copy[Place]]) -> Judgement[Place]:
    """Return what the copies of one partition are, by the table above. O(their number squared)."""
    left = [(each.place, UNFINISHED) for each in copies if each.is_unfinished]
    finished = [each for each in copies if not each.is_unfinished]
    replaced = {
        created
        for each in finished
        if each.metadata is not None
        for created in each.metadata.replaces
    }
    living = []
    for each in finished:
        if each.metadata is not None and each.metadata.created in replaced:
            left.append((each.place, REPLACED))
        else:
            living.append(each)
    if not living:
        # Each is said to be replaced by another one: no order of events leads there.
        return Judgement((), ()) if finished else Judgement((copies[0].place,), left[1:])
    ids = {each.metadata.topic_id for each in living if each.metadata is not None} - {NO_UUID}
    if len(living) > 1 and len(ids) < len(living):
        return Judgement((), ())
    return Judgement([each.place for each in living], left)
