"""The sums over a lake, in a size that does not grow with its history.

Owns the sums over manifests: one entry per partition that the lake ever held. They stand in each
manifest checkpoint, so that a start adds up only the manifests after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidelog.pipeline.lake.manifest import Manifest
from tidelog.pipeline.lake.offsets import LakePartition, begins, ends
from tidelog.pipeline.topic_ids import normal


@dataclass(slots=True)
class SummaryPart:
    """One partition: archived from `begin` up to `end`; records lie below `reached`."""

    begin: int
    end: int
    reached: int = 0
    rows: int = 0
    files: int = 0


@dataclass(slots=True)
class Summary:
    """The batches from the first up to `batch`; -1: none. `bad` are rows of bad records."""

    batch: int = -1
    rows: int = 0
    files: int = 0
    parts: dict[LakePartition, SummaryPart] = field(default_factory=dict)
    bad: int = 0

    def add(self, manifest: Manifest) -> None:
        """Count in the next batch."""
        until = ends(manifest.end)
        for home, begin in begins(manifest.start, manifest.end).items():
            part = self.parts.setdefault(home, SummaryPart(begin, begin))
            part.end = until[home]
        for file in manifest.files:
            part = self.parts[file.home]
            part.reached = max(part.reached, file.last + 1)
            part.rows += file.rows
            part.files += 1
        self.batch = manifest.batch
        self.rows += manifest.rows
        self.files += len(manifest.files)
        self.bad += manifest.bad_rows

    @property
    def reached(self) -> dict[LakePartition, int]:
        """Below which offset each partition has records in the lake."""
        return {home: part.reached for home, part in self.parts.items()}

    @property
    def bounds(self) -> dict[LakePartition, int]:
        """The end offset of the files of each partition, also of those no longer read."""
        return {home: max(part.end, part.reached) for home, part in self.parts.items()}

    def to_json(self) -> dict[str, Any]:
        return {
            "batch": self.batch,
            "rows": self.rows,
            "files": self.files,
            "bad": self.bad,
            "partitions": [
                [*home, part.begin, part.end, part.reached, part.rows, part.files]
                for home, part in self.parts.items()
            ],
        }

    @classmethod
    def from_json(cls, made: Mapping[str, Any]) -> Summary:
        """Raises KeyError, TypeError or ValueError for what is no summary."""
        parts = {
            LakePartition(topic, normal(topic_id), partition): SummaryPart(*numbers)
            for topic, topic_id, partition, *numbers in made["partitions"]
        }
        return cls(made["batch"], made["rows"], made["files"], parts, made.get("bad", 0))
