"""The checks before a server starts anything, so that a refused start has changed nothing.

Owns the order of the checks, and none of their rules. The code that uses a resource checks again,
because the resource may be taken in the meantime.

| checked | refused when |
|---|---|
| log directories | one is of another server or node, two are of two clusters, none is usable |
| the SQLite store | another controller has it open |
| listeners, then the metrics address | one cannot be listened on |
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace

from tidelog.cli.refusal import Failed
from tidelog.model.configs.addresses import joined
from tidelog.model.configs.server import ServerConfigs
from tidelog.network import ports
from tidelog.runtime.disk import Disk
from tidelog.storage.directory.identity import DirectoryRefused, read_identity

SQLITE = "sqlite:"

LOOKUP_S = 5.0
"""How long the lookup of this machine's name may take."""


def check(configs: ServerConfigs, disk: Disk) -> str | None:
    """Return the id of the cluster that the log directories belong to; None while they are new.

    Blocks: call it in a thread. Raises Failed.
    """
    cluster_id = _cluster_of(configs, disk) if configs.is_broker else None
    if configs.is_controller and configs.metadata_store.startswith(SQLITE):
        # Imported here: a process with only the broker role has no store.
        from tidelog.metadata.sqlite import why_locked

        if (why := why_locked(disk, configs.metadata_store.removeprefix(SQLITE))) is not None:
            raise Failed(why)
    for listener in configs.listeners:
        if (error := ports.why_not(listener.host, listener.port)) is not None:
            raise Failed(ports.sentence(listener.name, listener.host, listener.port, error))
    if configs.metrics_address is not None:
        host, port = configs.metrics_address
        if (error := ports.why_not(host, port)) is not None:
            address = joined(host, port)
            raise Failed(f"metrics_port {address} cannot be used: {error.strerror or error}")
    return cluster_id


def _cluster_of(configs: ServerConfigs, disk: Disk) -> str | None:
    clusters: dict[str, str] = {}
    unusable = []
    for path in configs.log_dirs:
        try:
            meta = read_identity(disk, path, configs.node_id)
        except OSError as error:
            # A broker starts with its other directories.
            unusable.append(f"log directory {path} cannot be used: {error.strerror or error}")
            continue
        if isinstance(meta, DirectoryRefused):
            raise Failed(meta.reason)
        if meta is not None:
            clusters.setdefault(meta.cluster_id, path)
    if len(unusable) == len(configs.log_dirs):
        raise Failed("; ".join(unusable))
    if len(clusters) > 1:
        both = ", ".join(f"{path} belongs to cluster {one}" for one, path in clusters.items())
        raise Failed(f"{both}: check log.dirs")
    return next(iter(clusters), None)


async def with_host_name(configs: ServerConfigs) -> tuple[ServerConfigs, str | None]:
    """Replace wildcard addresses that would be advertised to clients by this machine's name.

    Returns the configuration, and the name, or None when no listener needs it.
    """
    if all(advertised_listener.host for advertised_listener in configs.advertised_listeners):
        return configs, None
    name = await _host_name()
    named = (replace(x, host=x.host or name) for x in configs.advertised_listeners)
    return replace(configs, advertised_listeners=tuple(named)), name


async def _host_name() -> str:
    """Return this machine's name; ``localhost`` when the name does not resolve even here."""
    name = socket.gethostname()
    try:
        async with asyncio.timeout(LOOKUP_S):
            await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError):
        return "localhost"
    return name
