"""A session's partitions in which nothing is new are not read, until anything changes there.

That the responses are those of a read: `test_fetch_fast_path`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.fetch_paths import Hosts
from tests.support.storage_logs import NOW_MS, batch
from tidelog.broker.fetching.client_sessions import due
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.model.api_keys import ApiKey
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import codec, messages

KEYS = [TopicPartition("t", index) for index in range(3)]
CHANGED = KEYS[1]

Request = messages.FetchRequest


def ask(hosts: Hosts, session: int, epoch: int, version: int, *offsets: int) -> Any:
    """The response to a request that names these offsets of the first partitions."""
    parts = [
        Request.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1000)
        for index, offset in enumerate(offsets)
    ]
    topics = [Request.FetchTopic("t", hosts.id_of("t"), parts)] if parts else []
    request = Request(
        max_wait_ms=0, min_bytes=1, topics=topics, session_id=session, session_epoch=epoch
    )
    answer = memoryview(hosts.general(request, version))[4:]
    response: Any = codec.decode_response(ApiKey.FETCH, version, answer)[1]
    return response


def told(response: Any) -> list[tuple[int, int]]:
    """Partition and error of each part."""
    return [
        (part.partition_index, part.error_code)
        for topic in response.responses
        for part in topic.partitions
    ]


def to_read(hosts: Hosts, session: int) -> list[int]:
    found: Any = hosts.sessions.find(session, 3)
    return [wanted.index for wanted in due(found.wanted.values(), [])]


def append(hosts: Hosts, partition: HostedPartition) -> None:
    partition.append(batch(), NOW_MS)


def move_start(hosts: Hosts, partition: HostedPartition) -> None:
    partition.log.advance_start(1)


def follow(hosts: Hosts, partition: HostedPartition) -> None:
    hosts.become(partition.key, False, 4, (1, 2))


def fail(hosts: Hosts, partition: HostedPartition) -> None:
    partition.go_offline("its disk failed")


def stop(hosts: Hosts, partition: HostedPartition) -> None:
    partition.stop()


def other_id(hosts: Hosts, partition: HostedPartition) -> None:
    metadata = partition.log.metadata
    assert metadata is not None
    partition.log.metadata = replace(metadata, topic_id=hosts.id_of("other"))


NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("version", [12, 13])
@pytest.mark.parametrize(
    ("change", "error"),
    [
        (append, ErrorCode.NONE),
        (move_start, ErrorCode.NONE),
        (follow, NOT_LEADER),
        (stop, NOT_LEADER),
        (fail, ErrorCode.KAFKA_STORAGE_ERROR),
        (other_id, ErrorCode.UNKNOWN_TOPIC_ID),
    ],
)
def test_what_rests_is_read_when_it_changes(
    tmp_path: Path, version: int, change: Callable[[Hosts, HostedPartition], None], error: ErrorCode
) -> None:
    hosts = Hosts(tmp_path, KEYS, TopicConfigs())
    for key, partition in hosts.partitions.items():
        hosts.become(key, True, 3, (1,))
        partition.append(batch(2), NOW_MS)
    session = ask(hosts, 0, 0, version, 2, 2, 2).session_id
    assert told(ask(hosts, session, 1, version)) == []
    assert told(ask(hosts, session, 2, version)) == []
    assert to_read(hosts, session) == []
    change(hosts, hosts.partitions[CHANGED])
    assert to_read(hosts, session) == [CHANGED.partition]
    expected = [(CHANGED.partition, error)]
    by_name = version < 13 and change is other_id
    assert told(ask(hosts, session, 3, version)) == ([] if by_name else expected)


def test_what_a_request_names_is_read(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, KEYS, TopicConfigs())
    for key, partition in hosts.partitions.items():
        hosts.become(key, True, 3, (1,))
        partition.append(batch(2), NOW_MS)
    session = ask(hosts, 0, 0, 12, 2, 2, 2).session_id
    assert told(ask(hosts, session, 1, 12)) == []
    assert told(ask(hosts, session, 2, 12, 0)) == [(0, ErrorCode.NONE)]
    assert to_read(hosts, session) == [0]
