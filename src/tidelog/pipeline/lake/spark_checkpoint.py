"""Spark's checkpoint of the archive query: reading it, checking it, rebuilding it.

Owns the reading and writing of Spark's own files (`metadata`, `offsets/N`, `commits/N`, form v1).
The manifests are the truth of a lake: a checkpoint that does not end where they end is refused, and
`adopt` makes one that does. Spark names no batch in them that the lake does not know, so after that
the next batch continues the lake as if the checkpoint had never been lost.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from tidelog.pipeline.errors import LakeRefused
from tidelog.pipeline.lake.chain import sync
from tidelog.pipeline.lake.layout import uri
from tidelog.pipeline.lake.manifest import Manifest, check_query
from tidelog.pipeline.lake.offsets import Offset

_FORM = "v1"
_SENTINEL = "init"
# The parts of a checkpoint that are moved away when another replaces it.
_PARTS = ("metadata", ".metadata.crc", "offsets", "commits", "sources", "state")
ADOPT = "--adopt continues at the end of the manifests"


class CheckpointRefused(LakeRefused):
    """A checkpoint that is lost, older than the lake, or not whole: `adopt` helps."""


@dataclass(frozen=True, slots=True)
class SparkCheckpoint:
    """The checkpoint in a folder."""

    root: Path

    @property
    def uri(self) -> str:
        """For Spark, whose default file system may be another."""
        return uri(self.root)

    def query_id(self) -> str:
        """The id that Spark gave the query. Raises CheckpointRefused."""
        path = self.root / "metadata"
        try:
            return str(json.loads(path.read_text())["id"])
        except (FileNotFoundError, NotADirectoryError):
            raise CheckpointRefused(
                f"there is no checkpoint in {self.root}: name the one that belongs to the lake, or"
                f" a new lake; {ADOPT}"
            ) from None
        except (OSError, ValueError, KeyError, TypeError):
            raise CheckpointRefused(
                f"{path} cannot be read: it is not a checkpoint of Spark; {ADOPT}"
            ) from None

    def logged(self) -> int:
        """The last batch that was begun; -1 before the first."""
        return self._last("offsets")

    def done(self) -> int:
        """The last batch that Spark knows as done; -1 before the first."""
        return self._last("commits")

    def _last(self, log: str) -> int:
        try:
            names = os.listdir(self.root / log)
        except (FileNotFoundError, NotADirectoryError):
            return -1
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    def offset(self, batch: int) -> Offset | None:
        """The end of a batch in Spark's log; None for the one before startingOffsets is resolved.

        Raises CheckpointRefused when it is not there or not whole.
        """
        path = self.root / "offsets" / str(batch)
        try:
            form, _, text = path.read_text().splitlines()
            offset = json.loads(text)
        except (OSError, ValueError):
            raise CheckpointRefused(f"the offset log {path} cannot be read; {ADOPT}") from None
        if form != _FORM or not isinstance(offset, dict):
            raise CheckpointRefused(f"the offset log {path} has the unknown form {form}; {ADOPT}")
        return None if _SENTINEL in offset else offset

    def check_fits(self, last: Manifest | None) -> None:
        """Refuse a checkpoint that does not continue the lake, before Spark runs a batch of it.

        Raises CheckpointRefused where `adopt` helps, LakeRefused where it must not.
        """
        if last is None:
            if self.done() >= 0:
                raise LakeRefused(
                    f"the lake is empty, but its checkpoint is at batch {self.done()}: put the"
                    " manifests back, or name another lake and checkpoint"
                )
            return
        check_query(last.query_id, self.query_id())
        logged, done = self.logged(), self.done()
        if logged < last.batch:
            raise CheckpointRefused(
                f"the checkpoint in {self.root} is older than the lake: it is at batch {logged},"
                f" the lake at batch {last.batch}; {ADOPT}"
            )
        if done > last.batch or logged > last.batch + 1:
            raise CheckpointRefused(
                f"the lake has no manifest of batch {last.batch + 1}, but its checkpoint is at"
                f" batch {max(done, logged)}: put the manifests back; {ADOPT}"
            )
        if done >= 0 and not (self.root / "commits" / str(done)).read_text().startswith(_FORM):
            raise CheckpointRefused(f"the commit log of {self.root} is not whole; {ADOPT}")
        if self.offset(last.batch) != last.end:
            raise CheckpointRefused(
                f"batch {last.batch} of the checkpoint does not end where batch {last.batch} of the"
                f" lake ends: checkpoint and lake do not belong together; {ADOPT}"
            )
        if logged > last.batch:
            # The batch that a crash cut down: Spark runs it again from here.
            self.offset(logged)

    def adopt(self, last: Manifest) -> Path | None:
        """Make a checkpoint that ends where the lake ends; the next batch continues the lake.

        What lay here is kept, in a folder whose path is returned; None if nothing did. Safe to
        repeat after a crash: without `metadata`, which comes last, there is no checkpoint.
        """
        aside = self._put_away()
        for log in ("offsets", "commits"):
            (self.root / log).mkdir(parents=True)
        watermark = {"batchWatermarkMs": 0, "batchTimestampMs": int(time.time() * 1000)}
        head = f"{_FORM}\n{json.dumps({**watermark, 'conf': {}})}\n"
        offsets = self.root / "offsets"
        # Spark asks for the last two batches.
        if last.start is not None:
            _write(offsets / str(last.batch - 1), head + json.dumps(last.start))
        _write(offsets / str(last.batch), head + json.dumps(last.end))
        _write(self.root / "commits" / str(last.batch), f'{_FORM}\n{{"nextBatchWatermarkMs":0}}')
        _write(self.root / "metadata", json.dumps({"id": last.query_id}))
        return aside

    def _put_away(self) -> Path | None:
        there = [name for name in _PARTS if (self.root / name).exists()]
        if not there:
            return None
        number = 0
        while (aside := self.root / f"left-{number}").exists():
            number += 1
        aside.mkdir()
        # `metadata` is first: what is left is no checkpoint any more.
        for name in there:
            (self.root / name).rename(aside / name)
        sync(self.root)
        return aside


def _write(place: Path, text: str) -> None:
    draft = place.with_name(f".{place.name}.draft")
    with draft.open("w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    draft.rename(place)
    sync(place.parent)
