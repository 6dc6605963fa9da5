"""What the simulation's tests print when all are done, and what they keep to themselves."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from tests.simulation import seeds


@pytest.fixture
def quiet() -> Iterator[None]:
    """What servers say of their own deaths, and of planted faults, is not news."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many seeds ran, and what happened."""
    for line in seeds.ran:
        terminalreporter.write_line(line)
