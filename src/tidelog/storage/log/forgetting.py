"""The limit of the producers of all logs together: which of them are forgotten.

Owns the order among logs. Not the limit of one log, nor which of its producers may be forgotten:
see `producers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace

from tidelog.model.work import Work
from tidelog.storage.log.producers import ProducerState


def forgotten_beyond(limit: int, states: Sequence[ProducerState]) -> Work[None]:
    """Forget the longest idle producers of all states until these have ``limit`` together.

    In turns; grows with the states, and with what is forgotten.
    """
    surplus = sum(len(state.entries) for state in states) - limit
    if surplus <= 0:
        return
    heap = []
    for place, state in enumerate(states):
        idle_since_ms = state.idle_since_ms
        if idle_since_ms is not None:
            heap.append((idle_since_ms, place))
    heapify(heap)
    for _ in range(surplus):
        yield None
        # Meanwhile it may have sent again, or have been forgotten.
        while heap and not _is_at_head(states[heap[0][1]], heap[0][0]):
            _next_of(states, heap)
        if not heap:
            return
        states[heap[0][1]].forget_longest_idle()
        _next_of(states, heap)


def _is_at_head(state: ProducerState, idle_since_ms: int) -> bool:
    return state.idle_since_ms == idle_since_ms


def _next_of(states: Sequence[ProducerState], heap: list[tuple[int, int]]) -> None:
    """Sort the state at the head again, by its present longest idle producer."""
    place = heap[0][1]
    idle_since_ms = states[place].idle_since_ms
    if idle_since_ms is not None:
        heapreplace(heap, (idle_since_ms, place))
    else:
        heappop(heap)
