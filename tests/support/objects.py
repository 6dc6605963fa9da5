"""The size of the product's objects: attributes, methods and lines over a class and its parents.

Owns what counts as one object, and which private names belong to which file. Not the limits, and
what may exceed them: see `tests/tidy/test_tidy_objects.py`.

An attribute is what any class of the chain assigns on ``self``, and a field of a dataclass whose
fields may be assigned again: a frozen one is a value.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.support.repository import parsed

Place = tuple[str, str]
"""A class: its file below `src`, and its name."""


@dataclass(frozen=True)
class Figures:
    """How large an object is, its parents included."""

    attributes: int
    methods: int
    lines: int


@dataclass
class _OneClass:
    attributes: set[str]
    methods: set[str]
    lines: int
    parents: list[Place] = field(default_factory=list)


def figures_of(paths: list[Path], root: Path) -> dict[Place, Figures]:
    """Return the figures of every class of these files, whose imports are resolved below root."""
    classes: dict[Place, _OneClass] = {}
    for path in paths:
        file = path.relative_to(root).as_posix()
        imported = _imported(parsed(path))
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                classes[file, node.name] = _OneClass(
                    attributes_of(node),
                    set(_method_names(node)),
                    lines,
                    [imported.get(name, (file, name)) for name in _base_names(node)],
                )
    return {place: _summed([classes[one] for one in _chain(place, classes)]) for place in classes}


def _summed(chain: list[_OneClass]) -> Figures:
    attributes: set[str] = set().union(*(one.attributes for one in chain))
    methods: set[str] = set().union(*(one.methods for one in chain))
    return Figures(len(attributes), len(methods), sum(one.lines for one in chain))


def _chain(place: Place, classes: dict[Place, _OneClass]) -> list[Place]:
    """Return a class and all its parents in the product, each once."""
    found = [place]
    for one in found:
        found += [parent for parent in classes[one].parents if parent in classes]
    return list(dict.fromkeys(found))


def _imported(tree: ast.Module) -> dict[str, Place]:
    return {
        alias.asname or alias.name: (node.module.replace(".", "/") + ".py", alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def _base_names(node: ast.ClassDef) -> Iterator[str]:
    for base in node.bases:
        plain = base.value if isinstance(base, ast.Subscript) else base
        if isinstance(plain, ast.Name):
            yield plain.id


def _method_names(node: ast.ClassDef) -> Iterator[str]:
    for item in node.body:
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
            yield item.name


def _is_assigned_dataclass(node: ast.ClassDef) -> bool:
    made = [ast.unparse(each) for each in node.decorator_list]
    return any("dataclass" in each and "frozen=True" not in each for each in made)


def attributes_of(node: ast.ClassDef) -> set[str]:
    """Return the attributes that a class itself gives its objects."""
    found = {
        item.attr
        for item in ast.walk(node)
        if isinstance(item, ast.Attribute)
        and isinstance(item.ctx, ast.Store)
        and isinstance(item.value, ast.Name)
        and item.value.id == "self"
    }
    if _is_assigned_dataclass(node):
        found |= set(_fields(node))
    return found


def _fields(node: ast.ClassDef) -> Iterator[str]:
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            yield item.target.id


def is_private(name: str) -> bool:
    """Return whether a name is a class's own; those of a named tuple (`_replace`) are not."""
    return name.startswith("_") and not name.startswith("__") and name not in _OF_TUPLES


_OF_TUPLES = {"_asdict", "_fields", "_make", "_replace"}


@dataclass
class PrivateNames:
    """The private names of one module."""

    given: set[str] = field(default_factory=set)
    """Those that its classes give themselves and their objects."""
    used: list[tuple[int, str]] = field(default_factory=list)
    """(line, name) of each that it asks an object for."""


@cache
def private_names(tree: ast.Module) -> PrivateNames:
    """Return the private names of a module, found in one walk."""
    found = PrivateNames()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if is_private(node.attr):
                found.used.append((node.lineno, node.attr))
                if isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
                    found.given.add(node.attr)
        elif isinstance(node, ast.ClassDef):
            names = {*_fields(node), *_method_names(node)}
            for item in node.body:
                if isinstance(item, ast.Assign):
                    names |= {name.id for name in item.targets if isinstance(name, ast.Name)}
                    names |= _slots(item)
            found.given |= set(filter(is_private, names))
    return found


def _slots(item: ast.Assign) -> set[str]:
    if ast.unparse(item.targets[0]) != "__slots__":
        return set()
    return {
        node.value
        for node in ast.walk(item.value)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
