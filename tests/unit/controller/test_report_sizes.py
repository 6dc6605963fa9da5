"""What reports and notes of replicas cost, and which of them come first where there is no room."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from tests.support.controller_world import World
from tidelog.controller.decisions.cluster import LogEnd
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.decision import Put
from tidelog.controller.decisions.deletion import note_confirmed
from tidelog.controller.decisions.ended_data import JUMP
from tidelog.controller.decisions.late_replicas import late_steps
from tidelog.controller.decisions.stops import Stop
from tidelog.controller.decisions.uncertain_replicas import MOST_NOTED, noted
from tidelog.metadata import layout
from tidelog.metadata.layout import Damaged
from tidelog.metadata.records import UncertainReplicas
from tidelog.model.topics import TopicPartition
from tidelog.model.work import finish

PARTITIONS = 10_000
ID = UUID(int=5)


class Counted(dict[tuple[UUID, int], LogEnd]):
    """A report that counts how many of its replicas are read; a copy reads all."""

    reads = 0

    def __getitem__(self, key: tuple[UUID, int]) -> LogEnd:
        self.reads += 1
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[tuple[UUID, int]]:
        self.reads += len(self)
        return super().__iter__()

    def keys(self):  # type: ignore[no-untyped-def]
        self.reads += len(self)
        return super().keys()


def test_a_deletion_that_is_confirmed_costs_what_it_removes() -> None:
    """Each one copied the whole report of its broker: 10,000 of them took minutes."""
    cluster = World(1, 2).cluster
    report = Counted({(ID, x): LogEnd(1, 0, 5) for x in range(PARTITIONS)})
    cluster.inventories[1] = report
    for index in range(PARTITIONS):
        note_confirmed(cluster, 1, [Stop("t", ID, index, 0, delete=True, partition_epoch=1)])
    assert cluster.inventories[1] == {}
    assert cluster.inventories[1] is report and report.reads <= 2 * PARTITIONS


def test_a_report_that_is_read_in_steps_may_lose_replicas_meanwhile() -> None:
    cluster = World(1, 2).cluster
    cluster.counters[layout.CONTROLLER_EPOCH] = JUMP
    cluster.brokers = dict.fromkeys((1, 2), cluster.brokers[1])
    cluster.inventories[1] = {(ID, x): LogEnd(1, 0, 5) for x in range(4)}
    reading = late_steps(cluster)
    next(reading)
    note_confirmed(cluster, 1, [Stop("t", ID, 3, 0, delete=True, partition_epoch=1)])
    assert [x.partition for x in finish(reading)] == [0, 1, 2, 3]
    assert len(cluster.inventories[1]) == 3


def test_notes_of_members_come_before_those_of_other_brokers() -> None:
    """Of a state that cannot be read each broker was noted that had no replica: with a thousand
    of them those of the members had no room."""
    world = World(1, 2, 3)
    world.create(TopicToCreate("t", assignment=((0, (1, 2)), (1, (2, 1)))))
    cluster = world.cluster
    for index in (0, 1):
        path = layout.state("t", index)
        state = cluster.states.pop(TopicPartition("t", index))
        cluster.damaged[path] = Damaged(path, "torn", former=state)
    others = MOST_NOTED - 1
    notes = UncertainReplicas({"t": {0: list(range(10, 10 + others))}})
    cluster.past = cluster.past._replace(uncertain=notes)

    def after(broker: int) -> dict[int, list[int]]:
        writes = noted(cluster, broker, [TopicPartition("t", 0), TopicPartition("t", 1)])
        for write in writes:
            assert isinstance(write, Put) and isinstance(write.record, UncertainReplicas)
            cluster.past = cluster.past._replace(uncertain=write.record)
        found = cluster.past.uncertain.topics["t"]
        assert sum(map(len, found.values())) <= MOST_NOTED
        return found

    members = after(1)
    assert 1 in members[0] and 1 in members[1]
    members = after(2)
    assert {1, 2} <= set(members[0]) and members[1] == [1, 2]
    assert sum(map(len, members.values())) == MOST_NOTED
    # A broker that is no member has no room, and takes none.
    members = after(3)
    assert {1, 2} <= set(members[0]) and members[1] == [1, 2]


def test_an_earlier_note_comes_before_a_new_one_of_a_broker_that_is_no_member() -> None:
    """It may be of a member that is away, of a state that no node shows to this controller. A new
    note of an earlier partition had its room."""
    cluster = World(1, 2, 3).cluster
    cluster.went_back = "the store is older"
    notes = UncertainReplicas({"t": {0: list(range(11, 10 + MOST_NOTED)), 1: [9]}})
    cluster.past = cluster.past._replace(uncertain=notes)
    assert noted(cluster, 3, [TopicPartition("a", 0), TopicPartition("t", 0)]) == []
