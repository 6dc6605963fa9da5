"""A filled node, and the worst requests of each API sent to it with its memory watched."""

from __future__ import annotations

import os
import re
import socket
import struct
import urllib.request
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.node import receive_frame
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.server import TidelogNode
from tests.support.worst_requests import (
    COMPACTED,
    GROUP,
    OTHER_TOPICS,
    PARTITIONS,
    TOPIC,
    Worst,
    worst,
)
from tidelog.broker import handlers
from tidelog.model.api_keys import ApiKey
from tidelog.network.router import Handler, Scope
from tidelog.protocol import codec, messages

LONGEST_STALL_S = 0.1
MOST_BYTES = 64 << 20
TRIES = 3
"""A bound on speed holds on a busy machine: the best of so many."""


OF_OFFSETS = frozenset({ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.OFFSET_DELETE})
OF_TOPICS = frozenset(
    {
        ApiKey.ALTER_CONFIGS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
    }
)
OF_PARTITIONS = frozenset(
    {
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        ApiKey.DELETE_RECORDS,
        ApiKey.DESCRIBE_FENCES,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.ELECT_LEADERS,
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.PARTITION_LEADER_EPOCHS_FOR_PARTITIONS,
        ApiKey.PRODUCE,
    }
)
SUBJECTS = (OF_OFFSETS, OF_TOPICS, OF_PARTITIONS)
"""The APIs that have a file of their own, `test_worst_requests_of_*.py`: these three files and the
one of all others take about as long as each other, and processes share the files."""


def served(subject: Collection[ApiKey] | None = None) -> list[Handler]:
    """The handlers of clients: those of a subject, or those of none."""
    found = [each for each in handlers.HANDLERS if each.scope is Scope.CLIENT and versions(each)]
    if subject is None:
        elsewhere = frozenset().union(*SUBJECTS)
        return [each for each in found if each.api_key not in elsewhere]
    return [each for each in found if each.api_key in subject]


def versions(handler: Handler) -> list[int]:
    """Those that are sent here: of those that are served while transactions are not offered."""
    found = [each for each in handler.versions if each not in handler.with_transactions]
    if os.environ.get("TIDELOG_CHAOS") == "long":
        return found
    return sorted({*found[:1], *found[-1:]})


@contextmanager
def filled_node(folder: Path) -> Iterator[TidelogNode]:
    """A server with topics, a group and a precise watchdog."""
    node = TidelogNode(folder)
    node.run_with("tests.support.watched_server", {})
    with node:
        fill(node)
        yield node


def ask(node: TidelogNode, request: Any, api_key: ApiKey, version: int) -> Any:
    """Send a message and return the answer."""
    frame = b"".join(codec.encode_request(api_key, version, 1, "test", request))
    with socket.create_connection(("127.0.0.1", node.port), DEADLINE_S) as connection:
        connection.sendall(frame)
        answer = receive_frame(connection)
    return codec.decode_response(api_key, version, memoryview(answer))[1]


def fill(node: TidelogNode) -> None:
    """Make what the requests name."""
    request = messages.CreateTopicsRequest
    topics = [
        request.CreatableTopic(
            name=f"w{number}",
            num_partitions=1 if number else PARTITIONS,
            replication_factor=1,
        )
        for number in range(OTHER_TOPICS)
    ]
    compact = request.CreatableTopicConfig("cleanup.policy", "compact")
    topics.append(
        request.CreatableTopic(
            name=COMPACTED, num_partitions=PARTITIONS, replication_factor=1, configs=[compact]
        )
    )
    answer = ask(node, request(topics=topics, timeout_ms=60_000), ApiKey.CREATE_TOPICS, 5)
    assert {each.error_code for each in answer.topics} == {0}

    def has_coordinator() -> bool:
        found = messages.FindCoordinatorRequest(key=GROUP, key_type=0)
        return bool(ask(node, found, ApiKey.FIND_COORDINATOR, 2).error_code == 0)

    wait_until(has_coordinator, DEADLINE_S, "the group has a coordinator")
    commit = messages.OffsetCommitRequest

    def is_committed() -> bool:
        parts = [
            commit.OffsetCommitRequestPartition(
                partition_index=index, committed_offset=1, committed_metadata="m" * 4000
            )
            for index in range(PARTITIONS)
        ]
        asked = commit(
            group_id=GROUP,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[commit.OffsetCommitRequestTopic(name=TOPIC, partitions=parts)],
        )
        answer = ask(node, asked, ApiKey.OFFSET_COMMIT, 8)
        codes = {each.error_code for topic in answer.topics for each in topic.partitions}
        return codes == {0}

    wait_until(is_committed, DEADLINE_S, "the group has committed")


def longest_stall_s(node: TidelogNode) -> float:
    """The longest stall since this was asked before."""
    url = f"http://127.0.0.1:{node.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
        text = answer.read().decode()
    found = re.search(r"^longest_stall_seconds (\S+)", text, re.MULTILINE)
    assert found is not None
    return float(found[1])


def memory(node: TidelogNode, field: str) -> int:
    """A field of the process's status, in bytes."""
    status = Path(f"/proc/{node.program.pid}/status").read_text()
    found = re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def measured(node: TidelogNode, frame: bytes) -> tuple[float, int]:
    """Send one request to its end; the longest stall and the most memory meanwhile."""
    longest_stall_s(node)
    Path(f"/proc/{node.program.pid}/clear_refs").write_text("5")
    before = memory(node, "VmRSS")
    with socket.create_connection(("127.0.0.1", node.port), DEADLINE_S) as connection:
        try:
            connection.sendall(frame)
            head = connection.recv(4, socket.MSG_WAITALL)
            left = struct.unpack(">i", head)[0] if len(head) == 4 else 0
            while left:
                got = len(connection.recv(min(left, 1 << 20)))
                assert got, "the answer was cut"
                left -= got
        except ConnectionError:
            pass  # refused by closing, as too many elements are
    return longest_stall_s(node), memory(node, "VmHWM") - before


def all_hold(node: TidelogNode, handler: Handler) -> None:
    """The bounds hold for the worst requests of an API."""
    for version in versions(handler):
        most, numbers = handler.most_elements, handler.numbers_in_one
        for each in worst(int(handler.api_key), version, most, numbers):
            holds(node, each)


def holds(node: TidelogNode, each: Worst) -> None:
    """The bounds hold for one request."""
    assert len(each.frame) < 1 << 20
    found = []
    for _ in range(TRIES):
        stall_s, taken = measured(node, each.frame)
        found.append((round(stall_s, 3), taken >> 20))
        if stall_s < LONGEST_STALL_S and taken < MOST_BYTES:
            return
    raise AssertionError(node.said(f"answers {each.name} within bounds, not {found} (s, MiB)"))
