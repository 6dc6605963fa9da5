"""The parts of a controller: every handler is on the list, and soft state changes in decisions."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from pathlib import Path
from typing import Any

import pytest

import tidelog.controller
from tidelog.broker import handlers as broker_handlers
from tidelog.controller import handlers
from tidelog.network.forwarded import FORWARDED

FOLDER = Path(tidelog.controller.__file__).parent

SOFT = frozenset(
    {
        "suspected",
        "shutting_down",
        "presumed",
        "broken",
        "diskless",
        "inventories",
        "nameless",
        "held",
        "seen",
        "kept",
        "confirmed",
        "undeletable",
    }
)
CHANGES = frozenset({"add", "discard", "remove", "update", "clear", "pop", "setdefault"})


@pytest.mark.parametrize("of", [handlers, broker_handlers], ids=["controller", "broker"])
def test_every_handler_is_on_the_list(of: Any) -> None:
    files = [module.name for module in pkgutil.iter_modules(of.__path__)]
    found = [importlib.import_module(f"{of.__name__}.{name}").HANDLER for name in files]
    rest = [each.api_key for each in of.HANDLERS if each not in found]
    assert [each for each in of.HANDLERS if each in found] == found
    # A broker needs no file for what it forwards whole.
    whole = [key for key, row in FORWARDED.items() if row.is_whole]
    assert rest == (whole if of is broker_handlers else [])


def changed_soft_state(source: str) -> list[int]:
    """Return the lines that change a field of the soft state of a ``cluster``."""
    found = []
    for node in ast.walk(ast.parse(source)):
        places: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            places = node.targets
        elif isinstance(node, ast.AugAssign):
            places = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            places = [node.func.value] if node.func.attr in CHANGES else []
        for place in places:
            if isinstance(place, ast.Subscript):
                place = place.value
            if isinstance(place, ast.Attribute) and place.attr in SOFT:
                owner = ast.unparse(place.value)
                if owner.split(".")[-1] == "cluster":
                    found.append(node.lineno)
    return found


def test_a_change_of_soft_state_is_found() -> None:
    assert changed_soft_state("controller.cluster.suspected |= brokers\n") == [1]
    assert changed_soft_state("cluster.held[x] = name\ncluster.broken.add(x)\n") == [1, 2]
    assert not changed_soft_state("session.suspected = True\nlen(cluster.held)\n")


def test_soft_state_changes_in_decisions_only() -> None:
    for path in sorted(FOLDER.rglob("*.py")):
        if path.parent.name != "decisions":
            assert changed_soft_state(path.read_text()) == [], path
