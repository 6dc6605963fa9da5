"""The files of this repository: its root, the tracked files, their text.

Owns the list that git gives, new files that are not ignored included. Not what the files must say:
see `tests/tidy`.
"""

from __future__ import annotations

import ast
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def tracked(*patterns: str) -> list[Path]:
    """Return the files that match git's patterns; all files without one."""
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / name for name in done.stdout.split() if (ROOT / name).is_file()]


@cache
def text_of(path: Path) -> str:
    """Return a file's text; read once in a process."""
    return path.read_text(encoding="utf-8")


PYTHON = tracked("*.py")
PRODUCT = [path for path in PYTHON if path.is_relative_to(ROOT / "src")]


@cache
def parsed(path: Path) -> ast.Module:
    """Return a module's tree; parsed once in a process."""
    return ast.parse(text_of(path), str(path))


def where(path: Path, line: int) -> str:
    """Return a place as a message names it."""
    return f"{path.relative_to(ROOT)}:{line}"
