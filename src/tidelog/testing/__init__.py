"""Real clusters for the tests of other projects: ``Cluster``, and a pytest plugin.

Owns the public names. Imports nothing until a name is used: pytest loads this package in every
project of an environment, whether the project uses tidelog or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.lazy_names import loader

if TYPE_CHECKING:
    from tidelog.testing.cluster import Cluster, ClusterError

__all__ = ["Cluster", "ClusterError"]

__getattr__ = loader(__name__, dict.fromkeys(__all__, "tidelog.testing.cluster"))
