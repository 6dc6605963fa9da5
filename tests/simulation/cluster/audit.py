"""A reader of every replica that knows the written bytes: promise 26 as clients meet it.

Owns the reads (by rack, so that followers serve them too: KIP-392), during the run where bits were
flipped and at the end everywhere, and the events of corruption in the history. Each response is
compared with the bytes that the disks got when they were produced; the check needs no CRC.
"""

from __future__ import annotations

import asyncio
import random

from tests.simulation.cluster.clients import CONNECT_MS
from tests.simulation.cluster.corruption import Corruption, Corruptions
from tests.simulation.cluster.disks import DiskWatch, batches
from tests.simulation.cluster.journal import Known, Place, StateWatch
from tests.simulation.cluster.nodes import PORT, BrokerNode, Cluster
from tests.simulation.history import History
from tests.simulation.kernel import UNLIMITED
from tidelog.client.connecting.connection import ClientConnection, connect
from tidelog.client.errors import ClientError
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.storage import names

RACK = "audit"
ANSWER_MS = 5_000
FETCH_BYTES = 20_000
MET_BY_READS = (names.LOG, names.INDEX)
"""Kinds of corrupted files that a read at the right offset meets."""

OFFSETS_OF_A_SEGMENT = 20
"""About so many are in a segment of 4,000 bytes."""

TOPICS = ("plain", "loose", "pair")
"""Those whose offsets have no gaps: not compacted, and with one life."""


