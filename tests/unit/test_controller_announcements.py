"""UpdateMetadata made once for all brokers: the bytes that each would have had, and never older."""

from __future__ import annotations

import pytest
from tests.support.controller_world import World

from tidelog.controller import requests
from tidelog.controller.announcements import KEPT, Announcements
from tidelog.controller.decisions.creation import NewTopic
from tidelog.controller.pending import Changes
from tidelog.controller.requests import Gone, Sender
from tidelog.model.api_keys import ApiKey
from tidelog.model.levels import LEVELS
from tidelog.model.topics import TopicPartition
from tidelog.protocol import codec

SENDER = Sender(101, "PLAINTEXT")
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def world() -> World:
    made = World(1, 2)
    made.create(NewTopic("t", 2, 2), NewTopic("u", 1, 1))
    return made


def written(encoded: codec.EncodedRequest) -> bytes:
    return b"".join(codec.frame_request(encoded, 7, "controller"))


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_each_broker_gets_the_bytes_that_were_built_for_it_alone(level) -> None:  # type: ignore[no-untyped-def]
    cluster = world().cluster
    cluster.level = level
    announcements = Announcements()
    gone = Gone("old", cluster.topic_id("u"), (0, 1))
    changes = Changes(partitions={T1}, gone={"old": gone})
    for broker in (1, 2):
        alone = requests.update_metadata(cluster, SENDER, broker, cluster.all_partitions())
        changed = requests.update_metadata(cluster, SENDER, broker, {T1}, [gone])
        for encoded, request in (
            (announcements.everything(cluster, SENDER, broker), alone),
            (announcements.of_changes(cluster, SENDER, broker, changes), changed),
        ):
            version = level.update_metadata
            api = ApiKey.UPDATE_METADATA
            plain = b"".join(codec.encode_request(api, version, 7, "controller", request))
            assert written(encoded) == plain
    assert announcements.made == 2


def test_nothing_made_before_a_change_is_sent_after_it() -> None:
    made = world()
    announcements = Announcements()
    changes = Changes(partitions={T0})

    def told() -> bytes:
        return written(announcements.of_changes(made.cluster, SENDER, 1, changes))

    before = told()
    assert told() == before and announcements.made == 1
    # A damaged replica is not in the store: no revision tells of it.
    made.cluster.broken.add((2, T0))
    damaged = told()
    assert damaged != before and announcements.made == 2
    made.create(NewTopic("v", 1, 1))
    told()
    assert announcements.made == 3, "another revision"
    announcements.forget()
    told()
    assert announcements.made == 4, "the controller has something to tell"


def test_few_messages_are_kept() -> None:
    made = world()
    announcements = Announcements()
    named = [Changes(partitions={TopicPartition("t", index)}) for index in range(KEPT + 1)]
    for changes in (*named, named[0]):
        announcements.of_changes(made.cluster, SENDER, 1, changes)
    assert announcements.made == KEPT + 2
