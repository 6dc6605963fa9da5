"""What is checked before the workers of a machine start, and before they are restarted.

Owns the order of the checks and the lock that keeps a second supervisor out. Not what one process
checks before its start: see ``preflight``.

| checked | when | refused when |
|---|---|---|
| the log directories of the file | the start | another supervisor has one |
| the ports of all workers | the start | one cannot be listened on |
| the file | ``--check``, SIGHUP | a process refuses it, or its directories or secret |
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence

from tidelog.cli.cluster_secret import why_no_secret
from tidelog.cli.refusal import Failed
from tidelog.model.configs.server import ServerConfigs
from tidelog.model.configs.workers import of_workers
from tidelog.network import ports
from tidelog.runtime.disk import Disk, File, holder, said_of_holder
from tidelog.storage.directory.identity import DirectoryRefused, written_identity
from tidelog.storage.names import SUPERVISOR_LOCK

ACCEPTED = "accepted node="
"""How the line of ``--check`` begins; the id of the file follows."""


def workers_of(whole: ServerConfigs, workers: int | None) -> list[ServerConfigs]:
    """Return the configuration of each worker of an accepted file; of a file alone its own."""
    if workers is None:
        return [whole]
    made = of_workers(whole.texts, workers, socket.gethostname())
    return [one for one in made if isinstance(one, ServerConfigs)]


@contextlib.contextmanager
def only_supervisor(log_dirs: Sequence[str], disk: Disk) -> Iterator[None]:
    """Hold the log directories of a file for one supervisor. Raises Failed if another has one.

    A directory that cannot be locked, on a disk that fails, is left out: the workers start with the
    others, and say what is wrong with it.
    """
    held: list[File] = []
    try:
        for path in log_dirs:
            lock = f"{path}/{SUPERVISOR_LOCK}"
            try:
                disk.make_directory(path)
                file = disk.lock(lock)
            except OSError:
                continue
            if file is None:
                process, way_out = said_of_holder(holder(disk, lock))
                raise Failed(
                    f"another `tidelog server --workers` uses {path}{process}: {way_out}, or "
                    "choose another directory (log.dirs)"
                )
            held.append(file)
        yield
    finally:
        for file in held:
            file.close()


def why_not_listening(whole: ServerConfigs, workers: int) -> str | None:
    """Return one line that names the first worker whose port is taken; None for none."""
    for worker in workers_of(whole, workers):
        for one in worker.listeners:
            if (error := ports.why_not(one.host, one.port)) is not None:
                what = ports.sentence(one.name, one.host, one.port, error)
                return f"broker {worker.node_id}: {what} (no process was started)"
    return None


def check_file(whole: ServerConfigs, workers: int | None, disk: Disk) -> None:
    """Check what an accepted file names, beside processes that run; changes nothing. Raises
    Failed."""
    if (why := why_no_secret(whole)) is not None:
        raise Failed(why)
    for one in workers_of(whole, workers):
        for path in one.log_dirs if one.is_broker else ():
            # A directory that is missing is created; with one that fails a broker starts, too.
            with contextlib.suppress(OSError):
                meta = written_identity(disk, path, one.node_id)
                if isinstance(meta, DirectoryRefused):
                    raise Failed(meta.reason)
