"""Commands that a test runs against a cluster, in its own process, and what they said."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

import pytest

from tidelog.cli import main

OF_LIBRDKAFKA = re.compile(r"^%\d\|.*\n", re.MULTILINE)
"""A line of a stock client of another test: its threads are in the same process, and go on for a
while after its brokers are gone. Commands use no such client."""


class Said(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str

    def good(self) -> str:
        assert self.status == 0, self
        return self.out

    def json(self) -> Any:
        return json.loads(self.good())

    def failed(self, *words: str, status: int = 1) -> None:
        """Assert that it failed with one line that has these words, after one that it waits."""
        assert self.status == status, self
        lines = [each for each in self.err.splitlines() if not each.startswith("waiting for ")]
        assert len(lines) == 1, self
        assert lines[0].startswith("error: "), self
        for word in words:
            assert word in self.err, self


def said_by(bootstrap: str, capfd: pytest.CaptureFixture[str], *arguments: str) -> Said:
    """Run a command of `tidelog` against a cluster; return what it said and how it ended."""
    capfd.readouterr()
    command, *rest = arguments
    with pytest.raises(SystemExit) as ended:
        main.main([command, "--bootstrap-server", bootstrap, *rest])
    out, err = capfd.readouterr()
    assert isinstance(ended.value.code, int)
    return Said(ended.value.code, out, OF_LIBRDKAFKA.sub("", err))
