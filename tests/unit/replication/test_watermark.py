"""The high watermark."""

from __future__ import annotations

import pytest

from tidelog.replication.watermark import high_watermark, machines_missing, required_in_sync


@pytest.mark.parametrize(
    ("current", "isr", "ends", "committed", "required", "expected"),
    [
        (0, [1], {1: 10}, 1, 1, 10),
        (0, [1, 2], {1: 10, 2: 7}, 2, 1, 7),
        (0, [1, 2], {1: 10}, 2, 1, 0),
        (5, [1, 2], {1: 10, 2: 3}, 2, 1, 5),
        (5, [1], {1: 10}, 1, 2, 5),
        (5, [1, 2, 3], {1: 10, 2: 9, 3: 8}, 2, 2, 8),
    ],
)
def test_high_watermark(
    current: int, isr: list[int], ends: dict[int, int], committed: int, required: int, expected: int
) -> None:
    assert high_watermark(current, isr, ends, committed, required) == expected


def test_min_insync_is_capped_at_the_replication_factor() -> None:
    assert required_in_sync(2, 1) == 1
    assert required_in_sync(2, 3) == 2


MACHINES = {1: "a/m", 2: "a/m", 3: "b/n", 4: "b/n", 5: 5}


@pytest.mark.parametrize(
    ("isr", "minimum", "replicas", "missing"),
    [
        pytest.param([1, 2], 1, 4, 0, id="the default: no machine is counted"),
        pytest.param([1, 2, 3], 2, 4, 0, id="two machines"),
        pytest.param([1, 2], 2, 4, 1, id="two members of one machine"),
        pytest.param([1], 3, 4, 2, id="one member of three machines"),
        pytest.param([1, 3, 5], 3, 4, 0, id="a broker that names no machine is its own"),
        pytest.param([1, 9], 2, 4, 1, id="a broker of unknown machine counts as none"),
        pytest.param([1], 2, 1, 0, id="capped at the number of replicas"),
        pytest.param([1, 2], 2, 2, 1, id="not capped at the machines of the replicas"),
        pytest.param([], 2, 3, 2, id="an empty ISR"),
    ],
)
def test_machines_that_the_isr_lacks(
    isr: list[int], minimum: int, replicas: int, missing: int
) -> None:
    assert machines_missing(isr, MACHINES, minimum, replicas) == missing


def test_the_watermark_stands_still_while_machines_are_missing() -> None:
    ends = {1: 10, 2: 10}
    assert high_watermark(5, [1, 2], ends, 2, 1, lacks_machines=True) == 5
    assert high_watermark(5, [1, 2], ends, 2, 1, lacks_machines=False) == 10
