"""What a directory is by its content, where its name alone proves nothing.

Owns the proofs: a folder named ``broker-1`` may be partition 1 of a topic "broker", or a whole log
directory with a cluster's data. Not what follows from them: see `identity` and `log_directory`.
"""

from __future__ import annotations

from collections.abc import Collection

from tidelog.runtime.disk import Disk
from tidelog.storage import names


def strange_in(disk: Disk, path: str) -> str | None:
    """Return a name that no partition's directory has, None where all could be a partition's.

    OSError as the disk gives it.
    """
    return next((name for name in disk.list(path) if not names.is_of_partition(name)), None)


def why_kept(disk: Disk, path: str) -> str | None:
    """Return one clause that says why a directory must not be removed; None when it may be.

    The name says what it was; its content must not say otherwise. ``partition.metadata`` proves
    that it was a partition; then a file beside it is no reason, but a folder is one.
    """
    entries = disk.list(path)
    strange = [name for name in entries if not names.is_of_partition(name)]
    if names.PARTITION_METADATA in entries:
        strange = [name for name in strange if disk.is_directory(f"{path}/{name}")]
    return f"it has {strange[0]}, which no partition has" if strange else None


def is_log_directory(disk: Disk, path: str) -> bool:
    """Whether a directory has a log directory's own files, or directories of partitions."""
    entries = disk.list(path)
    if not names.OF_LOG_DIRECTORIES.isdisjoint(entries):
        return True
    strange = (name for name in entries if not names.is_of_partition(name))
    return any(_is_partition(disk, path, name) for name in strange)


def log_directory_within(
    disk: Disk, path: str, *, is_new: bool, besides: Collection[str] = ()
) -> str | None:
    """Return a folder in a log directory that is itself one; None for none.

    A directory of a known identity keeps folders beside its partitions, if their names are not
    those of partitions; in a new one (``is_new``) each folder counts, ``besides`` those that are
    known to be there. OSError as the disk gives it.
    """
    for name in disk.list(path):
        parsed = names.parse_directory(name)
        is_known = parsed is None and (not is_new or name in besides)
        if is_known or (parsed is not None and parsed.ending):
            continue
        inner = f"{path}/{name}"
        try:
            if disk.is_directory(inner) and is_log_directory(disk, inner):
                return inner
        except PermissionError:
            if parsed is not None:
                raise
            # Such as ``lost+found``: not this server's.
    return None


def why_other_data(disk: Disk, path: str) -> str | None:
    """Return one clause that says which server's log directory a folder is; None for another one.

    Asked by those that keep folders of their own in it. OSError as the disk gives it.
    """
    entries = disk.list(path)
    own = next((name for name in entries if name in names.OF_LOG_DIRECTORIES), None)
    own = own or next((x for x in entries if _is_partition(disk, path, x, of_own=True)), None)
    return f"it has {own}" if own else None


def _is_partition(disk: Disk, path: str, name: str, *, of_own: bool = False) -> bool:
    """Whether a directory is a partition's by name; ``of_own``: and by its content."""
    parsed = names.parse_directory(name)
    inner = f"{path}/{name}"
    if parsed is None or not disk.is_directory(inner):
        return False
    if not of_own:
        return True
    entries = disk.list(inner)
    return bool(entries) and all(map(names.is_of_partition, entries))
