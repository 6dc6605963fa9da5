"""Commits that reach the end of a retired partition's data, because nothing is left to read."""

from __future__ import annotations

from tests.support.retired_topic import EMPTY, held
from tidelog.controller.decisions.removal import UNKNOWN
from tidelog.controller.retired_commits import MOST_COMMITS, short_commits, with_read

DATA = held(log_start=20)


def test_each_offset_below_the_end_is_asked_for_once() -> None:
    commits = {"a": {4: 30, 5: 90}, "b": {4: 30, 5: 40}, "c": {4: 91}, "reads": {}}
    answers = {4: DATA, 5: DATA, 6: held(data_end=UNKNOWN)}
    asked = list(short_commits(answers, commits))
    assert asked == [(4, DATA, 30), (5, DATA, UNKNOWN), (5, DATA, 40)]
    many = {str(x): {4: x} for x in range(3 * MOST_COMMITS)}
    offsets = [offset for _, _, offset in short_commits({4: DATA}, many)]
    assert offsets == list(range(MOST_COMMITS))
    # All of it was deleted: also then a group that has not committed past it holds it.
    assert list(short_commits({4: EMPTY}, {"a": {4: 30}})) == [(4, EMPTY, 30)]


def test_only_the_commits_that_were_asked_for_count_as_more() -> None:
    commits = {"a": {4: 30, 5: 90}, "b": {4: 29}, "c": {5: 90}, "reads": {}}
    counted = with_read(commits, {4: DATA, 5: DATA}, {(4, 30)})
    assert counted == {**commits, "a": {4: 90, 5: 90}}
    counted = with_read(commits, {4: DATA, 5: DATA}, {(4, UNKNOWN)})
    assert counted == {**commits, "c": {4: 90, 5: 90}}, "a member that reads has committed nothing"
    assert commits["a"] == {4: 30, 5: 90}
