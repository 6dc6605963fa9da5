"""One conformance suite over all metadata stores, and what only SQLite promises."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import random
import resource
import sqlite3
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.support.processes import DEADLINE_S
from tests.support.watched_disk import WatchedDisk
from tests.support.zookeeper import ZooKeeper, needed
from tidelog.metadata.memory import MemoryStore, MemoryTree
from tidelog.metadata.sqlite import SqliteStore, _connect, _multi, backup
from tidelog.metadata.sqlite_room import PAGES, RESERVE_BYTES, RoomOnDisk
from tidelog.metadata.store import (
    ANY_VERSION,
    CheckVersion,
    Conflict,
    Create,
    Delete,
    MetadataStore,
    Node,
    Reason,
    Set,
    StoreRefused,
    StoreUnavailable,
    why_invalid,
)
from tidelog.metadata.zookeeper import ZookeeperStore
from tidelog.runtime.disk import File, RealDisk

Maker = Callable[[], MetadataStore]


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    needed()
    with ZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(params=["memory", "sqlite", "zookeeper"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Maker:
    """Makes sessions on one and the same tree."""
    if request.param == "memory":
        tree = MemoryTree()
        return lambda: MemoryStore(tree)
    if request.param == "zookeeper":
        server = request.getfixturevalue("zookeeper")
        address = f"{server.address}/{uuid.uuid4().hex}"
        return lambda: ZookeeperStore(address)
    return lambda: SqliteStore(str(tmp_path / "deep" / "metadata.sqlite"), RealDisk())


def run(make: Maker, scenario: Callable[[MetadataStore], Awaitable[None]]) -> None:
    async def main() -> None:
        store = make()
        await store.open()
        try:
            await scenario(store)
        finally:
            await store.close()

    asyncio.run(main())


def test_create_set_delete_and_versions(make: Maker) -> None:
    async def scenario(store: MetadataStore) -> None:
        assert await store.get("/a") is None
        assert not await store.exists("/a")
        assert await store.multi([Create("/a", b"1"), Create("/a/b", b"\x00\xff")]) is None
        assert await store.get("/a") == Node(b"1", 0)
        assert await store.multi([Set("/a", b"2", 0)]) is None
        assert await store.get("/a") == Node(b"2", 1)
        assert await store.multi([Set("/a", b"3")]) is None
        assert await store.get("/a") == Node(b"3", 2)
        assert await store.children("/") == ["a"]
        assert await store.children("/a") == ["b"]
        assert await store.children("/none") == []
        assert await store.multi([Delete("/a/b", 0), Delete("/a", 2)]) is None
        assert await store.children("/") == []
        assert await store.multi([Create("/a", b"")]) is None
        assert await store.get("/a") == Node(b"", 0)

    run(make, scenario)


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        (Create("/a", b""), Reason.EXISTS),
        (Create("/", b""), Reason.EXISTS),
        (Create("/x/y", b""), Reason.MISSING),
        (Create("/e/y", b""), Reason.EPHEMERAL_PARENT),
        (Set("/x", b""), Reason.MISSING),
        (Set("/a", b"", 7), Reason.VERSION),
        (Delete("/x"), Reason.MISSING),
        (Delete("/a", 7), Reason.VERSION),
        (Delete("/a"), Reason.NOT_EMPTY),
        (CheckVersion("/a", 1), Reason.VERSION),
        (CheckVersion("/x", 0), Reason.MISSING),
    ],
)
def test_a_refused_operation_undoes_the_whole_write(
    make: Maker, operation: Create | Set | Delete | CheckVersion, reason: Reason
) -> None:
    async def scenario(store: MetadataStore) -> None:
        start = [Create("/a", b"1"), Create("/a/b", b"2"), Create("/e", b"", ephemeral=True)]
        assert await store.multi(start) is None
        before = await store.load()
        conflict = await store.multi(
            [
                Create("/new", b""),
                Set("/a/b", b"changed"),
                CheckVersion("/a", 0),
                operation,
                Create("/never", b""),
            ]
        )
        assert conflict == Conflict(operation.path, reason)
        assert await store.load() == before

    run(make, scenario)


def test_operations_see_those_before_them_in_the_same_write(make: Maker) -> None:
    async def scenario(store: MetadataStore) -> None:
        write = [
            Create("/a", b""),
            Create("/a/b", b""),
            Set("/a/b", b"x", 0),
            CheckVersion("/a/b", 1),
            Delete("/a/b", 1),
            Delete("/a", ANY_VERSION),
        ]
        assert await store.multi(write) is None
        assert set(await store.load()) == {"/"}

    run(make, scenario)


def test_ephemeral_nodes_end_with_their_session(make: Maker) -> None:
    async def main() -> None:
        first = make()
        await first.open()
        assert await first.multi([Create("/e", b"", ephemeral=True), Create("/p", b"")]) is None
        assert await first.multi([Set("/e", b"1")]) is None
        loaded = await first.load()
        for path, node in {"/e": Node(b"1", 1, ephemeral=True), "/p": Node(b"", 0)}.items():
            assert (await first.get(path), loaded[path]) == (node, node)
        # One gives way to a persistent one in the same write, and that has children.
        write = [Delete("/e", 1), Create("/e", b""), Create("/e/x", b"")]
        assert await first.multi(write) is None
        assert await first.multi([Delete("/e/x"), Delete("/e")]) is None
        assert await first.multi([Create("/e", b"", ephemeral=True)]) is None
        await first.close()
        await first.close()
        with pytest.raises(StoreUnavailable):
            await first.get("/p")
        second = make()
        await second.open()
        assert await second.get("/e") is None
        assert await second.get("/p") == Node(b"", 0)
        await second.close()

    asyncio.run(main())


def test_watches(make: Maker) -> None:
    async def scenario(store: MetadataStore) -> None:
        calls: list[str] = []
        on_a = store.watch("/a", lambda path: calls.append("a " + path))
        store.watch("/", lambda path: calls.append("root " + path))

        assert await store.multi([Create("/end", b"")]) is None
        end = asyncio.Event()
        store.watch("/end", lambda _: end.set())

        async def all_told() -> None:
            # Changes are reported in order: when the last one was, those before it were.
            end.clear()
            assert await store.multi([Set("/end", b"")]) is None
            await asyncio.wait_for(end.wait(), DEADLINE_S)

        await all_told()

        async def told_after(*write: Create | Set | Delete | CheckVersion) -> set[str]:
            calls.clear()
            assert await store.multi(write) is None
            await all_told()
            return set(calls)

        assert await told_after(Create("/a", b"")) == {"a /a", "root /"}
        assert await told_after(Set("/a", b"1")) == {"a /a"}
        assert await told_after(CheckVersion("/a", 1)) == set()
        assert await told_after(Create("/a/b", b"")) == {"a /a"}
        assert await told_after(Set("/a/b", b"")) == set()
        on_a.cancel()
        on_a.cancel()
        assert await told_after(Delete("/a/b"), Delete("/a")) == {"root /"}
        calls.clear()
        assert await store.multi([Set("/x", b"")]) is not None
        assert calls == []

    run(make, scenario)


def test_a_store_is_reachable_while_it_is_open(make: Maker) -> None:
    async def main() -> None:
        store = make()
        assert not store.reachable
        await store.open()
        assert store.reachable
        await store.close()
        assert not store.reachable

    asyncio.run(main())


def test_paths_that_cannot_be_are_a_bug_of_the_caller(make: Maker) -> None:
    async def scenario(store: MetadataStore) -> None:
        for path in ("", "a", "/a/", "//a", "/a/../b", "/a/.", "/\0"):
            assert why_invalid(path) is not None
            with pytest.raises(ValueError, match="no path"):
                await store.multi([Create(path, b"")])
        with pytest.raises(ValueError, match="root"):
            await store.multi([Delete("/")])

    run(make, scenario)


def test_two_stores_agree_on_random_writes(tmp_path: Path) -> None:
    """The memory store is the model of the SQLite store."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    paths = [f"/{a}{b}" for a in "abc" for b in ("", "/x", "/y", "/x/z")]

    def operation() -> Create | Set | Delete | CheckVersion:
        path, version = chance.choice(paths), chance.choice([ANY_VERSION, 0, 1, 2])
        kind = chance.randrange(6)
        if kind < 3:
            return Create(path, bytes([chance.randrange(256)]), chance.random() < 0.1)
        return (Set(path, b"s", version), Delete(path, version), CheckVersion(path, version))[
            kind - 3
        ]

    async def main() -> None:
        memory = MemoryStore()
        sqlite = SqliteStore(str(tmp_path / "m.sqlite"), RealDisk())
        await memory.open()
        await sqlite.open()
        for _ in range(300):
            write = [operation() for _ in range(chance.randrange(1, 5))]
            assert await memory.multi(write) == await sqlite.multi(write), write
        assert await memory.load() == await sqlite.load()
        await sqlite.close()

    asyncio.run(main())


