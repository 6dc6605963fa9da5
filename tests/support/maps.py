"""The tables of modules in `docs/internals`, generated from the modules' first lines.

Owns the search for the marker pairs `<!-- modules of FOLDER -->` and `<!-- end of modules -->` and
the text between them: one table for each folder below FOLDER. `python -m tests.support.maps` writes
the pages; the text around the tables is written by hand. Not the check that the pages are up to
date: see `tests/tidy/test_tidy_maps.py`.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

from tests.support.repository import ROOT

PAGES = ROOT / "docs" / "internals"
COMMAND = "python -m tests.support.maps"
BLOCK = re.compile(
    r"(?P<begin><!-- modules of (?P<folder>[\w/]+) -->\n).*?(?P<end><!-- end of modules -->)",
    re.DOTALL,
)


def first_line(module: Path) -> str:
    """Return the first sentence of a module's docstring as Markdown; "" if it has none.

    A first sentence ends with the line that ends with a full stop, or with the paragraph.
    """
    docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    kept: list[str] = []
    for line in docstring.partition("\n\n")[0].splitlines():
        kept.append(line.strip())
        if line.endswith("."):
            break
    return " ".join(kept).replace("``", "`").replace("|", "\\|").rstrip(".")


def modules_of(folder: Path) -> list[Path]:
    """Return the modules that a table lists: no tests, and no `__init__.py`."""
    return sorted(
        path
        for path in folder.glob("*.py")
        if path.name != "__init__.py" and not path.name.startswith("test_")
    )


def folders_of(folder: Path) -> list[Path]:
    """Return the folder and those below it that have modules, in the order of their paths."""
    below = [path for path in sorted(folder.rglob("*")) if path.is_dir()]
    return [path for path in (folder, *below) if modules_of(path)]


def table(folder: Path) -> str:
    """Return the table of one folder, with the folder's own first line above it."""
    name = folder.relative_to(ROOT).as_posix().removeprefix("src/tidelog/")
    package = folder / "__init__.py"
    purpose = first_line(package) if package.exists() else ""
    lines = [f"**`{name}/`**" + (f": {purpose}." if purpose else ""), "", "| module | contents |"]
    lines += ["|---|---|"]
    lines += [f"| `{path.name}` | {first_line(path)} |" for path in modules_of(folder)]
    return "\n".join(lines)


def written(page: str) -> str:
    """Return the text of a page with each of its tables as the modules are now."""

    def block(found: re.Match[str]) -> str:
        tables = [table(folder) for folder in folders_of(ROOT / found["folder"])]
        return found["begin"] + "\n" + "\n\n".join(tables) + "\n\n" + found["end"]

    return BLOCK.sub(block, page)


def listed(page: str) -> list[Path]:
    """Return the modules that the tables of a page list."""
    return [
        module
        for found in BLOCK.finditer(page)
        for folder in folders_of(ROOT / found["folder"])
        for module in modules_of(folder)
    ]


def main() -> int:
    """Write each page of which a table is out of date, and print its name."""
    for path in sorted(PAGES.glob("*.md")):
        page = path.read_text(encoding="utf-8")
        if (text := written(page)) != page:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
