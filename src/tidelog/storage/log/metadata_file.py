"""``partition.metadata`` of one log: the topic id and the configurations that a replica keeps.

Owns reading and writing it. Not its format: see `storage.checkpoints`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

from tidelog.model.work import Work
from tidelog.storage import names
from tidelog.storage.checkpoints import (
    Created,
    DamagedFile,
    KeptConfigs,
    PartitionMetadata,
    decode_partition_metadata,
    encode_partition_metadata,
)
from tidelog.storage.log.recovery import Ending
from tidelog.storage.log.service import begins_damaged, write_failed
from tidelog.storage.log.state import LogState
from tidelog.storage.log.whole_files import write_whole
from tidelog.storage.segments.resources import Resources

ADOPTED = f"{names.PARTITION_METADATA}.adopted{names.TEMPORARY}"
"""The bytes of a topic id that a replica adopts, until they are durable; a start removes it."""


def set_metadata(log: LogState, metadata: PartitionMetadata, *, durable: bool = True) -> None:
    """Write ``partition.metadata``; a new log's becomes durable with its first sync."""
    content = encode_partition_metadata(metadata)
    if durable:
        log.resources.disk.replace(f"{log.path}/{names.PARTITION_METADATA}", content)
    else:
        log.write_file(names.PARTITION_METADATA, content)
    log.metadata = metadata


def adopt_metadata(log: LogState, metadata: PartitionMetadata) -> None:
    """Give a replica the topic id or partition epoch that its file lacks. OSError as usual.

    The bytes get the file's name in ``syncing_metadata``: a power loss must not leave a torn file
    beside records that are durable, for that is damage.
    """
    content = encode_partition_metadata(metadata)
    write_whole(log.resources.disk, f"{log.path}/{ADOPTED}", content)
    log.metadata = log.adopted = metadata


def syncing_metadata(log: LogState) -> Work[None]:
    """Make durable what ``adopt_metadata`` wrote, in pieces. OSError as usual.

    Nothing of a log that was deleted meanwhile: its directory has another name.
    """
    if log.closed:
        return
    files, disk = log.resources.files, log.resources.disk
    draft, path = f"{log.path}/{ADOPTED}", f"{log.path}/{names.PARTITION_METADATA}"
    yield from files.syncing(files.pin(draft))
    files.forget(draft)
    if log.metadata is log.adopted:
        files.forget(path)
        disk.rename(draft, path)
    else:
        # ``keeping_configs`` came between: its file has the same, and newer configurations.
        disk.remove(draft)
    log.adopted = None
    yield from log.dirty.syncing_names(files)


def keeping_configs(log: LogState, configs: KeptConfigs) -> Work[bool]:
    """Let the replica keep its topic's own configurations, in pieces; return whether they changed.

    The new bytes are durable before they have the file's name, because the former ones are: a power
    loss must not tear the topic id. The name is durable with the next sync. A replica without a
    topic id has no file to keep them in; on a full disk the former ones stay.
    """
    metadata = log.metadata
    if metadata is None or metadata.configs == configs or log.failed or log.closed:
        return False
    return (yield from _rewriting(log, metadata, dataclasses.replace(metadata, configs=configs)))


def naming(log: LogState, new_created: Callable[[], Created]) -> Work[bool]:
    """Let a replica from before decision 0045 have a ``created``, durably, in pieces: another
    directory can name it then. False if that fails."""
    metadata = log.metadata
    if metadata is None or log.failed or log.closed:
        return False
    if metadata.created is None:
        changed = dataclasses.replace(metadata, created=new_created())
        if not (yield from _rewriting(log, metadata, changed)):
            return False
        yield from log.dirty.syncing_names(log.resources.files)
    return True


def _rewriting(
    log: LogState, metadata: PartitionMetadata, changed: PartitionMetadata
) -> Work[bool]:
    path = f"{log.path}/{names.PARTITION_METADATA}"
    draft = path + names.TEMPORARY
    content = encode_partition_metadata(changed)
    try:
        yield partial(write_whole, log.resources.disk, draft, content, synced=True)
        if log.metadata is not metadata or log.failed or log.closed:
            return False
        log.resources.files.forget(path)
        log.resources.disk.rename(draft, path)
    except OSError as error:
        write_failed(log, error)
        return False
    log.dirty.files.add(path)
    log.dirty.note_names()
    log.metadata = changed
    return True


def read_metadata(
    resources: Resources, directory: str
) -> tuple[PartitionMetadata | None, DamagedFile | None]:
    """Return what ``partition.metadata`` says, None without it, or why it cannot be read."""
    try:
        return decode_partition_metadata(
            resources.disk.read(f"{directory}/{names.PARTITION_METADATA}")
        ), None
    except FileNotFoundError:
        return None, None
    except DamagedFile as error:
        return None, error


def judge_metadata(resources: Resources, log: LogState, ending: Ending, error: DamagedFile) -> None:
    """Decide whether an unreadable ``partition.metadata`` was torn by a power loss, or damaged."""
    path = f"{log.path}/{names.PARTITION_METADATA}"
    if ending.unsynced_may_be_gone and ending.recovery_point <= log.start_offset:
        # Torn by the power loss: it becomes durable with the log's first sync.
        resources.disk.remove(path)
    else:
        begins_damaged(log, f"{path}: {error}")
