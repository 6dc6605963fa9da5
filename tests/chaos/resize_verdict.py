"""The table of a run of resizes under faults, and the page that keeps the last one.

Owns the text only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.resize_run import Tally
from tests.order.checks import CHECKS, Violation
from tests.order.history import Delivery, History, Outcome, Send

PAGE = Path(__file__).parents[2] / "docs/internals/resizes-under-faults.md"
BEGIN, END = "<!-- verdict of a run -->", "<!-- end of verdict -->"


def table(
    tally: Tally,
    history: History,
    found: Sequence[Violation],
    lags: dict[str, float],
    stock: dict[str, int],
    course: str,
) -> str:
    """Return the figures of a run as a table of Markdown; ``stock``: records by stock group."""
    sends = history.of(Send)
    undetermined = sum(each.outcome is Outcome.INFO for each in sends)
    delivered = len(history.of(Delivery))
    rows = [
        ("the run", course),
        ("resizes that were published", f"{tally.grown} growths, {tally.shrunk} shrinks"),
        ("undone, and asked for again", str(tally.undone)),
        ("refused, and asked for again", counted(tally.refused)),
        ("requests without an answer", str(tally.unanswered)),
        ("retired partitions that were removed", str(tally.removals)),
        ("records acknowledged", f"{tally.acked:,}; {undetermined} undetermined"),
        ("records delivered to the aware groups", f"{delivered:,}"),
        *((f"records delivered to {name}", f"{n:,}") for name, n in stock.items()),
        ("faults", counted(tally.faults)),
        ("processes killed", str(tally.kills)),
        ("elections of preferred leaders", str(tally.elections)),
        ("longest time without an acknowledgement", f"{tally.longest_gap_s:.1f} s"),
        ("slowest acknowledgement", f"{tally.slowest_ack_s:.1f} s"),
        ("slowest resize, with what was refused before", f"{tally.longest_resize_s:.1f} s"),
        (
            "slowest recovery: acknowledgements and all replicas in sync",
            f"{tally.slowest_recovery_s:.1f} s",
        ),
        ("slowest catching up of the aware groups after that", f"{tally.slowest_catch_up_s:.1f} s"),
        *((f"longest lag of {name}", f"{lag:.1f} s") for name, lag in lags.items()),
        (f"findings of the checker ({len(CHECKS)} rules)", str(len(found))),
    ]
    return "\n".join(["| what | figures |", "|---|---|", *(f"| {a} | {b} |" for a, b in rows)])


def keep(text: str, where: Path = PAGE) -> None:
    """Write a table into a page, in the place of the former one."""
    page = where.read_text()
    assert BEGIN in page and END in page, where
    pattern = re.compile(re.escape(BEGIN) + ".*" + re.escape(END), re.DOTALL)
    where.write_text(pattern.sub(lambda _: f"{BEGIN}\n\n{text}\n\n{END}", page))


def counted(counts: dict[str, int]) -> str:
    """Return what was counted, the most frequent first."""
    found = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return "; ".join(f"{count} × {what}" for what, count in found) or "none"
