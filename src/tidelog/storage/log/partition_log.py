"""One partition's log, as brokers use it: its state, and the list of what can be done with it.

Owns the list. Not the work: each function is in the module that it is named from, and takes the
state (`state.LogState`) as its first argument. Used by one thread (the event loop), except for what
is handed to other threads as a value or as a call of ``Pieces``. Knows no leader, replica or wire.

Ordering rules: bytes are in the file before their offsets are given out; indexes and snapshots may
lag (recovery rebuilds them); the recovery point never claims more than a sync has returned for.

| state                | append                      | read                        |
|----------------------|-----------------------------|-----------------------------|
| in service           | yes                         | yes                         |
| disk full            | KAFKA_STORAGE_ERROR, heals  | yes                         |
| ``failed`` (fatal)   | KAFKA_STORAGE_ERROR         | as far as the disk gives it |
| ``damaged``          | KAFKA_STORAGE_ERROR         | KAFKA_STORAGE_ERROR         |
| cut (``change``)     | KAFKA_STORAGE_ERROR, passes | yes, below the cut          |
"""

from __future__ import annotations

from tidelog.storage.log import (
    appending,
    closing,
    cutting,
    epoch_writing,
    expiring,
    metadata_file,
    reading,
    rolling,
    syncing,
    time_lookup,
)
from tidelog.storage.log.state import LogState


class PartitionLog(LogState):
    """The log of one replica. Made by ``opening.create_log`` and ``opening.open_log``.

    The functions are attributes of the class, not wrapped: an append has no call in addition.
    """

    append_as_leader = appending.append_as_leader
    append_as_follower = appending.append_as_follower
    inspect = appending.inspect

    begin_epoch = epoch_writing.begin_epoch
    forget_empty_epoch = epoch_writing.forget_empty_epoch
    end_offset_for_epoch = epoch_writing.end_offset_for_epoch
    epochs_to_write = epoch_writing.epochs_to_write
    epochs_written = epoch_writing.epochs_written

    read = reading.read
    search_time = time_lookup.search_time
    search_newest = time_lookup.search_newest

    roll = rolling.roll
    roll_overdue = rolling.roll_overdue
    syncing_before_roll = rolling.syncing_before_roll

    unsynced = syncing.unsynced
    synced = syncing.synced
    sync = syncing.sync

    set_metadata = metadata_file.set_metadata
    adopt_metadata = metadata_file.adopt_metadata
    syncing_metadata = metadata_file.syncing_metadata
    keeping_configs = metadata_file.keeping_configs

    advance_start = expiring.advance_start
    housekeeping = expiring.housekeeping

    truncation = cutting.truncation
    restart = cutting.restart

    close = closing.close
    forget_files = closing.forget_files
