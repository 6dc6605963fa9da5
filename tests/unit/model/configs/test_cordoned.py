"""What a value of ``cordoned.log.dirs`` cordons, in a file and as a dynamic value."""

from __future__ import annotations

import pytest

from tidelog.model.configs.broker import BROKER
from tidelog.model.configs.cordoned import (
    CORDONED_LOG_DIRS,
    closes,
    cordoned_among,
    unknown_entries,
)
from tidelog.model.configs.resolve import check_dynamic_broker_configs
from tidelog.model.configs.server import ServerConfigs, load
from tidelog.model.configs.types import InvalidConfig, parse

DIRS = ["/a", "/b/"]


@pytest.mark.parametrize(
    ("entries", "cordoned", "all_of_them", "unknown"),
    [
        ((), [], False, []),
        (("*",), ["/a", "/b/"], True, []),
        (("/a",), ["/a"], False, []),
        # A slash at the end means nothing.
        (("/a/", "/b"), ["/a", "/b/"], True, []),
        (("/c", "/a"), ["/a"], False, ["/c"]),
        (("a",), [], False, ["a"]),
    ],
)
def test_which_directories_a_value_cordons(
    entries: tuple[str, ...], cordoned: list[str], all_of_them: bool, unknown: list[str]
) -> None:
    assert cordoned_among(entries, DIRS) == cordoned
    assert closes(entries, DIRS) is all_of_them
    assert unknown_entries(entries, DIRS) == unknown


def test_unknown_directories_are_closed_only_by_the_star() -> None:
    assert closes(("*",), []) and not closes(("/a",), []) and not closes((), [])


@pytest.mark.parametrize("text", ["", "*", " * ", "/a", "/a, /b"])
def test_values_that_parse(text: str) -> None:
    assert isinstance(parse(BROKER[CORDONED_LOG_DIRS], text), tuple)
    assert check_dynamic_broker_configs({CORDONED_LOG_DIRS: text}) is None


@pytest.mark.parametrize(
    ("text", "said"), [("*,/a", "'*' stands alone"), ("/a,,/b", "an entry is empty")]
)
def test_values_that_are_refused(text: str, said: str) -> None:
    refused = parse(BROKER[CORDONED_LOG_DIRS], text)
    assert isinstance(refused, InvalidConfig) and said in refused.sentence


def test_the_value_of_a_file() -> None:
    file = "node.id=1\nlog.dirs=/a,/b\n"
    found = load(file)
    assert isinstance(found, ServerConfigs) and found.cordoned_log_dirs == ()
    found = load(f"{file}cordoned.log.dirs=/b")
    assert isinstance(found, ServerConfigs) and found.cordoned_log_dirs == ("/b",)
    found = load(f"{file}cordoned.log.dirs=/b,/c")
    assert isinstance(found, tuple)
    (refused,) = found
    assert refused.sentence == "cordoned.log.dirs: /c is not among the log directories."
