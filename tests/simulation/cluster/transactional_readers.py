"""Readers of committed records, and what looks at last stable offsets and groups' positions.

Owns reading by Fetch at ``read_committed``, with the filter that a client applies, written for the
tests (``tests.support.isolation``). A reader begins again at the log's start now and then: what it
gets must stand in the indexes of aborted transactions of older segments, too.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tests.simulation.cluster.audit import RACK
from tests.simulation.cluster.clients import (
    ANSWER_MS,
    CONNECT_MS,
    Administrator,
    ClusterTarget,
)
from tests.simulation.cluster.nodes import PORT
from tests.simulation.cluster.transactional import (
    IDS,
    OF_GROUP,
    TOPIC,
    Transactional,
    group_of,
)
from tests.simulation.transaction_history import Position, StableOffset
from tests.support.isolation import COMMITTED, UNCOMMITTED, kept_by_client
from tidelog.client.connecting.connection import ClientConnection, connect
from tidelog.client.errors import ClientError, ConnectionLost
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.records.batch import walk
from tidelog.records.reader import read_batch

LATEST, EARLIEST = -1, -2
FROM_THE_START = 0.15
"""Of the sessions of a reader, those that begin at the log's start."""


class Deleted(Exception):
    """The records at an offset were deleted."""

    def __init__(self, start: int) -> None:
        super().__init__(start)
        self.start = start


class CommittedReader:
    """Follows a partition and notes every committed record that it gets."""

    def __init__(
        self, setting: Transactional, where: ClusterTarget, name: str, *, of_any: bool = False
    ) -> None:
        """With ``of_any`` it reads any replica, which mostly follows (KIP-392)."""
        self.name = name
        self._of_any = of_any
        self.above_stable: list[int] = []
        """Offsets that came in a response whose last stable offset was not above them."""
        self._setting = setting
        self._where = where
        self._rng = setting.random(f"{name}/{where.name}")
        self._position = 0

    async def run(self) -> None:
        """Read for ever; end it with ``cancel``."""
        while True:
            try:
                connection = await self._connect()
                if self._rng.random() < FROM_THE_START:
                    self._position = 0
                try:
                    while self._rng.random() > 0.02:
                        await self._read(connection)
                finally:
                    connection.close()
            except (ClientError, OSError):
                await self._setting.pause(self._rng.uniform(0.02, 0.3))

    async def _connect(self) -> ClientConnection:
        if not self._of_any:
            return await self._where.connect()
        return await connect_to(self._rng.choice(replicas_of(self._where)))

    async def _read(self, connection: ClientConnection) -> None:
        most = self._rng.choice((200, 3_000, 1 << 20))
        try:
            part = await fetch_committed(connection, self._where, self._position, most)
        except Deleted as deleted:
            self._position = deleted.start
            return
        for offset, value in committed_in(part, self._position).items():
            self._setting.history.sees(self._where.name, offset, value, self.name)
            if offset >= part.last_stable_offset:
                self.above_stable.append(offset)
        self._position = after(part, self._position)


def replicas_of(where: ClusterTarget) -> list[str]:
    """Return the hosts of a partition's replicas, as the store has them."""
    outside = where.outside
    brokers = outside.states.topics[where.topic].partitions[where.partition]
    return [outside.cluster.broker(broker).host for broker in brokers]


async def connect_to(host: str) -> ClientConnection:
    """Connect to a broker. Raises ClientError."""
    return await connect(host, PORT, connect_timeout_ms=CONNECT_MS)


async def fetch_committed(
    connection: ClientConnection, where: ClusterTarget, offset: int, most: int
) -> Any:
    """Return one partition's response to a Fetch of committed records. Raises ClientError."""
    asked = messages.FetchRequest.FetchPartition(
        partition=where.partition, fetch_offset=offset, partition_max_bytes=most
    )
    topic = messages.FetchRequest.FetchTopic(topic=where.topic, partitions=[asked])
    request = messages.FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=most,
        isolation_level=COMMITTED,
        topics=[topic],
        rack_id=RACK,
    )
    answer = await connection.send(request, timeout_ms=ANSWER_MS)
    if answer.error_code or not answer.responses:
        raise ConnectionLost(f"Fetch: {ErrorCode(answer.error_code).name}")
    part = answer.responses[0].partitions[0]
    if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and offset < part.log_start_offset:
        raise Deleted(part.log_start_offset)
    if part.error_code:
        raise ConnectionLost(f"Fetch: {ErrorCode(part.error_code).name}")
    return part


def committed_in(part: Any, position: int) -> dict[int, bytes]:
    """Return offset and value of each record that a client of committed records delivers."""
    if not part.records:
        return {}
    kept = set(kept_by_client(part))
    return {
        record.offset: bytes(record.value or b"")
        for place, header in walk(part.records)
        if header.base_offset in kept
        for record in read_batch(part.records[place : place + header.size])
        if record.offset >= position
    }


def after(part: Any, position: int) -> int:
    """Return the position after what a response has."""
    for _, header in walk(part.records or b""):
        position = header.next_offset
    return position


