"""Cordons: which brokers get no new replicas (KIP-1066), and the refusals that follow.

Owns how ``cordoned.log.dirs`` of a broker is read: its dynamic value, otherwise that of its file,
which its registration reports. A broker whose log directories are all cordoned is closed: creation,
growth and reassignments give it no replica that it does not have; the replicas that it has stay.
Which directory of an open broker a replica goes to is the broker's choice.

| value | log directories | the broker |
|---|---|---|
| not set, or empty | any | is open |
| ``*`` | any, also unknown | is closed |
| a list | known, and all in the list | is closed |
| a list | unknown (not alive, or registered by older code), or another one is there | is open |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidelog.controller.decisions.cluster import ClusterState
from tidelog.model.configs.broker import BROKER
from tidelog.model.configs.cordoned import (
    CORDONED_LOG_DIRS,
    closes,
    cordoned_among,
    unknown_entries,
)
from tidelog.model.configs.types import parse


def cordoned_entries(cluster: ClusterState, broker: int) -> Sequence[str]:
    """Return the value of ``cordoned.log.dirs`` that is in effect for a broker."""
    own = cluster.broker_configs.get(str(broker), {}).get(CORDONED_LOG_DIRS)
    entries = None if own is None else parse(BROKER[CORDONED_LOG_DIRS], own)
    if isinstance(entries, tuple):
        return entries
    # Not set, or a value that an old tool wrote into the store and that cannot be read.
    node = cluster.brokers.get(broker)
    return () if node is None else node.cordoned_log_dirs


def log_dirs(cluster: ClusterState, broker: int) -> Sequence[str]:
    """Return the log directories of a broker; none if they are unknown."""
    node = cluster.brokers.get(broker)
    return () if node is None else node.log_dirs


def cordoned_dirs(cluster: ClusterState, broker: int) -> list[str]:
    """Return the cordoned ones of a broker's log directories, as far as these are known."""
    return cordoned_among(cordoned_entries(cluster, broker), log_dirs(cluster, broker))


def is_closed(cluster: ClusterState, broker: int) -> bool:
    """Return whether a broker gets no new replicas."""
    return closes(cordoned_entries(cluster, broker), log_dirs(cluster, broker))


def closed_brokers(cluster: ClusterState) -> set[int]:
    """Return the brokers that get no new replicas, registered or not. O(brokers)."""
    configured = {int(name) for name in cluster.broker_configs if name.isdecimal()}
    return {x for x in configured.union(cluster.brokers) if is_closed(cluster, x)}


def open_racks(cluster: ClusterState) -> dict[int, str | None]:
    """Return the registered brokers that may get new replicas, with their racks."""
    return {
        broker: node.rack
        for broker, node in cluster.brokers.items()
        if not is_closed(cluster, broker)
    }


def why_cordoned(broker: int) -> str:
    """Return the clause that says why a broker gets no new replica."""
    return f"broker {broker} gets no new replicas: its log directories are cordoned"


def why_not_set(cluster: ClusterState, name: str, configs: Mapping[str, str]) -> str | None:
    """Return why a broker cannot have this value of ``cordoned.log.dirs``, or None.

    Its entries must be log directories of the broker. Those that are stored already may stay: a
    directory may have been taken out of the file, and a broker that is not alive can be opened.
    """
    entries = parse(BROKER[CORDONED_LOG_DIRS], configs.get(CORDONED_LOG_DIRS, ""))
    if not isinstance(entries, tuple):
        return None
    stored = cluster.broker_configs.get(name, {}).get(CORDONED_LOG_DIRS, "")
    kept = {entry.strip() for entry in stored.split(",")}
    paths = log_dirs(cluster, int(name))
    unknown = [entry for entry in unknown_entries(entries, paths) if entry not in kept]
    if not unknown:
        return None
    if not paths:
        return (
            f"{CORDONED_LOG_DIRS}: the log directories of broker {name} are unknown while it is "
            "not registered: '*' cordons them all."
        )
    return (
        f"{CORDONED_LOG_DIRS}: {unknown[0][:300]} is no log directory of broker {name}, which has "
        f"{', '.join(paths)}."
    )
