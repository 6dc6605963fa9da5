"""Producers that send no partition count: when they wrote to a topic, and what is said of it.

Owns when such a producer last wrote to each topic of this broker, their client ids, their part of
heartbeats (tag 10001), and the count of their batches that retired partitions refuse, with one log
line a minute and topic. Not the refusal of such producers: see `resize_checks`. Not the search for
their misplaced records: see `misplaced_records`. Not the notes on disk, from which a start knows of
them: see `unaware_notes`.

The controller is sent each topic that is hosted here, led or not, also where no such producer was
seen: what is not named counts as seen (docs/design/elastic.md). A topic that such a producer writes
to for the first time in a while is in a heartbeat that is sent at once, before the append; one that
is no longer hosted here is named for an hour.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tidelog.protocol import messages
from tidelog.records.batch import Buffer, Rejected
from tidelog.replication.resize_rules import NOT_NAMED, Named

if TYPE_CHECKING:
    from tidelog.broker.partitions.misplaced_records import MisplacedRecords
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.broker.partitions.registry import Partitions
    from tidelog.broker.partitions.unaware_notes import UnawareNotes
    from tidelog.runtime.clock import Clock

logger = logging.getLogger(__name__)

TOPICS_AT_ONCE = 500
"""Topics that one heartbeat checks, and names at most."""

ASKED_MS = 3_600_000
"""A shrink asks for the last hour."""

MOST_FORMER = 10_000
"""Topics that are no longer hosted here and may be named; beyond that the oldest are forgotten."""

SAID_AGAIN_MS = 10_000
"""A later write of the same topic is reported this much later."""

LINE_EVERY_MS = 60_000
"""The least time between two log lines about refused batches for one topic."""

MOST_CLIENTS = 10
"""Client ids of one topic that this broker remembers; others come in when these are silent for
``ASKED_MS``."""

LONGEST_CLIENT_ID = 100
"""Characters of a client id that are kept."""

NOTED_EVERY_MS = 100
"""How exact the time is at which such a producer last wrote to a partition that was never resized:
what is asked is whether it was within the last hour."""

NEVER = -1

_LedTopic = messages.BrokerHeartbeatRequest.LedTopic


def _do_nothing() -> None:
    pass


def _is_unaware(partition: HostedPartition, named: Named) -> bool:
    """Whether a batch came without a count to a partition with one, whose keys have an order."""
    return (
        named is NOT_NAMED
        and partition.state.undeleted_count >= 0
        and partition.log.configs.enable_ordered_delivery
    )


def is_to_note(partition: HostedPartition, now_ms: int) -> bool:
    """Whether ``may_append`` and ``note`` are to be called for a batch without a count: not again
    within ``NOTED_EVERY_MS``, unless the partition was resized (``note``)."""
    return (
        partition.state.undeleted_count >= 0
        and not 0 <= now_ms - partition.noted_ms < NOTED_EVERY_MS
    )


class UnawareWriters:
    """The producers without a count of one broker. Used on the event loop only."""

    def __init__(
        self,
        partitions: Partitions,
        clock: Clock,
        search: MisplacedRecords,
        notes: UnawareNotes,
    ) -> None:
        self._partitions = partitions
        self._clock = clock
        self._notes = notes
        self.when_seen: Callable[[], None] = _do_nothing
        """Called when the next heartbeat is to be sent at once."""
        self.last_ms: dict[str, int] = {}
        """When such a producer last wrote to a topic, by the wall clock."""
        self._ids: dict[str, UUID] = {}
        """The ids of these topics."""
        self._former = notes.seen_before(clock.wall_ms())
        """The same of topics that are not hosted here now, by their ids."""
        self._clients: dict[str, dict[str, int]] = {}
        """The client ids of such producers by topic, each with the time of its last batch."""
        self.search = search
        self.misplaced = search.found
        self.refused: dict[str, int] = {}
        """Batches that retired partitions refused, by topic, since the start of this broker."""
        self._lines: dict[str, tuple[int, int]] = {}
        """When the last log line about that was written, and how many were refused by then."""
        self._registration = -1
        self._said: dict[str, tuple[Any, int, int]] = {}
        self._urgent: dict[str, None] = {}
        """Topics that the next heartbeat checks first."""
        self._unsaid: list[UUID] = []
        """Topics of ``_former`` that this registration has not been sent."""
        self._cycle: Iterator[str] = iter(())
        for topic, hosted in partitions.by_topic.items():
            topic_id = next(iter(hosted.values())).topic_id
            if topic_id in self._former:
                self.last_ms[topic] = self._former.pop(topic_id)
                self._ids[topic] = topic_id

    # -- what is written

    def may_append(self, partition: HostedPartition, named: Named, now_ms: int) -> bool:
        """Whether a batch may be appended now; otherwise ``noting`` comes first."""
        if not _is_unaware(partition, named):
            return True
        return self._notes.covers(partition, now_ms)

    async def noting(
        self, partition: HostedPartition, now_ms: int, client_id: str | None
    ) -> Rejected | None:
        """Have the disk and the controller know of a batch before its append; return why it must
        not be appended, if so."""
        topic = partition.key.topic
        self._seen(topic, partition.topic_id, now_ms, client_id)
        self._urgent[topic] = None
        self.when_seen()
        return await self._notes.cover(partition, now_ms)

    def _seen(self, topic: str, topic_id: UUID, now_ms: int, client_id: str | None) -> None:
        self.last_ms[topic] = now_ms
        self._ids[topic] = topic_id
        if client_id is not None:
            clients = self._clients.setdefault(topic, {})
            client_id = client_id[:LONGEST_CLIENT_ID]
            if client_id in clients or len(clients) < MOST_CLIENTS:
                clients[client_id] = now_ms

    def note(
        self,
        partition: HostedPartition,
        named: Named,
        records: Buffer,
        now_ms: int,
        client_id: str | None,
    ) -> None:
        """Note a batch that was appended, if it came without a count to a partition with one.

        ``client_id``: "" for a client without one. None where it is not asked for: of a batch that
        is not to be noted, in a partition that was resized.
        """
        if client_id is not None:
            partition.noted_ms = now_ms
        if not _is_unaware(partition, named):
            return
        self._seen(partition.key.topic, partition.topic_id, now_ms, client_id)
        if partition.state.resize_epoch:
            self.search.check(partition, records)

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
        """Stop; the batches that wait are not checked. The notes become exact."""
        await self.search.stop()
        last_ms = {self._ids[topic]: self.last_ms[topic] for topic in self._ids}
        await self._notes.stop({**self._former, **last_ms})

    # -- what is reported

    def report(self, registration: int) -> list[Any]:
        """Return the topics of a heartbeat: those hosted here whose numbers have changed, and after
        a new ``registration`` all, ``TOPICS_AT_ONCE`` at a time. O(those)."""
        if registration != self._registration:
            self._registration = registration
            self._said.clear()
            self._cycle = iter(())
            self._unsaid = list(self._former)
        urgent, self._urgent = list(self._urgent), {}
        most = max(1, TOPICS_AT_ONCE - len(urgent))
        former, self._unsaid = self._unsaid[:most], self._unsaid[most:]
        checked = list(islice(self._cycle, max(1, most - len(former))))
        if not checked:
            # All were checked: again, with the topics that came since.
            self._forget()
            self._cycle = iter(list(self._partitions.by_topic))
            checked = list(islice(self._cycle, max(1, most - len(former))))
        names = dict.fromkeys([*urgent, *checked])
        changed = [led for topic in names if (led := self._hosted(topic)) is not None]
        gone = [
            _LedTopic(x, self._former[x], 0, client_ids=[]) for x in former if x in self._former
        ]
        return gone + changed

    def _hosted(self, topic: str) -> Any:
        hosted = self._partitions.by_topic.get(topic, {})
        counted = next((x for x in hosted.values() if x.state.undeleted_count >= 0), None)
        if counted is None:
            return None
        topic_id = counted.topic_id
        former = self._said.get(topic)
        if topic_id != (former[0] if former is not None else self._ids.get(topic, topic_id)):
            self._drop(topic)  # another topic of the name
            former = None
        last_ms, misplaced = self.last_ms.get(topic, NEVER), self.misplaced.get(topic, 0)
        if former is not None:
            # A clock that was set back makes an earlier time of a later batch.
            is_later = abs(last_ms - former[1]) >= SAID_AGAIN_MS
            if not is_later and misplaced == former[2]:
                return None
        self._said[topic] = topic_id, last_ms, misplaced
        return self.led(topic, topic_id)

    def led(self, topic: str, topic_id: UUID) -> Any:
        """Return a topic of a heartbeat with its numbers now, also where there is no change."""
        last_ms = self.last_ms.get(topic, NEVER)
        clients = self._clients.get(topic, {})
        for silent in [x for x, at_ms in clients.items() if at_ms < last_ms - ASKED_MS]:
            del clients[silent]
        return _LedTopic(
            topic_id=topic_id,
            unaware_write_ms=last_ms,
            misplaced_records=self.misplaced.get(topic, 0),
            client_ids=sorted(clients),
        )

    def _forget(self) -> None:
        """Forget the topics of which this broker hosts nothing, but for when such a producer last
        wrote to them."""
        for numbers in self._by_topic():
            for topic in numbers.keys() - self._partitions.by_topic.keys():
                self._drop(topic)
        if not self._former:
            return
        since_ms = self._clock.wall_ms() - ASKED_MS
        kept = sorted(self._former.items(), key=itemgetter(1))[-MOST_FORMER:]
        self._former = {topic_id: at_ms for topic_id, at_ms in kept if at_ms > since_ms}

    def _drop(self, topic: str) -> None:
        if topic in self.last_ms and topic in self._ids:
            topic_id = self._ids[topic]
            self._former[topic_id] = self.last_ms[topic]
            self._unsaid.append(topic_id)
        for numbers in self._by_topic():
            numbers.pop(topic, None)

    def _by_topic(self) -> tuple[dict[str, Any], ...]:
        counts = self.last_ms, self._clients, self.misplaced, self.refused
        return *counts, self._ids, self.search.resized, self._said, self._lines
