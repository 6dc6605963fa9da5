"""The schedule of the nemesis: from its seed alone, and nothing that no cluster could survive."""

from __future__ import annotations

import pytest

from tests.chaos.schedule import (
    BROKERS,
    CONTROLLER,
    DISKS,
    EVERYTHING,
    LINKS,
    PROCESSES,
    RECOVERY_S,
    Kind,
    schedule,
)

SEEDS = range(300)


def test_a_seed_replays() -> None:
    assert schedule(7, 40, EVERYTHING) == schedule(7, 40, EVERYTHING)
    assert schedule(7, 40, EVERYTHING) != schedule(8, 40, EVERYTHING)


@pytest.mark.parametrize("kinds", [PROCESSES, LINKS, DISKS, EVERYTHING])
def test_only_what_was_asked_for_and_as_long(kinds: tuple[Kind, ...]) -> None:
    for seed in SEEDS:
        rounds = schedule(seed, 40, kinds)
        assert {fault.kind for each in rounds for fault in each.faults} <= set(kinds)
        # No cluster recovers sooner: the run's time ends before its rounds do.
        assert sum(each.work_s + each.lasts_s + RECOVERY_S for each in rounds) > 39.9
        assert len(rounds) <= 40 / (0.1 + RECOVERY_S) + 1


def test_victims_of_a_round_are_different_and_able_to_suffer_it() -> None:
    for seed in SEEDS:
        for each in schedule(seed, 40, EVERYTHING):
            victims = [fault.victim for fault in each.faults]
            assert len(set(victims)) == len(victims) in (1, 2)
            assert sum(fault.kind is Kind.EMPTY for fault in each.faults) <= 1
            for fault in each.faults:
                all_brokers = fault.kind is Kind.KILL_ALL
                assert (fault.victim == BROKERS) == all_brokers <= (len(victims) == 1)
                assert all_brokers or fault.victim == CONTROLLER or fault.victim in range(3)
                assert fault.victim != CONTROLLER or fault.kind not in DISKS
                assert bool(fault.apart_from) == (fault.kind in LINKS)
                assert fault.victim != CONTROLLER or fault.apart_from in ((), (BROKERS,))
                assert (fault.delay_s > 0) == (fault.kind is Kind.DELAY)


def test_every_kind_and_every_victim_comes() -> None:
    found = [f for seed in SEEDS for each in schedule(seed, 40, EVERYTHING) for f in each.faults]
    assert {fault.kind for fault in found} == set(EVERYTHING)
    assert {fault.victim for fault in found} == {0, 1, 2, CONTROLLER, BROKERS}
    assert {len(each.faults) for seed in SEEDS for each in schedule(seed, 40, LINKS)} == {1, 2}


def test_a_round_says_what_it_does() -> None:
    said = str(schedule(3, 1, (Kind.MUTE,))[0])
    assert said.startswith("after ") and "reaches no other with " in said and said.endswith(" s")
