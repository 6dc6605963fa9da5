"""Which look-ups the table of Produce gets, and what a refused producer reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.append_paths import Hosted
from tests.support.resized import EPOCH, OLDER, OWN, fence, put
from tests.support.storage_logs import NOW_MS, TOPIC_ID
from tidelog.broker.metadata.cache import MetadataCache
from tidelog.broker.metadata.shown_epochs import ShownEpochs
from tidelog.broker.partitions.partition import HostedPartition, LeaderAndIsrState
from tidelog.broker.partitions.read_limit import is_at_limit, limit_of_consumer
from tidelog.broker.partitions.resize_checks import (
    is_aware,
    why_not_appended,
    why_not_read,
    why_not_shown,
)
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.records.batch import Rejected
from tidelog.records.builder import NewRecord, Producer, build_batch
from tidelog.records.control_records import ChangeKind
from tidelog.replication.resize_rules import NOT_NAMED, Named
from tidelog.storage.log.results import Appended


def batch(sequence: int = -1) -> bytes:
    producer = Producer(7, 0, sequence) if sequence >= 0 else Producer()
    return build_batch([NewRecord(NOW_MS, b"k", b"v")], producer=producer)


@pytest.fixture
def partition(tmp_path: Path) -> HostedPartition:
    """Led, with one batch of producer 7; then resized, with a committed fence at offset 1."""
    hosted = Hosted(tmp_path, TopicConfigs()).partition
    leads = {"leader": 1, "leader_epoch": 1, "isr": (1,), "replicas": (1,), "partition_epoch": 0}
    hosted.become(LeaderAndIsrState(topic_id=TOPIC_ID, **leads))  # type: ignore[arg-type]
    assert isinstance(hosted.append(batch(0), NOW_MS), Appended)
    assert isinstance(hosted.append(batch(), NOW_MS), Appended)
    put(hosted)
    fence(hosted, 1)
    return hosted


def refused(partition: HostedPartition, named: Named, records: bytes | None = None) -> Any:
    found = why_not_appended(partition, named, batch() if records is None else records)
    assert found is None or (isinstance(found, Rejected) and "t-0" in found.reason)
    return None if found is None else found.error


def test_each_answer_is_an_error_with_a_sentence(partition: HostedPartition) -> None:
    assert refused(partition, OWN) is None
    assert refused(partition, NOT_NAMED) is None
    assert refused(partition, OLDER) is ErrorCode.INVALID_PARTITION_METADATA
    assert refused(partition, OWN._replace(partition_epoch=-1)) is ErrorCode.INVALID_REQUEST
    assert refused(partition, OWN._replace(partition_epoch=1)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert refused(partition, OWN._replace(resize_epoch=4)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert refused(partition, OWN._replace(undeleted_count=7)) is ErrorCode.POLICY_VIOLATION
    put(partition, sealed=True)
    assert refused(partition, OWN) is ErrorCode.POLICY_VIOLATION
    assert refused(partition, NOT_NAMED) is ErrorCode.POLICY_VIOLATION


def test_a_known_batch_is_left_to_the_append_which_answers_its_first_offset(
    partition: HostedPartition,
) -> None:
    """The producer never got the response, and the topic grew meanwhile."""
    for sealed in (False, True):
        put(partition, sealed=sealed)
        for named in (OWN, OLDER, NOT_NAMED):
            assert refused(partition, named, batch(0)) is None
            assert partition.append(batch(0), NOW_MS) == Appended(0, 0, -1, 0, duplicate=True)
    former_life = OWN._replace(partition_epoch=1)
    assert refused(partition, former_life, batch(0)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.end_offset == 2


@pytest.mark.parametrize("kind", [ChangeKind.FENCE, ChangeKind.SEAL])
def test_an_older_epoch_is_refused_for_good_only_below_the_watermark(
    partition: HostedPartition, kind: ChangeKind
) -> None:
    partition.log.high_watermark = 1
    fence(partition, 1, kind)
    assert refused(partition, OLDER) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    partition.log.high_watermark = 2
    assert refused(partition, OLDER) is ErrorCode.INVALID_PARTITION_METADATA
    # Without a fence of its own epoch in the log, nothing is certain.
    put(partition, resize_epoch=EPOCH + 1)
    assert refused(partition, OLDER) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_before_the_fence_is_written_only_known_batches_are_answered(
    partition: HostedPartition,
) -> None:
    partition.fence_unwritten = True
    for named in (OWN, OLDER, NOT_NAMED):
        assert refused(partition, named) is ErrorCode.KAFKA_STORAGE_ERROR
        assert refused(partition, named, batch(0)) is None


def configure(partition: HostedPartition, **changes: Any) -> None:
    partition.log.configs = replace(partition.log.configs, **changes)


def test_producers_without_a_count_can_be_refused(partition: HostedPartition) -> None:
    configure(partition, unaware_producers="refuse")
    assert refused(partition, OWN) is None
    assert refused(partition, NOT_NAMED, batch(0)) is None
    found = why_not_appended(partition, NOT_NAMED, batch())
    assert found is not None and found.error is ErrorCode.POLICY_VIOLATION
    assert "unaware.producers" in found.reason


@pytest.mark.parametrize("named", [NOT_NAMED, OWN, OLDER, Named(1, -1, 5)])
def test_without_ordered_delivery_no_count_is_checked_but_a_retired_partition_takes_nothing(
    partition: HostedPartition, named: Named
) -> None:
    configure(partition, enable_ordered_delivery=False, unaware_producers="refuse")
    assert refused(partition, named) is None
    put(partition, sealed=True)
    assert refused(partition, named) is ErrorCode.POLICY_VIOLATION


@pytest.mark.parametrize("named", [NOT_NAMED, OWN, OLDER, Named(1, -1, 5)])
def test_a_partition_without_a_count_checks_none(partition: HostedPartition, named: Named) -> None:
    """Below level 1.5."""
    configure(partition, unaware_producers="refuse")
    put(partition, undeleted_count=-1, resize_epoch=0)
    assert refused(partition, named) is None


def test_only_a_leader_refuses(partition: HostedPartition) -> None:
    partition.is_leader = False
    put(partition, sealed=True)
    assert refused(partition, OLDER) is None


@pytest.mark.parametrize("records", [b"", b"x" * 60, b"x" * 100, batch()[:-1]])
def test_no_payload_is_known_by_accident(partition: HostedPartition, records: bytes) -> None:
    assert refused(partition, OLDER, records) is ErrorCode.INVALID_PARTITION_METADATA


@pytest.mark.parametrize(
    ("named", "watermark", "limit"),
    [
        (OLDER, 2, 1),
        (OLDER, 1, 1),
        # A fence that is not committed is no reason to read to it.
        (OLDER, 0, 0),
        (OWN, 2, 2),
        (NOT_NAMED, 2, 2),
    ],
)
def test_a_consumer_reads_up_to_the_fence_that_it_has_not_seen_and_to_the_watermark(
    partition: HostedPartition, named: Named, watermark: int, limit: int
) -> None:
    partition.log.high_watermark = watermark
    assert limit_of_consumer(partition, named) == limit


def test_a_partition_without_a_count_limits_no_consumer(partition: HostedPartition) -> None:
    """Below level 1.5, although its log has fences from above it."""
    put(partition, undeleted_count=-1, resize_epoch=0)
    assert limit_of_consumer(partition, OLDER) == 2
    assert why_not_read(partition, OLDER, ShownEpochs(MetadataCache())) is ErrorCode.NONE
    assert not is_aware(partition, NOT_NAMED)


def test_a_partition_of_a_growth_that_was_shown_once_takes_records_without_a_count(
    partition: HostedPartition,
) -> None:
    """Also when its topic is missing in this broker's metadata afterwards."""
    put(partition, birth_epoch=1)
    metadata = MetadataCache()
    found = why_not_shown(partition, NOT_NAMED, metadata)
    assert found is not None and found.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert why_not_shown(partition, OWN, metadata) is None
    update = messages.UpdateMetadataRequest
    for life, is_shown in ((1, False), (0, True)):
        state = update.UpdateMetadataPartitionState(
            partition_index=0, leader=1, replicas=[1], partition_epoch=life
        )
        topic = update.UpdateMetadataTopicState(
            topic_name="t", topic_id=TOPIC_ID, partition_states=[state]
        )
        metadata.apply(update(controller_id=1, topic_states=[topic]), complete=False)
        assert (why_not_shown(partition, NOT_NAMED, metadata) is None) == is_shown
    assert why_not_shown(partition, NOT_NAMED, MetadataCache()) is None


@pytest.mark.parametrize(
    ("offset", "limit", "is_there"),
    [(4, 5, False), (5, 5, True), (6, 5, True), (9, 5, True), (10, 5, False), (9, 9, True),
     (10, 9, False)],
)  # fmt: skip
def test_a_position_between_a_fence_and_the_watermark_waits(
    offset: int, limit: int, is_there: bool
) -> None:
    """Another member committed it: it is not out of range, and nothing is read there."""
    assert is_at_limit(offset, limit, high_watermark=9) == is_there
