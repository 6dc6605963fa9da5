"""What a request for another count has said when it ends: done, refused, or not known yet."""

from __future__ import annotations

import asyncio

import pytest

from tidelog.cli.resizing.waiting import _is_open, _outcomes
from tidelog.client.admin.topics import Outcome
from tidelog.client.errors import ClusterUnreachable, Refused
from tidelog.model.errors import ErrorCode

TIMED_OUT = Refused(ErrorCode.REQUEST_TIMED_OUT, "topic t", "")
REFUSED = Refused(ErrorCode.POLICY_VIOLATION, "topic t", "")


def outcomes_of(ended: dict[str, Outcome] | Exception) -> dict[str, Outcome]:
    async def run() -> dict[str, Outcome]:
        request = asyncio.get_running_loop().create_future()
        if isinstance(ended, Exception):
            request.set_exception(ended)
        else:
            request.set_result(ended)
        return _outcomes(request, {"t": 8, "u": 8})

    return asyncio.run(run())


def test_an_answer_is_open_only_where_it_came_too_late() -> None:
    found = outcomes_of({"t": None, "u": REFUSED})
    assert found == {"t": None, "u": REFUSED}
    assert [_is_open(each) for each in (None, REFUSED, TIMED_OUT)] == [False, False, True]


def test_after_a_lost_request_each_topic_is_asked_for() -> None:
    """Its controller may have begun the resize."""
    found = outcomes_of(ClusterUnreachable("no broker responds"))
    assert found.keys() == {"t", "u"}
    assert all(map(_is_open, found.values()))


@pytest.mark.parametrize("error", [REFUSED, TIMED_OUT, ValueError("a bug")])
def test_a_request_that_was_refused_as_a_whole_is_waited_for_no_longer(error: Exception) -> None:
    with pytest.raises(type(error)):
        outcomes_of(error)
