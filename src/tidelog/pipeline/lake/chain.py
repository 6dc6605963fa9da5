"""The manifests of a lake: read in order, summed up, and merged into manifest checkpoints.

Owns the folder `_manifest`. Each batch has its own manifest there, until a manifest checkpoint
replaces many: one compressed file, first the sums over the lake up to there, then the manifests
themselves, one per line. Ordering rule: a checkpoint is complete and durable under its name before
the first of its manifests is removed; if both exist, the checkpoint counts. So a start reads the
first line of the last checkpoint and the manifests after it, whatever the age of the lake. The
newest manifest is never merged.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidelog.pipeline.errors import LakeRefused
from tidelog.pipeline.lake.layout import (
    Layout,
    parse_checkpoint_name,
    parse_manifest_name,
)
from tidelog.pipeline.lake.manifest import VERSION, Manifest, check_follows
from tidelog.pipeline.lake.summary import Summary

# So many manifests become one checkpoint: a month of batches of 5 s are 2,000 of them, and a start
# reads at most so many manifests.
FOLD = 256
DAMAGE = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    LakeRefused,
    EOFError,
    StopIteration,
    gzip.BadGzipFile,
    zlib.error,
)
FOLDING = ".folding"


@dataclass(frozen=True, slots=True)
class _Listing:
    """What the folder holds: the ranges of the checkpoints, the batches of the manifests."""

    checkpoints: tuple[tuple[int, int], ...]
    singles: tuple[int, ...]

    @property
    def folded(self) -> int:
        """The last batch that a checkpoint holds; -1 without one."""
        return self.checkpoints[-1][1] if self.checkpoints else -1

    @property
    def after(self) -> list[int]:
        """The batches whose manifests no checkpoint holds."""
        return [batch for batch in self.singles if batch > self.folded]


def _listing(layout: Layout) -> _Listing:
    names: list[str] = []
    with contextlib.suppress(FileNotFoundError):
        names = os.listdir(layout.manifests)
    checkpoints = sorted(pair for name in names if (pair := parse_checkpoint_name(name)))
    for (_, last), (first, _) in zip([(0, -1), *checkpoints], checkpoints, strict=False):
        if first != last + 1:
            raise LakeRefused(
                f"{layout.manifests} has no manifest checkpoint of batches {last + 1} to"
                f" {first - 1}: restore it"
            )
    batches = (parse_manifest_name(name) for name in names)
    singles = sorted(batch for batch in batches if batch is not None)
    return _Listing(tuple(checkpoints), tuple(singles))


def is_there(layout: Layout, batch: int) -> bool:
    """Whether a batch is in the lake."""
    return layout.manifest(batch).exists() or batch <= _listing(layout).folded


def read_manifests(layout: Layout, after: int = -1) -> Iterator[Manifest]:
    """The batches after `after` in order, checked to be one unbroken chain.

    Holds one at a time in memory. Raises LakeRefused. Another process may add batches and merge
    manifests meanwhile.
    """
    before: Manifest | None = None
    while True:
        progress = after
        try:
            for manifest in _listed(layout, after):
                if before is not None or after < 0:
                    check_follows(before, manifest.batch, manifest.query_id, manifest.start)
                elif manifest.batch != after + 1:
                    raise LakeRefused(f"the lake has no manifest of batch {after + 1}")
                before, after = manifest, manifest.batch
                yield manifest
        except FileNotFoundError as error:
            # A checkpoint replaced it after the folder was listed.
            if after == progress and _listing(layout).folded <= after:
                raise LakeRefused(f"manifest {error.filename} is gone") from None
        else:
            return


def _listed(layout: Layout, after: int) -> Iterator[Manifest]:
    listing = _listing(layout)
    for first, last in listing.checkpoints:
        if last > after:
            place = layout.manifest_checkpoint(first, last)
            for batch, line in enumerate(_lines(place), first):
                if batch > after:
                    yield _parsed(line, place, batch)
    for batch in listing.after:
        if batch > after:
            yield _single(layout, batch)


def _single(layout: Layout, batch: int) -> Manifest:
    place = layout.manifest(batch)
    return _parsed(place.read_text(), place, batch)


def _parsed(text: str, place: Path, batch: int) -> Manifest:
    try:
        manifest = Manifest.from_text(text)
    except DAMAGE as error:
        raise LakeRefused(f"manifest {place} is damaged: {error}") from None
    if manifest.batch != batch:
        raise LakeRefused(
            f"manifest {place} says that it is of batch {manifest.batch} where {batch} belongs"
        )
    return manifest


def _lines(place: Path) -> Iterator[str]:
    """The manifests of a checkpoint."""
    with gzip.open(place, "rt", encoding="utf-8") as lines:
        try:
            next(lines)
            yield from lines
        except DAMAGE as error:
            raise LakeRefused(f"manifest checkpoint {place} is damaged: {error}") from None


def _head(layout: Layout, first: int, last: int) -> Summary:
    place = layout.manifest_checkpoint(first, last)
    try:
        with gzip.open(place, "rt", encoding="utf-8") as lines:
            made = json.loads(next(lines))
        if made["version"] != VERSION or made["summary"]["batch"] != last:
            raise ValueError(f"version {made['version']}, batch {made['summary']['batch']}")
        return Summary.from_json(made["summary"])
    except DAMAGE as error:
        raise LakeRefused(f"manifest checkpoint {place} is damaged: {error}") from None


def summary(layout: Layout) -> tuple[Summary, Manifest | None]:
    """The sums over the lake, and its newest manifest. Raises LakeRefused.

    Reads the head of the last checkpoint and the manifests after it.
    """
    listing = _listing(layout)
    made = _head(layout, *listing.checkpoints[-1]) if listing.checkpoints else Summary()
    last: Manifest | None = None
    for manifest in read_manifests(layout, listing.folded):
        made.add(manifest)
        last = manifest
    if last is None and listing.checkpoints:
        raise LakeRefused(f"the lake has no manifest after batch {listing.folded}: restore it")
    return made, last


def fold(layout: Layout, least: int = FOLD) -> int:
    """Put manifests together into checkpoints while more than `least` lie by themselves.

    To be called by the lake's one writer. Returns how many checkpoints were made. Safe to repeat
    after a crash at any step.
    """
    listing = _listing(layout)
    for batch in listing.singles:
        if batch <= listing.folded:
            layout.manifest(batch).unlink(missing_ok=True)
    left, made = listing.after, 0
    if len(left) <= least:
        return made
    total = _head(layout, *listing.checkpoints[-1]) if listing.checkpoints else Summary()
    before: Manifest | None = None
    while len(left) > least:
        batches, left = left[:least], left[least:]
        before = _fold(layout, total, before, batches)
        made += 1
    return made


def _fold(
    layout: Layout, total: Summary, before: Manifest | None, batches: list[int]
) -> Manifest | None:
    """Make the checkpoint of these batches, and add them to `total`; return the last one."""
    lines, first = [], total.batch + 1
    for expected, batch in enumerate(batches, first):
        if batch != expected:
            raise LakeRefused(f"the lake has no manifest of batch {expected}: put it back")
        text = layout.manifest(batch).read_text()
        manifest = _parsed(text, layout.manifest(batch), batch)
        if before is not None:
            check_follows(before, batch, manifest.query_id, manifest.start)
        before = manifest
        total.add(manifest)
        # Kept as it was written, also in version 1; only its lines are joined.
        lines.append(json.dumps(json.loads(text), separators=(",", ":")))
    write_checkpoint(layout, first, total, lines)
    # Durable in the checkpoint: a crash in between leaves them twice, which ``fold`` mends.
    for batch in batches:
        layout.manifest(batch).unlink()
    return before


def write_checkpoint(layout: Layout, first: int, total: Summary, lines: Sequence[str]) -> None:
    """Make the manifests from `first` on durable as a checkpoint; `total` sums up to its end.

    Raises LakeRefused when it is there already.
    """
    place = layout.manifest_checkpoint(first, total.batch)
    draft = place.with_suffix(f".{os.getpid()}{FOLDING}")
    with draft.open("wb") as out:
        head = json.dumps({"version": VERSION, "summary": total.to_json()}, separators=(",", ":"))
        with gzip.GzipFile(filename="", mode="wb", fileobj=out, compresslevel=6, mtime=0) as packed:
            for line in (head, *lines):
                packed.write(line.encode() + b"\n")
        out.flush()
        os.fsync(out.fileno())
    try:
        os.link(draft, place)
    except FileExistsError:
        raise LakeRefused(f"{place} is there already: two writers?") from None
    finally:
        draft.unlink()
    sync(layout.manifests)


def sync(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
