"""A metadata store that fails at one chosen call: refused, lost, met by another, or late.

Owns the faults and which place of ``controller/`` made each call; what is asked of the controller
afterwards is the test's. It wraps a session with any store (``struck_stores``).
"""

from __future__ import annotations

import ast
import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import tidelog.controller
from tests.simulation.struck_stores import Place
from tidelog.controller.slices import perform_in_slices
from tidelog.metadata import layout
from tidelog.metadata.store import Create, Operation, Set, StoreUnavailable, Watch

FOLDER = Path(tidelog.controller.__file__).parent
LATE_S = 3.0


class Fault(Enum):
    """What becomes of one call."""

    REFUSED = "refused"
    """Nothing is done, and no answer comes."""
    LOST = "applied, the answer lost"
    CONFLICT = "a node that is not ours changed just before"
    LATE = "3 s late"


class Site(NamedTuple):
    """One place in ``controller/`` that calls the store, and the function that it stands in."""

    file: str
    function: str
    line: int
    method: str


CALLS = frozenset({"open", "close", "get", "exists", "children", "load", "multi", "watch"})


def sites() -> dict[Site, range]:
    """Return every place that calls the store, with its lines."""
    found: dict[Site, range] = {}
    for path in sorted(FOLDER.rglob("*.py")):
        for function, node in _calls(ast.parse(path.read_text()), ""):
            owner = node.func.value
            name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            if name == "store" and node.func.attr in CALLS:
                end = node.end_lineno or node.lineno
                file = str(path.relative_to(FOLDER))
                found[Site(file, function, node.lineno, node.func.attr)] = range(
                    node.lineno, end + 1
                )
    return found


