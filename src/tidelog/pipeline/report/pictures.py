"""Pictures of a report as inline SVG, drawn by matplotlib: what of a log is archived, a heat map.

Owns the look: colours, sizes, and that each picture stands in the page twice, for a wide and for a
narrow window. The colours are those of the page's style, light and dark. Values come ready.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import count
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from tidelog.pipeline.audit.facts import PartitionFacts

WIDE, NARROW = 920, 360
"""Widths in CSS pixels: the whole page, and what a telephone leaves of it."""

INK, SOFT, LINE, PAPER = "#010101", "#010102", "#010103", "#010104"
GOOD, BAD, LOG, GONE = "#010105", "#010106", "#010107", "#010108"
"""Colours of the page's style. Drawn with a stand-in each, which becomes the style's name."""

_NAMES = {
    INK: "ink", SOFT: "soft", LINE: "line", PAPER: "paper",
    GOOD: "good", BAD: "bad", LOG: "log", GONE: "gone",
}  # fmt: skip
_STYLE = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 11,
    "text.color": INK,
    "axes.labelcolor": SOFT,
    "axes.edgecolor": LINE,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": SOFT,
    "ytick.labelcolor": INK,
    "grid.color": LINE,
    "legend.frameon": False,
    "path.simplify": False,
}
# Seven steps from pale to full. The outermost take what lies beyond the scale.
_STEPS = 7
_ROW = 18
_numbers = count()


def picture(title: str, draw: Callable[[int], Figure]) -> str:
    """The picture for the page; `draw` gets a width in pixels and draws with the colours above."""
    with rc_context(_STYLE):
        drawn = [
            _svg(draw(width), title, kind) for width, kind in ((WIDE, "wide"), (NARROW, "narrow"))
        ]
    return f'<div class="picture">{"".join(drawn)}</div>'


def figure(width: int, height: int) -> Figure:
    """An empty figure of so many pixels. All that is drawn on it keeps within it."""
    return Figure(figsize=(width / 72, height / 72), layout="constrained")


def thousands(axis: Any) -> None:
    """Whole numbers on this axis, thousands apart."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def coverage(partitions: Sequence[PartitionFacts]) -> str:
    """One bar per partition over its offsets: the log, what retention took, the lake, faults."""
    if not partitions:
        return ""
    return picture(
        "What of each partition is in the lake", lambda width: _coverage(width, partitions)
    )


def _coverage(width: int, partitions: Sequence[PartitionFacts]) -> Figure:
    made = figure(width, _ROW * len(partitions) + (84 if width == WIDE else 100))
    axes = made.subplots()
    for row, part in enumerate(partitions):
        begin, end = max(part.log_start, 0), max(part.log_end, 0)
        axes.broken_barh([(0, begin)], (row - 0.38, 0.76), color=GONE)
        axes.broken_barh([(begin, end - begin)], (row - 0.38, 0.76), color=LOG)
        kept = part.archived_to - part.archived_from
        axes.broken_barh([(part.archived_from, kept)], (row - 0.16, 0.32), color=GOOD)
        if part.missing:
            # An edge: one offset of millions must be seen, too.
            lost = part.missing_last + 1 - part.missing_first
            axes.broken_barh(
                [(part.missing_first, lost)], (row - 0.38, 0.76), color=BAD, edgecolor=BAD, lw=1.5
            )
        axes.annotate(
            f"{part.lake_rows:,}", (max(end, part.archived_to), row), (5, 0), color=SOFT,
            textcoords="offset points", va="center_baseline",
        )  # fmt: skip
    _rows(axes, [f"{part.topic}-{part.partition}" for part in partitions])
    top = max([1, *(max(part.log_end, part.archived_to) for part in partitions)])
    # Room for the counts at the ends of the bars.
    axes.set_xlim(0, top * (1 + 70 / width))
    axes.set_xlabel("offset; at the end of a bar the records in the lake")
    thousands(axes.xaxis)
    axes.locator_params(axis="x", nbins=8 if width == WIDE else 4)
    keys = (("log", LOG), ("removed by retention", GONE), ("lake", GOOD), ("missing", BAD))
    legend(made, width, keys)
    return made


