"""The metadata store on a real ZooKeeper (3.8 or newer), through kazoo: several controllers.

Owns one session from ``open`` to ``close``, and the bridge between kazoo's threads and the event
loop: callbacks and results reach the caller in the loop. A write without a response has an unknown
outcome and raises ``StoreUnavailable``; this module never tries it again, for ZooKeeper may have
done it.

States: closed -> open -> (connection lost: not ``reachable``) -> open again, or lost when the
session expires: then it calls ``when_lost`` once, and every later call raises ``StoreUnavailable``.
``load`` is no snapshot: a node may change while others are read. A controller's first write is
conditional on the controller epoch that it loaded, and each later one on the versions that it
loaded, so a write fails whose node was read too early.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kazoo import exceptions
from kazoo.client import KazooClient, KazooState
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.interfaces import IAsyncResult

from tidelog.metadata.memory import check_paths
from tidelog.metadata.store import (
    ROOT,
    Conflict,
    Create,
    Delete,
    Node,
    Operation,
    Reason,
    Set,
    StoreRefused,
    StoreUnavailable,
    Watch,
    WriteTooLarge,
)

logger = logging.getLogger(__name__)

SESSION_TIMEOUT_S = 4.0
"""The session's timeout: below a broker's session, so that a lost controller is replaced first."""

CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 10.0
"""Longer than a session lasts without responses, so that kazoo reports first what happened."""

MAX_WRITE_BYTES = 1_000_000
"""ZooKeeper closes the connection of a request above jute.maxbuffer (1 MiB by default)."""

READS_AT_ONCE = 512
OWN_CHILD = "zookeeper"
"""ZooKeeper's own node under the real root."""

_REASONS: tuple[tuple[type[Exception], Reason], ...] = (
    (exceptions.NodeExistsError, Reason.EXISTS),
    (exceptions.NoNodeError, Reason.MISSING),
    (exceptions.BadVersionError, Reason.VERSION),
    (exceptions.NotEmptyError, Reason.NOT_EMPTY),
    (exceptions.NoChildrenForEphemeralsError, Reason.EPHEMERAL_PARENT),
)
_LOST = (
    exceptions.ConnectionLoss,
    exceptions.SessionExpiredError,
    exceptions.ConnectionClosedError,
    exceptions.OperationTimeoutError,
    KazooTimeoutError,
)


