"""Each kind of decision, once per call of the store and fault, in virtual time.

A run does one thing of a controller's work, and one call of the store that it makes fails: it is
refused, made with its answer lost, met by another's write, or 3 s late. Then the thing is asked for
again. Whatever failed: requests say durable state only, the controller becomes active again, its
state is what a restart would load, and in the end what was asked for is done. A place in
``controller/`` that calls the store and was struck by none of this fails a test, and so does a
request in slices that was not struck after its first one. Over SQLite each place of each kind is
struck once, with the faults in turn, and each call of a kind in slices.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.kernel import World
from tests.simulation.store_kinds import KINDS, Kind
from tests.simulation.store_stage import Stage
from tests.simulation.striking_store import (
    FOLDER,
    Fault,
    Site,
    Strikes,
    in_slices,
    other_names,
    sites,
)
from tests.simulation.struck_stores import InFile, InMemory, Place
from tidelog.controller import slices
from tidelog.controller.decisions.cluster import ClusterState
from tidelog.metadata import sqlite

pytestmark = [pytest.mark.long(60), pytest.mark.usefixtures("quiet")]

PATIENCE_S = 60.0
"""Virtual seconds in which what was asked for must be done, asked again each second."""


@pytest.fixture(autouse=True)
def _sliced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each element of a request is a slice of its own."""
    monkeypatch.setattr(slices, "SLICE", 1)


async def play(
    seams: Any, place: Place, kind: Kind, strikes: Strikes, at: int, fault: Fault
) -> int:
    """Do one thing with one fault; return how many calls of the store the thing took."""
    stage = Stage(seams, place, strikes, kind.texts)
    try:
        strikes.arm(-1, fault)
        await stage.start()
        if kind.first is not None:
            await kind.first(stage)
            await asyncio.sleep(1.0)
        strikes.arm(at, fault)
        await kind.act(stage)
        loop = asyncio.get_running_loop()
        began = loop.time()
        calls = 0
        while not (stage.controller.active and _holds(kind, stage)):
            assert loop.time() < began + PATIENCE_S, "it is never done"
            await asyncio.sleep(1.0)
            if loop.time() - began >= kind.lasts_s:
                calls = calls or len(strikes.calls)
            if stage.controller.active and not _holds(kind, stage):
                await kind.act(stage)
        await asyncio.sleep(2.0)
        calls = calls or len(strikes.calls)
        strikes.arm(-1, fault)
        async with asyncio.timeout(PATIENCE_S):
            await stage.until_told()
        async with stage.controller.turn:
            assert stage.controller.active
            stage.check()
        assert _holds(kind, stage)
        if stage.controller.store.is_shared:
            await stage.hears_tools()
        return calls
    finally:
        await stage.end()


def _holds(kind: Kind, stage: Stage) -> bool:
    try:
        return bool(kind.done(stage))
    except (KeyError, AttributeError):
        return False


def run(
    kind: Kind, strikes: Strikes, at: int, fault: Fault, new: Callable[[], Place] = InMemory
) -> int:
    with World(7) as world:
        process = world.machine("host").process("all")
        place = new()

        async def main() -> int:
            found: int = await process.run(play(process.seams, place, kind, strikes, at, fault))
            return found

        try:
            calls: int = world.run(main())
        finally:
            place.close()
        return calls


MOST_CALLS = 40
"""Of the calls of one thing, later ones are its repetitions."""


@pytest.mark.parametrize("name", KINDS)
def test_a_decision_survives_each_fault_at_each_call_of_the_store(name: str) -> None:
    kind, strikes = KINDS[name], Strikes()
    calls = min(MOST_CALLS, run(kind, strikes, -1, Fault.LATE))
    assert calls
    for at in range(calls):
        for fault in Fault:
            try:
                run(kind, strikes, at, fault)
            except BaseException as error:
                raise AssertionError(f"{name}: call {at} {fault.value}: {error}") from error


