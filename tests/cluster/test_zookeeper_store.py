"""What only a ZooKeeper store meets: a server that dies and returns, a session that expires."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from tests.support.lone_broker import until
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.zookeeper import PATIENT_SESSION_S, Door, ZooKeeper, end_session, needed
from tidelog.metadata import zookeeper
from tidelog.metadata.store import Conflict, Create, Node, Reason, Set, StoreUnavailable
from tidelog.metadata.zookeeper import MAX_WRITE_BYTES, ZookeeperStore

pytestmark = [pytest.mark.java, pytest.mark.long(20)]


@pytest.fixture
def server(tmp_path: Path) -> ZooKeeper:
    needed()
    return ZooKeeper(tmp_path)


def test_a_session_survives_a_restart_of_the_server_and_its_watches_too(
    server: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper, "ANSWER_TIMEOUT_S", 1)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        store = ZookeeperStore(f"{server.address}/t", session_timeout_s=20)
        other = ZookeeperStore(f"{server.address}/t", session_timeout_s=20)
        await store.open()
        await other.open()
        told: list[str] = []
        assert await store.multi([Create("/a", b"1")]) is None
        store.watch("/a", told.append)
        await loop.run_in_executor(None, server.kill)
        await until(lambda: not store.reachable, DEADLINE_S)
        with pytest.raises(StoreUnavailable):
            await store.multi([Set("/a", b"lost")])
        monkeypatch.undo()
        await loop.run_in_executor(None, server.start)
        await until(lambda: store.reachable and other.reachable, DEADLINE_S)
        await until(lambda: told, DEADLINE_S)
        node = await store.get("/a")
        assert node is not None and node.data in (b"1", b"lost"), "its outcome was unknown"
        told.clear()
        assert await other.multi([Set("/a", b"2")]) is None
        await until(lambda: told, DEADLINE_S)
        assert (await store.get("/a") or Node(b"", 0)).data == b"2"
        await store.close()
        await other.close()

    with server:
        asyncio.run(main())


def test_a_greeting_that_is_never_answered_costs_no_session(server: ZooKeeper) -> None:
    async def main() -> None:
        door = Door(server.port, unheard=1)
        # Half of a session passes unheard; the other half is a busy machine's.
        store = ZookeeperStore(await door.open(), 8)
        lost: list[str] = []
        store.when_lost = lost.append
        await store.open()
        assert await store.multi([Create("/mine", b"", ephemeral=True)]) is None
        door.unheard = 1
        door.reset()
        await until(lambda: not store.reachable, DEADLINE_S)
        await until(lambda: store.reachable or lost, DEADLINE_S)
        assert not lost and not door.unheard
        assert await store.get("/mine") is not None
        await store.close()
        await door.close()

    with server:
        asyncio.run(main())


def test_an_expired_session_is_lost_for_good_and_its_ephemeral_nodes_go(server: ZooKeeper) -> None:
    async def main() -> None:
        door = Door(server.port, unheard=0)
        store = ZookeeperStore(await door.open())
        other = ZookeeperStore(server.address, PATIENT_SESSION_S)
        await store.open()
        await other.open()
        lost: list[str] = []
        gone = asyncio.Event()
        store.when_lost = lost.append
        assert await store.multi([Create("/mine", b"", ephemeral=True)]) is None
        other.watch("/mine", lambda _: gone.set())
        await end_session(store, door, server)
        await until(lambda: lost, DEADLINE_S)
        assert "expired" in lost[0] and not store.reachable
        # Nor by a session of its own accord, however long one waits.
        await asyncio.wait_for(gone.wait(), DEADLINE_S)
        await until(lambda: store._ending is None or store._ending.done(), DEADLINE_S)
        assert not store.reachable and len(lost) == 1
        with pytest.raises(StoreUnavailable):
            await store.get("/mine")
        with pytest.raises(StoreUnavailable):
            await store.multi([Create("/zombie", b"")])
        assert await other.get("/mine") is None
        assert await other.get("/zombie") is None
        await store.close()
        await store.open()
        assert store.reachable and await store.get("/mine") is None
        await store.close()
        await other.close()
        await door.close()

    with server:
        asyncio.run(main())


def test_of_two_conditional_writes_one_fails(server: ZooKeeper) -> None:
    async def main() -> None:
        one, two = (ZookeeperStore(f"{server.address}/c", PATIENT_SESSION_S) for _ in range(2))
        await one.open()
        await two.open()
        assert await one.multi([Create("/epoch", b"1")]) is None
        answers = await asyncio.gather(
            one.multi([Set("/epoch", b"2", 0), Create("/one", b"")]),
            two.multi([Set("/epoch", b"2", 0), Create("/two", b"")]),
        )
        assert sorted(answers, key=str) == [Conflict("/epoch", Reason.VERSION), None]
        assert len(await one.children("/")) == 2
        with pytest.raises(StoreUnavailable, match="more than ZooKeeper takes"):
            await one.multi([Set("/epoch", bytes(MAX_WRITE_BYTES))])
        await one.close()
        await two.close()

    with server:
        asyncio.run(main())


def test_an_open_that_is_called_off_leaves_nothing_open(server: ZooKeeper) -> None:
    async def main() -> None:
        store = ZookeeperStore(server.address)
        opening = asyncio.ensure_future(store.open())
        await asyncio.wait({opening}, timeout=0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert not store.reachable
        await store.close()

    before = threading.active_count()
    asyncio.run(main())
    wait_until(lambda: threading.active_count() <= before, DEADLINE_S, "kazoo's threads end")


def test_a_store_that_does_not_answer_is_one_clear_line(
    server: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper, "CONNECT_TIMEOUT_S", 1)

    async def main() -> None:
        store = ZookeeperStore(server.address)
        with pytest.raises(StoreUnavailable, match=f"{server.address} does not answer"):
            await store.open()

    asyncio.run(main())
