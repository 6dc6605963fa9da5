"""The worst requests of 1 MB that a client may send: each API's lowest and highest version.

Sent to a real server: none blocks its loop for 100 ms, none takes 64 MB. With TIDELOG_CHAOS=long
(`make chaos`) all versions. This file has the APIs of no other `test_worst_requests_of_*.py`, each
of which has a server of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.served_worst_requests import SUBJECTS, all_hold, filled_node, served, versions
from tests.support.server import TidelogNode
from tidelog.broker import handlers
from tidelog.network.router import Handler, Scope


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogNode]:
    """A server with topics, a group and a precise watchdog."""
    with filled_node(tmp_path_factory.mktemp("node")) as filled:
        yield filled


@pytest.mark.parametrize("handler", served(), ids=lambda each: each.api_key.name)
@pytest.mark.long(40)
def test_the_worst_requests_neither_block_the_loop_nor_take_much_memory(
    node: TidelogNode, handler: Handler
) -> None:
    all_hold(node, handler)


def test_no_api_of_clients_is_left_out_or_sent_twice() -> None:
    sent = [each.api_key for subject in (None, *SUBJECTS) for each in served(subject)]
    assert sorted(sent) == sorted(
        each.api_key for each in handlers.HANDLERS if each.scope is Scope.CLIENT and versions(each)
    )
