"""Fixtures of the tests against real processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import clients
from tests.support.node import Node
from tests.support.wire import Wire


@pytest.fixture
def wire(node: Node) -> Iterator[Wire]:
    """A connection to the shared node for requests written by hand."""
    with Wire(node.port) as connection:
        yield connection


@pytest.fixture
def topic(bootstrap: str, topic_name: str) -> str:
    """A topic of one partition on the shared node, kept for ever."""
    clients.create_topic(bootstrap, topic_name, retention_ms=-1)
    return topic_name
