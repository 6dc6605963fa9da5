"""What others have of a development cluster's folder and ports, checked before any child starts.

Owns the checks and their lines. Not what a child checks itself: see ``preflight``.

| checked | held by |
|---|---|
| the log directory of each broker | a child that was started by hand, or that has yet to end |
| the SQLite store | such a child |
| the port of each broker | any process |
| the folder itself | a server whose log directory it is, running or not |
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tidelog.cli.up_files import HOST, ClusterPlan
from tidelog.metadata.sqlite import LOCK_ENDING
from tidelog.network import ports
from tidelog.runtime.disk import Disk, holder
from tidelog.storage.foreign import why_other_data
from tidelog.storage.names import LOCK


def why_held(plan: ClusterPlan, disk: Disk) -> str | None:
    """Return one line that names all that is held, its processes and the way out; None for none.

    It creates nothing, and what it locks it unlocks again.
    """
    held = {path: holder(disk, lock) for path, lock in _locks(plan) if _is_locked(disk, lock)}
    if held:
        what = ", ".join(
            f"{path}{f' by process {pid}' if pid else ''}" for path, pid in held.items()
        )
        pids = sorted({pid for pid in held.values() if pid})
        way_out = f"end it with `kill {' '.join(map(str, pids))}`" if pids else "stop its process"
        return (
            f"in use outside this `tidelog up`: {what}; {way_out} and start again, or use another "
            "--data (no process was started)"
        )
    for member in plan.members():
        if member.is_broker and (error := ports.why_not(HOST, member.port)) is not None:
            what = ports.sentence(f"broker {member.node_id} PLAINTEXT", HOST, member.port, error)
            return f"{what}; use another --port (no process was started)"
    return None


def why_not_folder(folder: Path, disk: Disk) -> str | None:
    """Return one line if a folder has a server's data: its next start would find ``broker-1`` among
    its partitions. Changes nothing."""
    try:
        why = why_other_data(disk, str(folder))
    except OSError as error:
        return f"the data folder {folder} cannot be read: {error.strerror}"
    if why is None:
        return None
    return f"{folder} is the log directory of a server: {why}; use another --data"


def _locks(plan: ClusterPlan) -> Iterator[tuple[Path, str]]:
    """Yield each path that one process of the plan holds alone, and its lock file."""
    if plan.store == "sqlite":
        store = plan.folder / "metadata.sqlite"
        yield store, f"{store}{LOCK_ENDING}"
    for member in plan.members():
        if member.is_broker:
            path = plan.folder / f"broker-{member.node_id}"
            yield path, str(path / LOCK)


def _is_locked(disk: Disk, lock: str) -> bool:
    """Whether another process has locked a file. Any other trouble is left to the child to name."""
    try:
        if not disk.exists(lock):
            return False
        held = disk.lock(lock)
    except OSError:
        return False
    if held is None:
        return True
    held.close()
    return False