class ZookeeperStore:
    """One controller's session with ZooKeeper. ``hosts`` is "host:port,host:port/chroot"."""

    is_shared = True
    max_write_bytes: int | None = MAX_WRITE_BYTES

    def __init__(self, hosts: str, session_timeout_s: float = SESSION_TIMEOUT_S) -> None:
        self.hosts = hosts
        self.reachable = False
        self.when_lost: Callable[[str], None] | None = None
        self._session_timeout_s = session_timeout_s
        self._client: KazooClient | None = None
        self._connected = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop
        self._watches: dict[_ZookeeperWatch, None] = {}
        self._ending: asyncio.Future[None] | None = None

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        addresses, _, chroot = self.hosts.partition("/")
        # A server that is starting may accept a connection request and never respond. kazoo waits
        # for the session timeout divided by the number of servers: to name a single server twice
        # leaves time for a second attempt.
        client = KazooClient(
            hosts=addresses if "," in addresses else f"{addresses},{addresses}",
            timeout=self._session_timeout_s,
            connection_retry={"max_tries": -1, "max_delay": 1.0, "delay": 0.05},
            logger=logging.getLogger("kazoo"),
        )
        client.add_listener(lambda state: self._in_loop(self._state_changed, client, state))
        self._client = client
        self._connected.clear()
        try:
            client.start_async()
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._connected.wait()
            # The chroot is set once its node exists: kazoo logs a warning if it is missing.
            await self._loop.run_in_executor(None, client.ensure_path, f"/{chroot}")
            client.chroot = f"/{chroot}" if chroot else ""
        except (TimeoutError, KazooTimeoutError, exceptions.KazooException) as error:
            await self.close()
            raise StoreUnavailable(
                f"ZooKeeper at {self.hosts} does not answer ({str(error) or 'no connection'}): "
                "is it running?"
            ) from error
        except (exceptions.ConfigurationError, ValueError) as error:
            await self.close()
            raise StoreRefused(f"{self.hosts!r} is no ZooKeeper address: {error}") from error
        except BaseException:
            # Cancelled, as by a stop while the server is down: kazoo would try for ever.
            await self.close()
            raise
        self.reachable = True

    async def close(self) -> None:
        self._let_go()
        ending, self._ending = self._ending, None
        if ending is not None:
            await ending

    async def get(self, path: str) -> Node | None:
        try:
            data, stat = await self._ask(lambda client: client.get_async(path))
        except exceptions.NoNodeError:
            return None
        return Node(data, stat.version, bool(stat.ephemeralOwner))

    async def exists(self, path: str) -> bool:
        return await self._ask(lambda client: client.exists_async(path)) is not None

    async def children(self, path: str) -> list[str]:
        try:
            names = await self._ask(lambda client: client.get_children_async(path))
        except exceptions.NoNodeError:
            return []
        return sorted(name for name in names if path != ROOT or name != OWN_CHILD)

    async def load(self) -> dict[str, Node]:
        """Return all nodes; see the module's note. Grows with the nodes, one read each."""
        client = self._open_client()
        try:
            found = await self._loop.run_in_executor(None, _walk, client)
        except _LOST as error:
            raise self._unavailable(error) from error
        return dict(sorted(found.items()))

    async def multi(self, operations: Sequence[Operation]) -> Conflict | None:
        check_paths(operations)
        size = sum(len(x.path) + len(getattr(x, "data", b"")) + 64 for x in operations)
        if size > MAX_WRITE_BYTES:
            raise WriteTooLarge(
                f"A write of {size} bytes is more than ZooKeeper takes ({MAX_WRITE_BYTES}): "
                "create fewer partitions at once."
            )
        answers = await self._ask(lambda client: _transaction(client, operations).commit_async())
        for operation, answer in zip(operations, answers, strict=True):
            # These two only tell that another operation of the write has failed.
            if isinstance(answer, Exception) and not isinstance(
                answer, exceptions.RolledBackError | exceptions.RuntimeInconsistency
            ):
                return Conflict(operation.path, _reason(answer))
        return None

    def watch(self, path: str, callback: Callable[[str], None], *, children: bool = True) -> Watch:
        self._open_client()
        watch = _ZookeeperWatch(self, path, callback, children)
        self._watches[watch] = None
        self._arm(watch, notify=False)
        return watch

    # -- the bridge

    async def _ask(self, start: Callable[[KazooClient], IAsyncResult]) -> Any:
        client = self._open_client()
        answer: asyncio.Future[Any] = self._loop.create_future()

        def finish(result: IAsyncResult) -> None:
            if answer.done():
                return
            error = result.exception
            if error is None:
                answer.set_result(result.value)
            else:
                answer.set_exception(error)

        try:
            start(client).rawlink(lambda result: self._in_loop(finish, result))
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await answer
        except (*_LOST, TimeoutError) as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        what = str(error) or type(error).__name__
        return StoreUnavailable(f"ZooKeeper at {self.hosts} did not answer ({what}).")

    def _in_loop(self, work: Callable[..., None], *args: Any) -> None:
        # From kazoo's threads; a loop that is closing runs no callback.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(work, *args)

    def _open_client(self) -> KazooClient:
        if self._client is None:
            raise StoreUnavailable("The metadata store is not open.")
        return self._client

    def _state_changed(self, client: KazooClient, state: str) -> None:
        if client is not self._client:
            return
        was_reachable = self.reachable
        self.reachable = state == KazooState.CONNECTED
        if self.reachable:
            self._connected.set()
        if state == KazooState.SUSPENDED:
            logger.warning(
                "the connection to ZooKeeper at %(address)s was lost", {"address": self.hosts}
            )
        elif state == KazooState.LOST:
            reason = f"the session with ZooKeeper at {self.hosts} expired"
            logger.error("%s", reason)
            # kazoo would open a new session by itself, and calls that a caller began in the old
            # session would go on in the new one.
            self._let_go()
            if self.when_lost is not None:
                self.when_lost(reason)
        elif not was_reachable:
            # Watches do not survive a new connection: set them again and call every callback.
            for watch in list(self._watches):
                self._arm(watch, notify=True)

    def _let_go(self) -> None:
        client, self._client = self._client, None
        self.reachable = False
        self._watches.clear()
        if client is not None:
            self._ending = self._loop.run_in_executor(None, _end, client)

    def _arm(self, watch: _ZookeeperWatch, *, notify: bool) -> None:
        """Set ZooKeeper's one-shot watches again, then ``notify``: no change falls in between."""
        client = self._client
        if client is None or watch not in self._watches:
            return
        watch.round += 1
        this_round = watch.round

        def fired(event: object) -> None:
            self._in_loop(self._fired, watch, this_round)

        def armed(result: IAsyncResult) -> None:
            if notify and not isinstance(result.exception, _LOST):
                self._in_loop(self._notify, watch)

        exists = client.exists_async(watch.path, watch=fired)
        if not watch.children:
            exists.rawlink(armed)
            return
        client.get_children_async(watch.path, watch=fired).rawlink(armed)

    def _fired(self, watch: _ZookeeperWatch, its_round: int) -> None:
        # Both one-shot watches of a round may fire; the loss of a connection fires them too, and
        # the new connection sets them again.
        if its_round == watch.round and self.reachable:
            self._arm(watch, notify=True)

    def _notify(self, watch: _ZookeeperWatch) -> None:
        if watch in self._watches:
            watch.callback(watch.path)


