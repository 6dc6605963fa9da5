"""The identity of a log directory (``meta.properties``), and how its last process ended.

Owns both judgements, made before anything else of the directory is read. Loads nothing.
"""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass, replace
from enum import StrEnum

from tidelog.model.configs.workers import worker_of
from tidelog.runtime.disk import Directory, Disk, File, holder, said_of_holder
from tidelog.runtime.seams import Seams
from tidelog.storage import names
from tidelog.storage.checkpoints import (
    DamagedFile,
    MetaProperties,
    decode_meta_properties,
    decode_properties,
    encode_meta_properties,
)
from tidelog.storage.foreign import log_directory_within


class LastStop(StrEnum):
    """How the previous process of this directory ended; ``NEW`` for a fresh directory."""

    NEW = "new"
    CLEAN = "clean"
    CRASHED = "crashed"
    UNCLEAN = "unclean"


@dataclass(frozen=True, slots=True)
class DirectoryRefused:
    """Why a directory cannot be used: one sentence that says what to do."""

    reason: str


@dataclass(frozen=True, slots=True)
class Claimed:
    """A locked directory that belongs to this server."""

    lock: File
    meta: MetaProperties
    last_stop: LastStop
    names: Directory
    """The directory, open for its syncs."""
    ran_synced: bool


def claim(
    seams: Seams, path: str, cluster_id: str, node_id: int, boot_id: str, founded_as: str = ""
) -> Claimed | DirectoryRefused:
    """Lock a directory and read its identity. OSError as the disk gives it: then it is unlocked.

    ``founded_as``: see ``renamed``.
    """
    disk = seams.disk
    disk.make_directory(path)
    lock = disk.lock(f"{path}/{names.LOCK}")
    if lock is None:
        return _in_use(disk, path)
    with contextlib.ExitStack() as on_failure:
        # A process goes on without this directory; its next start must not find it locked.
        on_failure.callback(lock.close)
        meta = identify(seams, path, cluster_id, node_id, founded_as)
        if isinstance(meta, DirectoryRefused):
            return meta
        properties, last_stop = meta
        directory = disk.open_directory(path)
        on_failure.callback(directory.close)
        # Files that a killed process created may have no durable names yet.
        directory.sync()
        ran_synced = False
        if last_stop is not LastStop.NEW:
            last_stop, ran_synced = how_it_ended(disk, path, boot_id)
        on_failure.pop_all()
    return Claimed(lock, properties, last_stop, directory, ran_synced)


def read_identity(disk: Disk, path: str, node_id: int) -> MetaProperties | DirectoryRefused | None:
    """Read the identity of a directory before a start does anything; None for a fresh one.

    The directory is created if need be, locked, and unlocked again. OSError as the disk gives it.
    """
    disk.make_directory(path)
    lock = disk.lock(f"{path}/{names.LOCK}")
    if lock is None:
        return _in_use(disk, path)
    try:
        return written_identity(disk, path, node_id)
    finally:
        lock.close()


def _in_use(disk: Disk, path: str) -> DirectoryRefused:
    process, way_out = said_of_holder(holder(disk, f"{path}/{names.LOCK}"))
    return DirectoryRefused(
        f"{path} is in use by another server{process}: "
        f"{way_out}, or choose another directory (log.dirs)"
    )


def written_identity(
    disk: Disk, path: str, node_id: int
) -> MetaProperties | DirectoryRefused | None:
    """Return what ``meta.properties`` says, None for a fresh directory. Locks nothing. OSError as
    the disk gives it.

    Folders of the other workers of a machine prove nothing against a fresh directory: they start
    first when the disk of worker 0 was replaced, or its own start fails.
    """
    file = f"{path}/{names.META_PROPERTIES}"
    is_new = not disk.exists(file)
    workers = _folders_of_workers(disk, path, node_id) if is_new else ()
    inner = log_directory_within(disk, path, is_new=is_new, besides=workers)
    if inner is not None:
        return DirectoryRefused(
            f"{inner} is itself a log directory, in log.dirs={path}: set log.dirs={inner}, or, if "
            f"{path} is meant, move {inner} out of it"
        )
    if is_new:
        if not _has_replicas(disk, path):
            return None
        return DirectoryRefused(
            f"{path} has replicas and no {names.META_PROPERTIES}: check that log.dirs names this "
            "server's directory, then restore the file from a backup, or move the replicas away"
        )
    try:
        meta = decode_meta_properties(disk.read(file))
    except DamagedFile as error:
        return DirectoryRefused(f"{file} cannot be read ({error}): restore it from a backup")
    if meta.node_id != node_id:
        return DirectoryRefused(
            f"{path} belongs to node {meta.node_id}, this server is node {node_id}: "
            "check node.id and log.dirs"
        )
    return meta


