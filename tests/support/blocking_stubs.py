"""The type stub of the blocking clients' derived methods, with types and docstrings for editors.

Owns the text of `derived_methods.pyi`: each method with the arguments, the result and the docstring
of the asyncio method that it is derived from. `python -m tests.support.blocking_stubs` writes it.
Not the check that it is up to date: see `tests/tidy/test_tidy_blocking_stubs.py`.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.repository import ROOT

SOURCE = ROOT / "src" / "tidelog" / "blocking" / "derived_methods.py"
STUB = SOURCE.with_suffix(".pyi")
COMMAND = "python -m tests.support.blocking_stubs"

Function = ast.FunctionDef | ast.AsyncFunctionDef


def tree_of(module: str) -> ast.Module:
    """Return the tree of a module of the product."""
    return ast.parse((ROOT / "src" / (module.replace(".", "/") + ".py")).read_text())


def imports_of(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """Return (module, name) of each name that a module imports from another one."""
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def method_of(module: str, class_name: str, name: str) -> tuple[str, Function]:
    """Return a method of a class or of one of its parents, and the module that has it."""
    tree = tree_of(module)
    imported = imports_of(tree)
    (cls,) = (x for x in tree.body if isinstance(x, ast.ClassDef) and x.name == class_name)
    for item in cls.body:
        if isinstance(item, Function) and item.name == name:
            return module, item
    for base in cls.bases:
        if isinstance(base, ast.Name) and base.id in imported:
            return method_of(*imported[base.id], name)
    raise LookupError(f"{class_name} has no method {name}")


def derived(cls: ast.ClassDef) -> Iterator[tuple[list[str], str, str]]:
    """Yield (names, class, method) of each method that is derived."""
    for item in cls.body:
        if isinstance(item, ast.Assign) and isinstance(item.value, ast.Call):
            (source,) = item.value.args
            assert isinstance(source, ast.Attribute) and isinstance(source.value, ast.Name)
            names = [target.id for target in item.targets if isinstance(target, ast.Name)]
            yield names, source.value.id, source.attr


class Stub:
    """The text of one stub, and the names that it needs."""

    def __init__(self) -> None:
        self._needs: set[tuple[str, str, str]] = set()
        self._lines: list[str] = []

    def add_class(self, cls: ast.ClassDef, tree: ast.Module) -> None:
        """Add a class with its derived methods."""
        imported = imports_of(tree)
        self._lines += [f"class {cls.name}:", f'    """{ast.get_docstring(cls)}"""']
        (init,) = (x for x in cls.body if isinstance(x, Function))
        self._need(init, "tidelog.blocking.derived_methods", imported)
        self._lines.append(f"    def __init__({ast.unparse(init.args)}) -> None: ...")
        for names, client, method in derived(cls):
            module, found = method_of(*imported[client], method)
            self._need(found, module, imports_of(tree_of(module)))
            result = ast.unparse(found.returns) if found.returns else "None"
            text = ast.get_docstring(found, clean=False) or ""
            for name in names:
                self._lines.append(f"    def {name}({ast.unparse(found.args)}) -> {result}:")
                self._lines.append(f'        """{text}"""')

    def _need(self, method: Function, module: str, imported: dict[str, tuple[str, str]]) -> None:
        annotations = [arg.annotation for arg in ast.walk(method.args) if isinstance(arg, ast.arg)]
        defaults = [*method.args.defaults, *method.args.kw_defaults]
        for shown in (*annotations, *defaults, method.returns):
            for node in ast.walk(shown) if shown is not None else ():
                if isinstance(node, ast.Name):
                    self._needs.add((*imported.get(node.id, (module, node.id)), node.id))

    def text(self) -> str:
        """Return the stub, formatted."""
        own = "tidelog.blocking.derived_methods"
        needs = sorted(need for need in self._needs if need[0] != own and not _is_builtin(need[2]))
        lines = [f"# Written by `{COMMAND}`; do not edit."]
        for module, name, alias in needs:
            lines.append(f"from {module} import {name}" + (f" as {alias}" if alias != name else ""))
        text = "\n".join([*lines, "", *self._lines, ""])
        for command in (["check", "--select", "I", "--fix", "-q"], ["format", "-q"]):
            done = subprocess.run(
                [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(STUB), "-"],
                input=text,
                capture_output=True,
                text=True,
                check=True,
                cwd=ROOT,
            )
            text = done.stdout
        return text


def _is_builtin(name: str) -> bool:
    return name in dir(__import__("builtins"))


def stub(source: Path = SOURCE) -> str:
    """Return the stub of the module of derived methods."""
    tree = ast.parse(source.read_text())
    found = Stub()
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found.add_class(node, tree)
    return found.text()


if __name__ == "__main__":
    STUB.write_text(stub())
