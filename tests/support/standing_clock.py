"""A controller's clock that stands until the test moves it: silences of given lengths.

However slow the machine is, no session ends and no suspicion begins that the test did not make.
"""

from __future__ import annotations

from tests.support.lone_controller import LoneController
from tidelog.runtime.clock import RealClock
from tidelog.runtime.seams import Seams


class StandingClock(RealClock):
    """Begins with the present; goes on when ``passed_ms`` is raised."""

    def __init__(self) -> None:
        self._begun_ms = super().monotonic_ms()
        self.passed_ms = 0

    def monotonic_ms(self) -> int:
        return self._begun_ms + self.passed_ms


def stand_still(controller: LoneController) -> StandingClock:
    """Give a controller that has started such a clock."""
    clock = StandingClock()
    controller.seams = controller.controller.seams = Seams(clock=clock)
    return clock


async def silence(
    controller: LoneController, clock: StandingClock, ms: int, step_ms: int = 1000
) -> None:
    """Let time pass in which no broker says anything and the controller's loop turns."""
    for _ in range(ms // step_ms):
        clock.passed_ms += step_ms
        await controller.session_watch.judge()
