"""The output of commands: tables for people, JSON for scripts.

Owns the format. A table that does not go to a terminal is as wide as its content, so that scripts
that cut columns never meet a wrapped line.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Container, Iterable, Sequence
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
    numbers = set(right)
    cells = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty() and all(_is_plain(cell) for row in cells for cell in row):
        _print_plain(columns, cells, numbers)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", no_wrap=True)
    for row in cells:
        # Text: a name with brackets must not be taken for markup.
        table.add_row(*map(Text, row))
    if sys.stdout.isatty():
        Console(highlight=False).print(table)
        return
    plain = io.StringIO()
    Console(file=plain, width=WIDE, highlight=False).print(table)
    for line in plain.getvalue().splitlines():
        print(line.rstrip())


def _is_plain(cell: str) -> bool:
    """Whether each character takes one column, and no space is at an end, which rich cuts off."""
    return cell.isascii() and cell.isprintable() and cell == cell.strip()


def _print_plain(
    columns: Sequence[str], cells: Sequence[Sequence[str]], numbers: Container[str]
) -> None:
    """Print as rich does without a terminal: it takes half a second for each thousand rows."""
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    for row in (columns, *cells):
        padded = (
            cell.rjust(width) if name in numbers else cell.ljust(width)
            for name, cell, width in zip(columns, row, widths, strict=True)
        )
        print("  ".join(padded).rstrip())


def say(text: str) -> None:
    """Print a line for a person."""
    print(text)


def note(text: str) -> None:
    """Print a line on stderr, apart from the output: a warning, a total, a hint."""
    print(text, file=sys.stderr)