def test_sqlite_refuses_a_second_controller_until_the_first_is_gone(tmp_path: Path) -> None:
    path = str(tmp_path / "m.sqlite")

    async def main() -> None:
        first, second = SqliteStore(path, RealDisk()), SqliteStore(path, RealDisk())
        await first.open()
        with pytest.raises(StoreRefused, match=r"Another controller has .*m\.sqlite open"):
            await second.open()
        assert await first.multi([Create("/a", b"")]) is None
        await first.close()
        await second.open()
        assert await second.exists("/a")
        await second.close()

    asyncio.run(main())


@pytest.mark.parametrize("fault", [None, errno.EIO])
def test_sqlite_is_opened_by_a_thread(tmp_path: Path, fault: int | None) -> None:
    """A controller that lost its store opens it again while the brokers of its process serve."""
    path = str(tmp_path / "m.sqlite")

    class Faulty(WatchedDisk):
        def sync_directory(self, path: str) -> None:
            super().sync_directory(path)
            if fault is not None:
                raise OSError(fault, os.strerror(fault), path)

    async def main() -> None:
        disk = Faulty()
        store = SqliteStore(path, disk)
        if fault is None:
            await store.open()
            assert await store.multi([Create("/a", b"")]) is None
            await store.close()
        else:
            with pytest.raises(StoreRefused):
                await store.open()
            assert not store.reachable
        assert disk.of("sync_directory") and not disk.here("sync_directory")
        another = SqliteStore(path, RealDisk())
        await another.open()  # no store has it open any longer
        assert await another.exists("/a") is (fault is None)
        await another.close()

    asyncio.run(main())


