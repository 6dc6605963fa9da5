"""The lines that the simulation's tests print when all are done."""

from __future__ import annotations

import pytest

from tests.simulation import seeds


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many seeds ran, and what happened."""
    for line in seeds.ran:
        terminalreporter.write_line(line)
