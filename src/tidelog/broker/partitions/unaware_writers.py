"""Producers that send no partition count: when they wrote to a topic, and what is said of it.

Owns when such a producer last wrote to each topic of this broker, their client ids, their part of
heartbeats (tag 10001), and the count of their batches that retired partitions refuse, with one log
line a minute and topic. Not the refusal of such producers: see `resize_checks`. Not the search for
their misplaced records: see `misplaced_records`. Until a topic was resized the fast path notes one
batch in ten milliseconds.

Nothing of this is on disk. Of a topic that was there when this broker started it does not know
which producers wrote in the hour before: it names such a topic only once it has seen a producer
without a count, or has run for an hour. What is not named counts as seen
(docs/design/elastic.md).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tidelog.broker.partitions.misplaced_records import MisplacedRecords
from tidelog.protocol import messages
from tidelog.records.batch import Buffer
from tidelog.replication.resize_rules import NOT_NAMED, Named

if TYPE_CHECKING:
    from tidelog.broker.metadata.cache import MetadataCache
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.broker.partitions.registry import Partitions
    from tidelog.runtime.clock import Clock
    from tidelog.runtime.turns import Turns

logger = logging.getLogger(__name__)

TOPICS_AT_ONCE = 500
"""Topics that one heartbeat looks at, and names at most."""

KNOWN_AFTER_MS = 3_600_000
"""How long this broker has to run before it says of a topic from before its start that it has seen
no such producer: a shrink asks for the last hour."""

SAID_AGAIN_MS = 10_000
"""A later write of the same topic is reported this much later."""

LINE_EVERY_MS = 60_000
"""The least time between two log lines about refused batches for one topic."""

MOST_CLIENTS = 10
"""Client ids of one topic that this broker remembers; others come in when these are silent for
``KNOWN_AFTER_MS``."""

LONGEST_CLIENT_ID = 100
"""Characters of a client id that are kept."""

NEVER = -1
UNKNOWN = -2
"""In a heartbeat that has other numbers of the topic: this broker cannot say yet."""

_LedTopic = messages.BrokerHeartbeatRequest.LedTopic


class UnawareWriters:
    """The producers without a count of one broker. Used on the event loop only."""

    def __init__(
        self, partitions: Partitions, metadata: MetadataCache, clock: Clock, turns: Turns
    ) -> None:
        self._partitions = partitions
        self._clock = clock
        self.last_ms: dict[str, int] = {}
        """When such a producer last wrote to a topic, by the wall clock."""
        self._clients: dict[str, dict[str, int]] = {}
        """The client ids of such producers by topic, each with the time of its last batch."""
        self.search = MisplacedRecords(metadata, clock, turns)
        self.misplaced = self.search.found
        self.refused: dict[str, int] = {}
        """Batches that retired partitions refused, by topic, since the start of this broker."""
        self._lines: dict[str, tuple[int, int]] = {}
        """When the last log line about that was written, and how many were refused by then."""
        self._registration = -1
        self._said: dict[str, tuple[Any, int, int]] = {}
        self._cycle: Iterator[str] = iter(())
        self._begun_ms = clock.monotonic_ms()
        hosted = partitions.by_topic.items()
        self._before = {topic: next(iter(each.values())).topic_id for topic, each in hosted}
        """The topics that were there at the start, until this broker has run for an hour."""

    # -- what is written

    def note(
        self,
        partition: HostedPartition,
        named: Named,
        records: Buffer,
        now_ms: int,
        client_id: str | None,
    ) -> None:
        """Note a batch that was appended, if it came without a count to a partition with one.

        ``client_id``: "" for a client without one. None where it is not asked for: the fast path
        reads it of one batch of a topic in ten milliseconds.
        """
        state = partition.state
        if named is not NOT_NAMED or state.undeleted_count < 0:
            return
        if partition.log.configs.enable_ordered_delivery:
            topic = partition.key.topic
            self.last_ms[topic] = now_ms
            if client_id is not None:
                clients = self._clients.setdefault(topic, {})
                client_id = client_id[:LONGEST_CLIENT_ID]
                if client_id in clients or len(clients) < MOST_CLIENTS:
                    clients[client_id] = now_ms
            if state.resize_epoch:
                self.search.look_at(partition, records)

    def note_refused(self, partition: HostedPartition, named: Named) -> None:
        """Note a batch that was refused, if it came without a count to a retired partition."""
        if named is not NOT_NAMED or not partition.state.sealed:
            return
        topic, now_ms = partition.key.topic, self._clock.monotonic_ms()
        count = self.refused[topic] = self.refused.get(topic, 0) + 1
        at_ms, counted = self._lines.get(topic, (now_ms - LINE_EVERY_MS, 0))
        if now_ms - at_ms >= LINE_EVERY_MS:
            self._lines[topic] = now_ms, count
            logger.warning(
                "retired partitions of topic %(topic)s refused %(batches)d batches of producers "
                "without a partition count: they lose the records whose keys they send there, "
                "until the partitions are removed",
                {"topic": topic, "batches": count - counted},
            )

    async def stop(self) -> None:
        """Stop; the batches that wait are not looked at."""
        await self.search.stop()

    # -- what is reported

    def report(self, registration: int) -> list[Any]:
        """Return the topics of a heartbeat: those led here whose numbers have changed, and after a
        new ``registration`` all, ``TOPICS_AT_ONCE`` at a time. O(those)."""
        if registration != self._registration:
            self._registration = registration
            self._said.clear()
            self._cycle = iter(())
        if self._before and self._clock.monotonic_ms() - self._begun_ms >= KNOWN_AFTER_MS:
            self._before = {}
        looked = list(islice(self._cycle, TOPICS_AT_ONCE))
        if not looked:
            # All were looked at: again, with the topics that came since.
            self._forget()
            self._cycle = iter(list(self._partitions.by_topic))
            looked = list(islice(self._cycle, TOPICS_AT_ONCE))
        return [led for topic in looked if (led := self._led(topic)) is not None]

    def _led(self, topic: str) -> Any:
        hosted = self._partitions.by_topic.get(topic, {})
        led = next(
            (x for x in hosted.values() if x.is_leader and x.state.undeleted_count >= 0), None
        )
        if led is None:
            return None
        topic_id = led.topic_id
        said = self._said.get(topic)
        if said is not None and said[0] != topic_id:
            self._drop(topic)  # another topic of the name
            said = None
        last_ms, misplaced = self._numbers(topic, topic_id)
        if last_ms == UNKNOWN:
            return None
        if said is not None and last_ms < said[1] + SAID_AGAIN_MS and misplaced == said[2]:
            return None
        self._said[topic] = topic_id, last_ms, misplaced
        return self.led(topic, topic_id)

    def led(self, topic: str, topic_id: UUID) -> Any:
        """Return a topic of a heartbeat with its numbers now, also where there is no change."""
        last_ms, misplaced = self._numbers(topic, topic_id)
        clients = self._clients.get(topic, {})
        for silent in [x for x, at_ms in clients.items() if at_ms < last_ms - KNOWN_AFTER_MS]:
            del clients[silent]
        return _LedTopic(
            topic_id=topic_id,
            unaware_write_ms=last_ms,
            misplaced_records=misplaced,
            client_ids=sorted(clients),
        )

    def _numbers(self, topic: str, topic_id: UUID) -> tuple[int, int]:
        last_ms = self.last_ms.get(topic, NEVER)
        if last_ms == NEVER and self._before.get(topic) == topic_id:
            last_ms = UNKNOWN
        return last_ms, self.misplaced.get(topic, 0)

    def _forget(self) -> None:
        """Forget the topics of which this broker hosts nothing."""
        for known in self._by_topic():
            for topic in known.keys() - self._partitions.by_topic.keys():
                self._drop(topic)

    def _drop(self, topic: str) -> None:
        for known in self._by_topic():
            known.pop(topic, None)

    def _by_topic(self) -> tuple[dict[str, Any], ...]:
        counts = self.last_ms, self._clients, self.misplaced, self.refused
        return *counts, self.search.resized, self._said, self._lines
