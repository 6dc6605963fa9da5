"""PartitionLeaderEpochsForPartitions: what UpdateMetadata v8 said of births and retirements."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from tests.support.group_broker import done
from tests.support.lone_broker import LoneBroker, Peer, with_broker
from tests.support.resized_topics import tell_resized
from tidelog.broker.handlers import partition_leader_epochs_for_partitions as api
from tidelog.model.errors import ErrorCode as E
from tidelog.protocol import messages

UNKNOWN = E.UNKNOWN_TOPIC_OR_PARTITION
LINEAGE = {
    4: {"parent": 0, "leader_epoch_after_creation": 7},
    5: {
        "parent": 1,
        "leader_epoch_after_creation": 8,
        "survivor": 1,
        "leader_epoch_before_deletion": 11,
    },
    6: {
        "parent": 2,
        "leader_epoch_after_creation": 3,
        "survivor": 0,
        "leader_epoch_before_deletion": 12,
    },
}
"""Partition 6 retired to another than its parent: a later, smaller count."""


def shown(lone: LoneBroker, *asked: tuple[str, list[int]]) -> dict[str, list[object]]:
    request = messages.PartitionLeaderEpochsForPartitionsRequest
    topics = [request.Topic(name, indexes) for name, indexes in asked]
    context = SimpleNamespace(version=0, client_id="", client_host="", listener_name="PLAINTEXT")
    response = done(api.HANDLER.handle(lone.broker, request(topics=topics), context))
    found: dict[str, list[object]] = {}
    for topic in response.topics:
        for part in topic.partitions:
            epochs = [
                (x.partition, x.leader_epoch_after_creation, x.leader_epoch_before_deletion)
                for x in part.leader_epochs
            ]
            found.setdefault(topic.topic, []).append(
                (part.partition, E(part.error_code) if part.error_code else epochs)
            )
    return found


def test_parents_and_survivors(tmp_path: Path) -> None:
    async def story(lone: LoneBroker, peer: Peer) -> None:
        births = dict.fromkeys(range(4), (0, 0)) | {4: (1, 0), 5: (1, 0), 6: (1, 0)}
        retired = {5: 2, 6: 2}
        tell_resized(lone, "t", births, resize_epoch=2, initial=4, retired=retired, lineage=LINEAGE)
        assert shown(lone, ("t", [0, 4, 5, 6, 7, -1]), ("no", [0])) == {
            "t": [
                (0, []),
                (4, [(0, 7, -1)]),
                (5, [(1, 8, 11)]),
                (6, [(2, 3, -1), (0, -1, 12)]),
                (7, UNKNOWN),
                (-1, UNKNOWN),
            ],
            "no": [(0, UNKNOWN)],
        }
        # An undo takes the survivor back; only partitions with a parent or survivor cost memory.
        tell_resized(lone, "t", births, resize_epoch=3, initial=4, lineage={4: LINEAGE[4]})
        assert shown(lone, ("t", [4, 5])) == {"t": [(4, [(0, 7, -1)]), (5, [])]}
        known = lone.broker.metadata.topic("t")
        assert known is not None and list(known.lineage) == [4]
        # A removed partition leaves nothing.
        tell_resized(lone, "t", {4: (1, 0)}, resize_epoch=4, lineage=LINEAGE, leaders={4: -2})
        assert shown(lone, ("t", [4])) == {"t": [(4, UNKNOWN)]}
        assert not known.lineage

    with_broker(tmp_path, story)


def test_very_many_partitions_come_in_steps(tmp_path: Path) -> None:
    async def story(lone: LoneBroker, peer: Peer) -> None:
        tell_resized(lone, "t", {0: (0, 0)}, resize_epoch=0, initial=1)
        many = list(range(api.HANDLER.most_elements - 1))
        answered = shown(lone, ("t", many))["t"]
        assert answered[0] == (0, [])
        assert answered[1:] == [(at, UNKNOWN) for at in many[1:]]

    with_broker(tmp_path, story)
