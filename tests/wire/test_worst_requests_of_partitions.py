"""The worst requests about partitions, beside a server of their own: see the first file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.served_worst_requests import (
    OF_PARTITIONS,
    all_hold,
    filled_node,
    holds,
    served,
)
from tests.support.server import TidelogNode
from tests.support.worst_requests import compressed
from tidelog.network.router import Handler


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogNode]:
    """A server with topics, a group and a precise watchdog."""
    with filled_node(tmp_path_factory.mktemp("node")) as filled:
        yield filled


@pytest.mark.parametrize("handler", served(OF_PARTITIONS), ids=lambda each: each.api_key.name)
@pytest.mark.long(45)
def test_the_worst_requests_neither_block_the_loop_nor_take_much_memory(
    node: TidelogNode, handler: Handler
) -> None:
    all_hold(node, handler)


@pytest.mark.long
def test_small_batches_that_are_large_inside_are_looked_into_beside_the_loop(
    node: TidelogNode,
) -> None:
    for each in compressed(9):
        holds(node, each)
