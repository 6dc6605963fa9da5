"""What a broker's silence means: tables of times."""

from __future__ import annotations

import itertools

import pytest

from tidelog.controller.decisions.sessions import (
    BrokerPlace,
    BrokerSession,
    Condition,
    Patience,
    Proofs,
    Sessions,
)

PATIENCE = Patience(grace_ms=200, silence_ms=2000, timeout_ms=6000)
HEARTBEAT_MS = 500


def received(**at_ms: int) -> Sessions:
    """Sessions of brokers whose last heartbeat came at these times: `b1=0`."""
    sessions = Sessions(PATIENCE)
    for name, ms in at_ms.items():
        sessions.received(int(name[1:]), ms)
    return sessions


def test_conditions_by_time() -> None:
    sessions = received(b1=0, b2=0)
    sessions.closed(2, 100)
    assert sessions.in_condition(Condition.ALIVE, 299) == {1, 2}
    assert sessions.in_condition(Condition.SUSPECTED, 300) == {2}
    assert sessions.in_condition(Condition.DEAD, 5999) == set()
    assert sessions.in_condition(Condition.DEAD, 6000) == {1, 2}


@pytest.mark.parametrize(
    ("session", "judged_ms", "condition", "again_ms"),
    [
        # An open connection: in doubt after half of the silence, suspected after all of it.
        (BrokerSession(1000), 1000, Condition.ALIVE, 2000),
        (BrokerSession(1000), 1999, Condition.ALIVE, 2000),
        (BrokerSession(1000), 2000, Condition.ALIVE, 3000),
        # Held back by another's doubt: looked at again and again, till it is dead.
        (BrokerSession(1000), 3000, Condition.ALIVE, 3250),
        (BrokerSession(1000), 6900, Condition.ALIVE, 7000),
        (BrokerSession(1000), 7000, Condition.DEAD, 7000),
        (BrokerSession(1000, suspected=True), 3000, Condition.SUSPECTED, 7000),
        # The loop stood still until 2500: the suspicion counts from there, the session from 1000.
        (BrokerSession(1000, counted_ms=2500), 3000, Condition.ALIVE, 3500),
        (BrokerSession(1000, counted_ms=2500), 3500, Condition.ALIVE, 4500),
        # Not registered with this controller yet: only death is judged.
        (BrokerSession(1000, presumed=True), 3000, Condition.ALIVE, 7000),
        (BrokerSession(1000, presumed=True), 7000, Condition.DEAD, 7000),
        # A closed connection: suspected after the grace.
        (BrokerSession(1000, 2000), 2100, Condition.ALIVE, 2200),
        (BrokerSession(1000, 2000), 2200, Condition.SUSPECTED, 7000),
        (BrokerSession(1000, 2000), 6999, Condition.SUSPECTED, 7000),
        (BrokerSession(1000, 2000), 7000, Condition.DEAD, 7000),
        (BrokerSession(1000, 6900), 7000, Condition.DEAD, 7000),
    ],
)
def test_sessions(
    session: BrokerSession, judged_ms: int, condition: Condition, again_ms: int
) -> None:
    assert session.condition(judged_ms, PATIENCE) is condition
    assert session.next_change_ms(judged_ms, PATIENCE) == again_ms


def test_a_session_that_opens_again_is_alive() -> None:
    sessions = received(b1=0)
    sessions.closed(1, 10)
    sessions.closed(1, 100)
    sessions.closed(9, 100)
    assert sessions.in_condition(Condition.SUSPECTED, 210) == {1}
    sessions.received(1, 220)
    assert sessions.in_condition(Condition.ALIVE, 500) == {1}
    assert sessions.in_condition(Condition.DEAD, 6220) == {1}
    sessions.forget(1)
    sessions.forget(1)
    assert sessions.in_condition(Condition.DEAD, 6220) == set()


def test_one_silent_broker_is_suspected_until_its_heartbeat_comes() -> None:
    sessions = received(b1=0, b2=1800, b3=1700)
    assert sessions.silent(1999, {}) == set()
    assert sessions.silent(2000, {}) == {1}
    sessions.suspect({1})
    assert sessions.in_condition(Condition.SUSPECTED, 2000) == {1}
    assert sessions.silent(2001, {}) == set()
    sessions.received(1, 2500)
    assert sessions.in_condition(Condition.ALIVE, 2500) == {1, 2, 3}


