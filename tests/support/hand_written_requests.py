"""Requests written by hand that a node must refuse or close on."""

from __future__ import annotations

import contextlib
import datetime
import socket

from kio.schema.find_coordinator.v2.request import FindCoordinatorRequest
from kio.schema.join_group.v5.request import JoinGroupRequest, JoinGroupRequestProtocol
from kio.static.primitive import i8, i32Timedelta

from tests.support.processes import DEADLINE_S, wait_until
from tests.support.wire import Wire


def coordinated(wire: Wire, group: str) -> None:
    """Wait until the group's coordinator answers."""

    def answers() -> bool:
        code = int(wire.call(FindCoordinatorRequest(key=group, key_type=i8(0))).error_code)
        assert code in (0, 15), code
        return code == 0

    wait_until(answers, DEADLINE_S, f"the coordinator of {group} answers")


def join(wire: Wire, group: str, member: str = "", *, session_ms: int = 10_000) -> object:
    timeout = i32Timedelta.parse(datetime.timedelta(milliseconds=session_ms))
    request = JoinGroupRequest(
        group_id=group,
        session_timeout=timeout,
        rebalance_timeout=timeout,
        member_id=member,
        protocol_type="consumer",
        protocols=(JoinGroupRequestProtocol(name="range", metadata=b""),),
    )
    return wire.call(request)


def closed_unanswered(wire: Wire) -> bool:
    """Whether the node closes without a word, at the latest when nothing more can come."""
    with contextlib.suppress(OSError):
        wire.socket.shutdown(socket.SHUT_WR)
    try:
        wire.receive_raw()
    except ConnectionError:
        return True
    return False
