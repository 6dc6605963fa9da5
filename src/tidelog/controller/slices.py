"""Long requests, decided in slices: each is a decision of its own, others have their turn between.

Owns the cut and its order. Only for requests that Kafka answers element by element: one element is
never cut, but if it is long its decision, what it writes and its application are turns of their
own. A controller that dies between two slices has done what the first ones say, as one has that
dies before its answer; who asks again is told of each element how it stands then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from tidelog.controller.decisions.cluster import Cluster, Decision, Write

if TYPE_CHECKING:
    from tidelog.controller.process import Controller

Element = TypeVar("Element")
Answer = TypeVar("Answer")

SLICE = 500
"""What one slice may cost, in writes: 10 to 20 ms from the decision to its application. An element
that costs more is a slice of its own."""


LONG = 2_000
"""Writes of one change, from which on it is made in several turns: each takes some 5 us for one.
Only what concerns a topic of many partitions is so long."""


async def between_steps(writes: Sequence[Write]) -> None:
    """Let others have their turn between two steps of a long change; no other decision is made."""
    if len(writes) > LONG:
        await asyncio.sleep(0)


def cut(asked: Sequence[Element], cost: Callable[[Element], int]) -> Iterator[Sequence[Element]]:
    """Yield the elements in their order, in slices of at most ``SLICE`` together; at least one."""
    start = spent = 0
    for position, element in enumerate(asked):
        needed = cost(element)
        if spent + needed > SLICE and position > start:
            yield asked[start:position]
            start, spent = position, 0
        spent += needed
    yield asked[start:]


async def perform_in_slices(
    controller: Controller,
    asked: Sequence[Element],
    cost: Callable[[Element], int],
    decide: Callable[[Cluster, Sequence[Element]], Decision[list[Answer]]],
    applied: Callable[[list[Answer]], None] = lambda _: None,
) -> tuple[list[Answer], int]:
    """Do as ``Controller.perform`` for each slice; return all answers and the last revision.

    Raises as that does, and then the first slices may be durable.
    """
    answers: list[Answer] = []
    revision = controller.cluster.revision
    for part in cut(asked, cost):

        def decide_part(cluster: Cluster, part: Sequence[Element] = part) -> Decision[list[Answer]]:
            return decide(cluster, part)

        found, revision = await controller.perform(decide_part, applied)
        answers += found
    return answers, revision
