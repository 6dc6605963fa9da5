"""The worst requests about committed offsets, beside a server of their own: see the first file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.served_worst_requests import OF_OFFSETS, all_hold, filled_node, served
from tests.support.server import TidelogNode
from tidelog.network.router import Handler


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogNode]:
    """A server with topics, a group and a precise watchdog."""
    with filled_node(tmp_path_factory.mktemp("node")) as filled:
        yield filled


@pytest.mark.parametrize("handler", served(OF_OFFSETS), ids=lambda each: each.api_key.name)
@pytest.mark.long
def test_the_worst_requests_neither_block_the_loop_nor_take_much_memory(
    node: TidelogNode, handler: Handler
) -> None:
    all_hold(node, handler)


def test_none_of_them_is_left_out() -> None:
    assert {each.api_key for each in served(OF_OFFSETS)} == OF_OFFSETS
