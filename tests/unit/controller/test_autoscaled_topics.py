"""Topics that are resized by their load, in a pure cluster: rates, cool-downs, refusals."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from tests.support.resizing_world import NOW_MS, ResizingWorld
from tidelog.controller.decisions import soft_state
from tidelog.controller.decisions.autoscaled_topics import (
    FRESH_MS,
    Autoscaled,
    Times,
    autoscale,
    autoscaled_names,
    observed,
)
from tidelog.controller.decisions.autoscaling import Cause
from tidelog.controller.decisions.autoscaling_settings import settings_of
from tidelog.controller.decisions.cluster import ByteRate, ClusterState
from tidelog.controller.decisions.configuration import Alteration, Resource, alter_configs
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.decision import Put, RequestRefusal
from tidelog.controller.decisions.nodes import load
from tidelog.controller.decisions.unaware_writers import note_unaware
from tidelog.metadata import layout
from tidelog.metadata.records import ConfigNode, DeletionMark
from tidelog.model.admin_requests import AlterOperation, ResourceType
from tidelog.model.errors import ErrorCode
from tidelog.model.levels import level_of
from tidelog.model.topics import INTERNAL_TOPICS, TopicPartition

AUTO = {
    "partitions.auto": "true",
    "partitions.auto.target.bytes.per.second": "1000",
    "partitions.auto.max": "16",
    "retired.purge": "drained",
}
MONOTONIC_MS = 5_000_000
COOL_MS, SHRINK_COOL_MS = 60_000, 600_000


class Scaled(ResizingWorld):
    """A topic ``t`` with ``partitions.auto=true``, whose leaders report what a test says."""

    def __init__(self, count: int = 4, **changed: str) -> None:
        super().__init__(count)
        self.now_ms = NOW_MS
        self.low_since_ms: int | None = None
        own = {**AUTO, **{name.replace("_", "."): text for name, text in changed.items()}}
        self.commit((Put(layout.topic_configs("t"), ConfigNode(own)),))

    @property
    def times(self) -> Times:
        return Times(self.now_ms, MONOTONIC_MS + self.now_ms - NOW_MS)

    def take(self, rate: int, broker: int | None = None) -> None:
        """Every leader reports this rate; all writers send the count."""
        for index in self.cluster.topics["t"].partitions:
            leader = self.state(index).leader if broker is None else broker
            self.report_rates(leader, {index: rate})
            note_unaware(self.cluster, leader, [(self.cluster.topic_id("t"), -1)], 0)

    def report_rates(self, broker: int, rates: Mapping[int, int]) -> None:
        soft_state.note_rates(
            self.cluster, broker, self.cluster.topic_id("t"), rates.items(), self.times.monotonic_ms
        )

    def decide(self) -> Autoscaled:
        """Decide, as a controller does, and carry the resize to its end."""
        found: Autoscaled | None = self.do(
            autoscale(self.cluster, "t", self.times, self.low_since_ms, self.chance)
        )
        assert found is not None
        self.low_since_ms = found.verdict.state.low_since_ms
        self.settle()
        return found

    @property
    def count(self) -> int:
        return self.shown[0]


def test_it_grows_and_keeps_its_cool_downs_in_the_store() -> None:
    world = Scaled()
    world.take(1_001)
    found = world.decide()
    assert (found.verdict.cause, found.refusal, world.count) == (Cause.GROW, None, 8)
    assert world.history.grow_after_ms == NOW_MS + COOL_MS
    assert world.history.shrink_after_ms == NOW_MS + SHRINK_COOL_MS
    # Another controller loads them.
    after = ClusterState()
    load(after, world.nodes())
    assert after.topic_histories["t"] == world.history
    world.take(5_000)
    assert world.decide().verdict.cause is Cause.COOLS_DOWN
    world.now_ms += COOL_MS
    world.take(5_000)
    assert (world.decide().verdict.cause, world.count) == (Cause.GROW, 16)


def test_it_shrinks_after_the_rate_was_low_for_the_cool_down() -> None:
    world = Scaled()
    world.take(1_001)
    world.decide()
    world.now_ms += SHRINK_COOL_MS
    world.take(0)
    assert world.decide().verdict.cause is Cause.LOW_TOO_BRIEFLY
    world.now_ms += SHRINK_COOL_MS
    world.take(0)
    assert (world.decide().verdict.cause, world.count) == (Cause.SHRINK, 4)


def test_it_never_shrinks_a_topic_that_is_only_compacted() -> None:
    """It would not grow again, and a shrink by hand needs force."""
    world = Scaled(cleanup_policy="compact")
    world.take(1_001)
    world.decide()
    assert world.count == 8
    for _ in range(3):
        world.now_ms += SHRINK_COOL_MS
        world.take(0)
        found = world.decide()
    assert (found.verdict.cause, world.count) == (Cause.NEVER_PURGED, 8)
    refusal = world.ask(4, force=False, now_ms=world.now_ms)
    assert refusal is not None and "it is compacted" in refusal.sentence


def test_a_resize_by_hand_begins_the_cool_downs_too() -> None:
    world = Scaled()
    assert world.ask(8, now_ms=NOW_MS) is None
    world.settle()
    assert world.history.grow_after_ms == NOW_MS + COOL_MS
    world.take(2_000)
    assert world.decide().verdict.cause is Cause.COOLS_DOWN


def test_a_topic_that_is_not_resized_by_its_load_has_no_cool_downs() -> None:
    world = ResizingWorld(2)
    assert world.ask(4) is None
    world.settle()
    assert (world.history.grow_after_ms, world.history.shrink_after_ms) == (0, 0)
    assert autoscaled_names(world.cluster) == []


@pytest.mark.parametrize(
    ("at_ms", "is_forced"), [(-1, True), (NOW_MS, False), (-2, False), (None, False)],
    ids=["aware", "unaware", "silent", "unknown"],
)  # fmt: skip
def test_it_never_shrinks_while_unaware_writers_may_be_there(
    at_ms: int | None, is_forced: bool
) -> None:
    world = Scaled(2)
    world.ask(8)
    world.settle()
    world.now_ms += 2 * SHRINK_COOL_MS
    world.take(0)
    world.cluster.unaware.clear()
    if at_ms is not None:
        for broker in world.cluster.brokers:
            note_unaware(world.cluster, broker, [(world.cluster.topic_id("t"), at_ms)], NOW_MS)
    world.low_since_ms = NOW_MS
    verdict = world.decide().verdict
    assert verdict.cause is (Cause.SHRINK if is_forced else Cause.UNAWARE)
    assert world.count == (4 if is_forced else 8)


def test_a_rate_counts_while_it_is_fresh_and_its_broker_leads() -> None:
    world = Scaled()
    world.take(700)
    assert observed(world.cluster, "t", world.times).rates == (700,) * 4
    leader = world.state(0).leader
    other = next(x for x in world.cluster.brokers if x != leader)
    # It does not lead: what it reports of this partition, and of no partition, counts for nothing.
    world.report_rates(other, {0: 10**9, 99: 10**9, -1: 10**9})
    assert observed(world.cluster, "t", world.times).rates == (700,) * 4
    assert world.cluster.byte_rates[world.cluster.topic_id("t")].keys() == {0, 1, 2, 3}
    # It led when it reported, and another broker leads now.
    known = world.cluster.byte_rates[world.cluster.topic_id("t")]
    known[0] = ByteRate(other, 10**9, world.times.monotonic_ms, 0)
    assert observed(world.cluster, "t", world.times).rates == (None, 700, 700, 700)
    world.now_ms += FRESH_MS + 1
    assert observed(world.cluster, "t", world.times).rates == (None,) * 4


def test_a_rate_from_before_a_resize_does_not_count_after_it() -> None:
    """A parent had the keys of its child too: both together would double the topic again."""
    world = Scaled()
    world.take(1_900)
    assert world.decide().verdict.cause is Cause.GROW
    world.now_ms += FRESH_MS
    assert observed(world.cluster, "t", world.times).rates == (None,) * 8
    assert world.decide().verdict.cause is Cause.UNKNOWN
    world.take(950)
    assert world.decide().verdict.cause is Cause.FITS


def test_rates_of_other_topics_are_not_kept() -> None:
    world = Scaled()
    world.create(TopicToCreate("plain", 1, 1))
    leader = world.cluster.states[TopicPartition("plain", 0)].leader
    for topic_id in (world.cluster.topic_id("plain"), layout.parse_id("A" * 22)):
        assert topic_id is not None
        soft_state.note_rates(world.cluster, leader, topic_id, [(0, 5)], MONOTONIC_MS)
    assert world.cluster.byte_rates == {}
    world.take(1)
    soft_state.forget_rates(world.cluster, [])
    assert world.cluster.byte_rates == {}


@pytest.mark.parametrize("rate", [-1, -(2**63), 2**63 - 1, 2**40])
def test_no_rate_that_cannot_be_one_resizes_a_topic(rate: int) -> None:
    world = Scaled()
    world.take(rate)
    world.low_since_ms = 0
    assert world.decide().verdict.cause is Cause.UNKNOWN
    assert world.count == 4


def test_one_lying_broker_of_three_does_not_grow_a_topic() -> None:
    """It claims the highest rate that is believed for each partition that it leads."""
    world = Scaled(6)
    world.take(300)
    liar = world.state(0).leader
    led = [x for x in range(6) if world.state(x).leader == liar]
    assert len(led) == 2
    world.report_rates(liar, dict.fromkeys(led, 2**36))
    assert world.decide().verdict.cause is Cause.FITS
    assert world.count == 6


def test_a_resize_that_is_refused_changes_nothing_and_says_why() -> None:
    world = Scaled()
    world.take(2_000)
    soft_state.suspect(world.cluster, [1, 2, 3])
    found = world.do(autoscale(world.cluster, "t", world.times, None, world.chance))
    assert found.verdict.cause is Cause.GROW
    assert isinstance(found.refusal, RequestRefusal)
    assert found.refusal.error is ErrorCode.LEADER_NOT_AVAILABLE
    assert (world.count, world.history.grow_after_ms) == (4, 0)


def test_a_topic_that_is_resized_or_deleted_is_left_alone() -> None:
    world = Scaled()
    assert autoscaled_names(world.cluster) == ["t"]
    assert world.ask(8) is None
    assert autoscaled_names(world.cluster) == []
    world.report_rates(world.state(0).leader, {0: 9_000})
    assert world.cluster.byte_rates == {}
    assert world.do(autoscale(world.cluster, "t", world.times, None, world.chance)) is None


@pytest.mark.parametrize(
    "changed",
    [{"partitions_auto": "false"}, {"partitions_auto": "maybe"},
     {"enable_ordered_delivery": "false"}],
)  # fmt: skip
def test_another_programs_configuration_that_would_be_refused_resizes_nothing(
    changed: dict[str, str],
) -> None:
    world = Scaled(4, **changed)
    assert settings_of(world.cluster, "t") is None
    assert autoscaled_names(world.cluster) == []


def test_nothing_is_resized_without_retired_purge_or_below_level_15() -> None:
    world = Scaled()
    without = {name: text for name, text in AUTO.items() if name != "retired.purge"}
    world.commit((Put(layout.topic_configs("t"), ConfigNode(without)),))
    assert autoscaled_names(world.cluster) == []
    world.commit((Put(layout.topic_configs("t"), ConfigNode(AUTO)),))
    assert autoscaled_names(world.cluster) == ["t"]
    world.cluster.level = level_of("1.4")
    assert autoscaled_names(world.cluster) == []


@pytest.mark.parametrize(
    ("changed", "retired_ms"),
    [
        ({}, 0),
        ({"retired_purge": "retention", "retention_ms": "5000"}, 5_000),
        ({"retired_purge": "retention", "retention_ms": "-1"}, None),
        # Nothing purges the retired partitions of a compacted topic.
        ({"cleanup_policy": "compact"}, None),
        ({"cleanup_policy": "compact,delete", "retention_ms": "7000"}, 7_000),
    ],
)
def test_how_long_retired_partitions_stay(changed: dict[str, str], retired_ms: int | None) -> None:
    settings = settings_of(Scaled(4, **changed).cluster, "t")
    assert settings is not None and settings.retired_ms == retired_ms


def altered(world: ResizingWorld, **texts: str | None) -> RequestRefusal | None:
    alterations = [
        Alteration(
            name.replace("_", "."),
            AlterOperation.DELETE if text is None else AlterOperation.SET,
            text,
        )
        for name, text in texts.items()
    ]
    topic = Resource(ResourceType.TOPIC, "t")
    ((_, refusal),) = world.do(alter_configs(world.cluster, [(topic, alterations)]))
    return refusal


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ({"partitions_auto": "true"}, "partitions.auto needs retired.purge to be set"),
        ({"partitions_auto": "true", "retired_purge": "drained",
          "enable_ordered_delivery": "false"}, "needs enable.ordered.delivery=true"),
        ({"partitions_auto_min": "8", "partitions_auto_max": "4"}, "must not be larger"),
        ({"partitions_auto_shrink_utilization": "0.5"}, "at most 0.45"),
        ({"partitions_auto_target_bytes_per_second": "0"}, "at least 1"),
        ({"partitions_auto_min": "0"}, "at least 1 or -1"),
        ({"partitions_auto_grow_cooldown_ms": "-1"}, "at least 0"),
    ],
)  # fmt: skip
def test_configurations_that_are_refused(texts: dict[str, str], said: str) -> None:
    world = ResizingWorld(2)
    refusal = altered(world, **texts)
    assert refusal is not None and refusal.error is ErrorCode.INVALID_CONFIG
    assert said in refusal.sentence


def test_retired_purge_cannot_be_taken_away_from_a_topic_that_needs_it() -> None:
    world = ResizingWorld(2)
    assert altered(world, partitions_auto="true", retired_purge="retention") is None
    refusal = altered(world, retired_purge=None)
    assert refusal is not None and "needs retired.purge" in refusal.sentence
    assert altered(world, retired_purge=None, partitions_auto="false") is None


def test_a_topic_cannot_be_created_with_partitions_auto_alone() -> None:
    world = ResizingWorld(2)
    alone = (("partitions.auto", "true"),)
    (created,) = world.create(TopicToCreate("u", 1, 1, configs=alone))
    assert created.refusal is not None and created.refusal.error is ErrorCode.INVALID_CONFIG
    (created,) = world.create(
        TopicToCreate("u", 1, 1, configs=(*alone, ("retired.purge", "retention")))
    )
    assert created.refusal is None


def test_a_topic_that_shrinks_or_is_marked_for_deletion_is_left_alone() -> None:
    """All its partitions have nodes then: only the plan and the mark say it."""
    shrinking = Scaled(2)
    shrinking.ask(4)
    shrinking.settle()
    assert autoscaled_names(shrinking.cluster) == ["t"]
    assert shrinking.ask(2) is None
    assert autoscaled_names(shrinking.cluster) == []
    marked = Scaled()
    marked.commit((Put(layout.deletion_mark("t"), DeletionMark()),))
    assert autoscaled_names(marked.cluster) == []


def test_a_rate_counts_for_the_whole_of_its_time() -> None:
    world = Scaled()
    world.take(700)
    world.now_ms += FRESH_MS
    assert observed(world.cluster, "t", world.times).rates == (700,) * 4
    world.now_ms += 1
    assert observed(world.cluster, "t", world.times).rates == (None,) * 4


@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
def test_an_internal_topic_is_left_alone(name: str) -> None:
    """Groups and transactions are placed by its count."""
    world = Scaled()
    world.cluster.level = level_of("1.6")
    world.create(TopicToCreate(name, 2, 1), for_process=True)
    world.commit((Put(layout.topic_configs(name), ConfigNode(AUTO)),))
    assert settings_of(world.cluster, name) is not None
    assert autoscaled_names(world.cluster) == ["t"]
    assert world.do(autoscale(world.cluster, name, world.times, None, world.chance)) is None


@pytest.mark.parametrize(("initial", "names"), [(4, ["t"]), (5, [])])
def test_a_topic_below_its_initial_count_is_left_alone(initial: int, names: list[str]) -> None:
    """Linear hashing has no home for a key there."""
    world = Scaled(4)
    history = msgspec.structs.replace(world.history, initial_partition_count=initial)
    world.commit((Put(layout.topic_history("t"), history),))
    assert autoscaled_names(world.cluster) == names
