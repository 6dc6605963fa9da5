"""What a broker knows of the cluster, and its dynamic configurations."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from uuid import UUID

import pytest

from tidelog.broker.metadata import cache as metadata_cache
from tidelog.broker.metadata.cache import MetadataCache
from tidelog.broker.metadata.configurations import ConfigCache, EntityType
from tidelog.broker.metadata.shown_epochs import MOST_EMPTY, ShownEpochs
from tidelog.model.work import Work, finish
from tidelog.protocol import messages

Update = messages.UpdateMetadataRequest
A, B = UUID(int=1), UUID(int=2)


def update(**topics: tuple[UUID, dict[int, int]]) -> messages.UpdateMetadataRequest:
    """Return an update: topic -> (id, partition -> leader)."""
    return Update(
        controller_id=1,
        topic_states=[
            Update.UpdateMetadataTopicState(
                topic_name=name,
                topic_id=topic_id,
                partition_states=[
                    Update.UpdateMetadataPartitionState(
                        partition_index=index, leader=leader, leader_epoch=0, replicas=[1]
                    )
                    for index, leader in leaders.items()
                ],
            )
            for name, (topic_id, leaders) in topics.items()
        ],
        live_brokers=[
            Update.UpdateMetadataBroker(
                id=1,
                endpoints=[Update.UpdateMetadataEndpoint(9092, "host", "PLAINTEXT", 0)],
                rack=None,
            )
        ],
    )


def test_updates_change_what_they_name_and_a_complete_one_replaces() -> None:
    cache = MetadataCache()
    gone: list[str] = []
    cache.when_gone = gone.append
    cache.apply(update(t=(A, {0: 1, 1: 1}), u=(B, {0: 1})), complete=True)
    cache.apply(update(t=(A, {1: -1})), complete=False)
    assert {p: m.leader for p, m in cache.topics["t"].partitions.items()} == {0: 1, 1: -1}
    assert cache.topic_by_id(B) is cache.topics["u"]
    cache.apply(update(t=(A, {0: -2, 1: -2})), complete=False)
    assert (list(cache.topics), gone) == (["u"], ["t"])
    cache.apply(update(v=(A, {0: 1})), complete=True)
    assert (list(cache.topics), gone) == (["v"], ["t"])
    assert cache.topic_by_id(B) is None


def resized(
    epoch: int, count: int, lives: dict[int, int], leader: int = 1, most: int = 0, topic: UUID = A
) -> messages.UpdateMetadataRequest:
    """Return an update of topic t: partition -> partition epoch; all have this leader."""
    states = [
        Update.UpdateMetadataPartitionState(
            partition_index=index, leader=leader, replicas=[1], partition_epoch=life
        )
        for index, life in lives.items()
    ]
    whole = Update.UpdateMetadataTopicState(
        topic_name="t",
        topic_id=topic,
        partition_states=states,
        initial_partition_count=1,
        undeleted_partition_count=count,
        resize_epoch=epoch,
    )
    return Update(controller_id=1, topic_states=[whole], max_partition_epoch=most)


def shown(cache: MetadataCache) -> tuple[Any, ...]:
    topic = cache.topics["t"]
    lives = {index: each.partition_epoch for index, each in topic.partitions.items()}
    counts = (topic.resize_epoch, topic.undeleted_partition_count)
    return (*counts, lives, cache.max_partition_epoch)


GROWN = resized(2, 2, {0: 5, 1: 6}, most=6)


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize(
    "late",
    [
        resized(1, 1, {0: 5}, most=5),
        resized(1, 3, {0: 5, 1: 6, 2: 7}, most=7),
        resized(0, 1, {0: 5}, most=0),
    ],
)
def test_an_older_resize_epoch_never_comes_back(late: Any, complete: bool) -> None:
    """Promise 13: reordered UpdateMetadata, also a complete one."""
    cache = MetadataCache()
    cache.apply(GROWN, complete=True)
    before = shown(cache)
    cache.apply(late, complete=complete)
    assert shown(cache)[:3] == before[:3]
    assert cache.max_partition_epoch == max(6, late.max_partition_epoch)
    moved = resized(1, 1, {0: 5}, leader=3)
    cache.apply(moved, complete=complete)
    leaders = {index: each.leader for index, each in cache.topics["t"].partitions.items()}
    assert leaders == {0: 3, 1: 1}, "a leader is no count: it is taken over"
    cache.apply(resized(1, 1, {1: 6}, leader=-2), complete=complete)
    assert shown(cache)[:3] == before[:3]


def test_another_topic_of_the_name_begins_again() -> None:
    cache = MetadataCache()
    cache.apply(GROWN, complete=True)
    cache.apply(resized(0, 1, {0: 8}, most=8, topic=B), complete=False)
    assert shown(cache) == (0, 1, {0: 8}, 8)


@pytest.mark.parametrize("complete", [False, True])
def test_a_removed_partition_returns_in_another_incarnation_only(complete: bool) -> None:
    cache = MetadataCache()
    gone: list[str] = []
    cache.when_gone = gone.append
    cache.apply(resized(3, 1, {0: 5, 1: 6}, most=6), complete=True)
    cache.apply(resized(3, 1, {1: 6}, leader=-2, most=6), complete=False)
    assert (shown(cache), gone) == ((3, 1, {0: 5}, 6), [])
    cache.apply(resized(3, 1, {0: 5, 1: 6}, most=6), complete=complete)
    assert shown(cache) == (3, 1, {0: 5}, 6)
    cache.apply(resized(4, 2, {0: 5, 1: 7}, most=7), complete=complete)
    assert shown(cache) == (4, 2, {0: 5, 1: 7}, 7)


def test_waiters_of_a_topic_are_woken_once_by_its_newer_epoch() -> None:
    cache = MetadataCache()
    epochs = ShownEpochs(cache)
    cache.when_resized = epochs.resized
    woken: list[int] = []
    key: Any = type("Waiter", (), {"more": lambda _, size: woken.append(size)})()
    assert epochs.of("t") == -1
    cache.apply(resized(1, 1, {0: 5}), complete=True)
    epochs.waiters("t")[key] = None
    epochs.waiters("u")[key] = None
    cache.apply(resized(1, 1, {0: 5}, leader=2), complete=True)
    assert (woken, epochs.of("t")) == ([], 1)
    cache.apply(GROWN, complete=False)
    cache.apply(resized(3, 3, {0: 5, 1: 6, 2: 7}), complete=False)
    assert (woken, epochs.of("t"), list(epochs.waiters("u"))) == ([0], 3, [key])


def test_places_without_waiters_are_bounded() -> None:
    epochs = ShownEpochs(MetadataCache())
    kept: Any = object()
    epochs.waiters("kept")[kept] = None
    for index in range(5 * MOST_EMPTY):
        epochs.waiters(f"t{index}")
        assert len(epochs._waiters) <= MOST_EMPTY + 1
    assert kept in epochs.waiters("kept")


def test_a_level_without_topic_ids_makes_no_topic_gone() -> None:
    # The groups of a topic that is gone lose their offsets: a lowered level must not do that.
    cache = MetadataCache()
    gone: list[str] = []
    cache.when_gone = gone.append
    cache.apply(update(t=(A, {0: 1})), complete=True)
    cache.apply(update(t=(UUID(int=0), {0: 1})), complete=True)
    assert (list(cache.topics), gone) == (["t"], [])
    cache.apply(update(t=(A, {0: 1})), complete=True)
    assert cache.topic_by_id(A) is cache.topics["t"]
    assert gone == []


def test_absence_from_a_complete_update_is_no_proof_of_deletion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Promise 20."""
    cache = MetadataCache()
    gone: list[str] = []
    cache.when_gone = gone.append
    four = {name: (A, {0: 1}) for name in "abcd"}
    cache.apply(update(**four), complete=True)
    cache.apply(update(), complete=True)
    assert (cache.topics, gone) == ({}, [])
    # The same topic again, another one under the name, and at last the word that it is deleted.
    cache.apply(update(a=(A, {0: 1}), b=(B, {0: 1})), complete=True)
    assert gone == ["b"]
    cache.apply(update(c=(A, {0: -2})), complete=False)
    assert gone == ["b", "c"]
    cache.apply(update(d=(B, {0: 1})), complete=False)
    assert gone == ["b", "c", "d"]
    # One that is deleted while it is complete, too, is said to be.
    cache.apply(update(a=(A, {0: -2})), complete=True)
    assert gone == ["b", "c", "d", "a"]
    monkeypatch.setattr(metadata_cache, "MAX_ABSENT", 2)
    cache.apply(update(**four), complete=True)
    gone.clear()
    cache.apply(update(), complete=True)
    cache.apply(update(**{name: (B, {0: 1}) for name in "abcd"}), complete=True)
    assert gone == ["c", "d"]


