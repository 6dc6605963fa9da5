"""Births of partitions as a group sees them: where it begins in one that is new to it (promise 9).

Owns the rule of OffsetFetch for a partition that was born after the group's first sight of its
topic, and for one that this coordinator does not know. Pure. Not the first sight: see
`first_sights`; not the questions to leaders and controller: see ``broker.coordinator``.

| the partition | its committed offset | the response |
|---|---|---|
| born later | none, or below the birth offset | the birth offset, or a higher log start |
| born later | at the birth offset, or above | the committed offset |
| of a known topic, not known here | any | an error, until the controller does not know it |
| any other | any | the committed offset, or -1 |

Born later: in a resize epoch above that of the first sight, or with a number beyond the group's
first assignment. A group without a first sight has its offsets from before level 1.5: since epoch
0. ``auto.offset.reset`` never decides where a group begins in a partition that was born later.
Source: KIP-253 and docs/design/elastic.md, "Groups".
"""

from __future__ import annotations

from uuid import UUID

from tidelog.groups.first_sights import NO_ASSIGNMENT, NO_RESIZE_EPOCH
from tidelog.groups.group import Group, GroupState
from tidelog.groups.records import CommittedOffset, FirstSight


def sight_of(group: Group | None, topic: str, topic_id: UUID) -> FirstSight | None:
    """Return the first sight of the present topic of a name; None if the group is new to it."""
    if group is None or group.state is GroupState.DEAD:
        return None
    sight = group.first_sights.get(topic)
    if sight is not None:
        return sight if sight.topic_id == topic_id else None
    if topic in group.offsets:
        return FirstSight(topic_id, NO_RESIZE_EPOCH, NO_ASSIGNMENT)
    return None


def may_have_births(sight: FirstSight | None, resize_epoch: int, greatest: int) -> bool:
    """Whether any of the partitions up to ``greatest`` may be born later than a first sight."""
    if sight is None:
        return False
    return resize_epoch > sight.resize_epoch or 0 <= sight.partitions <= greatest


def begins_at_birth(
    sight: FirstSight,
    partition: int,
    birth_epoch: int,
    birth_offset: int,
    committed: CommittedOffset | None,
) -> bool:
    """Whether a group begins at the birth offset of a partition, not where it has committed."""
    if committed is not None and committed.offset >= birth_offset:
        return False
    return birth_epoch > sight.resize_epoch or 0 <= sight.partitions <= partition
