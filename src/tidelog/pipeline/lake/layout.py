"""Where things lie in a lake, and the deterministic names of its files.

Owns names only. `<topic>/p=<partition>/<first>-<last>.parquet`: the same records get the same name,
so that a batch that runs again replaces its files instead of adding to them. Folders that begin
with an underscore are ours; Spark and others pass over them when they read the folder.
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
        scheme, separator, rest = location.partition(":")
        if separator and scheme == "file":
            location = rest
        elif separator and "/" not in scheme:
            raise LakeRefused(
                f"lake {location}: only folders of a shared file system are supported"
            )
        return cls(Path(location).expanduser().absolute())

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
        found = self.root.glob("[!_]*/p=*/*.parquet")
        return sorted(str(path.relative_to(self.root)) for path in found)


def file_name(pid: Pid, first: int, last: int) -> str:
    """The name of the file that holds the records `first` to `last` (inclusive) of a partition."""
    return f"{pid.topic}/p={pid.text}/{first:0{_DIGITS}d}-{last:0{_DIGITS}d}.parquet"


def parse_file_name(name: str) -> tuple[Pid, int, int] | None:
    """The partition, first and last offset of a data file; None for a name that is none of ours."""
    match = _FILE.fullmatch(name)
    if match is None:
        return None
    return Pid.parse(match[1], match[2]), int(match[3]), int(match[4])
