"""Real clusters for the tests of other projects: ``Cluster``, and a pytest plugin.

Owns the public names. Imports nothing until a name is used: pytest loads this package in every
project of an environment, whether the project uses tidelog or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidelog.testing.cluster import Cluster, ClusterError

__all__ = ["Cluster", "ClusterError"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tidelog.testing import cluster

    return getattr(cluster, name)
