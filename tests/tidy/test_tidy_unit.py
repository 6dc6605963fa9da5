"""Tests in `tests/unit` run no event loop, open no socket and replace nothing by a mock.

What needs one of them is in `tests/component` (parts of the product over real sockets, threads and
processes) or in `tests/broker` (a broker in this process).
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support.repository import PYTHON, ROOT, parsed, where

UNIT = [path for path in PYTHON if path.is_relative_to(ROOT / "tests" / "unit")]
FORBIDDEN = {"asyncio", "socket", "socketserver", "selectors", "uvloop", "unittest", "mock"}


def imports(tree: ast.Module) -> list[tuple[int, str, str]]:
    """Return (line, module, name) of each import, inside functions too; name "" for a module."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [(node.lineno, node.module, alias.name) for alias in node.names]
    return found


def needs_more_than_a_unit(tree: ast.Module) -> list[int]:
    """Return the lines that need a loop, a socket or a mock, or a helper that needs one."""
    found = []
    for line, module, name in imports(tree):
        if module.partition(".")[0] in FORBIDDEN:
            found.append(line)
        elif module.startswith("tests.support"):
            # A constant of a helper needs nothing.
            found += [line] if not name.isupper() and _runs_a_loop(module, name) else []
    found += [node.lineno for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef)]
    return found


def _runs_a_loop(module: str, name: str) -> bool:
    path = ROOT / (module.replace(".", "/") + ".py")
    if not path.is_file():
        path = ROOT / module.replace(".", "/") / f"{name}.py"
    return any(each.partition(".")[0] in FORBIDDEN for _, each, _ in imports(parsed(path)))


@pytest.mark.parametrize("path", UNIT, ids=lambda path: str(path.relative_to(ROOT / "tests")))
def test_a_unit_test_runs_no_loop_and_opens_no_socket(path: Path) -> None:
    assert [where(path, line) for line in needs_more_than_a_unit(parsed(path))] == []


@pytest.mark.parametrize(
    "text",
    (
        "import asyncio",
        "from socket import create_server",
        "from unittest import mock",
        "async def main(): ...",
        "from tests.support.lone_broker import LoneBroker",
        "from tests.support import lone_broker",
    ),
)
def test_each_way_is_found(text: str) -> None:
    assert needs_more_than_a_unit(ast.parse(f"def test_it():\n    {text}\n")) == [2]
