"""What the checker prints of a violation."""

from __future__ import annotations

from tests.order.checks import violations_in
from tests.order.history import Delivery, History, Outcome, Registration, Resize, Send, Stored
from tests.order.reference import Reference
from tests.order.timeline import report, timeline
from tidelog.partitioning.hashing import hash_of_key, partition_of


def moved_key() -> str:
    """A key that the growth from 1 to 2 partitions moves."""
    names = (f"k{each}" for each in range(100))
    return next(name for name in names if partition_of(hash_of_key(name.encode()), 1, 2) == 1)


def test_a_timeline_has_the_homes_as_columns() -> None:
    key = moved_key()
    history = History(
        1,
        [
            Registration("g", 0.0),
            Send(1, key, "w", 0, 0, 1.0, Outcome.OK, 2.0, 0, 0),
            Resize(1, 2, 3.0, {0: 1, 1: 0}),
            Send(2, key, "w", 1, 1, 4.0, Outcome.OK, 5.0, 1, 1),
            Stored(0, 0, 1),
            Stored(1, 1, 2),
            Delivery("g", "m", 1, 1, 2, 6.0, 7.0),
            Delivery("g", "m", 0, 0, 1, 8.0, None),
        ],
    )
    reference = Reference(history)
    found = violations_in(reference)
    assert {each.rule for each in found} == {"C8"}
    text = report(reference, found, seed=7)
    assert text.splitlines()[0] == "2 violations, seed 7"
    lines = timeline(reference, key).splitlines()
    assert lines[0] == f"key {key}: partition 0 from 0 to 1, then partition 1 from 0"
    assert lines[1].split() == ["time", "partition", "0", "partition", "1"]
    assert [line.split()[0] for line in lines[2:]] == [
        "1.000",
        "2.000",
        "3.000",
        "4.000",
        "5.000",
        "6.000",
        "8.000",
    ]
    assert "g/m: 1 at 0, no end" in lines[-1]
    assert lines[-2].index("g/m") > lines[-1].index("g/m")


def test_without_a_violation_it_says_so() -> None:
    assert report(Reference(History(1)), []) == "no violation"
