"""Each value of a log's state has one owner: its class, or one other module.

A value that many modules write has no rule that one place keeps: the high watermark was written in
nine places of four modules.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.objects import attributes_of
from tests.support.repository import PRODUCT, ROOT, parsed, where

STATE = ROOT / "src/tidelog/storage/log/state.py"

OWNERS = {
    "adopted": "tidelog/storage/log/metadata_file.py",
    "change": "tidelog/storage/log/changes.py",
    "closed": "tidelog/storage/log/closing.py",
    "damage_unsynced": "tidelog/storage/log/service.py",
    "damaged": "tidelog/storage/log/service.py",
    "end_offset": "tidelog/storage/log/tail.py",
    "epochs": "tidelog/storage/log/opening.py",
    "fences": "tidelog/storage/log/fence_writing.py",
    "generation": "tidelog/storage/log/cutting.py",
    "is_mirrored": "tidelog/broker/partitions/future_replicas.py",
    "last_sync_ms": "tidelog/broker/partitions/maintenance.py",
    "metadata": "tidelog/storage/log/metadata_file.py",
    "undone_writes": "tidelog/storage/log/service.py",
    "write_again": "tidelog/storage/log/rewriting.py",
}
"""The module that writes a value; all others are written by methods of ``LogState``."""

MAKING = {"__init__", "take_over"}
"""Methods that make a state: they may write every value."""

OTHER_OBJECTS = {
    *("checked", "fence_file", "follower", "leadership"),
    *("recovered", "refused", "result"),
}
"""What has an attribute of the same name, and is no log."""


def class_of_state() -> ast.ClassDef:
    return next(
        node
        for node in parsed(STATE).body
        if isinstance(node, ast.ClassDef) and node.name == "LogState"
    )


def writes_in(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yield (line, object, attribute) of each attribute that is assigned or deleted."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            yield node.lineno, ast.unparse(node.value), node.attr


def foreign_writes(tree: ast.AST, names: set[str], module: str) -> Iterator[tuple[int, str]]:
    """Yield (line, attribute) of each value of a log that this module writes and does not own."""
    for line, of, name in writes_in(tree):
        is_log = of != "self" and of.rpartition(".")[2] not in OTHER_OBJECTS
        if name in names and is_log and OWNERS.get(name) != module:
            yield line, name


MAY_HAVE_LOGS = ("tidelog/storage/", "tidelog/broker/")


def module_of(path: Path) -> str:
    return path.relative_to(ROOT / "src").as_posix()


def test_no_module_writes_a_value_of_a_log_that_another_owns() -> None:
    names = attributes_of(class_of_state())
    found = {
        where(path, line): name
        for path in PRODUCT
        if module_of(path).startswith(MAY_HAVE_LOGS)
        for line, name in foreign_writes(parsed(path), names, module_of(path))
    }
    assert found == {}


def test_the_class_writes_no_value_that_a_module_owns() -> None:
    found = {
        f"{method.name}: {name}"
        for method in class_of_state().body
        if isinstance(method, ast.FunctionDef) and method.name not in MAKING
        for _, of, name in writes_in(method)
        if of == "self" and name in OWNERS
    }
    assert found == set()


def test_each_owner_writes_what_it_owns() -> None:
    idle = {
        name: module
        for name, module in OWNERS.items()
        if name not in {wrote for _, _, wrote in writes_in(parsed(ROOT / "src" / module))}
    }
    assert idle == {}


def test_a_foreign_write_is_found_in_each_form() -> None:
    source = """
log.high_watermark = 1
a.log.start_offset += 1
log.closed, moved.end_offset = True, 2
del copy.fences
self.end_offset = leadership.change = 3
"""
    names = {"high_watermark", "start_offset", "closed", "end_offset", "fences", "change"}
    found = list(foreign_writes(ast.parse(source), names, "tidelog/storage/log/closing.py"))
    assert sorted(found) == [
        (2, "high_watermark"),
        (3, "start_offset"),
        (4, "end_offset"),
        (5, "fences"),
    ]
