"""Callbacks by path: the standing watches of a session whose store sees every change itself.

Owns which callbacks a committed write calls. Watches on ZooKeeper: see ``zookeeper``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidelog.metadata.store import Create, Delete, Operation, Set, parent


class LocalWatches:
    """The watches of one session. Grows with them; each can be cancelled."""

    def __init__(self) -> None:
        self._by_path: dict[str, list[_LocalWatch]] = {}

    def add(self, path: str, callback: Callable[[str], None]) -> _LocalWatch:
        """Call ``callback`` after each change of the node or of the list of its children."""
        watch = _LocalWatch(self, path, callback)
        self._by_path.setdefault(path, []).append(watch)
        return watch

    def remove(self, watch: _LocalWatch) -> None:
        """Forget a watch; an unknown one is ignored."""
        watches = self._by_path.get(watch.path, [])
        if watch in watches:
            watches.remove(watch)
        if not watches:
            self._by_path.pop(watch.path, None)

    def clear(self) -> None:
        """Forget all watches."""
        self._by_path.clear()

    def notify(self, operations: Sequence[Operation]) -> None:
        """Call the watches that a committed write concerns, each path once."""
        if not self._by_path:
            return
        changed: dict[str, None] = {}
        for operation in operations:
            if isinstance(operation, Create | Delete):
                changed[operation.path] = None
                changed[parent(operation.path)] = None
            elif isinstance(operation, Set):
                changed[operation.path] = None
        for path in changed:
            for watch in list(self._by_path.get(path, ())):
                watch.callback(path)


class _LocalWatch:
    __slots__ = ("_owner", "callback", "path")

    def __init__(self, owner: LocalWatches, path: str, callback: Callable[[str], None]) -> None:
        self._owner = owner
        self.path = path
        self.callback = callback

    def cancel(self) -> None:
        self._owner.remove(self)