def _folders_of_workers(disk: Disk, path: str, node_id: int) -> list[str]:
    """Return the folders ``worker.K`` that belong to node ``node_id`` + K."""
    return [
        name
        for name in disk.list(path)
        if (index := worker_of(name)) and _is_of_node(disk, f"{path}/{name}", node_id + index)
    ]


def _is_of_node(disk: Disk, path: str, node_id: int) -> bool:
    try:
        meta = decode_meta_properties(disk.read(f"{path}/{names.META_PROPERTIES}"))
    except (FileNotFoundError, NotADirectoryError, PermissionError, DamagedFile):
        return False
    return meta.node_id == node_id


def _sync_names_above(disk: Disk, path: str) -> None:
    """Make the names of a fresh directory and of all above it durable."""
    while path.strip("/") and path != ".":
        path = path.rpartition("/")[0] or ("/" if path.startswith("/") else ".")
        try:
            disk.sync_directory(path)
        except PermissionError:
            return  # not readable for this server, so not created by it


def identify(
    seams: Seams, path: str, cluster_id: str, node_id: int, founded_as: str = ""
) -> tuple[MetaProperties, LastStop] | DirectoryRefused:
    """Read ``meta.properties``, or write it for a fresh directory. OSError as the disk gives it."""
    meta = written_identity(seams.disk, path, node_id)
    if isinstance(meta, DirectoryRefused):
        return meta
    if meta is None:
        meta = MetaProperties(cluster_id, node_id, uuid.UUID(int=seams.new_uuid().int))
        _sync_names_above(seams.disk, path)
        seams.disk.replace(f"{path}/{names.META_PROPERTIES}", encode_meta_properties(meta))
        return meta, LastStop.NEW
    if meta.cluster_id != cluster_id and meta.cluster_id == founded_as:
        meta = renamed(seams.disk, path, meta, cluster_id) or meta
    if meta.cluster_id != cluster_id:
        return DirectoryRefused(
            f"{path} belongs to cluster {meta.cluster_id}, this server to {cluster_id}: "
            "check log.dirs"
        )
    return meta, LastStop.CRASHED


def _has_replicas(disk: Disk, path: str) -> bool:
    """Whether a directory is not fresh, although it has no ``meta.properties``."""
    folders = (names.parse_directory(name) for name in disk.list(path))
    return any(folder is not None and not folder.ending for folder in folders)


def renamed(disk: Disk, path: str, meta: MetaProperties, cluster_id: str) -> MetaProperties | None:
    """Give a directory the right id of its cluster; None, and no change, if it has any folder
    of its own.

    Only where the controller says that it gave the other id itself, to new directories, before it
    knew that its store was lost (docs/decisions/0085). OSError as the disk gives it.
    """
    own = {*disk.list(path)}.difference(_folders_of_workers(disk, path, meta.node_id))
    if any(disk.is_directory(f"{path}/{name}") for name in own):
        return None
    made = replace(meta, cluster_id=cluster_id)
    disk.replace(f"{path}/{names.META_PROPERTIES}", encode_meta_properties(made))
    return made


def how_it_ended(disk: Disk, path: str, boot_id: str) -> tuple[LastStop, bool]:
    """Return how the last process ended, and whether it ran with ``log.durability=sync``."""
    try:
        fields = decode_properties(disk.read(f"{path}/{names.LIFE}"))
    except (FileNotFoundError, DamagedFile):
        fields = {}
    synced = fields.get("log.durability") == "sync"
    if disk.exists(f"{path}/{names.CLEAN_SHUTDOWN}"):
        return LastStop.CLEAN, synced
    # An unknown boot may be another one.
    same_boot = boot_id != "" and fields.get("boot.id") == boot_id
    return (LastStop.CRASHED if same_boot else LastStop.UNCLEAN), synced
