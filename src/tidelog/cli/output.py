"""The output of commands: tables for people, JSON for scripts.

Owns the format. Not which columns of a table a terminal has room for: see ``table_layout``. A table
that does not go to a terminal is as wide as its content and has all columns, so that scripts that
cut columns never meet a wrapped line.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import click

from tidelog.cli.table_layout import (
    GAP,
    TableLayout,
    arrange,
    block_widths,
    fold,
    padded,
    text_width,
)


def print_json(value: Any) -> None:
    """Print one JSON document."""
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    right: Iterable[str] = (),
    spare: Sequence[str] = (),
    folds: Collection[str] = (),
) -> None:
    """Print a table; ``right`` names the columns of numbers. None shows as "-".

    In a terminal without the room for all columns the cells of those in ``folds`` continue on
    further lines, the first columns stand once above the table if all rows have the same in them,
    and those of ``spare`` are left out, the first one first. Numbers and names are shown whole, or
    the rows become blocks of lines.
    """
    numbers = set(right)
    if unknown := {*numbers, *spare, *folds}.difference(columns):
        raise ValueError(f"the table has no column {', '.join(sorted(unknown))}")
    cells = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        widths = [max(map(text_width, column)) for column in zip(columns, *cells, strict=True)]
        _print_side_by_side(
            columns, cells, numbers, TableLayout(tuple(range(len(columns))), (*widths,))
        )
        return
    width = shutil.get_terminal_size().columns
    layout = arrange(columns, cells, width, spare, folds)
    if layout.is_blocks:
        for number, row in enumerate(cells):
            if number:
                print()
            _print_block(columns, row, layout.shown, layout.widths)
    else:
        if layout.once:
            block = block_widths(columns, layout.once, width)
            _print_block(columns, cells[0], layout.once, block)
            print()
        _print_side_by_side(columns, cells, numbers, layout)
    if layout.left_out:
        note(f"not shown at {width} columns: {', '.join(layout.left_out)}; --json has them")


def _print_side_by_side(
    columns: Sequence[str],
    cells: Sequence[Sequence[str]],
    numbers: Collection[str],
    layout: TableLayout,
) -> None:
    for number, row in enumerate((columns, *cells)):
        folded = [
            fold(row[index], width)
            for index, width in zip(layout.shown, layout.widths, strict=True)
        ]
        for i in range(max(map(len, folded))):
            line = (" " * GAP).join(
                padded(lines[i] if i < len(lines) else "", width, right=columns[index] in numbers)
                for lines, width, index in zip(folded, layout.widths, layout.shown, strict=True)
            )
            _print_line(line.rstrip(), is_bold=number == 0)


def _print_block(
    columns: Sequence[str], row: Sequence[str], shown: Sequence[int], widths: Sequence[int]
) -> None:
    names, values = widths
    for index in shown:
        if not row[index]:
            continue
        name = padded(columns[index], names, right=False)
        for piece, line in enumerate(fold(row[index], values)):
            head = click.style(name, bold=True) if piece == 0 else " " * names
            click.echo(f"{head}{' ' * GAP}{line}".rstrip())


def _print_line(line: str, *, is_bold: bool) -> None:
    # Without a terminal ``echo`` writes no style.
    click.echo(click.style(line, bold=True) if is_bold else line)


def say(text: str) -> None:
    """Print a line for a person."""
    print(text)


def note(text: str) -> None:
    """Print a line on stderr, apart from the output: a warning, a total, a hint."""
    print(text, file=sys.stderr)
