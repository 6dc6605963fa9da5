"""The output of commands: tables for people, JSON for scripts.

Owns the format. A table that does not go to a terminal is as wide as its content, so that scripts
that cut columns never meet a wrapped line.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

WIDE = 10_000
"""Width, in columns, of an output that is not a terminal."""


def print_json(value: Any) -> None:
    """Print one JSON document."""
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Iterable[str] = ()
) -> None:
    """Print a table; ``right`` names the columns of numbers. None shows as "-"."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    numbers = set(right)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", no_wrap=True)
    for row in rows:
        # Text: a name with brackets must not be taken for markup.
        table.add_row(*(Text("-" if cell is None else str(cell)) for cell in row))
    if sys.stdout.isatty():
        Console(highlight=False).print(table)
        return
    plain = io.StringIO()
    Console(file=plain, width=WIDE, highlight=False).print(table)
    for line in plain.getvalue().splitlines():
        print(line.rstrip())


def say(text: str) -> None:
    """Print a line for a person."""
    print(text)


def note(text: str) -> None:
    """Print a line on stderr, apart from the output: a warning, a total, a hint."""
    print(text, file=sys.stderr)