def test_a_full_disk_ends_a_session_of_sqlite_and_not_the_store(tmp_path: Path) -> None:
    path = str(tmp_path / "m.sqlite")

    async def main() -> None:
        store = SqliteStore(path, RealDisk())
        await store.open()
        assert await store.multi([Create("/controller", b"", ephemeral=True)]) is None
        for number in range(5):
            assert await store.multi([Create(f"/n{number}", b"y" * 2000)]) is None
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (RealDisk().size(path + "-wal"), before[1]))
        try:
            with pytest.raises(StoreUnavailable):
                await store.multi([Create("/big", b"z" * 3_000_000)])
            await store.close()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        await store.open()
        assert await store.children("/") == [f"n{number}" for number in range(5)]
        assert await store.multi([Create("/controller", b"", ephemeral=True)]) is None
        await store.close()

    asyncio.run(main())


class FullDisk(RealDisk):
    """Takes nothing for as long as ``refused`` names the call."""

    refused = ""

    def lock(self, path: str) -> File | None:
        self._refuse("lock")
        return super().lock(path)

    def sync_directory(self, path: str) -> None:
        self._refuse("sync_directory")
        super().sync_directory(path)

    def _refuse(self, call: str) -> None:
        if call == self.refused:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_sqlite_that_cannot_be_opened_for_want_of_room_is_opened_later(tmp_path: Path) -> None:
    async def main() -> None:
        disk = FullDisk()
        store = SqliteStore(str(tmp_path / "m.sqlite"), disk)
        for disk.refused in ("lock", "sync_directory"):
            with pytest.raises(StoreUnavailable, match="No space left"):
                await store.open()
            assert not store.reachable
        disk.refused = ""
        await store.open()
        assert await store.exists("/")
        await store.close()

    asyncio.run(main())


def test_sqlite_is_backed_up_while_it_is_open(tmp_path: Path) -> None:
    path, copy = str(tmp_path / "m.sqlite"), str(tmp_path / "copy.sqlite")

    async def main() -> None:
        store = SqliteStore(path, RealDisk())
        await store.open()
        assert await store.multi([Create("/a", b"1")]) is None
        backup(path, copy)
        assert await store.multi([Set("/a", b"2")]) is None
        await store.close()
        restored = SqliteStore(copy, RealDisk())
        await restored.open()
        assert await restored.get("/a") == Node(b"1", 0)
        await restored.close()

    asyncio.run(main())
    with pytest.raises(StoreRefused, match="exists already"):
        backup(path, copy)
    with pytest.raises(StoreRefused, match=f"{tmp_path} is a folder.*{tmp_path}/m.sqlite"):
        backup(path, str(tmp_path))
    with pytest.raises(StoreRefused, match="no metadata store"):
        backup(str(tmp_path / "none"), str(tmp_path / "x"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"this is no database, but long enough to be looked at as one" * 20, "cannot be read"),
        ("CREATE TABLE other (x)", "not a metadata store of tidelog"),
        ("PRAGMA user_version = 99", "schema version 99"),
    ],
)
def test_sqlite_refuses_files_that_are_not_its_own(
    tmp_path: Path, content: bytes | str, message: str
) -> None:
    path = tmp_path / "m.sqlite"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        database = sqlite3.connect(path)
        database.execute(content)
        database.commit()
        database.close()

    async def main() -> None:
        store = SqliteStore(str(path), RealDisk())
        for _ in range(2):
            # The second try shows that the first one left no lock.
            with pytest.raises(StoreRefused, match=message):
                await store.open()

    asyncio.run(main())


