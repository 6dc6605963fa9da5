"""Pictures as inline SVG: what of a log is archived, and a heat map.

Owns geometry and colour; values come ready.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from tidelog.pipeline.audit.facts import PartitionFacts

_WIDTH = 920
_LABEL = 170
_ROW = 26


def coverage(partitions: Sequence[PartitionFacts]) -> str:
    """One bar per partition over its offsets: the log, what retention took, the lake, faults."""
    top = max([1, *(max(part.log_end, part.archived_to) for part in partitions)])
    scale = (_WIDTH - _LABEL - 110) / top
    height = _ROW * len(partitions) + 34
    made = [_open(height, "What of each partition is in the lake")]
    for row, part in enumerate(partitions):
        y = _ROW * row + 6
        made.append(f'<text x="0" y="{y + 12}">{escape(f"{part.topic}-{part.partition}")}</text>')
        begin = max(part.log_start, 0)
        made.append(_bar(0, begin, y, 14, scale, "var(--gone)", f"removed up to {begin}"))
        log_to = max(part.log_end, 0)
        made.append(_bar(begin, log_to, y, 14, scale, "var(--log)", f"log {begin} to {log_to}"))
        kept = f"archived {part.archived_from} to {part.archived_to}"
        made.append(
            _bar(part.archived_from, part.archived_to, y + 4, 6, scale, "var(--good)", kept)
        )
        if part.missing:
            lost = f"{part.missing} missing"
            made.append(
                _bar(part.missing_first, part.missing_last + 1, y, 14, scale, "var(--bad)", lost)
            )
        end = _LABEL + max(log_to, part.archived_to) * scale + 8
        made.append(f'<text class="soft" x="{end:.1f}" y="{y + 12}">{part.lake_rows:,}</text>')
    keys = (("log", "--log"), ("removed by retention", "--gone"), ("lake", "--good"))
    made.append(_legend([*keys, ("missing", "--bad")], height - 10))
    return "".join(made) + "</svg></div>"


def heat_map(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Mapping[tuple[str, str], float],
    title: str,
    unit: str,
) -> str:
    """A coloured field per row and column; empty where there is no value."""
    low, high = min(values.values(), default=0.0), max(values.values(), default=0.0)
    span = (high - low) or 1.0
    width = (_WIDTH - 50) / max(1, len(columns))
    height = 20 * len(rows) + 44
    made = [_open(height, title)]
    for at, name in enumerate(columns):
        x = 46 + at * width + width / 2
        made.append(
            f'<text class="soft" text-anchor="middle" x="{x:.1f}" y="12">{escape(name)}</text>'
        )
    for down, row in enumerate(rows):
        y = 20 + 20 * down
        made.append(f'<text x="0" y="{y + 13}">{escape(row)}</text>')
        for at, column in enumerate(columns):
            value = values.get((row, column))
            if value is None:
                continue
            # From pale to full by how large the value is.
            strength = 0.08 + 0.92 * (value - low) / span
            made.append(
                f'<rect x="{46 + at * width:.1f}" y="{y}" width="{width - 2:.1f}" height="18"'
                f' rx="2" fill="var(--bad)" fill-opacity="{strength:.2f}"><title>'
                f"{escape(f'{row}, {column}: {value:,.1f} {unit}')}</title></rect>"
            )
    foot = f"pale {low:,.1f} to full {high:,.1f} {unit}"
    made.append(f'<text class="soft" x="46" y="{height - 6}">{escape(foot)}</text>')
    return "".join(made) + "</svg></div>"


def _open(height: int, title: str) -> str:
    return (
        f'<div class="scroll"><svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}"'
        f' height="{height}" role="img"><title>{escape(title)}</title>'
    )


def _bar(begin: int, end: int, y: int, height: int, scale: float, fill: str, title: str) -> str:
    if end <= begin:
        return ""
    # A single offset of millions must still be seen.
    width = max(1.5, (end - begin) * scale)
    return (
        f'<rect x="{_LABEL + begin * scale:.1f}" y="{y}" width="{width:.1f}" height="{height}"'
        f' rx="2" fill="{fill}"><title>{escape(title)}</title></rect>'
    )


def _legend(entries: Sequence[tuple[str, str]], y: int) -> str:
    made, x = [], _LABEL
    for name, colour in entries:
        made.append(f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="var({colour})"/>')
        made.append(f'<text class="soft" x="{x + 15}" y="{y}">{escape(name)}</text>')
        x += 40 + 7 * len(name)
    return "".join(made)
