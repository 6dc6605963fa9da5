"""The cluster secret of a starting process, and the secret files that tidelog creates.

Owns the rule of a start:

| the process | its secret |
|---|---|
| has ``cluster.secret.file`` | the content of the file |
| both roles, SQLite store, no file named | its own, created in the first usable log directory |
| the same, and other brokers are registered in the store | as in the next row: they lack it |
| any other without a file | none: every listener must be on a loopback address |
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Sequence
from dataclasses import replace

from tidelog.model.addresses import is_loopback, why_secret_first
from tidelog.model.configs.server import ServerConfigs
from tidelog.model.configs.types import InvalidConfig
from tidelog.runtime.cluster_secret import ClusterSecret, SecretRefused
from tidelog.runtime.seams import Seams

logger = logging.getLogger(__name__)

SQLITE = "sqlite:"
FILE_NAME = "cluster.secret"

OTHERS = 0o007
"""The bits of a file's mode that give other users of the machine access."""


def secret_for(configs: ServerConfigs, seams: Seams) -> ClusterSecret | None:
    """Return the secret of a starting process. Raises SecretRefused with one line."""
    path = configs.cluster_secret_file
    path = path or own_secret(configs)
    if not path:
        if (why := why_exposed(configs)) is not None:
            raise SecretRefused(why)
        logger.warning(
            "there is no cluster secret: every user of this machine can command this process; "
            "see docs/operating/security.md"
        )
        return None
    optional = configs.cluster_secret_optional
    secret = ClusterSecret(
        seams.disk, path, seams.clock, seams.random, optional, why_unfit=why_open_to_others
    )
    if optional:
        logger.warning(
            "cluster.secret.optional is true: any client of a listener can command this process; "
            "set it to false when every process of the cluster has the secret"
        )
    return secret


def with_secret(worker: ServerConfigs, whole: ServerConfigs) -> ServerConfigs:
    """Return the configuration of a worker with the secret that all workers of a file share.

    It is that of the file, or the one that a process with the file alone would create. Raises
    SecretRefused.
    """
    path = own_secret(whole)
    return worker if path is None else replace(worker, cluster_secret_file=path)


def why_no_secret(configs: ServerConfigs) -> str | None:
    """Return why a start would be refused for its secret, None for no reason. Creates nothing."""
    if configs.cluster_secret_file:
        return why_open_to_others(configs.cluster_secret_file)
    if _is_all_of_a_cluster(configs):
        return None
    return why_exposed(configs)


def refused_by_file(configs: ServerConfigs) -> InvalidConfig | None:
    """Return the refusal of a file that lacks a secret whatever this machine has; None for none."""
    if configs.cluster_secret_file or _is_all_of_a_cluster(configs):
        return None
    why = why_exposed(configs)
    return None if why is None else InvalidConfig("cluster.secret.file", why)


def why_exposed(configs: ServerConfigs) -> str | None:
    """Return the line that refuses the first listener that others reach without a secret."""
    for listener in configs.listeners:
        if not is_loopback(listener.host):
            return why_secret_first(listener.name, listener.host, listener.port)
    return None


def why_open_to_others(path: str) -> str | None:
    """Return why a secret file must not be used: other users can read it, or it is missing."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return (
            f"cluster.secret.file: {path} cannot be read: {error.strerror or error}; all processes "
            "of a cluster have the same secret: copy it from another one"
        )
    return (
        f"every user of this machine can read {path}: chmod 600 {path}" if mode & OTHERS else None
    )


def _is_all_of_a_cluster(configs: ServerConfigs) -> bool:
    """Whether this process can be a whole cluster: no other process needs its secret."""
    embedded = configs.metadata_store.startswith(SQLITE)
    return configs.is_broker and configs.is_controller and embedded


def own_secret(configs: ServerConfigs) -> str | None:
    """Return the file of the secret that this process created, now or earlier; None for none.

    Raises SecretRefused.

    The store of a version without secrets may have other brokers: a secret of this process's own
    would lock them out.
    """
    if configs.cluster_secret_file or not _is_all_of_a_cluster(configs):
        return None
    for folder in configs.log_dirs:
        path = os.path.join(folder, FILE_NAME)
        if os.path.exists(path):
            return path
    # Imported here: a process with only the broker role has no store.
    from tidelog.metadata import layout
    from tidelog.metadata.sqlite import names_below

    store = configs.metadata_store.removeprefix(SQLITE)
    brokers = names_below(store, layout.BROKERS)
    others = None if brokers is None else sorted(set(brokers) - {str(configs.node_id)})
    if others:
        logger.warning(
            "brokers %s are registered in %s, so this process creates no cluster secret: "
            "give all processes the same cluster.secret.file",
            ", ".join(others),
            store,
        )
    return _make_in_one_of(configs.log_dirs) if others == [] else None


def _make_in_one_of(folders: Sequence[str]) -> str:
    """Create a secret in the first writable folder: a broker starts with the disks that work.

    Raises SecretRefused, with the reason of the first folder, when none does.
    """
    refused: SecretRefused | None = None
    for folder in folders:
        try:
            return make_secret(folder)
        except SecretRefused as error:
            refused = refused or error
    assert refused is not None
    raise refused


def make_secret(folder: str) -> str:
    """Create a secret of 256 random bits in ``folder`` unless there is one; return the file's path.

    The file is created with mode 600. Raises SecretRefused.
    """
    path = os.path.join(folder, FILE_NAME)
    if os.path.exists(path):
        return path
    temporary = f"{path}.tmp"
    try:
        os.makedirs(folder, mode=0o750, exist_ok=True)
    except OSError as error:
        why = error.strerror or error
        raise SecretRefused(f"log directory {folder} cannot be used: {why}") from error
    try:
        if os.path.exists(temporary):
            # Left by a start that was killed: no process has used it.
            os.unlink(temporary)
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, secrets.token_hex(32).encode() + b"\n")
            os.fsync(file)
        finally:
            os.close(file)
        os.rename(temporary, path)
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        why = error.strerror or error
        raise SecretRefused(f"the cluster secret {path} cannot be created: {why}") from error
    return path
