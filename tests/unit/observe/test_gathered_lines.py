"""Log lines of many partitions as a few."""

from __future__ import annotations

import logging

import pytest

from tidelog.observe.gathered_lines import MOST_LINES, GatheredLines


def lines_of(caplog: pytest.LogCaptureFixture, said: GatheredLines) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.INFO):
        said.say()
    return [record.getMessage() for record in caplog.records]


def test_one_partition_has_its_own_line_and_many_share_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    said = GatheredLines(logging.getLogger("test"))
    said.add("t-0", "the ISR is [1, 2]")
    assert lines_of(caplog, said) == ["t-0: the ISR is [1, 2]"]
    for index in range(1_000):
        said.add(f"t-{index}", "the ISR is [1]")
    said.add("u-0", "refused", logging.WARNING)
    assert lines_of(caplog, said) == [
        "t-0, t-1, t-2, t-3, t-4 and 995 more: the ISR is [1]",
        "u-0: refused",
    ]
    assert [record.levelno for record in caplog.records] == [logging.INFO, logging.WARNING]
    assert lines_of(caplog, said) == []


def test_the_lines_are_bounded_whatever_is_said(caplog: pytest.LogCaptureFixture) -> None:
    said = GatheredLines(logging.getLogger("test"))
    for index in range(10_000):
        said.add(f"t-{index}", f"the ISR is [{index}]")
    found = lines_of(caplog, said)
    assert len(found) == MOST_LINES + 1
    assert found[-1].endswith(
        f"and {10_000 - MOST_LINES - 5} more: other changes, each like one of these"
    )