def test_a_state_that_is_not_durable_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """C2, planted: what a tool wrote is taken up in the state that outboxes read."""
    monkeypatch.setattr(ClusterState, "draft", lambda self: self)
    monkeypatch.setattr(ClusterState, "adopt", lambda self, draft: None)
    kind, strikes = KINDS["a tool's mark in vain"], Strikes()
    found = []
    for at in range(run(kind, strikes, -1, Fault.LATE)):
        try:
            run(kind, strikes, at, Fault.LATE)
        except AssertionError as error:
            found.append(str(error))
    assert any("stale" in line for line in found), found


ONLY_SHARED = {
    ("store_watches.py", "_wanted", "children"),
    ("store_watches.py", "_check", "get"),
}
"""What tools have written is looked for on a store that they may write to."""


def test_every_place_of_every_kind_survives_a_fault_over_sqlite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's file has one owner and no watches, and its sessions hold a lock."""
    connect = sqlite._connect

    def unsynced(path: str, takes_room: bool) -> sqlite3.Connection:
        database = connect(path, takes_room)
        database.execute("PRAGMA synchronous = OFF")
        return database

    monkeypatch.setattr(sqlite, "_connect", unsynced)

    def new() -> Place:
        return InFile(Path(tempfile.mkdtemp(dir=tmp_path)) / "metadata.db")

    struck: set[Site] = set()
    faults = cycle(Fault)
    for name, kind in KINDS.items():
        if kind.is_shared:
            continue
        strikes = Strikes()
        calls = run(kind, strikes, -1, Fault.LATE, new)
        first_calls = {site: at for at, site in reversed(list(enumerate(strikes.seen[:calls])))}
        # The places of a second slice are those of the first.
        in_turn = range(min(MOST_CALLS, calls)) if "in slices" in name else first_calls.values()
        for at in in_turn:
            fault = next(faults)
            try:
                run(kind, strikes, at, fault, new)
            except BaseException as error:
                raise AssertionError(f"{name}: call {at} {fault.value}: {error}") from error
        struck |= strikes.struck.keys()
    unstruck = {(x.file, x.function, x.method) for x in sites().keys() - struck}
    assert unstruck == ONLY_SHARED


def test_every_place_that_calls_the_store_is_struck() -> None:
    """Each place once, whatever else ran in this process: a place that is new needs a kind."""
    wanted = set(sites())
    struck: set[Site] = set()
    unplaced: set[str] = set()
    for kind in KINDS.values():
        strikes = Strikes()
        calls = run(kind, strikes, -1, Fault.LATE)
        unplaced |= strikes.unplaced
        for at, site in enumerate(strikes.seen[:calls]):
            if site not in struck:
                run(kind, strikes, at, Fault.LATE)
                struck |= strikes.struck.keys()
    assert sorted(wanted - struck) == []
    assert sorted(unplaced) == []


def test_no_call_of_the_store_is_hidden_from_the_list_of_places() -> None:
    """A call by another name was in no list, and so was never struck."""
    for path in sorted(FOLDER.rglob("*.py")):
        assert other_names(path.read_text()) == [], path


@pytest.mark.parametrize(
    "hidden",
    [
        "session = controller.store",
        "ask = controller.store.multi",
        "ask = partial(store.get, path)",
        "asked = (store, path)",
    ],
)
def test_a_hidden_call_is_found(hidden: str) -> None:
    assert other_names(f"await store.get(path)\n{hidden}\n") == [2]


def test_every_request_in_slices_is_struck_after_its_first_slice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The faults above strike each of the first calls: one of a second slice must be among them."""
    strikes, cut = Strikes(), slices.cut
    second: list[tuple[Path, list[Site], int]] = []

    def noted_cut(asked: Sequence[Any], cost: Callable[[Any], int]) -> Iterator[Sequence[Any]]:
        # ``perform_in_slices`` calls it, and the code that asks for slices calls that.
        caller = Path(sys._getframe(2).f_code.co_filename)
        for position, part in enumerate(cut(asked, cost)):
            if position == 1:
                second.append((caller, strikes.calls, len(strikes.calls)))
            yield part

    found: set[Path] = set()
    monkeypatch.setattr(slices, "cut", noted_cut)
    for kind in KINDS.values():
        second.clear()
        calls = min(MOST_CALLS, run(kind, strikes, -1, Fault.LATE))
        found |= {path for path, of, at in second if of is strikes.seen and at < calls}
    assert found == set(in_slices())
