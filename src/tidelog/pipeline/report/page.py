"""One HTML page that needs nothing else: no script, no font, no address.

Owns the frame, the style and tables; pictures come as SVG from
`pictures`, each for a wide and a narrow window, of which the style shows one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_STYLE = """
:root{--ink:#1c2430;--soft:#667085;--line:#dfe3ea;--paper:#fff;--good:#1a7f5a;--bad:#c4320a;
--note:#9a6700;--log:#c9d3e2;--gone:#eef1f6}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ef;--soft:#98a2b3;--line:#2d3644;
--paper:#12161d;--good:#4cc38a;--bad:#ff8a65;--note:#e2b340;--log:#3b4a61;--gone:#1d242f}}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:60rem;margin:0 auto;padding:2.5rem 1.25rem 4rem}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 .4rem}h2{font-size:1.1rem;margin:2.4rem 0 .6rem}
p{margin:.4rem 0}.soft{color:var(--soft)}.good{color:var(--good)}.bad{color:var(--bad)}
.note{color:var(--note)}.verdict{font-size:1.15rem;font-weight:600}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.3rem .8rem .3rem 0;text-align:left;border-bottom:1px solid var(--line);
white-space:nowrap}th{color:var(--soft);font-weight:500}td.n,th.n{text-align:right}
svg{display:block;max-width:100%;height:auto}.narrow{display:none}.picture{margin-bottom:1rem}
@media (max-width:50rem){.wide{display:none}.narrow{display:block}th{white-space:normal}}
"""


def page(title: str, parts: Iterable[str]) -> str:
    """The whole page; `parts` are HTML."""
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><main><h1>{escape(title)}</h1>\n{body}\n</main></body></html>\n"
    )


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph; `kind` is one of good, bad, note, soft, verdict, or several of them."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def heading(text: str) -> str:
    """The heading of a section."""
    return f"<h2>{escape(text)}</h2>"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; numbers stand to the right."""
    lines = [list(row) for row in rows]
    right = [
        bool(lines) and all(isinstance(row[column], int | float) for row in lines)
        for column in range(len(head))
    ]

    def cell(tag: str, column: int, value: object) -> str:
        mark = ' class="n"' if right[column] else ""
        return f"<{tag}{mark}>{escape(shown(value))}</{tag}>"

    made = "".join(cell("th", column, name) for column, name in enumerate(head))
    body = "".join(
        "<tr>" + "".join(cell("td", column, value) for column, value in enumerate(row)) + "</tr>"
        for row in lines
    )
    return f'<div class="scroll"><table><tr>{made}</tr>{body}</table></div>'


def shown(value: object) -> str:
    """A value for people: thousands apart, one decimal."""
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return str(value)


def text_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """The same table as plain text."""
    lines = [list(row) for row in rows]
    cells = [[shown(value) for value in row] for row in lines]
    widths = [
        max(len(name), *(len(row[column]) for row in cells)) if cells else len(name)
        for column, name in enumerate(head)
    ]
    numeric = [
        bool(lines) and all(isinstance(row[column], int | float) for row in lines)
        for column in range(len(head))
    ]

    def line(row: Sequence[str]) -> str:
        return "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()

    return "\n".join([line(head), *(line(row) for row in cells)])