def test_a_broker_without_the_response_to_its_registration_is_not_suspected_for_silence() -> None:
    """It sends no heartbeat before that, however long a store takes."""
    sessions = received(b2=4500, b3=4600)
    sessions.received(1, 1000, is_answered=False)
    assert sessions.silent(5000, {}) == sessions.in_doubt(5000) == set()
    sessions.received(1, 5000)
    for broker, now in itertools.product((2, 3), (5400, 6300)):
        sessions.received(broker, now)
    assert (sessions.silent(6999, {}), sessions.silent(7000, {})) == (set(), {1})
    sessions.received(1, 7000, is_answered=False)
    assert sessions.in_condition(Condition.DEAD, 13_000) == {1, 2, 3}


@pytest.mark.parametrize("other_ms", [0, 400, 900, 1000])
def test_no_broker_is_suspected_while_another_is_in_doubt(other_ms: int) -> None:
    sessions = received(b1=0, b2=other_ms, b3=1900)
    assert sessions.silent(2000, {}) == set()
    # Nor when both are silent for long: then death judges them, together.
    sessions.received(3, 5000)
    assert sessions.silent(5999, {}) == set()


PLACES = {1: BrokerPlace("a/m", "h"), 2: BrokerPlace("a/m", "h"), 3: BrokerPlace("a/n", "h")}


def test_the_silent_brokers_of_one_machine_are_suspected_together() -> None:
    """A frozen machine: they are one silence, once the last of them is silent for long enough."""
    sessions = received(b1=0, b2=400, b3=1900)
    assert sessions.silent(2399, PLACES) == set()
    assert sessions.silent(2400, PLACES) == {1, 2}
    # The text names a zone, and its brokers are on several machines; or the host is a translator.
    for other in (BrokerPlace("a/m", "i"), BrokerPlace("a/o", "h")):
        assert sessions.silent(2400, {**PLACES, 2: other}) == set()
    sessions.suspect({1, 2})
    assert sessions.in_condition(Condition.SUSPECTED, 2400) == {1, 2}


@pytest.mark.parametrize("silent", [(1, 3), (4, 5), (1, 2, 3), (1, 2, 4)])
def test_brokers_of_several_machines_or_without_racks_are_not_one_silence(
    silent: tuple[int, ...],
) -> None:
    sessions = received(b1=5000, b2=5000, b3=5000, b4=5000, b5=5000)
    for broker in silent:
        sessions.by_broker[broker] = BrokerSession(0)
    assert sessions.in_doubt(5900) == set(silent)
    assert sessions.silent(5900, PLACES) == set()


@pytest.mark.parametrize(
    "other",
    ["none", "suspected", "presumed", "closed", "of the rack", "without a rack", "of its own"],
)
def test_the_silence_of_a_machine_is_its_own_only_beside_heartbeats_of_another(other: str) -> None:
    """Otherwise it may be the controller that receives nothing but what its own machine sends."""
    places = {1: BrokerPlace("a", "h"), 2: BrokerPlace("a", "h"), 3: BrokerPlace("b", "h")}
    own = None
    sessions = received(b1=0, b2=0)
    if other == "presumed":
        sessions.presume(3, 1900)
    elif other != "none":
        sessions.received(3, 1900)
    if other == "suspected":
        sessions.suspect({3})
    elif other == "closed":
        sessions.closed(3, 1900)
    elif other == "of the rack":
        places[3] = BrokerPlace("a", "i")
    elif other == "without a rack":
        del places[3]
    elif other == "of its own":
        own = places[3]
    assert sessions.silent(2000, places, own) == set()
    sessions.received(3, 1900)
    places[3] = BrokerPlace("b", "h")
    assert sessions.silent(2000, places, BrokerPlace("b", "i")) == {1, 2}
    assert sessions.silent(2000, places) == {1, 2}


def test_a_heartbeat_of_one_broker_of_the_machine_gives_the_others_time() -> None:
    sessions = received(b1=0, b2=0, b3=1900)
    sessions.received(2, 1950)
    assert sessions.silent(2800, PLACES) == set()
    sessions.received(3, 2800)
    # Broker 2 is in doubt again from 2950 on: both must be silent for long enough.
    assert sessions.silent(2950, PLACES) == set()
    sessions.received(3, 3700)
    assert sessions.silent(3949, PLACES) == set()
    assert sessions.silent(3950, PLACES) == {1, 2}


def test_a_silence_with_one_cause_suspects_no_broker_when_it_ends() -> None:
    """No heartbeat came for 3 s; then one broker after the other sends one."""
    for order in itertools.permutations((1, 2, 3)):
        sessions = received(b1=0, b2=150, b3=400)
        for now in range(400, 3000, 10):
            assert sessions.silent(now, {}) == set()
        for broker, now in zip(order, (3000, 3400, 3900), strict=True):
            sessions.received(broker, now)
            assert sessions.silent(now, {}) == sessions.silent(now + 390, {}) == set()


