"""Closing many logs of one directory, the syncs of many side by side.

Owns how many at a time; what a stop leaves of one log is ``logfiles``'s.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Executor

from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.syncing import PendingSync, run_all

CLOSED_AT_ONCE = 64
"""Logs whose files are synced in one go when the directory is closed; each has up to six open."""

CLOSING_THREADS = 8


def close_all(open_logs: Iterable[PartitionLog], threads: Executor | None) -> bool:
    """Close the logs; whether all that are sound closed well."""
    clean = True
    logs = [log for log in open_logs if not log.closed]
    for begin in range(0, len(logs), CLOSED_AT_ONCE):
        some = logs[begin : begin + CLOSED_AT_ONCE]
        written = [(log, log.write_before_stop()) for log in some]
        pendings = [each for _, each in written if isinstance(each, PendingSync)]
        if threads is None:
            run_all(pendings)
        else:
            shares = [pendings[at::CLOSING_THREADS] for at in range(CLOSING_THREADS)]
            list(threads.map(run_all, shares))
        for log, pending in written:
            closed_well = log.finish_stop(pending)
            is_noted = log.damaged is not None and not log.damage_unsynced
            clean = (closed_well or is_noted) and clean
    return clean
