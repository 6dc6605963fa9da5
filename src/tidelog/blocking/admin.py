"""The public admin client that blocks: each method of ``tidelog.aio.Admin``, run on the loop.

Owns its lifecycle. Not its methods: see ``derived_methods``. Not arguments and results: see
``tidelog.aio.admin``.
"""

from __future__ import annotations

from typing import Unpack

from tidelog.aio.admin import Admin as AsyncAdmin
from tidelog.aio.cluster_configs import ClusterConfigs
from tidelog.blocking.derived_methods import AdminMethods
from tidelog.blocking.loop import ClientLoop


class Admin(AdminMethods):
    """Administers a cluster. It connects when it is made; close it, or use ``with``.

    Its methods are those of ``tidelog.aio.Admin``, with the same arguments, results and errors.
    """

    def __init__(self, **configs: Unpack[ClusterConfigs]) -> None:
        self._inner = AsyncAdmin(**configs)
        self._loop = ClientLoop()
        try:
            self._loop.run(self._inner.start())
        except BaseException:
            self._loop.leave()
            raise
        super().__init__(self._loop, self._inner)

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; a second call does nothing."""
        if not self._loop.has_left:
            try:
                self._loop.run(self._inner.close())
            finally:
                self._loop.leave()
