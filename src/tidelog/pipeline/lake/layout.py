"""The folders of a lake, and the names of its files.

Owns names only. `<topic>/id=<topic id>/p=<partition>/<first>-<last>.parquet`: a folder belongs to
one topic id, so a topic that is created again never meets the files of the former one. It is named
`id=…` because Spark passes over names that begin with an underscore, as a topic id may; our own
folders begin with one for that reason. Version 1 had no folder of the id.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tidelog.pipeline.errors import LakeRefused
from tidelog.pipeline.lake.offsets import LakePartition
from tidelog.pipeline.topic_ids import normal

MANIFESTS = "_manifest"
INFLIGHT = "_inflight"
CHECKPOINT = "_checkpoint"
LOCK = "lock"
# The table of bad records: below it topics, ids and partitions as above.
BAD = "_bad"
OWN = (MANIFESTS, INFLIGHT, CHECKPOINT, BAD)

# A staged file is none that a reader of Parquet would take for one.
STAGED_SUFFIX = ".staged"

# Offsets are 64-bit numbers: 20 digits, as Kafka names its segments, so that names sort as offsets.
_DIGITS = 20
_RANGE = rf"(\d{{{_DIGITS}}})-(\d{{{_DIGITS}}})"
_FILE = re.compile(rf"([^/]+)/(?:id=([^/]+)/)?p=(\d+)/{_RANGE}\.parquet")
_CHECKPOINT = re.compile(rf"{_RANGE}\.checkpoint")
_MANIFEST = re.compile(rf"(\d{{{_DIGITS}}})\.json")
# No topic id is this: an id is 22 characters of base64 or a UUID.
_NO_ID = "none"
_PATTERN = re.compile(r"[][{}*?\\]")


@dataclass(frozen=True, slots=True)
class Layout:
    """The folders of a lake under `root`, a folder that driver and executors share."""

    root: Path

    @classmethod
    def at(cls, location: str) -> Layout:
        """Raises LakeRefused for anything but a path or a file: URI."""
        return cls(folder("lake", location))

    @property
    def manifests(self) -> Path:
        return self.root / MANIFESTS

    @property
    def inflight(self) -> Path:
        return self.root / INFLIGHT

    @property
    def checkpoint(self) -> Path:
        return self.root / CHECKPOINT

    @property
    def lock(self) -> Path:
        return self.manifests / LOCK

    def manifest(self, batch: int) -> Path:
        return self.manifests / f"{batch:0{_DIGITS}d}.json"

    def manifest_checkpoint(self, first: int, last: int) -> Path:
        """The file that takes the place of the manifests of batches `first` to `last`."""
        return self.manifests / f"{first:0{_DIGITS}d}-{last:0{_DIGITS}d}.checkpoint"

    def patterns(self, names: list[str]) -> list[str]:
        """Data files as Spark takes them: URIs, in which nothing is meant as a pattern."""
        return [_PATTERN.sub(r"\\\g<0>", uri(self.root / name)) for name in names]

    def data_files(self) -> Iterator[str]:
        """Every data file there is, listed in a manifest or not, relative to the root.

        Goes through all folders: what it costs grows with the lake.
        """
        for topic in _folders(self.root):
            if topic.name in OWN:
                continue
            for inner in _folders(topic):
                if inner.name.startswith("p="):
                    yield from _parquet(self.root, inner)
                elif inner.name.startswith("id="):
                    for part in _folders(inner):
                        yield from _parquet(self.root, part)


def _folders(above: Path) -> list[Path]:
    try:
        with os.scandir(above) as entries:
            return sorted(above / entry.name for entry in entries if entry.is_dir())
    except FileNotFoundError:
        return []


def _parquet(root: Path, part: Path) -> Iterator[str]:
    """The names are not sorted: a folder may hold very many."""
    if part.name.startswith("p="):
        with os.scandir(part) as entries:
            for entry in entries:
                if entry.name.endswith(".parquet"):
                    yield str((part / entry.name).relative_to(root))


def uri(place: Path) -> str:
    """A folder or file for Spark, whose default file system may be another. Not percent-encoded:
    Hadoop takes such a text as it is."""
    return f"file://{place}"


def folder(what: str, location: str) -> Path:
    """The folder that a path or a file: URI names. Raises LakeRefused for anything else."""
    scheme, separator, rest = location.partition(":")
    if separator and scheme == "file" and (rest.startswith("///") or not rest.startswith("//")):
        location = rest.removeprefix("//")
    elif separator and "/" not in scheme:
        raise LakeRefused(f"{what} {location}: only folders of a shared file system are supported")
    if not location.strip():
        raise LakeRefused(f"{what}: no folder is named")
    return Path(location).expanduser().absolute()


def file_name(home: LakePartition, first: int, last: int) -> str:
    """The name of the file that holds the records `first` to `last` (inclusive) of a partition."""
    topic_id = home.topic_id or _NO_ID
    return f"{home.topic}/id={topic_id}/p={home.partition}/{_span(first, last)}"


def bad_file_name(home: LakePartition, first: int, last: int) -> str:
    """The same for the bad records among them."""
    return f"{BAD}/{file_name(home, first, last)}"


def _span(first: int, last: int) -> str:
    return f"{first:0{_DIGITS}d}-{last:0{_DIGITS}d}.parquet"


@dataclass(frozen=True, slots=True)
class NamedFile:
    """What the name of a data file says. The id is None for a file of version 1."""

    topic: str
    topic_id: str | None
    partition: int
    first: int
    last: int


def parse_file_name(name: str) -> NamedFile | None:
    """The reverse of `file_name`, for version 1 too; None for a name that is none of ours."""
    match = _FILE.fullmatch(name)
    if match is None:
        return None
    topic_id = match[2] and ("" if match[2] == _NO_ID else normal(match[2]))
    return NamedFile(match[1], topic_id, int(match[3]), int(match[4]), int(match[5]))


def parse_manifest_name(name: str) -> int | None:
    """The batch of a manifest; None for a name that is none."""
    match = _MANIFEST.fullmatch(name)
    return None if match is None else int(match[1])


def parse_checkpoint_name(name: str) -> tuple[int, int] | None:
    """The first and the last batch of a manifest checkpoint; None for a name that is none."""
    match = _CHECKPOINT.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))
