"""How long does the cleaner take over many keys, and what does it read, write and hold meanwhile?

A compacted topic gets every key once and then half as many newer values, by ready-made batches. A
new, empty node each time, with the settings that it ships with: a buffer of 128 MiB holds 5 million
keys, so that ten million take two runs. The cleaner begins when the topic's
``min.cleanable.dirty.ratio`` falls; it has ended when the node has read nothing for a while.
Seconds are those between its first and its last read. Bytes are those of system calls (``rchar``
and ``wchar`` of ``/proc``), of the node and all that it starts; what is mapped is not counted.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from tests.support import clients
from tests.support.node import Node
from tests.support.processes import tree_bytes, tree_cpu_s, tree_resident_bytes, wait_until

from benchmarks.many_partitions import frame_of
from benchmarks.measuring import Metric
from benchmarks.nodes import Target
from tidelog.protocol import messages
from tidelog.records.batch import HEADER_SIZE, read_header, seal_batch
from tidelog.records.builder import NewRecord, build_batch
from tidelog.records.record import spans

TOPIC = "keys"
KEY_BYTES, VALUE_BYTES = 16, 60
RECORDS_OF_BATCH = 160
SEGMENT_BYTES = 16 << 20
IN_FLIGHT = 4
QUIET_S = 17.0
"""No cleaner waits longer between two runs: ``log.cleaner.backoff.ms`` is 15 s for both."""
DEADLINE_S = 1_800.0
LOOK_S = 0.1
_NOTHING = 1 << 20
"""Bytes that a node at rest may read in so long."""

KEYS, QUICK_KEYS = 10_000_000, 1_000_000


def batches(numbers: np.ndarray) -> Iterator[bytes]:
    """Yield batches of records with these keys, in order; the last ones may be missing."""
    zeros = b"0" * KEY_BYTES
    record = NewRecord(int(time.time() * 1000), zeros, b"v" * VALUE_BYTES)
    template = build_batch([record] * RECORDS_OF_BATCH)
    header, payload = read_header(template), bytes(template[HEADER_SIZE:])
    places = [payload.index(zeros, one.start) for one in spans(payload, RECORDS_OF_BATCH)]
    of_keys = (np.array(places)[:, None] + np.arange(KEY_BYTES)).ravel()
    records = np.frombuffer(payload, dtype=np.uint8).copy()
    for first in range(0, len(numbers) - RECORDS_OF_BATCH + 1, RECORDS_OF_BATCH):
        left = numbers[first : first + RECORDS_OF_BATCH].copy()
        digits = np.empty((RECORDS_OF_BATCH, KEY_BYTES), dtype=np.uint8)
        for column in range(KEY_BYTES - 1, -1, -1):
            digits[:, column] = ord("0") + left % 10
            left //= 10
        records[of_keys] = digits.ravel()
        yield seal_batch(header, records.tobytes())


def send(port: int, made: Iterable[bytes]) -> None:
    """Produce the batches to the topic's one partition, some requests in flight."""
    request = messages.ProduceRequest
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        waiting = 0
        for batch in made:
            if waiting == IN_FLIGHT:
                _take_response(connection)
                waiting -= 1
            data = [request.PartitionProduceData(index=0, records=batch)]
            topics = [request.TopicProduceData(name=TOPIC, partition_data=data)]
            frame = frame_of(9, request(acks=-1, timeout_ms=30_000, topic_data=topics))
            connection.sendall(frame)
            waiting += 1
        for _ in range(waiting):
            _take_response(connection)


def _take_response(connection: socket.socket) -> None:
    (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
    response = connection.recv(size, socket.MSG_WAITALL)
    # Flexible: correlation id, tags, one topic, its name, one partition, index, error code.
    at = 4 + 1 + 1 + 1 + len(TOPIC) + 1 + 4
    assert not any(response[at : at + 2]), response


class Compaction:
    """Seconds, CPU, bytes and memory of the runs that clean a topic of many keys."""

    title = "compaction of ten million keys (quick: one million)"
    cold = True
    metrics = (
        Metric("compaction: seconds", "s", "less", limit=1),
        Metric("compaction: CPU", "s", "less", limit=1),
        Metric("compaction: bytes read per byte written", "x", "less", limit=1.1),
        Metric("compaction: most resident memory of the node", "MB", "less", limit=1),
        Metric("compaction: bytes left of those written", "x", "less", limit=1.1),
    )

    def measure(self, target: Target, quick: bool) -> list[float]:
        keys = QUICK_KEYS if quick else KEYS
        chance = np.random.default_rng(1)
        numbers = np.concatenate((np.arange(keys), chance.integers(0, keys, keys // 2)))
        with target.another() as node:
            clients.create_topic(
                node.bootstrap,
                TOPIC,
                cleanup_policy="compact",
                segment_bytes=SEGMENT_BYTES,
                min_cleanable_dirty_ratio=1,
            )
            send(int(node.bootstrap.rsplit(":", 1)[1]), batches(numbers))
            return _cleaned(node)


def _cleaned(node: Node) -> list[float]:
    size = _log_bytes(node)
    before, cpu_before = tree_bytes(node.program.pid), tree_cpu_s(node.program.pid)
    _alter(node, "min.cleanable.dirty.ratio", "0.01")
    begin = end = 0.0
    most = 0
    last, last_cpu = before, cpu_before

    def is_over() -> bool:
        nonlocal begin, end, most, last, last_cpu
        now, at = time.monotonic(), tree_bytes(node.program.pid)
        if at[0] - last[0] > _NOTHING:
            begin, end = begin or now, now
            last, last_cpu = at, tree_cpu_s(node.program.pid)
        most = max(most, tree_resident_bytes(node.program.pid))
        return bool(begin) and now - end > QUIET_S

    wait_until(is_over, DEADLINE_S, "the cleaner ends", pause_s=LOOK_S)
    read, written = tree_bytes(node.program.pid)
    return [
        end - begin,
        last_cpu - cpu_before,
        (read - before[0]) / (written - before[1]),
        most / 1e6,
        _log_bytes(node) / size,
    ]


def _log_bytes(node: Node) -> int:
    folder = node.log_folder() / f"{TOPIC}-0"
    return sum(path.stat().st_size for path in folder.glob("*.log"))


def _alter(node: Node, name: str, value: str) -> None:
    operation = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[operation])
    # Held in a name: a client that is collected gives up its requests.
    admin = clients.admin(node.bootstrap)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(60)


ROWS: tuple[Any, ...] = (Compaction(),)