def test_a_broker_silent_after_a_doubt_is_suspected_half_a_silence_later() -> None:
    sessions = received(b1=0, b2=500)
    sessions.received(2, 1600)
    # It was in doubt as well: what they shared may end for broker 1 a moment later.
    assert [sessions.silent(ms, {}) for ms in (2000, 2599)] == [set(), set()]
    assert sessions.silent(2600, {}) == set(), "broker 2 is in doubt again"
    sessions.received(2, 2300)
    assert sessions.silent(2600, {}) == {1}


@pytest.mark.parametrize("ends", ["heartbeat", "closed", "suspected", "dead"])
def test_a_doubt_holds_back_as_long_as_it_lasts(ends: str) -> None:
    sessions = received(b1=3000, b2=0)
    assert sessions.silent(4500, {}) == set()
    if ends == "heartbeat":
        sessions.received(2, 4600)
        sessions.received(2, 5000)  # in doubt again at 6000
    elif ends == "closed":
        sessions.closed(2, 4600)
    elif ends == "suspected":
        sessions.suspect({2})
    # What ended by itself was shared, maybe: half of a silence for those that shared it.
    assert sessions.silent(5599, {}) == ({1} if ends == "suspected" else set())
    assert sessions.silent(5600, {}) == ({1} if ends != "dead" else set())
    assert sessions.silent(5999, {}) == ({1} if ends != "dead" else set())
    assert sessions.silent(6000, {}) == ({1} if ends != "heartbeat" else set())


HURRIED_MS = 750
"""Three eighths of ``silence_ms``."""


def proofs(missing: set[int], age_ms: float = 20) -> Proofs:
    """All others have responded to a request of this age."""
    return Proofs(missing, {x: age_ms for x in (1, 2, 3) if x not in missing})


def test_a_broker_without_the_response_that_others_gave_is_suspected_sooner() -> None:
    """A closed resize waits for it (decision 0136)."""
    sessions = received(b1=0, b2=0, b3=700)
    assert sessions.silent_to_requests(HURRIED_MS - 1, proofs({1}), {}) == set()
    assert sessions.silent_to_requests(HURRIED_MS, proofs({1}), {}) == {1}
    assert sessions.silent_to_requests(HURRIED_MS, proofs(set()), {}) == set()
    # Its heartbeats come: it is busy.
    assert sessions.silent_to_requests(HURRIED_MS, proofs({3}), {}) == set()


@pytest.mark.parametrize("later", [(0, 0), (0, 60), (60, 0), (80, 80)])
def test_an_old_response_does_not_show_that_the_controller_receives_heartbeats(
    later: tuple[int, int],
) -> None:
    """Broker 1 is busy, then the controller receives nothing: all heartbeats are as late as its."""
    sessions = received(b1=0, b2=later[0], b3=later[1])
    for now in range(HURRIED_MS, 2_000, 10):
        assert sessions.silent_to_requests(now, proofs({1}, now - 80), {}) == set()
        assert sessions.silent_to_requests(now, Proofs({1}, {2: 20, 3: now - 80}), {}) == set()
    # The heartbeat of broker 1 was due after a third of 2 s; a response is of a time after that.
    assert sessions.silent_to_requests(800, proofs({1}, 134), {}) == set()
    assert sessions.silent_to_requests(800, proofs({1}, 133), {}) == {1}
    # So is a heartbeat.
    sessions.received(2, 700)
    assert sessions.silent_to_requests(800, proofs({1}, 500), {}) == set()
    sessions.received(3, 700)
    assert sessions.silent_to_requests(800, proofs({1}, 500), {}) == {1}


@pytest.mark.parametrize("unproved", [{1, 2}, {1, 2, 3}])
def test_several_without_a_response_or_all_of_them_may_be_the_controllers_fault(
    unproved: set[int],
) -> None:
    sessions = received(b1=0, b2=0, b3=0)
    assert sessions.silent_to_requests(1_900, proofs(unproved), {}) == set()
    alone = received(b1=0)
    assert alone.silent_to_requests(1_900, proofs({1}), {}) == set(), (
        "no response shows that it is not"
    )


def test_the_brokers_of_one_machine_without_a_response_are_suspected_together() -> None:
    sessions = received(b1=0, b2=0, b3=700)
    here, there = BrokerPlace("a", "m1"), BrokerPlace("b", "m2")
    assert sessions.silent_to_requests(800, proofs({1, 2}), {1: here, 2: here, 3: there}) == {1, 2}
    assert sessions.silent_to_requests(800, proofs({1, 2}), {1: here, 2: there, 3: there}) == set()