class _ZookeeperWatch:
    def __init__(
        self, store: ZookeeperStore, path: str, callback: Callable[[str], None], children: bool
    ) -> None:
        self._store = store
        self.path = path
        self.callback = callback
        self.children = children
        self.round = 0

    def cancel(self) -> None:
        self._store._watches.pop(self, None)


def _walk(client: KazooClient) -> dict[str, Node]:
    """Read the whole tree, level by level, many reads at once. Blocks: for a thread."""
    found: dict[str, Node] = {}
    level = [ROOT]
    while level:
        parents: list[str] = []
        for path, answer in _read_all(client.get_async, level):
            data, stat = answer
            found[path] = Node(data, stat.version, bool(stat.ephemeralOwner))
            if stat.numChildren:
                parents.append(path)
        level = [
            f"{'' if path == ROOT else path}/{name}"
            for path, names in _read_all(client.get_children_async, parents)
            for name in names
            if path != ROOT or name != OWN_CHILD
        ]
    return found


def _read_all(
    read: Callable[[str], IAsyncResult], paths: Sequence[str]
) -> Iterator[tuple[str, Any]]:
    for start in range(0, len(paths), READS_AT_ONCE):
        part = paths[start : start + READS_AT_ONCE]
        for path, answer in [(path, read(path)) for path in part]:
            # Skip a node that was removed meanwhile.
            with contextlib.suppress(exceptions.NoNodeError):
                yield path, answer.get(timeout=ANSWER_TIMEOUT_S)


def _transaction(client: KazooClient, operations: Sequence[Operation]) -> Any:
    write = client.transaction()
    for operation in operations:
        if isinstance(operation, Create):
            write.create(operation.path, operation.data, ephemeral=operation.ephemeral)
        elif isinstance(operation, Set):
            write.set_data(operation.path, operation.data, operation.version)
        elif isinstance(operation, Delete):
            write.delete(operation.path, operation.version)
        else:
            write.check(operation.path, operation.version)
    return write


def _reason(error: Exception) -> Reason:
    for kind, reason in _REASONS:
        if isinstance(error, kind):
            return reason
    raise StoreUnavailable(f"ZooKeeper refused a write: {error or type(error).__name__}") from error


def _end(client: KazooClient) -> None:
    client.stop()
    client.close()
