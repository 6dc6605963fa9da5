"""Pictures of reports: what the page needs, scales that one value does not spoil, labels apart."""

from __future__ import annotations

import re
from itertools import combinations, pairwise

import pytest
from examples.flights.growth import Growth, Resize
from matplotlib import rc_context
from matplotlib.text import Annotation

from tidelog.pipeline.audit.facts import PartitionFacts
from tidelog.pipeline.report.pictures import NARROW, WIDE, coverage, heat_map

HOURS = [f"{hour:02d}" for hour in range(5, 24)]
CARRIERS = ["AA", "B6", "DL", "EV", "UA"]
DELAYS = {
    (carrier, hour): float(at + down)
    for down, carrier in enumerate(CARRIERS)
    for at, hour in enumerate(HOURS)
}


def delays(values: dict[tuple[str, str], float]) -> str:
    return heat_map(CARRIERS, HOURS, values, "delay", "minutes", "hour")


def cells(drawn: str) -> list[str]:
    """The opacity of each field of the wide picture, row by row, without the scale's own."""
    wide = drawn[: drawn.index('<svg class="narrow"')]
    return re.findall(r"fill: var\(--bad\); fill-opacity: ([0-9.]+)", wide)[: len(DELAYS)]


def test_one_far_value_does_not_bleach_the_others() -> None:
    far = {**DELAYS, ("UA", "23"): 4_000.0}
    same = [a == b for a, b in zip(cells(delays(DELAYS)), cells(delays(far)), strict=True)]
    assert len(same) == len(DELAYS) and all(same)
    assert len(set(cells(delays(far)))) == 7


def test_equal_values_and_none_at_all() -> None:
    assert delays({}) == ""
    assert delays(dict.fromkeys(DELAYS, 3.0)).count("<svg") == 2


def test_a_value_that_is_missing_has_no_field() -> None:
    some = {key: value for key, value in DELAYS.items() if key != ("DL", "12")}
    assert len(re.findall(r">\d+<", delays(DELAYS))) == len(re.findall(r">\d+<", delays(some))) + 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("count", [0, 1, 2, 16])
def test_there_is_room_for_few_partitions_and_for_many(count: int) -> None:
    parts = [
        PartitionFacts("t", str(number), 0, 9, log_start=0, log_end=9) for number in range(count)
    ]
    assert coverage(parts).count("<svg") == (2 if parts else 0)


def test_a_picture_is_a_part_of_a_page_that_needs_nothing_else() -> None:
    part = PartitionFacts("<t>", "0", 0, 10, log_start=2, log_end=10, lake_rows=1_234, missing=1)
    drawn = coverage([part]) + coverage([part])
    assert not re.search(r"https?:|url\(|<image|#0101", drawn)
    assert "&lt;t&gt;-0" in drawn and "<t>" not in drawn and "1,234" in drawn
    names = re.findall(r' id="([^"]+)"', drawn)
    assert len(names) == len(set(names)), "two pictures of a page share a name"
    assert set(re.findall(r"#([a-z0-9]+)", drawn)) <= set(names)


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_labels_of_a_topics_life_stand_apart(width: int) -> None:
    """The four marks of the demo, two of them close to each other."""
    growth = Growth("", "flights", 4, [], print)
    for before, after, begun_s in ((4, 8, 1.0), (8, 16, 3.0), (16, 5, 5.0)):
        growth.resizes.append(Resize(before, after, begun_s, begun_s + 0.5))
    growth.note("broker 2 killed")
    growth._notes[-1] = (1.6, "broker 2 killed")
    with rc_context({"font.size": 11}):
        made = growth._drawn(width, [("0", [(0.0, 6.0, True)])], 6.0)
        made.draw_without_rendering()
    marks = [each.get_window_extent() for each in made.findobj(Annotation)]
    assert len(marks) == 4
    assert not [1 for one, other in combinations(marks, 2) if one.overlaps(other)]
    assert all(box.x0 >= 0 and box.x1 <= made.bbox.width for box in marks)
    ticks = [each.get_window_extent() for each in made.axes[1].get_xticklabels()]
    assert len(ticks) >= 3 and all(one.x1 < other.x0 for one, other in pairwise(ticks))
