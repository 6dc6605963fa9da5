"""Long work: a generator that yields where others may run, and returns its result.

Owns the form of such work. Not when others run: see `runtime.pace`; not a request's work, whose
memory is charged: see `network.stepping`.

Others may run at each yield, so all state outside of the work may have changed after it. What is
yielded says more:

| it yields | meaning |
|---|---|
| None | nothing |
| a number | the response under construction has grown by so many bytes |
| a call | a thread may make it: it releases the GIL for nearly all of its time; not in a request |

The ``yield`` of a call returns what the call has returned, or raises its error.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

Said = Callable[[], Any] | int | None
Result = TypeVar("Result")
Work = Generator[Said, Any, Result]


def finish(work: Work[Result]) -> Result:
    """Do all of it now: for small work, helper processes and tests."""
    try:
        said = next(work)
        while True:
            try:
                found = said() if callable(said) else None
            except Exception as error:
                said = work.throw(error)
            else:
                said = work.send(found)
    except StopIteration as end:
        result: Result = end.value
        return result
