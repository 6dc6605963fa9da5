"""The style page as tests: short modules and functions, names, docstrings, no leftovers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.support.repository import PRODUCT, PYTHON, ROOT, parsed, text_of, tracked, where

MAX_MODULE_LINES = 500
MAX_FUNCTION_LINES = 70
BAD_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "base"}


def test_there_is_something_to_look_at() -> None:
    assert len(PRODUCT) > 50


@pytest.mark.parametrize("path", PRODUCT, ids=lambda p: str(p.relative_to(ROOT / "src")))
def test_modules_and_functions_are_short(path: Path) -> None:
    lines = path.read_text().count("\n")
    assert lines <= MAX_MODULE_LINES
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            length = node.end_lineno - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES, where(path, node.lineno)


def test_no_module_has_a_name_that_says_nothing() -> None:
    found = [where(p, 1) for p in PRODUCT if BAD_NAMES & {p.stem, p.parent.name}]
    assert found == []


def test_no_class_is_called_manager() -> None:
    found = [
        where(path, node.lineno)
        for path in PRODUCT
        if "Manager" in text_of(path)
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ClassDef) and node.name.endswith("Manager")
    ]
    assert found == []


EMPTY_NAMES = {"found", "each", "where", "at", "known", "said"}
WELL_NAMED = (
    "aio",
    "blocking",
    "broker/control_plane",
    "broker/data_loss",
    "broker/fetching",
    "broker/following",
    "broker/metadata",
    "broker/partitions",
    "cli",
    "client",
    "controller",
    "groups",
    "observe",
    "pipeline",
    "storage",
)
"""Packages in which no local variable has a name that says nothing: others join them."""


def _local_names(tree: ast.AST) -> Iterator[str]:
    fields = {
        field.target
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for field in node.body
        if isinstance(field, ast.AnnAssign)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in fields:
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


@pytest.mark.parametrize("package", WELL_NAMED)
def test_local_names_name_the_thing(package: str) -> None:
    folder = ROOT / "src/tidelog" / package
    empty = [
        f"{path.relative_to(folder)}: {name}"
        for path in PRODUCT
        if path.is_relative_to(folder)
        for name in _local_names(parsed(path))
        if name in EMPTY_NAMES
    ]
    assert empty == []


SHARED_NAMES = {"Admin", "Cluster", "Consumer", "Producer"}
"""The public clients, which are the same for asyncio and for threads, and the cluster of a test:
users import these. In the product a `Producer` is also the producer that a batch names, and a
`Cluster` what a client knows of its cluster."""


def test_no_two_classes_share_a_name() -> None:
    found: dict[str, list[str]] = {}
    for path in PRODUCT:
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(where(path, node.lineno))
    shared = {name: places for name, places in found.items() if len(places) > 1}
    assert {name: places for name, places in shared.items() if name not in SHARED_NAMES} == {}
    assert shared.keys() == SHARED_NAMES


def test_every_module_of_the_product_says_what_it_owns() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in PRODUCT
        if path.name != "__init__.py" and not ast.get_docstring(parsed(path))
    ]
    assert silent == []


def test_every_public_name_has_a_docstring() -> None:
    silent = []
    for path in PRODUCT:
        for node in parsed(path).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                is_handle = path.parent.name == "handlers"
                if node.name.startswith("_") or is_handle:
                    continue
                if not ast.get_docstring(node):
                    silent.append(where(path, node.lineno))
    assert silent == []


def test_no_leftovers() -> None:
    words = re.compile(r"\b(TODO|FIXME|XXX|breakpoint\(\))")
    words_of_product = re.compile(words.pattern + r"|\bNotImplementedError\b")
    rules = dict.fromkeys(PYTHON, words) | dict.fromkeys(PRODUCT, words_of_product)
    del rules[Path(__file__)]
    found = [
        where(path, number)
        for path, rule in rules.items()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if rule.search(line)
    ]
    assert found == []


def test_no_exception_is_swallowed() -> None:
    found = []
    for path in PYTHON:
        if "except" not in text_of(path):
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ExceptHandler):
                broad = node.type is None or ast.unparse(node.type) in (
                    "Exception",
                    "BaseException",
                )
                if broad and all(isinstance(b, ast.Pass | ast.Continue) for b in node.body):
                    found.append(where(path, node.lineno))
    assert found == []


WAITS = {"wait_until", "until"}
"""The functions that ask for a condition with a deadline; they alone may pause."""


def sleeps_in(node: ast.AST) -> list[int]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in WAITS:
        return []
    found = [line for child in ast.iter_child_nodes(node) for line in sleeps_in(child)]
    # sleep(0) gives the loop a turn; it waits for no time.
    if isinstance(node, ast.Call) and re.search(r"\bsleep\((?!0\))", ast.unparse(node)):
        found += [node.lineno] if ast.unparse(node.func).endswith("sleep") else []
    return found


def test_no_test_sleeps() -> None:
    # In the simulation time is virtual: a sleep there is an event like any other.
    found = [
        where(path, line)
        for path in PYTHON
        if path.is_relative_to(ROOT / "tests")
        and not path.is_relative_to(ROOT / "tests" / "simulation")
        and not path.match("tests/regressions/test_simulated_*.py")
        and "sleep" in text_of(path)
        for line in sleeps_in(parsed(path))
    ]
    assert found == []


def test_logs_are_opened_in_one_way() -> None:
    """A test that opens a log past its directory gives it what no start has."""
    found = [
        str(path.relative_to(ROOT))
        for folder in ("src", "tests", "benchmarks")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if re.search(r"^from tidelog\.storage\.log\.opening import", path.read_text(), re.MULTILINE)
    ]
    assert found == ["src/tidelog/storage/directory/log_directory.py"]


def test_each_handler_file_exports_one_handler() -> None:
    for path in PRODUCT:
        if path.parent.name == "handlers" and path.name != "__init__.py":
            assert re.search(r"^HANDLER\b", path.read_text(), re.MULTILINE), path.name


def test_no_registry_and_no_path_of_a_machine_is_named() -> None:
    hosts = ("pypi" + ".org", "pythonhosted" + ".org", "maven" + ".org", "repo1" + ".")
    paths = re.compile(
        "|".join(re.escape(p) for p in ("/ro" + "ot/", "/wo" + "rk/", "/ho" + "me/"))
    )
    found = []
    for path in tracked():
        if path.suffix in {".png", ".jar", ".parquet"}:
            continue
        text = path.read_text(errors="replace")
        if any(host in text for host in hosts) or paths.search(text):
            found.append(str(path.relative_to(ROOT)))
    assert found == []


def test_what_the_map_and_the_rules_name_is_there() -> None:
    """ARCHITECTURE.md and docs/kips.md say where things are; a moved file takes them along."""
    names = ["/" + str(path.relative_to(ROOT)) for path in tracked()]
    tests = {
        name
        for path in PYTHON
        if path.is_relative_to(ROOT / "tests")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    missing = []
    for page in ("ARCHITECTURE.md", "docs/kips.md"):
        for word in re.findall(r"`([\w./*-]+)", (ROOT / page).read_text()):
            if re.fullmatch(r"test_\w+", word):
                found = any(name.startswith(word) for name in tests)
            elif word.endswith("/"):
                found = any(f"/{word}" in name for name in names)
            elif word.endswith((".py", ".txt", ".md")) or "/test_" in word:
                found = any(fnmatch(name, f"*/{word}") for name in names)
            else:
                continue
            if not found:
                missing.append(f"{page}: {word}")
    assert missing == []


def test_lock_files_name_no_address() -> None:
    for path in tracked("*.lock"):
        assert "://" not in path.read_text(), path.name
