"""Stamps: what a request says of a topic's count, and which of two is newer."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from tidelog.client.metadata import Partition, Topic
from tidelog.client.stamps import (
    Stamp,
    is_newer,
    partition_stamp,
    stamp_of,
)
from tidelog.replication.resize_rules import NOT_NAMED, Named

ID, OTHER = UUID(int=1), UUID(int=2)
TOPIC = Topic(
    "t",
    ID,
    False,
    {0: Partition(0, 1, 0, (1,), (1,), (), partition_epoch=5)},
    initial_partition_count=1,
    undeleted_partition_count=1,
    resize_epoch=3,
)


def test_an_ordered_topic_has_a_stamp() -> None:
    assert stamp_of(TOPIC) == Stamp(ID, 1, 3)
    assert stamp_of(replace(TOPIC, undeleted_partition_count=-1)) is None


def test_count_and_epochs_go_together() -> None:
    assert partition_stamp(Stamp(ID, 4, 2), 9) == Named(4, 2, 9)
    assert partition_stamp(Stamp(ID, 4, 2), -1) == NOT_NAMED
    assert partition_stamp(None, 9) == NOT_NAMED


@pytest.mark.parametrize(
    ("found", "than", "newer"),
    [
        (Stamp(ID, 4, 2), Stamp(ID, 8, 1), True),
        (Stamp(ID, 4, 2), Stamp(ID, 4, 2), False),
        (Stamp(ID, 4, 1), Stamp(ID, 4, 2), False),
        (Stamp(OTHER, 4, 0), Stamp(ID, 4, 2), True),
        (None, Stamp(ID, 4, 2), True),
        (Stamp(ID, 4, 0), None, True),
        (None, None, False),
    ],
)
def test_which_stamp_is_newer(found: Stamp | None, than: Stamp | None, newer: bool) -> None:
    assert is_newer(found, than) is newer
