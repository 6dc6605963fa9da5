"""Where a group begins in a partition that was born later: the table."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.support.group_driver import GROUP, Driver
from tidelog.groups.births import begins_at_birth, may_have_births, sight_of
from tidelog.groups.events import DeleteGroup
from tidelog.groups.records import CommittedOffset, FirstSight

TOPIC_ID, OTHER = UUID(int=2), UUID(int=3)


@pytest.mark.parametrize(
    ("seen", "assigned", "partition", "birth", "committed", "begins"),
    [
        # epoch seen, partitions assigned, partition, (birth epoch, offset), committed
        (0, 4, 5, (1, 0), None, True),
        (0, 4, 5, (1, 10), None, True),
        (0, 4, 5, (1, 10), 9, True),
        (0, 4, 5, (1, 10), 10, False),
        (0, 4, 5, (1, 10), 11, False),
        (1, 8, 5, (1, 0), None, False),
        (1, 8, 5, (1, 10), 3, False),
        (1, 8, 5, (3, 10), 3, True),
        (0, -1, 5, (1, 0), None, True),
        (0, -1, 5, (0, 0), None, False),
        # The members knew less than the coordinator, which had seen the growth already.
        (1, 4, 4, (1, 0), None, True),
        (1, 4, 3, (0, 0), None, False),
        # They knew more.
        (0, 8, 7, (1, 6), None, True),
    ],
)
def test_the_table(
    seen: int,
    assigned: int,
    partition: int,
    birth: tuple[int, int],
    committed: int | None,
    begins: bool,
) -> None:
    sight = FirstSight(TOPIC_ID, seen, assigned)
    offset = None if committed is None else CommittedOffset(committed)
    assert begins_at_birth(sight, partition, *birth, offset) is begins
    # The quick check never misses one: the topic's epoch is at least that of any birth.
    assert may_have_births(sight, birth[0], partition) or not begins


def test_a_group_without_a_first_sight() -> None:
    assert not may_have_births(None, 9, 9)
    d = Driver()
    assert sight_of(d.table.get(GROUP), "t", TOPIC_ID) is None
    # Its offsets were committed below level 1.4: before any growth.
    d.commit_offsets({("t", 0): 1})
    assert sight_of(d.group, "t", TOPIC_ID) == FirstSight(TOPIC_ID, 0, -1)
    assert sight_of(d.group, "u", TOPIC_ID) is None


def test_a_first_sight_of_another_topic_id_says_nothing() -> None:
    d = Driver(hold=True)
    d.topics["t"] = FirstSight(TOPIC_ID, 3, -1)
    d.commit_offsets({("t", 0): 1}, topic_id=TOPIC_ID)
    d.commit()
    assert sight_of(d.group, "t", TOPIC_ID) == FirstSight(TOPIC_ID, 3, -1)
    assert sight_of(d.group, "t", OTHER) is None
    d.send(DeleteGroup(d.pending_response()))
    assert sight_of(d.group, "t", TOPIC_ID) is None
