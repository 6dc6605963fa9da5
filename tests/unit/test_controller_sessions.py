"""What a broker's silence means: tables of times."""

from __future__ import annotations

from tidelog.controller.decisions.sessions import Condition, Sessions

GRACE_MS, TIMEOUT_MS = 200, 6000


def heard(**at_ms: int) -> Sessions:
    """Sessions of brokers that were heard last at these times: `b1=0`."""
    sessions = Sessions(GRACE_MS, TIMEOUT_MS)
    for name, ms in at_ms.items():
        sessions.heard(int(name[1:]), ms)
    return sessions


def test_conditions_by_time() -> None:
    sessions = heard(b1=0, b2=0)
    sessions.closed(2, 100)
    assert sessions.in_condition(Condition.ALIVE, 299) == {1, 2}
    assert sessions.in_condition(Condition.SUSPECTED, 300) == {2}
    assert sessions.in_condition(Condition.DEAD, 5999) == set()
    assert sessions.in_condition(Condition.DEAD, 6000) == {1, 2}


def test_the_dead_are_buried_when_nobody_is_in_doubt() -> None:
    sessions = heard(b1=0, b2=5800, b3=5900)
    assert sessions.to_bury(5999) == set()
    assert sessions.to_bury(6000) == {1}


def test_a_silence_with_one_cause_buries_all_together() -> None:
    """The controller heard nobody: one after another each would leave the ISR to the next."""
    sessions = heard(b1=400, b2=200, b3=0)
    assert [sessions.to_bury(ms) for ms in (6000, 6200, 6399)] == [set()] * 3
    assert sessions.to_bury(6400) == {1, 2, 3}


def test_a_doubt_ends_when_the_broker_is_heard_or_its_connection_closes() -> None:
    sessions = heard(b1=0, b2=2000)
    assert sessions.to_bury(6000) == set()
    sessions.heard(2, 6100)
    assert sessions.to_bury(6100) == {1}
    closed = heard(b1=0, b2=2000)
    closed.closed(2, 2100)
    # It is suspected, and nobody leaves an ISR in its favour.
    assert closed.to_bury(6000) == {1}
