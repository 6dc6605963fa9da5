"""Commands made once for all brokers: as each broker alone would get them, and never older."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.support.controller_world import World
from tidelog.controller import requests
from tidelog.controller.announcements import KEPT, Announcements
from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.settlement import put_state
from tidelog.controller.pending import Changes
from tidelog.controller.requests import Gone, Sender
from tidelog.metadata.records import ResizeKind, ResizePlan, ResizeStep, TopicHistory
from tidelog.model.api_keys import ApiKey
from tidelog.model.levels import LEVELS
from tidelog.model.topics import TopicPartition
from tidelog.protocol import codec

SENDER = Sender(101, "PLAINTEXT")
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def world() -> World:
    made = World(1, 2)
    made.create(TopicToCreate("t", 2, 2), TopicToCreate("u", 1, 1))
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


def test_what_is_built_after_a_publication_names_every_partition() -> None:
    """A part of a shrink's survivors whose LeaderAndIsr was answered after the publication."""
    cluster = world().cluster
    for published, named in ((False, {T0}), (True, {T0, T1})):
        plan = ResizePlan(ResizeKind.SHRINK, 2, 1, 1, ResizeStep.FENCE, published)
        cluster.topic_histories["t"] = TopicHistory("id", 1, resize_epoch=1, resize=plan)
        cluster.resizing.add("t")
        encoded = Announcements().of_changes(cluster, SENDER, 1, Changes(partitions={T0}))
        wanted = requests.update_metadata(cluster, SENDER, 1, named)
        version = cluster.level.update_metadata
        plain = codec.encode_request(ApiKey.UPDATE_METADATA, version, 7, "controller", wanted)
        assert written(encoded) == b"".join(plain)


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
    made.create(TopicToCreate("v", 1, 1))
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


def test_each_broker_gets_the_requests_that_were_built_for_it_alone() -> None:
    made = World(1, 2, 3, 4)
    made.create(TopicToCreate("t", 8, 3), TopicToCreate("u", 3, 2))
    cluster, announcements = made.cluster, Announcements()
    changes = Changes(partitions=set(cluster.all_partitions()))
    for broker in (1, 2, 3, 4):
        alone = requests.leader_and_isr(
            cluster, SENDER, broker, changes.partitions, requests.INCREMENTAL
        )
        assert alone.topic_states
        assert announcements.commands(cluster, SENDER, broker, changes) == alone
    assert announcements.passes == 1, "partitions are divided in one pass, not in one per broker"


def test_what_is_sent_to_all_replicas_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = World(1, 2, 3, 4)
    made.create(TopicToCreate("t", 8, 3))
    asked: list[TopicPartition] = []
    make_one = requests._command

    def counted(cluster: ClusterState, where: TopicPartition, *rest: Any) -> Any:
        asked.append(where)
        return make_one(cluster, where, *rest)

    monkeypatch.setattr(requests, "_command", counted)
    announcements = Announcements()
    changes = Changes(partitions=set(made.cluster.all_partitions()))
    told = [announcements.commands(made.cluster, SENDER, x, changes) for x in (1, 2, 3, 4)]
    assert sum(len(x.topic_states[0].partition_states) for x in told) == 24
    assert sorted(asked) == sorted(changes.partitions)


def test_a_broker_that_is_named_twice_is_sent_one_command() -> None:
    made = world()
    node = made.cluster.topics["u"]
    made.cluster.topics["u"] = msgspec.structs.replace(node, partitions={0: [1, 1]})
    where = TopicPartition("u", 0)
    told = Announcements().commands(made.cluster, SENDER, 1, Changes(partitions={where}))
    assert told == requests.leader_and_isr(made.cluster, SENDER, 1, [where], requests.INCREMENTAL)
    assert len(told.topic_states[0].partition_states) == 1


def test_no_order_made_before_a_change_is_sent_after_it() -> None:
    made = world()
    cluster, announcements = made.cluster, Announcements()
    changes = Changes(partitions={T0})

    def epoch_told() -> int:
        told = announcements.commands(cluster, SENDER, 1, changes)
        return int(told.topic_states[0].partition_states[0].leader_epoch)

    before = epoch_told()
    state = cluster.states[T0]
    later = msgspec.structs.replace(state, leader_epoch=state.leader_epoch + 1)
    made.commit((put_state(cluster, T0, later),))
    assert epoch_told() == before + 1, "another revision"
    # What others wrote to the store is taken up before it has a revision.
    cluster.states[T0] = msgspec.structs.replace(state, leader_epoch=before + 2)
    announcements.forget()
    assert epoch_told() == before + 2, "the controller has something to tell"


def test_few_divisions_are_kept() -> None:
    made = world()
    announcements = Announcements()
    named = [Changes(partitions={TopicPartition("t", index)}) for index in range(KEPT + 1)]
    for changes in (*named, named[0]):
        announcements.commands(made.cluster, SENDER, 1, changes)
    assert announcements.passes == KEPT + 2
