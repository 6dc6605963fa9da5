"""The lists of modules, with what each one owns: `modules.md` and `test-support.md` of `make docs`.

Owns the reading of the modules' first lines, and the folder of generated pages, which git does not
have: `docs/generated`. Not the demand that each module has a first line: see
`tests/tidy/test_tidy_maps.py`.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from tests.support.repository import ROOT

FOLDER = ROOT / "docs" / "generated"
LISTED = {
    "modules.md": ("Modules", ("src/tidelog/*", "tests/simulation", "tests/order")),
    "test-support.md": ("Test support", ("tests/support",)),
}
"""The pages: their titles, and the folders whose modules they list, with those below."""


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


def roots(page: str) -> list[Path]:
    """Return the folders of a page."""
    patterns = LISTED[page][1]
    return [path for each in patterns for path in sorted(ROOT.glob(each)) if path.is_dir()]


def written(page: str) -> str:
    """Return the text of a page."""
    tables = [table(folder) for root in roots(page) for folder in folders_of(root)]
    return "\n\n".join([f"# {LISTED[page][0]}", *tables]) + "\n"


def main() -> int:
    """Write the pages."""
    FOLDER.mkdir(exist_ok=True)
    for page in LISTED:
        (FOLDER / page).write_text(written(page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
