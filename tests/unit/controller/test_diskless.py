"""Brokers whose log directories have all failed: new replicas go elsewhere, if they can."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.support.controller_world import World
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.growth import Growth, create_partitions
from tidelog.controller.decisions.soft_state import (
    ReportedShortage,
    forget,
    note_failed_directories,
    note_shortages,
)

DIRS = ["/a", "/b"]


def world(*brokers: int) -> World:
    made = World(*(brokers or (1, 2, 3)))
    for broker, node in made.cluster.brokers.items():
        made.cluster.brokers[broker] = msgspec.structs.replace(node, log_dirs=DIRS)
    return made


def assignments(made: World, name: str) -> list[list[int]]:
    return list(made.cluster.topics[name].partitions.values())


@pytest.mark.parametrize(
    ("log_dirs", "failed", "lost"),
    [
        (DIRS, 0, False),
        (DIRS, 1, False),
        (DIRS, 2, True),
        (DIRS, 9, True),
        # Code before KIP-1066 does not say how many it has.
        ([], 1, False),
    ],
)
def test_which_brokers_have_no_log_directory(log_dirs: list[str], failed: int, lost: bool) -> None:
    made = world()
    node = made.cluster.brokers[2]
    made.cluster.brokers[2] = msgspec.structs.replace(node, log_dirs=log_dirs)
    assert note_failed_directories(made.cluster, 2, failed) is lost
    assert made.cluster.diskless == ({2} if lost else set())
    assert not note_failed_directories(made.cluster, 2, failed), "it is said once"
    note_failed_directories(made.cluster, 2, 0)
    assert made.cluster.diskless == set(), "it was started again, with other disks"


def test_what_is_forgotten_of_a_broker_that_expired() -> None:
    made = world()
    note_failed_directories(made.cluster, 2, 2)
    forget(made.cluster, 2)
    assert made.cluster.diskless == set()
    assert not note_failed_directories(made.cluster, 9, 2), "no such broker"


def test_new_partitions_go_to_brokers_with_a_log_directory() -> None:
    made = world()
    note_failed_directories(made.cluster, 2, 2)
    made.create(TopicToCreate("t", 20, 2))
    grown: Any = made.do(create_partitions(made.cluster, [Growth("t", 40)], made.chance))
    assert grown == [("t", None)]
    assert len(assignments(made, "t")) == 40
    assert all(set(replicas) == {1, 3} for replicas in assignments(made, "t"))


def test_new_partitions_go_to_brokers_with_room() -> None:
    """A broker that has room in one directory still has it."""
    made = world()
    for broker, dirs in ((2, DIRS), (3, DIRS[:1])):
        found = [ReportedShortage(each, "the disk is full", ()) for each in dirs]
        assert note_shortages(made.cluster, broker, found) == dict.fromkeys(dirs, found[0].reason)
        assert note_shortages(made.cluster, broker, found) is None, "it is said once"
    assert made.cluster.roomless == {2}
    made.create(TopicToCreate("t", 20, 2))
    assert all(set(replicas) == {1, 3} for replicas in assignments(made, "t"))
    assert note_shortages(made.cluster, 2, []) == {}
    forget(made.cluster, 3)
    assert made.cluster.shortages == {}


def test_where_no_other_broker_is_there_it_is_a_replica_that_does_not_lead() -> None:
    made = world()
    note_failed_directories(made.cluster, 2, 2)
    made.create(TopicToCreate("t", 6, 3))
    assert all(set(replicas) == {1, 2, 3} for replicas in assignments(made, "t"))
    states = [state for where, state in made.cluster.states.items() if where.topic == "t"]
    assert len(states) == 6
    assert all(state.leader in (1, 3) and set(state.isr) == {1, 3} for state in states)


def test_alone_it_still_leads() -> None:
    """Then nothing is lost by it: the broker refuses the replica, and says why."""
    made = world(2)
    note_failed_directories(made.cluster, 2, 2)
    made.create(TopicToCreate("t", 1, 1))
    assert assignments(made, "t") == [[2]]
