"""A controller process in a test, with the state of its controller at hand.

Owns the short way only: ``lone.cluster`` is ``lone.controller.cluster``, and so for everything that
the process itself does not have.
"""

from __future__ import annotations

from typing import Any

from tidelog.controller.process import ControllerProcess


class LoneController(ControllerProcess):
    """A ``ControllerProcess`` that also answers for its ``Controller``; for reading only."""

    def __getattr__(self, name: str) -> Any:
        if name == "controller":
            raise AttributeError(name)
        return getattr(self.controller, name)