async def ends_of(where: ClusterTarget) -> tuple[int, int, int]:
    """Return leader epoch, high watermark and last stable offset, of this leader and no other one.

    The stable offset is asked for last: the watermark may be older. Raises ClientError.
    """
    connection = await where.connect()
    epoch = where.outside.epochs[where.name]
    try:
        watermark = await _offset(connection, where, epoch, UNCOMMITTED, LATEST)
        return epoch, watermark, await _offset(connection, where, epoch, COMMITTED, LATEST)
    finally:
        connection.close()


async def _offset(
    connection: ClientConnection, where: ClusterTarget, epoch: int, isolation: int, timestamp: int
) -> int:
    request = messages.ListOffsetsRequest
    part = request.ListOffsetsPartition(
        partition_index=where.partition, current_leader_epoch=epoch, timestamp=timestamp
    )
    topic = request.ListOffsetsTopic(name=where.topic, partitions=[part])
    asked = request(replica_id=-1, isolation_level=isolation, topics=[topic])
    answer = await connection.send(asked, timeout_ms=ANSWER_MS)
    found = answer.topics[0].partitions[0]
    if found.error_code:
        raise ConnectionLost(f"ListOffsets: {ErrorCode(found.error_code).name}")
    return int(found.offset)


async def start_of(setting: Transactional, where: ClusterTarget) -> int:
    """Return where a partition starts; tries again until its leader answers."""
    while True:
        try:
            connection = await where.connect()
            try:
                epoch = where.outside.epochs[where.name]
                return await _offset(connection, where, epoch, UNCOMMITTED, EARLIEST)
            finally:
                connection.close()
        except (ClientError, OSError):
            await setting.pause(0.1)


async def delete_records(setting: Transactional, admin: Administrator) -> None:
    """Delete what was read, also where a transaction goes on above it, now and then, for ever."""
    rng = setting.random("deletions")
    while True:
        await setting.pause(rng.uniform(1, 6))
        where = rng.choice(setting.places)
        offsets = [seen.offset for seen in setting.history.seen if seen.partition == where.name]
        if offsets:
            await admin.delete_records(where, rng.choice(offsets))


async def watch_stable_offsets(setting: Transactional) -> None:
    """Note last stable offsets, for ever."""
    rng = setting.random("stable")
    while True:
        await setting.pause(rng.uniform(0.02, 0.3))
        where = rng.choice(setting.watched)
        asked_at = setting.history.tick()
        try:
            epoch, _, stable = await ends_of(where)
        except (ClientError, OSError):
            continue
        at = setting.history.tick()
        setting.history.stable.append(StableOffset(where.name, epoch, stable, asked_at, at))


async def position_of(setting: Transactional, name: str) -> int:
    """Return the committed position of an id's group, as a stable one. Raises ClientError."""
    connection = await setting.coordinator(OF_GROUP, group_of(name))
    request = messages.OffsetFetchRequest
    topic = request.OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0])
    group = request.OffsetFetchRequestGroup(group_id=group_of(name), topics=[topic])
    try:
        asked = request(groups=[group], require_stable=True)
        answer = await connection.send(asked, timeout_ms=ANSWER_MS)
    finally:
        connection.close()
    found = answer.groups[0]
    part = found.topics[0].partitions[0] if not found.error_code else found
    if part.error_code:
        raise ConnectionLost(f"OffsetFetch: {ErrorCode(part.error_code).name}")
    return int(part.committed_offset)


async def watch_positions(setting: Transactional) -> None:
    """Note the positions of the ids' groups, for ever."""
    rng = setting.random("positions")
    while True:
        await setting.pause(rng.uniform(0.05, 0.6))
        name = rng.choice(IDS)
        try:
            offset = await position_of(setting, name)
        except (ClientError, OSError):
            continue
        setting.history.positions.append(Position(name, offset, setting.history.tick()))


async def read_committed_whole(
    setting: Transactional, where: ClusterTarget, host: str = ""
) -> dict[int, bytes]:
    """Return every committed record of a partition as its leader has it, or the replica of a host;
    tries again until all is read. The caller bounds the time."""
    while True:
        try:
            _, _, end = await ends_of(where)
            connection = await (connect_to(host) if host else where.connect())
            try:
                position, records = max(0, setting.history.starts.get(where.name, 0)), {}
                while position < end:
                    part = await fetch_committed(connection, where, position, 1 << 20)
                    records.update(committed_in(part, position))
                    position = after(part, position)
                return records
            finally:
                connection.close()
        except (ClientError, OSError):
            await setting.pause(0.1)


async def until_stable(
    setting: Transactional, wanted: dict[str, int], seconds: float
) -> dict[str, str]:
    """Wait until each partition is stable up to an offset; return those that are not by then."""
    left = dict(wanted)
    said: dict[str, int] = {}
    end = setting.now + seconds
    places = {where.name: where for where in setting.watched}
    while left:
        for name, offset in list(left.items()):
            try:
                async with asyncio.timeout(ANSWER_MS / 1000):
                    _, _, said[name] = await ends_of(places[name])
            except (ClientError, OSError, TimeoutError):
                continue
            if said[name] >= offset:
                del left[name]
        if setting.now > end:
            break
        await setting.pause(0.1)
    return {
        name: f"{name} is stable below {said.get(name)}, not {offset}"
        for name, offset in left.items()
    }
