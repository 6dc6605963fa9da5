"""Which server the tests run against (TIDELOG_TEST_TARGET), and a new node of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tests.support.node import Node

TARGET = os.environ.get("TIDELOG_TEST_TARGET", "tidelog")


def new_node(folder: Path, config: Mapping[str, object] | None = None) -> Node:
    """A node of the target, not yet started, in an empty folder."""
    if TARGET == "kafka":
        from tests.support.kafka import KafkaNode

        return KafkaNode(folder, config)
    from tests.support.server import TidelogNode

    return TidelogNode(folder, config)