def heat_map(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Mapping[tuple[str, str], float],
    title: str,
    unit: str,
    across: str,
) -> str:
    """A coloured field per row and column, with its value where the picture is wide; empty where
    there is none. The scale goes from the 5th to the 95th percentile: a few far values have the
    outermost colours, and the others keep theirs apart. `across` says what the columns are.
    """
    if not values:
        return ""
    grid = np.array(
        [[values.get((row, column), np.nan) for column in columns] for row in rows], dtype=float
    )

    def draw(width: int) -> Figure:
        made, axes = _field(width, rows, columns, grid, f"{title}, {unit}")
        axes.set_xlabel(across)
        return made

    return picture(title, draw)


def _field(
    width: int, rows: Sequence[str], columns: Sequence[str], grid: Any, label: str
) -> tuple[Figure, Axes]:
    made = figure(width, _ROW * len(rows) + 116)
    axes = made.subplots()
    low, high = np.nanpercentile(grid, 5), np.nanpercentile(grid, 95)
    if low == high:
        low, high = low - 0.5, high + 0.5
    colours = ListedColormap([to_rgba(BAD, (step + 0.5) / _STEPS) for step in range(_STEPS)])
    # The two colours at the ends are those of the values beyond the scale.
    norm = BoundaryNorm(np.linspace(low, high, _STEPS - 1), _STEPS, extend="both")
    mesh = axes.pcolormesh(
        np.ma.masked_invalid(grid), cmap=colours, norm=norm, edgecolors=PAPER, linewidth=1
    )
    if width == WIDE:
        _numbers_on(axes, grid, norm)
    _rows(axes, rows, 0.5)
    every = 1 if width == WIDE else -(-len(columns) // 8)
    shown = range(0, len(columns), every)
    axes.set_xticks([place + 0.5 for place in shown], [columns[place] for place in shown])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    bar = made.colorbar(
        mesh, ax=axes, orientation="horizontal", fraction=0.04, aspect=50, label=label,
        format=FuncFormatter(lambda value, _: f"{value:,.0f}"), extendfrac="auto",
    )  # fmt: skip
    bar.outline.set_visible(False)
    return made, axes


def _numbers_on(axes: Axes, grid: Any, norm: BoundaryNorm) -> None:
    for (down, across), value in np.ndenumerate(grid):
        if not np.isnan(value):
            dark = int(norm(value)) > _STEPS // 2
            axes.text(
                across + 0.5, down + 0.5, f"{round(value):,}", ha="center", va="center", fontsize=9,
                color=PAPER if dark else INK,
            )  # fmt: skip


def _rows(axes: Axes, names: Sequence[str], offset: float = 0.0) -> None:
    """Rows from the top down, each with its name."""
    axes.set_yticks([row + offset for row in range(len(names))], names)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_ylim(len(names) - 0.5 + offset, offset - 0.5)


def legend(made: Figure, width: int, entries: Sequence[tuple[str, str]]) -> None:
    """Names of colours, below the figure."""
    made.legend(
        handles=[Patch(color=colour, label=name) for name, colour in entries],
        loc="outside lower left", ncols=len(entries) if width == WIDE else 2, labelcolor=SOFT,
        handlelength=1, handleheight=0.9,
    )  # fmt: skip


def _svg(made: Figure, title: str, kind: str) -> str:
    """The figure as an element of the page: no address, no name that two pictures share."""
    for artist in made.findobj():
        artist.set_clip_on(False)
    made.patch.set_visible(False)
    out = io.StringIO()
    with rc_context({"svg.hashsalt": str(next(_numbers))}):
        made.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    svg = out.getvalue()
    body = svg[svg.index(">", svg.index("<svg")) + 1 :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    for stand_in, name in _NAMES.items():
        body = body.replace(stand_in, f"var(--{name})")
    # The box of what was drawn, in points, which are the page's pixels here.
    width, height = (round(inches * 72) for inches in made.get_size_inches())
    return (
        f'<svg class="{kind}" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img"><title>{escape(title)}</title>{body.strip()}'
    )
