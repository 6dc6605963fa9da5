"""The parts that follow from a change are checked one after another."""

from __future__ import annotations

import asyncio

from tidelog.controller.consequences import WOKEN, Consequences, ControllerEvent, ControllerPart


def test_the_parts_are_checked_in_their_order_and_decisions_come_last() -> None:
    checked: list[ControllerPart] = []

    async def decide(part: ControllerPart) -> None:
        checked.append(part)

    consequences = Consequences(
        wake={part: (lambda part=part: checked.append(part)) for part in WOKEN},
        decide={part: (lambda part=part: decide(part)) for part in set(ControllerPart) - WOKEN},
    )
    asyncio.run(consequences.settle(ControllerEvent.EXPIRED))
    assert checked == [ControllerPart.REQUESTS, ControllerPart.RESIZES, ControllerPart.TOPICS]
