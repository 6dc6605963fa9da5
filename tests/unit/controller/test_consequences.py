"""What follows from each change stands in one table, and every change has a row in it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from tests.support.repository import ROOT, parsed
from tidelog.controller.consequences import (
    CONSEQUENCES,
    ControllerEvent,
    ControllerPart,
    Kind,
    decided,
    woken,
)
from tidelog.metadata.records import ConfigNode, Counter, PartitionState, Record

CONTROLLER = ROOT / "src/tidelog/controller"


def test_every_kind_of_node_and_every_change_has_a_row() -> None:
    assert set(CONSEQUENCES) == {*get_args(Record), *ControllerEvent}


def test_every_part_follows_from_a_change() -> None:
    assert {part for parts in CONSEQUENCES.values() for part in parts} == set(ControllerPart)


def test_what_a_commit_has_changed_makes_no_caller_wait() -> None:
    """It is named to the parts by a plain call, which can make no decision."""
    assert not [kind for kind in get_args(Record) if decided(kind)]


def said() -> Iterator[tuple[str, str, Path]]:
    """Yield (method, change, file) of each place that says what has changed."""
    for path in sorted(CONTROLLER.rglob("*.py")):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                for value in map(ast.unparse, node.args):
                    if value.startswith("ControllerEvent."):
                        yield node.func.attr, value.removeprefix("ControllerEvent."), path


def test_each_change_is_said_and_in_the_form_that_its_consequences_need() -> None:
    """``changed`` wakes parts; where a decision follows, only ``settle`` makes it."""
    places = list(said())
    assert {name for _, name, _ in places} == set(ControllerEvent.__members__)
    wrong = [
        (path.name, name)
        for method, name, path in places
        if method != ("settle" if decided(ControllerEvent[name]) else "changed")
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("kinds", "parts"),
    [
        ([Counter], ()),
        ([Counter, PartitionState, ConfigNode], (ControllerPart.RESIZES,)),
        ([PartitionState, ControllerEvent.SENT], (ControllerPart.REQUESTS, ControllerPart.RESIZES)),
        ([ControllerEvent.EXPIRED], (ControllerPart.REQUESTS, ControllerPart.RESIZES)),
        ([ControllerEvent.DECIDED], ()),
    ],
)
def test_several_changes_have_a_part_checked_once(
    kinds: list[Kind], parts: tuple[ControllerPart, ...]
) -> None:
    assert woken(kinds) == parts
