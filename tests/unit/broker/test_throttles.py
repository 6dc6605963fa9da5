"""Which copies a broker's throttles limit, by the configurations as they are now."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.append_paths import Hosted
from tests.support.storage_logs import TOPIC_ID, FixedClock
from tidelog.broker.metadata.configurations import DEFAULT_BROKER, ConfigCache, EntityType
from tidelog.broker.partitions.partition import HostedPartition, LeaderAndIsrState
from tidelog.broker.partitions.throttles import FOLLOWER, LEADER, Throttles
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.work import finish

MOVING, SENT, FETCHED = (
    "reassignment.throttled.rate",
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
)
SENT_LIST, FETCHED_LIST = (
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)


@pytest.fixture
def partition(tmp_path: Path) -> HostedPartition:
    """Replicas 1 and 2 of t-0, replica 3 is a target; 2 is out of sync, 4 a target in sync."""
    hosted = Hosted(tmp_path, TopicConfigs()).partition
    hosted.become(
        LeaderAndIsrState(
            topic_id=TOPIC_ID,
            leader=1,
            leader_epoch=1,
            isr=(1, 4),
            replicas=(1, 2, 4),
            targets=(3, 4),
        )
    )
    return hosted


class Configured:
    """The throttles of both sides, with configurations that change."""

    def __init__(self) -> None:
        self.configs = ConfigCache(1, {})
        clock = FixedClock(1000)
        self.sides = {side: Throttles(self.configs, clock, side) for side in (LEADER, FOLLOWER)}

    def broker(self, **rates: int) -> None:
        self._set(EntityType.BROKER, DEFAULT_BROKER, {k: str(v) for k, v in rates.items()})

    def topic(self, **lists: str) -> None:
        self._set(EntityType.TOPIC, "t", lists)

    def _set(self, kind: EntityType, name: str, values: dict[str, str]) -> None:
        finish(self.configs.apply([(kind, name, values)], complete=False))

    def limited(self, side: str, partition: HostedPartition) -> set[int]:
        """The replicas whose next copy waits after a large one."""
        throttles = self.sides[side]
        for replica in (2, 3, 4):
            throttles.free_in_ms(partition, replica)
            throttles.copied(partition, replica, 1_000_000)
        return {each for each in (2, 3, 4) if throttles.free_in_ms(partition, each)}


@pytest.mark.parametrize(
    ("rates", "lists", "sent", "fetched"),
    [
        ({}, {SENT_LIST: "*", FETCHED_LIST: "*"}, set(), set()),
        ({MOVING: 10}, {}, {3}, {3}),
        ({SENT: 10, FETCHED: 10}, {}, set(), set()),
        ({SENT: 10, FETCHED: 10}, {SENT_LIST: "*", FETCHED_LIST: "*"}, {2, 3}, {2, 3}),
        ({SENT: 10, FETCHED: 10}, {SENT_LIST: "0:2,1:3"}, {2}, set()),
        ({FETCHED: 10}, {SENT_LIST: "*", FETCHED_LIST: "0:3,0:4"}, set(), {3}),
    ],
)
def test_what_is_limited(
    partition: HostedPartition,
    rates: dict[str, int],
    lists: dict[str, str],
    sent: set[int],
    fetched: set[int],
) -> None:
    """Never a replica in sync: 4."""
    configured = Configured()
    configured.broker(**rates)
    configured.topic(**lists)
    assert configured.limited(LEADER, partition) == sent
    assert configured.limited(FOLLOWER, partition) == fetched


def test_a_change_counts_at_once_and_a_debt_is_paid_at_the_new_rate(
    partition: HostedPartition,
) -> None:
    configured = Configured()
    throttles = configured.sides[LEADER]
    assert throttles.free_in_ms(partition, 3) == 0
    configured.broker(**{MOVING: 1000})
    assert throttles.free_in_ms(partition, 3) == 0
    throttles.copied(partition, 3, 5000)
    assert throttles.free_in_ms(partition, 3) == 5000
    configured.broker(**{MOVING: 10_000})
    assert throttles.free_in_ms(partition, 3) == 500
    configured.broker()
    assert throttles.free_in_ms(partition, 3) == 0
    configured.broker(**{SENT: 1000})
    throttles.copied(partition, 2, 5000)
    assert throttles.free_in_ms(partition, 2) == 0
    configured.topic(**{SENT_LIST: "0:2"})
    throttles.free_in_ms(partition, 2)
    throttles.copied(partition, 2, 5000)
    assert throttles.free_in_ms(partition, 2) == 5000


def test_a_list_outlives_changes_of_others_and_follows_its_own(partition: HostedPartition) -> None:
    configured = Configured()
    configured.broker(**{SENT: 10})
    configured.topic(**{SENT_LIST: "0:2"})
    assert configured.limited(LEADER, partition) == {2}
    configured.broker(**{SENT: 20})
    assert configured.limited(LEADER, partition) == {2}
    configured.topic(**{SENT_LIST: "0:3"})
    assert configured.limited(LEADER, partition) == {3}
    configured.topic()
    assert configured.limited(LEADER, partition) == set()
    configured.topic(**{SENT_LIST: "0:3"})
    assert configured.limited(LEADER, partition) == {3}
