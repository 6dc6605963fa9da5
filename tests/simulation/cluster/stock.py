"""Stock clients of a topic that grows and shrinks: they know no counts and no gates (KIP-253).

Owns writers that hash by the count of their metadata, old as these may be, and members of a group
without gates. Each record is sent once: what a leader refuses is refused for good.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tests.order.aware_clients import GroupOfMembers, Member, Writer
from tests.order.history import Outcome, Send, Unaware
from tests.simulation.clients import BEFORE_APPEND
from tests.simulation.cluster.elastic import NAME, Elastic
from tests.simulation.cluster.nodes import PORT
from tidelog.client.connecting.connection import connect
from tidelog.client.errors import ClientError
from tidelog.client.fetching.fetcher import OffsetReset
from tidelog.model.errors import ErrorCode
from tidelog.partitioning.hashing import hash_of_key
from tidelog.protocol import messages
from tidelog.records.builder import NewRecord, build_batch

KEYS = 12
ANSWER_MS = 3_000
GROUP = "stock"

DEFINITE = BEFORE_APPEND | {ErrorCode.POLICY_VIOLATION, ErrorCode.INVALID_PARTITION_METADATA}
"""Errors that are given before anything is appended."""


class StockWriter:
    """A producer without counts, retries and sequence numbers."""

    def __init__(self, setting: Elastic, name: str, metadata_max_age_ms: int) -> None:
        self.done = asyncio.Event()
        self.answers: dict[str, int] = {}
        """The codes that came."""
        self._setting = setting
        self._name = name
        self._rng = setting.random(name)
        self._max_age_ms = metadata_max_age_ms
        self._known: Any = None
        self._known_at = 0.0
        self._numbers: dict[str, int] = {}
        self._finishing = False
        setting.note(Unaware(name))

    def finish(self) -> None:
        """Send nothing more; ``done`` is set when everything has an outcome."""
        self._finishing = True

    async def run(self) -> None:
        """Send until ``finish``, one record after the other."""
        setting = self._setting
        while not self._finishing:
            if self._known is None or setting.now - self._known_at > self._max_age_ms / 1000:
                await self._refresh()
            else:
                await self._send(f"s{self._rng.randrange(KEYS)}")
            await setting.pause(self._rng.expovariate(setting.rate))
        self.done.set()

    async def _refresh(self) -> None:
        try:
            self._known = await self._setting.outside.topic(NAME)
            self._known_at = self._setting.now
        except (ClientError, OSError):
            self._known = None

    async def _send(self, key: str) -> None:
        setting = self._setting
        uid, sent_at = next(setting.uids), setting.now
        number = self._numbers[key] = self._numbers.get(key, -1) + 1
        listed = {each.partition_index: each for each in self._known.partitions}
        index = hash_of_key(key.encode()) % len(listed)
        outcome, offset = Outcome.INFO, -1
        try:
            answer = await self._ask(listed[index], key, uid)
        except (ClientError, OSError, KeyError):
            self._known = None
        else:
            code = ErrorCode(answer.error_code)
            self.answers[code.name] = self.answers.get(code.name, 0) + 1
            if code is ErrorCode.NONE:
                outcome, offset = Outcome.OK, answer.base_offset
            else:
                outcome = Outcome.FAIL if code in DEFINITE else Outcome.INFO
                self._known = None
        where = (index, offset) if offset >= 0 else (-1, -1)
        setting.note(Send(uid, key, self._name, number, -1, sent_at, outcome, setting.now, *where))

    async def _ask(self, part: Any, key: str, uid: int) -> Any:
        nodes = {node.node_id: node for node in self._setting.nodes.brokers}
        node = nodes[part.leader_id]  # KeyError without a leader
        now_ms = self._setting.clock.wall_ms()
        content = build_batch([NewRecord(now_ms, key.encode(), b"%d" % uid)])
        request = messages.ProduceRequest
        data = request.PartitionProduceData(index=part.partition_index, records=content)
        topic = request.TopicProduceData(name=NAME, partition_data=[data])
        asked = request(acks=-1, timeout_ms=ANSWER_MS, topic_data=[topic])
        connection = await connect(node.host, PORT, connect_timeout_ms=1_000)
        try:
            answer = await connection.send(asked, timeout_ms=ANSWER_MS + 1_000)
        finally:
            connection.close()
        return answer.responses[0].partition_responses[0]


class StockMember(Member):
    """A member without counts and gates."""

    is_aware = False


class WithStock(Elastic):
    """The clients of a topic that aware and stock clients share, and its history."""

    def start(self) -> list[asyncio.Task[None]]:
        """Start an aware writer and two stock ones, a group of each, and the polls of metadata."""
        self.stock = [StockWriter(self, "s1", 1_000), StockWriter(self, "s2", 30_000)]
        self.writers = [Writer(self, "w1", 1_000), *self.stock]  # type: ignore[list-item]
        self.note(Unaware(GROUP))
        self.groups = {
            "all": GroupOfMembers(self, "all", OffsetReset.EARLIEST, 2),
            GROUP: GroupOfMembers(self, GROUP, OffsetReset.EARLIEST, 2, StockMember),
        }
        work = [writer.run() for writer in self.writers]
        work += [member.run() for group in self.groups.values() for member in group.members]
        return [asyncio.create_task(each) for each in [*work, self._poll_metadata()]]

    def counts(self) -> dict[str, int]:
        """How much happened."""
        answers = [writer.answers for writer in self.stock]
        return {
            **super().counts(),
            "stock acked": sum(each.get("NONE", 0) for each in answers),
            "stock refused": sum(each.get("POLICY_VIOLATION", 0) for each in answers),
        }
