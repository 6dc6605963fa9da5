"""What the chaos tests print when all are done: what a steady load came to."""

from __future__ import annotations

import pytest

from tests.chaos.steady_load import FIGURES


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    # From the reports, not from a list of ours: the tests may have run in other processes.
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, ()):
            for name, line in report.user_properties:
                if name == FIGURES:
                    terminalreporter.write_line(line)