def other_names(source: str) -> list[int]:
    """Return the lines that use the store in a way that hides a call of it from ``sites``.

    It may be called a method of, read a property of, and handed on under its own name.
    """
    tree = ast.parse(source)
    stores = {
        node: node.lineno
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr == "store")
        or (isinstance(node, ast.Name) and node.id == "store")
    }
    allowed: set[ast.AST] = {node for node in stores if not isinstance(node.ctx, ast.Load)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            # To a function of controller/, which sees it as ``store`` again.
            allowed.update(each for each in node.args if each in stores)
            if isinstance(node.func, ast.Attribute):
                allowed.add(node.func.value)
        elif isinstance(node, ast.Attribute) and node.attr not in CALLS:
            allowed.add(node.value)
        elif isinstance(node, ast.Compare | ast.IfExp):
            allowed.update(ast.iter_child_nodes(node))
        elif isinstance(node, ast.Assign) and all(target in stores for target in node.targets):
            # Kept under its own name.
            allowed.add(node.value)
    return sorted({line for node, line in stores.items() if node not in allowed})


def in_slices() -> list[Path]:
    """Return every file that has a request decided in slices."""
    name = perform_in_slices.__name__
    return [
        path
        for path in sorted(FOLDER.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
    ]


def _calls(above: ast.AST, function: str) -> Iterator[tuple[str, Any]]:
    """Yield each call of a method below a node, with the name of the function that it stands in."""
    for node in ast.iter_child_nodes(above):
        inside = function
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = node.name
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield function, node
        yield from _calls(node, inside)


class Strikes:
    """Which call is to fail and how, and which places were struck so far."""

    def __init__(self) -> None:
        self.struck: dict[Site, set[Fault]] = {}
        self.calls: list[Site] = []
        """Those since ``arm``."""
        self.seen: list[Site] = []
        """Those between the last two times."""
        self.unplaced: set[str] = set()
        """Calls that come from ``controller/``, and from no place that ``sites`` knows."""
        self._at = -1
        self._fault = Fault.LATE
        self._known = sites()

    def arm(self, at: int, fault: Fault) -> None:
        """Have the call with this number from now on fail; none of them if it is negative."""
        self.seen, self.calls = self.calls, []
        self._at, self._fault = at, fault

    def fault(self, method: str) -> Fault | None:
        """Note a call by the nearest place in ``controller/``, and return what becomes of it."""
        site = self._site(method)
        if site is None:
            return None
        self.calls.append(site)
        if len(self.calls) - 1 != self._at:
            return None
        self.struck.setdefault(site, set()).add(self._fault)
        return self._fault

    def _site(self, method: str) -> Site | None:
        frame = sys._getframe(2)
        unknown = ""
        while frame is not None:
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(FOLDER):
                file = str(path.relative_to(FOLDER))
                for site, lines in self._known.items():
                    if site.file == file and site.method == method and frame.f_lineno in lines:
                        return site
                unknown = unknown or f"{file}:{frame.f_lineno}: {method}"
            frame = frame.f_back  # type: ignore[assignment]
        if unknown:
            self.unplaced.add(unknown)
        return None


class StrikingStore:
    """A session that fails where its ``Strikes`` say so."""

    max_write_bytes: int | None = None

    def __init__(self, place: Place, strikes: Strikes) -> None:
        self.place = place
        self.session = place.session()
        self.strikes = strikes
        self.is_shared = self.session.is_shared
        self.when_lost: Callable[[str], None] | None = None

    @property
    def reachable(self) -> bool:
        """As of the session."""
        return self.session.reachable

    # Plain functions: the place of a call is known when it is made, not when it is awaited.

    def open(self) -> Any:
        return self._struck("open", self.session.open, ())

    def close(self) -> Any:
        fault = self.strikes.fault("close")
        return self._closed(late=fault is Fault.LATE)

    async def _closed(self, *, late: bool) -> None:
        if late:
            await asyncio.sleep(LATE_S)
        await self.session.close()

    def get(self, path: str) -> Any:
        return self._struck("get", lambda: self.session.get(path), (path,))

    def exists(self, path: str) -> Any:
        return self._struck("exists", lambda: self.session.exists(path), (path,))

    def children(self, path: str) -> Any:
        return self._struck("children", lambda: self.session.children(path), (path,))

    def load(self) -> Any:
        return self._struck("load", self.session.load, ("/config/topics/t", layout.topic("t")))

    def multi(self, operations: Sequence[Operation]) -> Any:
        paths = [x.path for x in operations if x.path not in OURS]
        return self._struck("multi", lambda: self.session.multi(operations), paths, operations)

    def watch(self, path: str, callback: Callable[[str], None], *, children: bool = True) -> Watch:
        fault = self.strikes.fault("watch")
        if fault in (Fault.REFUSED, Fault.LOST):
            raise StoreUnavailable("planted: no watch")
        if fault is Fault.CONFLICT:
            self._another_writes((path,), ())
        return self.session.watch(path, callback, children=children)

    def _struck(
        self,
        method: str,
        do: Callable[[], Awaitable[Any]],
        paths: Sequence[str],
        operations: Sequence[Operation] = (),
    ) -> Any:
        return self._do(self.strikes.fault(method), do, paths, operations)

    async def _do(
        self,
        fault: Fault | None,
        do: Callable[[], Awaitable[Any]],
        paths: Sequence[str],
        operations: Sequence[Operation],
    ) -> Any:
        if fault is Fault.REFUSED:
            raise StoreUnavailable("planted: refused")
        if fault is Fault.CONFLICT:
            self._another_writes(paths, operations)
        if fault is Fault.LATE:
            await asyncio.sleep(LATE_S)
        found = await do()
        if fault is Fault.LOST:
            raise StoreUnavailable("planted: the answer is lost")
        return found

    def _another_writes(self, paths: Sequence[str], operations: Sequence[Operation]) -> None:
        """Another session writes one of the nodes that this call is about, as it stands."""
        created = {x.path: x.data for x in operations if isinstance(x, Create)}
        for path in paths:
            if path in OURS:
                continue
            kept = self.place.node(path)
            wanted: Operation | None = None
            if kept is not None and path not in layout.CONTAINERS and path != "/":
                wanted = Set(path, kept.data)
            elif path in created:
                wanted = Create(path, created[path])
            if wanted is not None and self.place.write(wanted) is None:
                return


OURS = frozenset({layout.CONTROLLER_EPOCH, layout.REVISION, layout.CONTROLLER})
"""What only controllers write: a change of it deposes."""
