"""What the simulation's tests print when all are done: how many seeds ran, and what happened."""

from __future__ import annotations

import pytest
from tests.simulation import seeds


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in seeds.ran:
        terminalreporter.write_line(line)
