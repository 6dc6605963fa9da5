"""The layout of a table in a terminal: which columns, how wide, and when a row is a block.

Owns the rules, without output. Not the printing: see ``output``. No character of a cell is ever
cut: a table that has no room gives up columns, folds text, or shows each row as lines.

| step | rule |
|---|---|
| 1 | a column that is empty in each row is left out, unless it is the first |
| 2 | the columns stand side by side, if they fit |
| 3 | cells of the columns in ``folds`` continue on further lines, if each has ``FOLD_AT_LEAST`` |
| 4 | the first columns, as far as all rows have the same in them, stand once above the table |
| 5 | a column of ``spare`` is left out, the first one first, not the last one; again from step 2 |
| 6 | each row is a block: a line for each column, which nothing leaves out |
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile

GAP = 2
"""Between two columns."""

FOLD_AT_LEAST = 24
"""The least width of a column whose cells are folded."""

EMPTY = frozenset(("", "-"))


@dataclass(frozen=True, slots=True)
class TableLayout:
    """The columns that are shown, by index, with their widths; the names of those left out.

    ``once`` are columns whose one value stands above the table.
    """

    shown: tuple[int, ...]
    widths: tuple[int, ...]
    left_out: tuple[str, ...] = ()
    is_blocks: bool = False
    once: tuple[int, ...] = ()


def text_width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # only here: a start would take longer

    return cell_len(text)


def arrange(
    columns: Sequence[str],
    cells: Sequence[Sequence[str]],
    width: int,
    spare: Sequence[str] = (),
    folds: Collection[str] = (),
) -> TableLayout:
    """Return the layout for a terminal of ``width``. Costs one check of each cell."""
    wanted = [
        index
        for index in range(len(columns))
        if index == 0 or not cells or any(row[index] not in EMPTY for row in cells)
    ]
    natural = {
        index: max(map(text_width, (columns[index], *(row[index] for row in cells))))
        for index in wanted
    }
    dispensable = [columns.index(name) for name in spare if name in columns]
    dispensable = [index for index in dispensable if index in natural]
    same = _same_in_all_rows(wanted, cells)
    attempts: list[tuple[tuple[int, ...], list[int]]] = [((), [])] if same else []
    attempts += [(same, dispensable[:count]) for count in range(len(dispensable) + 1)]
    for once, left_out in attempts:
        shown = [index for index in wanted if index not in left_out and index not in once]
        if not shown:
            continue
        widths = _widths(shown, natural, width, [columns[index] in folds for index in shown])
        if widths is not None:
            names = tuple(columns[index] for index in left_out if index not in once)
            return TableLayout(tuple(shown), widths, names, once=once)
    return TableLayout(tuple(wanted), block_widths(columns, wanted, width), is_blocks=True)


def block_widths(columns: Sequence[str], shown: Sequence[int], width: int) -> tuple[int, int]:
    """Return the widths of the names of these columns and of their values, side by side."""
    names = max(text_width(columns[index]) for index in shown)
    return names, max(1, width - names - GAP)


def _same_in_all_rows(wanted: Sequence[int], cells: Sequence[Sequence[str]]) -> tuple[int, ...]:
    """Return the first columns that have one value in several rows; never all columns."""
    if len(cells) < 2:
        return ()
    same = takewhile(lambda index: all(row[index] == cells[0][index] for row in cells), wanted)
    return (*same,)[: len(wanted) - 1]


def _widths(
    shown: Sequence[int], natural: dict[int, int], width: int, folded: Sequence[bool]
) -> tuple[int, ...] | None:
    """Return the widths of columns side by side, None where they do not fit."""
    widths = [natural[index] for index in shown]
    excess = sum(widths) + GAP * (len(widths) - 1) - width
    # The widest gives way first, down to the width of the next one.
    while excess > 0:
        able = [i for i, folds in enumerate(folded) if folds and widths[i] > FOLD_AT_LEAST]
        if not able:
            return None
        widest = max(widths[i] for i in able)
        first = [i for i in able if widths[i] == widest]
        below = max((widths[i] for i in able if widths[i] < widest), default=FOLD_AT_LEAST)
        take = min(widest - max(below, FOLD_AT_LEAST), -(-excess // len(first)))
        for i in first:
            widths[i] -= take
        excess -= take * len(first)
    return tuple(widths)


def fold(text: str, width: int) -> list[str]:
    """Return the lines of a text, at most ``width`` wide each.

    Breaks after a space or a comma, where the next word fits into a line or that fills half of one.
    """
    lines: list[str] = []
    for line in text.split("\n"):
        while text_width(line) > width:
            piece = _start_of(line, width)
            cut = max(piece.rfind(" "), piece.rfind(",")) + 1
            fits = cut > 0 and text_width(line[cut:].split(" ", 1)[0]) <= width
            end = cut if fits or cut > len(piece) // 2 else len(piece)
            lines.append(line[:end].rstrip(" "))
            line = line[end:].lstrip(" ")
        lines.append(line)
    return lines


def _start_of(line: str, width: int) -> str:
    if line.isascii():
        return line[:width]
    from rich.cells import chop_cells

    return chop_cells(line, width)[0]


def padded(text: str, width: int, *, right: bool) -> str:
    """Return a text with spaces up to ``width``, before it if ``right``."""
    space = " " * (width - text_width(text))
    return space + text if right else text + space