class Auditor:
    """Reads replicas, and notes in the history what became of corrupted bytes."""

    def __init__(
        self,
        cluster: Cluster,
        states: StateWatch,
        disks: DiskWatch,
        corruptions: Corruptions,
        history: History,
        disks_failed: set[str],
        rng: random.Random,
    ) -> None:
        """``disks_failed``: the hosts whose disk has failed, and whose replicas serve nothing."""
        self.reads = 0
        self.above_watermark: list[str] = []
        """What was served though it was not committed, as the answer itself said."""
        self.seen: dict[str, dict[int, str]] = {}
        """Partition -> base offset of each batch that was served -> the last broker to serve it."""
        self._damaged: set[tuple[str, str]] = set()
        """(host, replica) that a broker named as damaged."""
        self._cluster = cluster
        self._states = states
        self._disks = disks
        self._corruptions = corruptions
        self._history = history
        self._disks_failed = disks_failed
        self._rng = rng
        disks.when_named = self._named
        disks.when_appended = self._appended

    async def run(self) -> None:
        """Read here and there, and what is corrupted sooner or later."""
        while True:
            await asyncio.sleep(self._rng.uniform(0.3, 3))
            corrupted = [flip for flip in self._corruptions.standing() if flip.kind in MET_BY_READS]
            full = [x for x in self._cluster.brokers if x.machine.disk.capacity < UNLIMITED]
            if corrupted and self._rng.random() < 0.3:
                await self._check_at(self._rng.choice(corrupted))
            elif full and self._places():
                await self._read_from_full(self._rng.choice(full))
            elif self._places():
                place, _ = self._rng.choice(self._places())
                replicas = self._states.topics[place.topic].partitions[place.partition]
                node = self._cluster.broker(self._rng.choice(replicas))
                await self.read(node, place, self._offset(place), 3)

    async def _read_from_full(self, node: BrokerNode) -> None:
        """Promise 28: a replica in sync serves reads, however full its disk is."""
        mine = [x for x, known in self._places() if node.node_id in known.state.isr]
        if mine:
            place = self._rng.choice(mine)
            await self.read(node, place, self._offset(place), 3)
        if node.running is None or not node.ready or node.host in self._disks_failed:
            return
        if node.running.broker.directories[0].failed is not None:
            self._history.disk_space("out of service", node.host)

    def _appended(self, node: BrokerNode) -> None:
        """Only the first write since there was room is of interest."""
        last = next((x for x in reversed(self._history.space) if x.host == node.host), None)
        if last is not None and last.what != "appended" and node.machine.disk.capacity == UNLIMITED:
            self._history.disk_space("appended", node.host)

    async def last_look(self) -> None:
        """Read every replica as a whole, until no broker refuses; then all is repaired."""
        for place, _ in self._places():
            for broker in self._states.topics[place.topic].partitions[place.partition]:
                node = self._cluster.broker(broker)
                while not await self.read(node, place, -1, 1_000):  # noqa: ASYNC110
                    await asyncio.sleep(0.3)
        for host, replica in sorted(self._damaged):
            self._note_repaired(host, replica)

    async def read(self, node: BrokerNode, place: Place, offset: int, requests: int) -> bool:
        """Read a replica from an offset on (-1: its start); whether it served to its watermark."""
        try:
            connection = await connect(node.host, PORT, connect_timeout_ms=CONNECT_MS)
            try:
                return await self._read(connection, node, place, offset, requests)
            finally:
                connection.close()
        except (ClientError, OSError):
            return False

    async def _read(
        self,
        connection: ClientConnection,
        node: BrokerNode,
        place: Place,
        offset: int,
        requests: int,
    ) -> bool:
        position = offset
        for _ in range(requests):
            found = await self._fetch(connection, place, max(position, 0))
            error = ErrorCode(found.error_code)
            if error is ErrorCode.OFFSET_OUT_OF_RANGE and position < found.log_start_offset:
                position = found.log_start_offset
                continue
            if error is not ErrorCode.NONE:
                if error is ErrorCode.KAFKA_STORAGE_ERROR:
                    self._note_refusal(node, place)
                return False
            position = self._check(node, place, max(position, 0), found)
            if position >= found.high_watermark:
                return True
        return False

    async def _fetch(
        self, connection: ClientConnection, place: Place, offset: int
    ) -> messages.FetchResponse.PartitionData:
        part = messages.FetchRequest.FetchPartition(
            partition=place.partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES
        )
        topic = messages.FetchRequest.FetchTopic(topic=place.topic, partitions=[part])
        request = messages.FetchRequest(
            max_wait_ms=0, min_bytes=1, max_bytes=FETCH_BYTES, topics=[topic], rack_id=RACK
        )
        answer = await connection.send(request, timeout_ms=ANSWER_MS)
        self.reads += 1
        found: messages.FetchResponse.PartitionData = answer.responses[0].partitions[0]
        return found

    def _check(
        self,
        node: BrokerNode,
        place: Place,
        position: int,
        found: messages.FetchResponse.PartitionData,
    ) -> int:
        """Hold what a broker served against what was written; return where reading goes on."""
        begun = False
        for batch in batches(bytes(found.records or b"")):
            key = (place.topic_id, str(place), batch.epoch, batch.base)
            written = self._disks.appends.get(key)
            if not batch.sound:
                self._served(node, place, f"{batch.base} has a wrong CRC")
            elif written is None or written[0] != batch.crc:
                self._served(node, place, f"{batch} was never written")
            elif batch.base > position or (begun and batch.base != position):
                self._served(node, place, f"{batch.base} stands where {position} was asked for")
            elif batch.last >= found.high_watermark:
                self.above_watermark.append(
                    f"{node.host} served {batch} of {place}, its watermark is "
                    f"{found.high_watermark}"
                )
            else:
                self.seen.setdefault(str(place), {})[batch.base] = node.host
            begun = True
            position = batch.last + 1
        return position

    def _served(self, node: BrokerNode, place: Place, detail: str) -> None:
        self._history.corruption("served", node.host, str(place), detail)

    async def _check_at(self, flip: Corruption) -> None:
        place = next((x for x, _ in self._places() if str(x) == flip.replica), None)
        if place is None:
            return
        offsets = [flip.offset]
        if flip.kind == names.INDEX:
            # A read that goes on into the next segment uses no index: begin at offsets within.
            begins = names.offset_of(flip.path.rpartition("/")[2], names.INDEX) or 0
            offsets = [*range(begins, begins + OFFSETS_OF_A_SEGMENT, 2)]
        for offset in offsets:
            await self.read(self._node(flip.host), place, offset, 1)

    def _places(self) -> list[tuple[Place, Known]]:
        return [(x, known) for x, known in self._states.places.items() if x.topic in TOPICS]

    def _offset(self, place: Place) -> int:
        life = (place.topic_id, str(place))
        bases = [
            base for topic_id, name, _, base in self._disks.appends if (topic_id, name) == life
        ]
        return self._rng.choice(bases) if bases else 0

    def _note_refusal(self, node: BrokerNode, place: Place) -> None:
        if self._is_harmed(node, place):
            self._history.corruption("refused", node.host, str(place))
        elif (
            node.machine.disk.capacity < UNLIMITED
            and node.host not in self._disks_failed
            and (node.host, str(place)) not in self._damaged
        ):
            self._history.disk_space("read failed", node.host)

    def _is_harmed(self, node: BrokerNode, place: Place) -> bool:
        running = node.running
        if (
            running is None
            or not node.ready
            or any(each.failed for each in running.broker.directories)
        ):
            return False
        return any(
            (flip.host, flip.replica) == (node.host, str(place)) and flip.kind == names.LOG
            for flip in self._corruptions.standing()
        )

    def has_named(self, host: str, replica: str) -> bool:
        """Whether a broker has ever put a replica on record as damaged."""
        return (host, replica) in self._damaged

    def _named(self, node: BrokerNode, replica: str) -> None:
        self._damaged.add((node.host, replica))
        self._history.corruption("named", node.host, replica)

    def _note_repaired(self, host: str, replica: str) -> None:
        """The replica serves what was written, or it is gone with its topic."""
        running = self._node(host).running if self._node(host).ready else None
        for hosted in [] if running is None else running.broker.partitions.all():
            name = f"{hosted.topic}-{hosted.partition}"
            if name == replica and hosted.offline_reason is not None:
                return
        self._history.corruption("repaired", host, replica)

    def _node(self, host: str) -> BrokerNode:
        return next(node for node in self._cluster.brokers if node.host == host)
