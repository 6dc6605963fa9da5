"""The manifest of a batch: what it put into the lake, and what it knew of the log then.

Owns the values, their JSON (docs/decisions/0052), and the rules by which a batch and its files
belong to a lake; does no I/O. Version 1, as commit 02f3bcb wrote it, is read: what it did not note
is None.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidelog.pipeline.errors import LakeRefused
from tidelog.pipeline.lake.layout import file_name
from tidelog.pipeline.lake.offsets import LakePartition, Offset, SkippedRange, begins, ends
from tidelog.pipeline.topic_ids import normal

VERSION = 2


@dataclass(frozen=True, slots=True)
class LakeFile:
    """One data file: the records `first` to `last` (inclusive) of a partition.

    `raw_bytes` is the size of keys, values and headers before encoding; times are the records'
    timestamps in milliseconds; `leader_epochs` are pairs of an epoch and the first offset in this
    file that has it; `digest` is the SHA-256 of the file as `sha256:<hex>`.
    """

    path: str
    home: LakePartition
    first: int
    last: int
    rows: int
    size_bytes: int
    raw_bytes: int | None = None
    min_time_ms: int | None = None
    max_time_ms: int | None = None
    leader_epochs: tuple[tuple[int, int], ...] = ()
    digest: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            **_place(self.home),
            "first": self.first,
            "last": self.last,
            "rows": self.rows,
            "sizeBytes": self.size_bytes,
            "rawBytes": self.raw_bytes,
            "minTimeMs": self.min_time_ms,
            "maxTimeMs": self.max_time_ms,
            "leaderEpochs": [list(leader_epoch) for leader_epoch in self.leader_epochs],
            "digest": self.digest,
        }

    @classmethod
    def from_json(cls, made: Mapping[str, Any]) -> LakeFile:
        return cls(
            made["path"],
            _home(made),
            made["first"],
            made["last"],
            made["rows"],
            made["sizeBytes"],
            made["rawBytes"],
            made["minTimeMs"],
            made["maxTimeMs"],
            tuple((epoch, first) for epoch, first in made["leaderEpochs"]),
            made["digest"],
        )


@dataclass(frozen=True, slots=True)
class BadFile:
    """One file of bad records (docs/decisions/0151): `rows` of them, which stand for `offsets` of
    those from `first` to `last` (inclusive); `reason` is that of the first row.
    """

    path: str
    home: LakePartition
    first: int
    last: int
    rows: int
    offsets: int
    size_bytes: int
    digest: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            **_place(self.home),
            "first": self.first,
            "last": self.last,
            "rows": self.rows,
            "offsets": self.offsets,
            "sizeBytes": self.size_bytes,
            "digest": self.digest,
            "reason": self.reason,
        }

    @classmethod
    def from_json(cls, made: Mapping[str, Any]) -> BadFile:
        names = ("first", "last", "rows", "offsets", "sizeBytes", "digest", "reason")
        return cls(made["path"], _home(made), *(made[name] for name in names))


@dataclass(frozen=True, slots=True)
class Manifest:
    """One committed batch. `start` is None for the batch that resolved startingOffsets.

    `isolation` is the level at which the log was read, `policies` the cleanup.policy of each topic
    when it was archived, without the topics of which it was not known.
    """

    batch: int
    query_id: str
    start: Offset | None
    end: Offset
    files: tuple[LakeFile, ...] = ()
    losses: tuple[SkippedRange, ...] = ()
    isolation: str | None = None
    policies: Mapping[str, str] = field(default_factory=dict)
    version: int = VERSION
    bad: tuple[BadFile, ...] = ()

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def paths(self) -> list[str]:
        """The names of all its files."""
        return [*(file.path for file in self.files), *(file.path for file in self.bad)]

    @property
    def bad_rows(self) -> int:
        return sum(file.rows for file in self.bad)

    def to_line(self) -> str:
        """As it is written: JSON in one line, always as version 2."""
        made = {
            "version": VERSION,
            "batch": self.batch,
            "queryId": self.query_id,
            "start": self.start,
            "end": self.end,
            "isolation": self.isolation,
            "policies": dict(self.policies),
            "losses": [
                {**_place(loss.home), "from": loss.start, "to": loss.end, "cause": loss.cause}
                for loss in self.losses
            ],
            "files": [file.to_json() for file in self.files],
        }
        if self.bad:
            # A reader of before these files passes over the field.
            made["bad"] = [file.to_json() for file in self.bad]
        return json.dumps(made, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Manifest:
        """Raises ValueError, KeyError, TypeError, AttributeError or LakeRefused."""
        made = json.loads(text)
        version = made["version"]
        if version not in (1, VERSION):
            raise ValueError(f"version {version}, this tidelog knows 1 and {VERSION}")
        # What cannot be read later is damage now.
        begins(made["start"], made["end"])
        common = (int(made["batch"]), str(made["queryId"]), made["start"], made["end"])
        if version == 1:
            return cls(*common, tuple(_first_version_files(made)), version=1)
        return cls(
            *common,
            tuple(LakeFile.from_json(file) for file in made["files"]),
            tuple(
                SkippedRange(_home(loss), loss["from"], loss["to"], loss["cause"])
                for loss in made["losses"]
            ),
            made["isolation"],
            made["policies"],
            bad=tuple(BadFile.from_json(file) for file in made.get("bad", ())),
        )


def _place(home: LakePartition) -> dict[str, Any]:
    return {"topic": home.topic, "topicId": home.topic_id, "partition": home.partition}


def _home(made: Mapping[str, Any]) -> LakePartition:
    return LakePartition(made["topic"], normal(made["topicId"]), made["partition"])


def _first_version_files(made: Mapping[str, Any]) -> Iterable[LakeFile]:
    """Files of version 1 named their topic only: its id is that of the batch."""
    for file in made["files"]:
        topic_id = normal(str(made["end"]["topics"][file["topic"]]["id"]))
        home = LakePartition(file["topic"], topic_id, file["partition"])
        span = (file["first"], file["last"], file["rows"], file["size_bytes"])
        yield LakeFile(file["path"], home, *span)


def check_query(last_query_id: str, query_id: str) -> None:
    """Refuse the checkpoint of another query. Raises LakeRefused."""
    if query_id != last_query_id:
        raise LakeRefused(
            f"the lake was written by query {last_query_id}, this is {query_id}: use the checkpoint"
            " that belongs to the lake, or a new folder"
        )


def check_follows(last: Manifest | None, batch: int, query_id: str, start: Offset | None) -> None:
    """Refuse a batch that does not continue the lake; `last` is None before the first batch.

    Raises LakeRefused.
    """
    if last is None:
        if batch:
            raise LakeRefused(f"batch {batch} is the first of the lake: manifests are missing")
        return
    check_query(last.query_id, query_id)
    if batch != last.batch + 1:
        raise LakeRefused(f"batch {batch} follows batch {last.batch}: a manifest is missing")
    if start != last.end:
        raise LakeRefused(
            f"batch {batch} does not begin where batch {last.batch} ended: checkpoint and lake do"
            " not belong together"
        )


def check_files(files: Sequence[LakeFile], start: Offset | None, end: Offset) -> None:
    """Refuse files that overlap or leave their batch. Raises LakeRefused."""
    begin, until = begins(start, end), ends(end)
    reached: dict[LakePartition, int] = {}
    for file in sorted(files, key=lambda one: (one.home, one.first)):
        low = reached.get(file.home, begin.get(file.home, 0))
        if not low <= file.first <= file.last < until.get(file.home, 0):
            raise LakeRefused(f"file {file.path} does not lie in its batch or overlaps another")
        if file.path != file_name(file.home, file.first, file.last):
            raise LakeRefused(f"file {file.path} has not the name of its records")
        reached[file.home] = file.last + 1


def check_bad_files(files: Sequence[BadFile], start: Offset | None, end: Offset) -> None:
    """Refuse files of bad records that leave their batch or overlap. Raises LakeRefused."""
    begin, until = begins(start, end), ends(end)
    reached: dict[LakePartition, int] = {}
    for file in sorted(files, key=lambda one: (one.home, one.first)):
        low = reached.get(file.home, begin.get(file.home, 0))
        if not low <= file.first <= file.last < until.get(file.home, 0):
            raise LakeRefused(f"file {file.path} does not lie in its batch or overlaps another")
        reached[file.home] = file.last + 1


def check_new(files: Sequence[LakeFile], reached: Mapping[LakePartition, int]) -> None:
    """Refuse records at offsets that the lake has reached before. Raises LakeRefused.

    Positions go back where losses are not refused (failOnDataLoss=false): the tail of the log was
    cut. The file would repeat, with other contents, records that count.
    """
    for file in files:
        if file.first < reached.get(file.home, 0):
            raise LakeRefused(
                f"{file.home}: the lake holds offsets below {reached[file.home]} already, and they"
                f" would be written again from {file.first} on: use a new lake and checkpoint"
            )
