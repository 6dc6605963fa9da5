"""The cores of a comparison, and the machine and the build of Python that it ran on.

Owns the one rule: with two cores or more the servers of both sides run on the same half of them,
and the clients on the other half. With one core all share it. What is compared is measured with the
same cores for each, whichever of the two a row starts. Not the rows: see `run` and `against`.
"""

from __future__ import annotations

import os
import platform
import shlex
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.support.node import Node

from benchmarks.clusters import Cluster

Servers = TypeVar("Servers", Node, Cluster)


@dataclass(frozen=True)
class Cores:
    """The cores of the servers and those of the clients."""

    servers: frozenset[int]
    clients: frozenset[int]

    def __str__(self) -> str:
        return f"servers on cores {sorted(self.servers)}, clients on {sorted(self.clients)}"


def divided(cores: Sequence[int]) -> Cores:
    """Return the servers' half of these cores and the clients'."""
    ordered, half = sorted(cores), len(cores) // 2
    if not half:
        return Cores(frozenset(ordered), frozenset(ordered))
    return Cores(frozenset(ordered[:half]), frozenset(ordered[half:]))


def pin_clients() -> Cores:
    """Divide the cores that this process may use; it and what it starts take the clients' half.

    Servers are made by what ``pinned`` returns.
    """
    cores = divided(sorted(os.sched_getaffinity(0)))
    os.sched_setaffinity(0, cores.clients)
    return cores


def pinned(make: Callable[[Path], Servers], cores: Cores) -> Callable[[Path], Servers]:
    """Return a maker of the same nodes or clusters that run on the servers' cores."""

    def made(folder: Path) -> Servers:
        servers = make(folder)
        for node in servers.nodes if isinstance(servers, Cluster) else [servers]:
            node.cores = cores.servers
        return servers

    return made


def built_with(options: str) -> str:
    """Return which optimizations a build of Python has, by the options of its ``configure``."""
    given = shlex.split(options)
    pgo = "--enable-optimizations" in given
    lto = any(each.startswith("--with-lto") and each != "--with-lto=no" for each in given)
    return f"{'with' if pgo else 'without'} PGO, {'with' if lto else 'without'} LTO"


def machine() -> str:
    """Return cores, kernel and build of Python (of the servers and of the benchmark), in a line."""
    model = "an unnamed processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
    options = sysconfig.get_config_var("CONFIG_ARGS") or ""
    return (
        f"{os.cpu_count()} cores ({model}), Linux {platform.release()}, "
        f"{platform.python_implementation()} {platform.python_version()} "
        f"built {built_with(options)}"
    )