def full_error() -> sqlite3.Error:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error


@pytest.mark.parametrize(
    ("fails", "tries", "is_given_up"),
    [
        (0, [True], False),
        (1, [True, True], True),
        # An open store without room is of more use than none.
        (2, [True, True, False], True),
        (3, [True, True, False], True),
    ],
)
def test_an_open_that_finds_no_room_uses_the_reserve(
    tmp_path: Path, fails: int, tries: list[bool], *, is_given_up: bool
) -> None:
    room = RoomOnDisk(str(tmp_path / "m.sqlite"), RealDisk())
    room.make()
    reserve = tmp_path / "m.sqlite.reserve"
    assert reserve.stat().st_size == RESERVE_BYTES
    assert reserve.stat().st_blocks * 512 >= RESERVE_BYTES, "a hole reserves nothing"
    asked: list[tuple[bool, bool]] = []

    def connect(takes_room: bool) -> str:
        asked.append((takes_room, reserve.exists()))
        if len(asked) <= fails:
            raise full_error()
        return "open"

    if fails == 3:
        with pytest.raises(sqlite3.Error):
            room.opened(connect)
    else:
        assert room.opened(connect) == "open"
        assert reserve.exists(), "made again: there is room here"
    assert [takes for takes, _ in asked] == tries
    assert any(not is_there for _, is_there in asked) is is_given_up


def test_an_open_store_keeps_room_in_its_own_files(tmp_path: Path) -> None:
    path = str(tmp_path / "m.sqlite")

    async def main() -> None:
        store = SqliteStore(path, RealDisk())
        for _ in range(2):
            await store.open()
            with contextlib.closing(sqlite3.connect(path)) as looking:
                (free,) = looking.execute("PRAGMA freelist_count").fetchone()
                (page,) = looking.execute("PRAGMA page_size").fetchone()
                (tables,) = looking.execute("SELECT count(*) FROM sqlite_master").fetchone()
            assert free >= PAGES and tables == 2, "of which the schema knows"
            assert RealDisk().size(f"{path}-wal") >= PAGES * page
            assert RealDisk().size(path) >= PAGES * page
            await store.close()
            assert RealDisk().exists(path + ".reserve")

    asyncio.run(main())


def test_a_commit_without_room_writes_over_the_log(tmp_path: Path) -> None:
    path = str(tmp_path / "m.sqlite")
    room = RoomOnDisk(path, RealDisk())
    database = room.opened(lambda takes_room: _connect(path, takes_room))
    room.make()
    written = itertools.count()

    def commit(database: sqlite3.Connection) -> None:
        node = f"/n{next(written)}"
        assert _multi(database, [Create(node, b"y" * 100), Delete(node)]) is None

    def size() -> int:
        return RealDisk().size(f"{path}-wal")

    while (full := size()) < 4 * PAGES * 4096:
        commit(database)
    tries = []

    def finds_no_room_once(database: sqlite3.Connection) -> None:
        tries.append(size())
        if len(tries) == 1:
            raise full_error()
        commit(database)

    room.used(database, finds_no_room_once)
    for _ in range(50):
        commit(database)
    assert len(tries) == 2 and size() == full
    # The reserve was not needed. It is when there is no room in the log either.
    assert RealDisk().exists(room.path)

    def finds_no_room_twice(database: sqlite3.Connection) -> None:
        tries.append(RealDisk().exists(room.path))
        if len(tries) < 5:
            raise full_error()

    room.used(database, finds_no_room_twice)
    assert tries[2:] == [True, True, False]
    assert RealDisk().exists(room.path), "made again: there is room here"
    with pytest.raises(sqlite3.IntegrityError):
        room.used(database, _breaks_a_rule)
    database.close()


def _breaks_a_rule(_database: sqlite3.Connection) -> None:
    raise sqlite3.IntegrityError("not for want of room")