def test_a_topic_created_again_is_another_topic() -> None:
    cache = MetadataCache()
    gone: list[str] = []
    cache.when_gone = gone.append
    cache.apply(update(t=(A, {0: 1, 1: 1})), complete=True)
    cache.apply(update(t=(B, {0: 1})), complete=False)
    assert list(cache.topics["t"].partitions) == [0]
    assert gone == ["t"]
    assert cache.topic_by_id(A) is None and cache.topic_by_id(B) is cache.topics["t"]


def test_clients_see_addresses_of_their_listener_and_a_live_controller() -> None:
    cache = MetadataCache()
    assert cache.visible_controller(1) == -1
    cache.apply(update(), complete=True)
    assert cache.addresses("PLAINTEXT") == [(1, "host", 9092, None)]
    assert cache.addresses("OTHER") == []
    assert cache.visible_controller(1) == 1
    assert cache.visible_controller(7) == 1, "not itself while it is not known to clients"


def test_configurations_are_resolved_and_their_changes_reported() -> None:
    cache = ConfigCache(1, {"log.retention.ms": "5000"})
    told: list[Collection[str] | None] = []

    def tell(topics: Collection[str] | None) -> Work[None]:
        told.append(topics)
        yield from ()

    cache.when_changed = tell
    assert cache.topic("t").retention_ms == cache.at_start(()).retention_ms == 5000
    finish(cache.apply([(EntityType.TOPIC, "t", {"retention.ms": "7"})], complete=True))
    assert (cache.topic("t").retention_ms, told) == (7, [["t"]])
    finish(cache.apply([(EntityType.TOPIC, "t", {"retention.ms": "7"})], complete=False))
    assert told == [["t"]]
    finish(cache.apply([(EntityType.BROKER, "", {"log.retention.ms": "9"})], complete=False))
    assert (cache.topic("t").retention_ms, cache.topic("u").retention_ms) == (7, 9)
    assert cache.at_start(()).retention_ms == 9
    assert told == [["t"], None]
    finish(cache.apply([], complete=True))
    assert cache.topic("t").retention_ms == 5000


