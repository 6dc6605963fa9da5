"""The public producer for asyncio: how a record is accepted, its bytes, opening and closing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.scripted_cluster import ScriptedCluster, topic, view_of
from tests.support.stories import story
from tidelog.aio import Producer
from tidelog.client.errors import Refused, WrongState
from tidelog.runtime.clock import RealClock


def cluster() -> ScriptedCluster:
    return ScriptedCluster(view_of(topic("t", [1, 2], ordered=False)))


class Accepting:
    """A sender that accepts a record at once or later, and notes what it is asked for."""

    def __init__(self, *, at_once: bool, owes_turn: bool) -> None:
        self.at_once, self.delivery = at_once, SimpleNamespace(owes_turn=owes_turn)
        self.calls: list[Any] = []

    def accept(self, *record: Any) -> bool:
        self.calls.append(("accept", *record[:-1]))
        return self.at_once

    async def accept_later(self, *record: Any) -> None:
        self.calls.append(("accept_later", *record[:-1]))

    async def give_turn(self) -> None:
        self.calls.append(("give_turn",))

    async def close(self) -> None:
        self.calls.append(("close",))


@pytest.mark.parametrize("owes_turn", [True, False])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_record_is_accepted_once_at_once_or_later(at_once: bool, owes_turn: bool) -> None:
    """A sender that owes the loop a turn gets one before the next record."""

    async def of() -> None:
        producer = Producer(cluster=cluster())
        sender: Any = Accepting(at_once=at_once, owes_turn=owes_turn)
        producer._sender = sender
        outcome = await producer.send("t", b"v", b"k", partition=1)
        record = ("t", b"v", b"k", 1, None, [])
        waits = [("give_turn",)] if owes_turn else []
        assert sender.calls == [
            ("accept", *record),
            *(waits if at_once else [("accept_later", *record)]),
        ]
        assert not outcome.done()
        await producer.close()
        assert sender.calls[-1] == ("close",)

    story(of)


def test_a_producer_opens_and_closes_as_a_context_and_stops() -> None:
    async def of() -> None:
        clock = RealClock()
        for leaves in (True, False):
            at, closed = cluster(), []

            async def close(closed: list[bool] = closed) -> None:
                closed.append(True)

            at.close = close  # type: ignore[method-assign]
            producer = Producer(cluster=at, clock=clock)
            with pytest.raises(WrongState, match="this producer is not started"):
                await producer.send("t", b"v")
            if leaves:
                async with producer as entered:
                    assert entered is producer and producer.sender.clock is clock
            else:
                await producer.start()
                with pytest.raises(TypeError, match="a number of seconds"):
                    await producer.close("1")  # type: ignore[arg-type]
                assert not closed and await producer.partitions_for("t") == {0, 1}
                await producer.stop()
            assert closed == [True]
            with pytest.raises(WrongState, match="this producer is closed"):
                await producer.send("t", b"v")

    story(of)


def first_byte(given: bytes) -> bytes:
    return given[:1]


def test_keys_values_and_headers_become_bytes() -> None:
    plain = Producer(cluster=cluster())
    for value, key in ((b"v", None), (None, b"k"), (None, None)):
        assert plain.encoded("t", value, key, None) == (value, key, [])
    assert plain.encoded("t", b"v", bytearray(b"k"), None) == (b"v", b"k", [])
    assert plain.encoded("t", b"v", b"k", {"h": b"1"}) == (b"v", b"k", [("h", b"1")])
    with pytest.raises(TypeError, match="the key of a record must be bytes, not int"):
        plain.encoded("t", b"v", 5, None)
    with pytest.raises(TypeError, match="a topic is named by a str, not int"):
        plain.encoded(5, b"v", None, None)  # type: ignore[arg-type]
    # Bytes are given to a serializer, too, whichever of the two there is.
    of_keys = Producer(cluster=cluster(), key_serializer=first_byte)
    of_values = Producer(cluster=cluster(), value_serializer=first_byte)
    assert of_keys.encoded("t", b"value", b"key", None) == (b"value", b"k", [])
    assert of_values.encoded("t", b"value", b"key", None) == (b"v", b"key", [])
    with pytest.raises(Refused, match="INVALID_TOPIC"):
        of_keys.encoded("a b", b"value", b"key", None)
