"""No test imports a test: what several tests share is in `tests/support` or beside the tests.

A file of tests is then free to be moved, split or deleted, and to run alone.
"""

from __future__ import annotations

import ast

from tests.support.repository import PYTHON, ROOT, parsed, where

TESTS = {
    path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
    for path in PYTHON
    if path.is_relative_to(ROOT / "tests")
    and (path.stem.startswith("test_") or path.stem == "conftest")
}


def imported(node: ast.AST) -> set[str]:
    """Return the modules that a statement may import."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom) and node.module:
        return {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return set()


def test_no_module_imports_a_test() -> None:
    found = [
        f"{where(path, node.lineno)}: {name}"
        for path in PYTHON
        for node in ast.walk(parsed(path))
        for name in imported(node) & TESTS
    ]
    assert found == []
