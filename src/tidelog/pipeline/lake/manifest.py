"""The manifest of a lake: which files belong to it, batch by batch.

Owns exactly-once: a batch is in the lake when its manifest exists, and a manifest is created whole
or not at all. Ordering rule of a commit: files are durable in their places, then the manifest is
linked under its name; so what a manifest names is there. Each manifest says from which positions
to which its batch went; they form a chain without a gap, or the job refuses to go on.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tidelog.pipeline.errors import LakeRefused, PipelineError
from tidelog.pipeline.lake.layout import Layout, file_name, parse_file_name
from tidelog.pipeline.planning.positions import Pid, Positions

_VERSION = 1


@dataclass(frozen=True, slots=True)
class LakeFile:
    """One data file: the records `first` to `last` (inclusive) of a partition's life."""

    path: str
    topic: str
    partition: int
    incarnation: int
    first: int
    last: int
    rows: int
    size_bytes: int

    @property
    def pid(self) -> Pid:
        return Pid(self.topic, self.partition, self.incarnation)


@dataclass(frozen=True, slots=True)
class Manifest:
    """One committed batch. `start` is None for the batch that resolved startingOffsets."""

    batch: int
    query_id: str
    start: Positions | None
    end: Positions
    files: tuple[LakeFile, ...]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def to_json(self) -> dict[str, Any]:
        return {
            "version": _VERSION,
            "batch": self.batch,
            "queryId": self.query_id,
            "start": None if self.start is None else self.start.to_json(),
            "end": self.end.to_json(),
            "files": [asdict(file) for file in self.files],
        }

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Raises ValueError, KeyError, TypeError or AttributeError for what is no manifest."""
        made = json.loads(text)
        if made["version"] != _VERSION:
            raise ValueError(f"version {made['version']}")
        return cls(
            made["batch"],
            made["queryId"],
            None if made["start"] is None else Positions.from_json(made["start"]),
            Positions.from_json(made["end"]),
            tuple(LakeFile(**file) for file in made["files"]),
        )


def read_manifests(layout: Layout) -> list[Manifest]:
    """All batches of the lake in order, checked to be one unbroken chain. Raises LakeRefused."""
    found: list[Manifest] = []
    for path in sorted(layout.manifests.glob("*.json")):
        try:
            manifest = Manifest.from_json(path.read_text())
        except (ValueError, KeyError, TypeError, AttributeError, PipelineError) as error:
            raise LakeRefused(f"manifest {path} is damaged: {error}") from None
        if path != layout.manifest(manifest.batch):
            raise LakeRefused(f"manifest {path} says that it is of batch {manifest.batch}")
        if found:
            check_follows(found[-1], manifest.batch, manifest.query_id, manifest.start)
        found.append(manifest)
    return found


def check_query(last: Manifest, query_id: str) -> None:
    """Refuse the checkpoint of another query. Raises LakeRefused."""
    if query_id != last.query_id:
        raise LakeRefused(
            f"the lake was written by query {last.query_id}, this is {query_id}: use the checkpoint"
            " that belongs to the lake, or a new folder"
        )


def check_follows(last: Manifest, batch: int, query_id: str, start: Positions | None) -> None:
    """Refuse a batch that does not continue the lake. Raises LakeRefused."""
    check_query(last, query_id)
    if batch != last.batch + 1:
        raise LakeRefused(f"batch {batch} follows batch {last.batch}: a manifest is missing")
    if start != last.end:
        raise LakeRefused(
            f"batch {batch} does not begin where batch {last.batch} ended: checkpoint and lake do"
            " not belong together"
        )


def check_files(files: Sequence[LakeFile], start: Positions | None, end: Positions) -> None:
    """Refuse files that overlap or leave their batch. Raises LakeRefused."""
    begin: Mapping[Pid, int] = {} if start is None else start.at
    reached: dict[Pid, int] = {}
    for file in sorted(files, key=lambda each: (each.pid, each.first)):
        low = max(begin.get(file.pid, 0), reached.get(file.pid, 0))
        if not low <= file.first <= file.last < end.at.get(file.pid, 0):
            raise LakeRefused(f"file {file.path} does not lie in its batch or overlaps another")
        if file.path != file_name(file.pid, file.first, file.last):
            raise LakeRefused(f"file {file.path} has not the name of its records")
        reached[file.pid] = file.last + 1


def check_new(files: Sequence[LakeFile], reached: Mapping[Pid, int]) -> None:
    """Refuse records at offsets that the lake has reached before. Raises LakeRefused.

    Positions go back where losses are not refused (failOnDataLoss=false): the tail of the log was
    cut, or a topic was left out for a while. The file would replace or repeat one that counts.
    """
    for file in files:
        if file.first < reached.get(file.pid, 0):
            raise LakeRefused(
                f"{file.pid}: the lake holds offsets below {reached[file.pid]} already, and they"
                f" would be written again from {file.first} on: use a new lake and checkpoint"
            )


def commit(layout: Layout, manifest: Manifest, staged: Mapping[str, Path]) -> None:
    """Move the staged files (final name -> where it lies now) into place, then create the manifest.

    Safe to repeat after a crash at any step. Raises LakeRefused when the batch is already there.
    """
    folders: set[Path] = set()
    for name, now in staged.items():
        place = layout.root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        now.replace(place)
        folders.update((place.parent, place.parent.parent, layout.root))
    for folder in folders:
        _sync(folder)
    place = layout.manifest(manifest.batch)
    draft = place.with_suffix(f".{os.getpid()}.draft")
    with draft.open("w") as out:
        json.dump(manifest.to_json(), out, indent=1)
        out.flush()
        os.fsync(out.fileno())
    try:
        os.link(draft, place)
    except FileExistsError:
        raise LakeRefused(f"batch {manifest.batch} is already in the lake: two writers?") from None
    finally:
        draft.unlink()
    _sync(layout.manifests)


def recover(layout: Layout, manifests: Sequence[Manifest], cut_down: Positions | None) -> list[str]:
    """Remove what a crash left behind: staged files, drafts, and data files no manifest names.

    To be called under the lock, before the first batch. ``cut_down`` is where the batch after the
    last manifest ends, None if none was begun: only files that lie in it can have been left behind
    by a crash, and that batch writes them again. Returns the data files removed. Raises LakeRefused
    for any other file, and removes nothing then: manifests may have been lost, or the folder is
    somebody else's.
    """
    listed = {file.path for manifest in manifests for file in manifest.files}
    stray = [name for name in layout.data_files() if name not in listed]
    begin = manifests[-1].end if manifests else None
    for name in stray:
        if not _lies_between(name, begin, cut_down):
            raise LakeRefused(
                f"lake {layout.root} holds {name}, which no manifest names and no crash left"
                " behind: put the manifests back that belong to it, or name another folder"
            )
    for left in (*layout.inflight.glob("*"), *layout.manifests.glob("*.draft")):
        left.unlink(missing_ok=True)
    for name in stray:
        (layout.root / name).unlink()
    return stray


def _lies_between(name: str, begin: Positions | None, end: Positions | None) -> bool:
    """Whether a file can be of the batch from ``begin`` to ``end``."""
    found = parse_file_name(name)
    # The first batch holds no records: without a manifest there is no file.
    if found is None or begin is None or end is None:
        return False
    pid, first, last = found
    return begin.at.get(pid, 0) <= first <= last < end.at.get(pid, 0)


@contextlib.contextmanager
def lock(layout: Layout) -> Iterator[None]:
    """Hold the lake for this process, for one writer at a time. Raises LakeRefused.

    The kernel gives the lock back when the process dies, however it dies.
    """
    try:
        for folder in (layout.manifests, layout.inflight):
            folder.mkdir(parents=True, exist_ok=True)
        held = layout.lock.open("a+")
    except OSError as error:
        raise LakeRefused(f"lake {layout.root} cannot be written: {error}") from None
    with held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.seek(0)
            owner = held.read().strip() or "unknown"
            raise LakeRefused(
                f"lake {layout.root} is being written by another job (process {owner})"
            ) from None
        held.truncate(0)
        held.write(str(os.getpid()))
        held.flush()
        yield


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
