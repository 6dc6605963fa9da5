"""The note of one log directory about producers that send no partition count (KIP-253).

Owns the file ``tidelog.unaware-writers`` and what is believed of it at a start: topic id, and the
time of day until which such a producer may write to replicas here without another note. So a start
knows of every write before any crash, and "none" is knowledge too (docs/decisions/0083). Not when a
note is needed: see `broker.partitions.unaware_notes`.

| the file at a start | what counts |
|---|---|
| sound | what it says; a time too far ahead (the clock was set back) counts as now |
| missing, or damaged | every topic with a replica here may have been written to until now |

The second row is also the first start after a version without this file. Its outcome is written
down, so a later start does not count another hour.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from uuid import UUID

from tidelog.model.errors import ErrorCode
from tidelog.model.work import Work
from tidelog.records.batch import Rejected
from tidelog.storage import names
from tidelog.storage.checkpoints import (
    DamagedFile,
    checked_lines,
    decode_uuid,
    encode_checked_lines,
    encode_uuid,
)
from tidelog.storage.segments.resources import Resources

COVERS_MS = 300_000
"""How long a note covers further batches: after a kill they count as written until its end, so
much later at most than they were."""

KEPT_MS = 3_600_000
"""A note is dropped so long after its end: a shrink asks for the last hour."""


class UnawareNote:
    """The note of one log directory: the part in memory belongs to the broker's loop."""

    def __init__(self, resources: Resources, folder: str) -> None:
        self.path = f"{folder}/{names.UNAWARE_WRITERS}"
        self.durable: Mapping[UUID, int] = {}
        """What the file says: topic id -> the end of its note, in ms of the time of day."""
        self.wanted: dict[UUID, int] = {}
        """What the file is to say."""
        self._resources = resources

    def load(self, topic_ids: Iterable[UUID], now_ms: int) -> str | None:
        """Read the file at a start; return a sentence about one that is missing or damaged.

        ``topic_ids`` are those of the replicas here. Blocks. OSError for an unreadable disk.
        """
        disk, why = self._resources.disk, None
        hosted = dict.fromkeys(topic_ids, now_ms)
        try:
            untils = decode(disk.read(self.path))
            self.durable = untils
            self.wanted = {
                topic_id: now_ms if until > now_ms + COVERS_MS else until
                for topic_id, until in untils.items()
            }
        except FileNotFoundError:
            self.wanted = hosted
            if hosted:
                why = f"{self.path} is missing"
        except DamagedFile as error:
            self.wanted = hosted
            why = f"{self.path} is damaged ({error})"
        if self.wanted != self.durable or why is not None or not disk.exists(self.path):
            self._write_at_start()
        if why is None:
            return None
        return (
            f"{why}: producers without a partition count may have written to the topics here, so "
            "none of them shrinks unforced for an hour"
        )

    def _write_at_start(self) -> None:
        try:
            self._resources.disk.replace(self.path, encode(self.wanted))
        except OSError as error:
            if not self._resources.is_full(error):
                raise
            # The next note writes it; until then a start judges as this one did.
        else:
            self.durable = dict(self.wanted)

    def writing(self, now_ms: int) -> Work[Rejected | None]:
        """Replace the file by what is wanted, in a thread; return why that failed, if so."""
        resources = self._resources
        if resources.failed is not None:
            return Rejected(ErrorCode.KAFKA_STORAGE_ERROR, resources.failed)
        self.wanted = {x: until for x, until in self.wanted.items() if until > now_ms - KEPT_MS}
        content = dict(self.wanted)
        try:
            yield partial(self._replace, content)
        except OSError as error:
            passing = resources.refused_for(error)
            if passing is not None:
                return Rejected(ErrorCode.KAFKA_STORAGE_ERROR, f"{passing}: {self.path}")
            why = f"writing {self.path} failed: {error}"
            resources.fail(why)
            return Rejected(ErrorCode.KAFKA_STORAGE_ERROR, why)
        self.durable = content
        return None

    def _replace(self, content: Mapping[UUID, int]) -> None:
        self._resources.disk.replace(self.path, encode(content))


def encode(until_ms: Mapping[UUID, int]) -> bytes:
    """Return the bytes of the file."""
    lines = (f"{encode_uuid(topic_id)} {until}" for topic_id, until in until_ms.items())
    return encode_checked_lines(lines)


def decode(content: bytes) -> dict[UUID, int]:
    """Return what the bytes say; DamagedFile when they are not what was written."""
    untils = {}
    for text, until in checked_lines(content, 2):
        if not until.isdecimal():
            raise DamagedFile(f"{until!r} is no time")
        untils[decode_uuid(text)] = int(until)
    return untils
