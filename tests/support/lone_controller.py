"""A controller process in a test, with the state of its controller at hand.

Owns the short way only: ``lone.cluster`` is ``lone.controller.cluster``, and so for everything that
the process itself does not have.
"""

from __future__ import annotations

from typing import Any

from tidelog.controller.process import ControllerProcess


class LoneController(ControllerProcess):
    """A ``ControllerProcess`` that also answers for its ``Controller``; for reading only.

    Its first start has proof that the cluster is new, as that of `tidelog up` on an empty folder.
    """

    def __init__(self, *args: Any, is_new: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, is_new=is_new, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "controller":
            raise AttributeError(name)
        return getattr(self.controller, name)
