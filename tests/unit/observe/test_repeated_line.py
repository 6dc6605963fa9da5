"""One line when a state begins, then one a minute with a count, whatever is added."""

from __future__ import annotations

import logging

import pytest

from tidelog.observe.repeated_line import EVERY_S, RepeatedLine


def test_a_state_is_one_line_and_then_one_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    line = RepeatedLine(logging.getLogger("t"))
    for half_seconds in range(241):
        line.add("refused", half_seconds / 2)
    assert caplog.messages == [
        "refused",
        "refused (120 times since the last such line)",
        "refused (120 times since the last such line)",
    ]


def test_another_state_is_said_at_once_and_so_is_one_that_begins_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    line = RepeatedLine(logging.getLogger("t"))
    for sentence in ("a", "a", "b", "a"):
        line.add(sentence, EVERY_S / 2)
    line.over()
    line.add("a", EVERY_S / 2)
    assert caplog.messages == ["a", "b", "a", "a"]


def test_shared_sentences_are_one_line_a_minute_with_the_stack_of_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The addresses of several controllers are tried in turn: each has a sentence of its own."""
    line = RepeatedLine(logging.getLogger("t"), shared=True)
    for half_seconds in range(121):
        line.add("a" if half_seconds % 2 else "b", half_seconds / 2, ValueError("x"))
    line.over()
    line.add("a", EVERY_S)
    assert caplog.messages == ["b", "b (120 times since the last such line)", "a"]
    assert [bool(record.exc_info) for record in caplog.records] == [True, True, False]
