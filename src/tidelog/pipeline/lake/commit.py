"""The commit of a batch to a lake, and the recovery after a crash.

Owns exactly-once: a batch is in the lake when its manifest exists, and a manifest is created whole
or not at all. Ordering rule of a commit, each step durable before the next:

1. the staged files are in the in-flight folder;
2. the draft of the manifest lists the files that will be moved;
3. the staged files are linked under their final names, which must not exist;
4. the draft is linked under the manifest's name: now the batch is in the lake;
5. the draft is removed, and all that is staged: tasks that failed leave files, too.

So after a crash a draft names every file that may have been linked, and a file is this job's own
when it is the same file (device and inode) as one that is staged: only such a file is ever removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from tidelog.pipeline.errors import LakeRefused
from tidelog.pipeline.lake.chain import DAMAGE, FOLDING, is_there, sync
from tidelog.pipeline.lake.layout import Layout, parse_file_name
from tidelog.pipeline.lake.manifest import Manifest
from tidelog.pipeline.lake.offsets import LakePartition, Offset, begins, ends

_DRAFT = ".draft"


def commit(layout: Layout, manifest: Manifest, staged: Mapping[str, Path]) -> None:
    """Link the staged files (final name -> where it lies now) into place, then create the manifest.

    Safe to repeat after a crash at any step, and `recover`. Raises LakeRefused, and has moved
    nothing, when the batch or one of its files is already there.
    """
    _check_absent(layout, manifest.batch)
    for name in staged:
        if (layout.root / name).exists():
            raise _file_is_there(layout, name)
    place = layout.manifest(manifest.batch)
    draft = place.with_suffix(f".{os.getpid()}{_DRAFT}")
    with draft.open("w") as out:
        out.write(manifest.to_line() + "\n")
        out.flush()
        os.fsync(out.fileno())
    sync(layout.inflight)
    sync(layout.manifests)
    # From here on, after any crash, ``recover`` tells by the draft and the staged files what is
    # ours.
    linked: list[Path] = []
    try:
        _link_files(layout, staged, linked)
        _link_manifest(layout, manifest.batch, draft)
    except LakeRefused:
        # Another writer was first: what is there is its own, what was linked here is not.
        for link in linked:
            link.unlink()
        draft.unlink(missing_ok=True)
        raise
    # Only now that the manifest is durable: until then the draft says what a crash has left.
    draft.unlink()
    _empty(layout.inflight)


def _link_files(layout: Layout, staged: Mapping[str, Path], linked: list[Path]) -> None:
    folders: set[Path] = set()
    for name, now in staged.items():
        place = layout.root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            # No rename: a link fails where a file is, and the staged file goes on proving that this
            # one is ours.
            os.link(now, place)
        except FileExistsError:
            raise _file_is_there(layout, name) from None
        linked.append(place)
        folders.update(parent for parent in place.parents if parent.is_relative_to(layout.root))
    # Before the manifest is linked: a power loss must leave no manifest of files that are not
    # there.
    for folder in folders:
        sync(folder)


def _link_manifest(layout: Layout, batch: int, draft: Path) -> None:
    _check_absent(layout, batch)
    try:
        os.link(draft, layout.manifest(batch))
    except FileExistsError:
        raise _batch_is_there(batch) from None
    except FileNotFoundError:
        raise LakeRefused(f"the draft of batch {batch} was removed: two writers?") from None
    sync(layout.manifests)


def _check_absent(layout: Layout, batch: int) -> None:
    if is_there(layout, batch):
        raise _batch_is_there(batch)


def _batch_is_there(batch: int) -> LakeRefused:
    return LakeRefused(f"batch {batch} is already in the lake: two writers?")


def _file_is_there(layout: Layout, name: str) -> LakeRefused:
    return LakeRefused(
        f"lake {layout.root} already holds {name}, which no manifest names: restore the missing"
        " manifests, or name another folder"
    )


def recover(layout: Layout) -> list[str]:
    """Remove the remains of a crash: linked files of a batch without a manifest, drafts, staged
    files. Call it under the lock, before the first batch. Returns the data files removed.
    """
    own = {
        (stat.st_dev, stat.st_ino) for file in layout.inflight.glob("*") if (stat := file.stat())
    }
    removed: list[str] = []
    drafts = sorted(layout.manifests.glob(f"*{_DRAFT}"))
    for draft in drafts:
        try:
            manifest = Manifest.from_text(draft.read_text())
        except DAMAGE:
            # It was not whole, so nothing was linked yet.
            continue
        if is_there(layout, manifest.batch):
            continue
        for name in manifest.paths:
            place = layout.root / name
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                stat = place.stat()
                if (stat.st_dev, stat.st_ino) in own:
                    place.unlink()
                    sync(place.parent)
                    removed.append(name)
    for left in (*drafts, *layout.manifests.glob(f"*{FOLDING}")):
        left.unlink(missing_ok=True)
    _empty(layout.inflight)
    return removed


def _empty(inflight: Path) -> None:
    """Remove every staged file. No task of a batch that counts writes when this is called."""
    for left in inflight.glob("*"):
        left.unlink(missing_ok=True)


def check_nothing_beyond(layout: Layout, reached: Mapping[LakePartition, int]) -> None:
    """Refuse a lake with files beyond its manifests: manifests were lost, or the folder is not a
    lake. Reads the names of all files, so it is for rare occasions. Raises LakeRefused.
    """
    for name in layout.data_files():
        if _reaches_beyond(name, reached):
            raise _not_ours(layout, name)


def recover_first_version(
    layout: Layout,
    reached: Mapping[LakePartition, int],
    end: Offset | None,
    cut_down: Offset | None,
) -> list[str]:
    """Remove the files that a crash of version 1 moved into place without a manifest.

    That version left no draft: only files that lie in the batch after the last manifest can be a
    crash's, and that batch writes them again. ``cut_down`` is where it ends, None if none was
    begun; ``end`` is where the last one ends, ``reached`` all that the lake has reached. Raises
    LakeRefused for any other file beyond that, and removes nothing then.
    """
    stray = [name for name in layout.data_files() if _reaches_beyond(name, reached)]
    for name in stray:
        if end is None or cut_down is None or not _lies_between(name, end, cut_down):
            raise _not_ours(layout, name)
    for name in stray:
        (layout.root / name).unlink()
    return stray


def _not_ours(layout: Layout, name: str) -> LakeRefused:
    return LakeRefused(
        f"lake {layout.root} holds {name}, which no manifest names and which is not from a"
        " crash: restore the missing manifests, or name another folder"
    )


def _reaches_beyond(name: str, reached: Mapping[LakePartition, int]) -> bool:
    """Whether a file has offsets that the lake has not reached by its manifests."""
    file = parse_file_name(name)
    if file is None:
        return True
    if file.topic_id is None:
        # Version 1 knew one topic of a name.
        reached_ends = [
            end
            for home, end in reached.items()
            if (home.topic, home.partition) == (file.topic, file.partition)
        ]
        return file.last >= max(reached_ends, default=0)
    return file.last >= reached.get(LakePartition(file.topic, file.topic_id, file.partition), 0)


def _lies_between(name: str, start: Offset, end: Offset) -> bool:
    """Whether a file of version 1 can be of the batch from ``start`` to ``end``."""
    file = parse_file_name(name)
    if file is None:
        return False
    begin = begins(start, end)
    return any(
        begin[home] <= file.first <= file.last < until
        for home, until in ends(end).items()
        if (home.topic, home.partition) == (file.topic, file.partition)
        and file.topic_id in (None, home.topic_id)
    )


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