def test_what_excuses_a_silence_excuses_a_missing_response_too() -> None:
    """The loop stood still, the registration has no response, or a closed connection has its own
    rule."""
    stood = received(b1=0, b2=0)
    stood.check(0)
    stood.check(600)
    assert stood.silent_to_requests(1_000, proofs({1}), {}) == set()
    presumed = received(b2=900)
    presumed.presume(1, 0)
    assert presumed.silent_to_requests(1_000, proofs({1}), {}) == set()
    closed = received(b1=0, b2=900)
    closed.closed(1, 900)
    assert closed.silent_to_requests(1_000, proofs({1}), {}) == set()
    slow = Sessions(Patience(grace_ms=200, silence_ms=6000, timeout_ms=6000))
    slow.received(1, 0)
    slow.received(2, 5_000)
    assert slow.silent_to_requests(5_000, proofs({1}), {}) == set()


def test_a_presumed_broker_is_neither_suspected_nor_in_doubt() -> None:
    sessions = received(b1=0)
    sessions.presume(2, 0)
    assert sessions.silent(2000, {}) == {1}
    sessions.received(1, 2000)
    assert sessions.silent(5900, {}) == {1}
    assert sessions.in_condition(Condition.DEAD, 6000) == {2}


def test_without_room_below_the_session_a_silence_suspects_no_broker() -> None:
    sessions = Sessions(Patience(200, 600, 600))
    sessions.received(1, 0)
    assert sessions.silent(599, {}) == sessions.silent(600, {}) == set()
    assert sessions.by_broker[1].next_change_ms(0, sessions.patience) == 600


def test_a_loop_that_stood_still_starts_all_clocks_again() -> None:
    sessions = received(b1=0, b2=300)
    sessions.received(3, 300)
    sessions.closed(3, 450)
    for now in (0, 250, 500):
        assert sessions.check(now) == 0
    assert sessions.check(3500) == 3000
    # While it stood still no heartbeat reached it, and no connection.
    assert sessions.without_connection(3699) == set()
    assert sessions.without_connection(3700) == {3}
    assert sessions.silent(5499, {}) == set()
    for now in (4400, 5300):
        sessions.received(2, now)
    assert sessions.silent(5499, {}) == set()
    assert sessions.silent(5500, {}) == {1}
    # Time that the loop stood still does not count for a session.
    assert sessions.in_condition(Condition.DEAD, 8999) == set()
    assert sessions.in_condition(Condition.DEAD, 9000) == {1}


def test_a_loop_that_stands_still_now_and_then_still_expires_dead_brokers() -> None:
    """A clock that could start again without limit would never find a broker dead."""
    sessions = received(b1=0)
    now = 0
    for _ in range(100):
        sessions.check(now)
        now += 600
        assert sessions.check(now) == 600
        now += 400
    assert sessions.to_expire(now) == {1}


@pytest.mark.parametrize(("late_ms", "stood_ms"), [(0, 0), (249, 0), (499, 0), (500, 500)])
def test_a_loop_that_is_a_little_late_did_not_stand_still(late_ms: int, stood_ms: int) -> None:
    """A quarter of the silence is what it may be late."""
    sessions = received(b1=0)
    assert [sessions.check(now) for now in (0, late_ms)] == [0, stood_ms]


def test_dead_brokers_expire_when_no_other_is_in_doubt() -> None:
    sessions = received(b1=0, b2=5800, b3=5900)
    assert sessions.to_expire(5999) == set()
    assert sessions.to_expire(6000) == {1}


def test_a_silence_with_one_cause_expires_all_together() -> None:
    """No heartbeat came: expired one by one, each would leave the ISR to the next."""
    sessions = received(b1=400, b2=200, b3=0)
    assert [sessions.to_expire(ms) for ms in (6000, 6200, 6399)] == [set()] * 3
    assert sessions.to_expire(6400) == {1, 2, 3}


def test_a_doubt_ends_when_a_heartbeat_comes_or_the_connection_closes() -> None:
    sessions = received(b1=0, b2=2000)
    assert sessions.to_expire(6000) == set()
    sessions.received(2, 6100)
    assert sessions.to_expire(6100) == {1}
    closed = received(b1=0, b2=2000)
    closed.closed(2, 2100)
    # It is suspected, and no ISR shrinks in its favour.
    assert closed.to_expire(6000) == {1}
