"""Long requests in slices: each slice is one decision, and other decisions come between them.

Owns the cut and its order. Only for requests whose response has one result per element: a slice has
whole elements, and if one element is long its decision, its writes and its application are turns of
the event loop of their own. A controller that fails between two slices has done the first ones, as
a controller has that fails before it responds; a client that sends the request again gets the
result of each element as it is then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.decision import Decision
from tidelog.controller.performing import Performer

Element = TypeVar("Element")
Answer = TypeVar("Answer")

SLICE = 500
"""The most that one slice may cost, in writes: 10 to 20 ms from the decision to its application. An
element that costs more is a slice of its own."""


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
    performer: Performer,
    asked: Sequence[Element],
    cost: Callable[[Element], int],
    decide: Callable[[ClusterState, Sequence[Element]], Decision[list[Answer]]],
    applied: Callable[[list[Answer]], None] = lambda _: None,
) -> tuple[list[Answer], int]:
    """``perform`` each slice; return all answers and the last revision.

    Raises NotActive as ``perform`` does; then the first slices may be durable.
    """
    answers: list[Answer] = []
    revision = performer.cluster.revision
    for part in cut(asked, cost):

        def decide_part(
            cluster: ClusterState, part: Sequence[Element] = part
        ) -> Decision[list[Answer]]:
            return decide(cluster, part)

        part_answers, revision = await performer.perform(decide_part, applied)
        answers += part_answers
    return answers, revision
