"""Where things lie in a lake, and the deterministic names of its files.

Owns names only. `<topic>/p=<partition>/<first>-<last>.parquet`: the same records get the same name,
so that a batch that runs again replaces its files instead of adding to them. Our own folders begin
with an underscore: Spark and others pass over them when they read the folder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tidelog.pipeline.errors import LakeRefused
from tidelog.pipeline.planning.positions import Pid

MANIFESTS = "_manifest"
INFLIGHT = "_inflight"
CHECKPOINT = "_checkpoint"
LOCK = "lock"
OWN = (MANIFESTS, INFLIGHT, CHECKPOINT)

# Offsets are 64-bit numbers: 20 digits, as Kafka names its segments, so that names sort as offsets.
_DIGITS = 20
_FILE = re.compile(rf"([^/]+)/p=(\d+(?:@\d+)?)/(\d{{{_DIGITS}}})-(\d{{{_DIGITS}}})\.parquet")


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

    def data_files(self) -> list[str]:
        """Every data file there is, listed in a manifest or not, relative to the root."""
        found = (path.relative_to(self.root) for path in self.root.glob("*/p=*/*.parquet"))
        return sorted(str(path) for path in found if path.parts[0] not in OWN)


def folder(what: str, location: str) -> Path:
    """The folder that a path or a file: URI names. Raises LakeRefused for anything else."""
    scheme, separator, rest = location.partition(":")
    if separator and scheme == "file":
        location = rest
    elif separator and "/" not in scheme:
        raise LakeRefused(f"{what} {location}: only folders of a shared file system are supported")
    if not location.strip():
        raise LakeRefused(f"{what}: no folder is named")
    return Path(location).expanduser().absolute()


def file_name(pid: Pid, first: int, last: int) -> str:
    """The name of the file that holds the records `first` to `last` (inclusive) of a partition."""
    return f"{pid.topic}/p={pid.text}/{first:0{_DIGITS}d}-{last:0{_DIGITS}d}.parquet"


def parse_file_name(name: str) -> tuple[Pid, int, int] | None:
    """The partition, first and last offset of a data file; None for a name that is none of ours."""
    match = _FILE.fullmatch(name)
    if match is None:
        return None
    return Pid.parse(match[1], match[2]), int(match[3]), int(match[4])