def test_of_two_files_the_higher_minimum_counts(caplog: pytest.LogCaptureFixture) -> None:
    """A leader must not acknowledge without replicas that the controller holds for complete."""
    cache = ConfigCache(1, {"min.insync.replicas": "2"})
    changed: list[Collection[str] | None] = []

    def tell(topics: Collection[str] | None) -> Work[None]:
        changed.append(topics)
        yield from ()

    cache.when_changed = tell
    told = {-1: 2, 1: 2, 3: 3, 2: 2}
    for ours, counts in told.items():
        finish(cache.controller_goes_by(ours))
        finish(cache.controller_goes_by(ours))
        assert cache.topic("t").min_insync_replicas == counts
        assert cache.at_start(()).min_insync_replicas == counts
    assert changed == [None, None]
    assert len(caplog.records) == 1 and "2 in this broker's file and 3" in caplog.text
    # What is set for all brokers, or for the topic, is the same for the controller.
    finish(cache.controller_goes_by(3))
    change = [(EntityType.BROKER, "", {"min.insync.replicas": "1"})]
    finish(cache.apply(change, complete=True))
    assert cache.topic("t").min_insync_replicas == 1


def test_a_file_without_a_minimum_goes_by_the_controllers() -> None:
    cache = ConfigCache(1, {})
    finish(cache.controller_goes_by(1))
    assert cache.topic("t").min_insync_replicas == 1
    finish(cache.controller_goes_by(2))
    assert cache.topic("t").min_insync_replicas == 2
