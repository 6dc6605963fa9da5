"""The flights' topic grows and shrinks while it is written: the resizes, what they cost, a picture.

Owns the resizes and the measurement at the producer: acknowledgements over time, and the longest
time without one while a resize was under way. Not the producer: see `publish`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tidelog.client.admin.topics import create_partitions
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.partitioning.lineage import moves_of_keys
from tidelog.pipeline.report.page import table, text_table
from tidelog.pipeline.report.pictures import (
    BAD,
    GONE,
    GOOD,
    LOG,
    SOFT,
    figure,
    legend,
    picture,
    thousands,
)

_DEADLINE_S = 60.0
_AGAIN_S = 0.25
# What a producer notices of a resize may come a moment after it.
_SETTLES_S = 0.25
_SLOT_S = 0.25
_COLUMNS = 60
_LEVELS = " ▁▂▃▄▅▆▇█"
_HEAD = ("resize", "seconds", "acknowledged meanwhile", "longest time without one, ms")


@dataclass(slots=True)
class Resize:
    """One resize; times are in seconds of publishing, `stall_s` at the producer."""

    before: int
    after: int
    begun_s: float
    ended_s: float = 0.0
    acked: int = 0
    stall_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.ended_s - self.begun_s


@dataclass(slots=True)
class Growth:
    """The counts of a topic while it is published; `counts` are still to come."""

    bootstrap: str
    topic: str
    initial: int
    counts: list[int]
    say: Callable[[str], None]
    resizes: list[Resize] = field(default_factory=list)
    _notes: list[tuple[float, str]] = field(default_factory=list)
    _began_s: float = field(default_factory=time.monotonic)
    _slots: Counter[int] = field(default_factory=Counter)
    _last_ack_s: float = 0.0
    _quiet_from_s: float = 0.0
    _thread: threading.Thread | None = None
    _failure: Exception | None = None

    @property
    def now_s(self) -> float:
        return time.monotonic() - self._began_s

    @property
    def count(self) -> int:
        return self.resizes[-1].after if self.resizes else self.initial

    def leave_out(self, since_s: float) -> None:
        """Stop the clock from a moment on until now: nothing was published meanwhile."""
        self._began_s += self.now_s - since_s

    def note(self, what: str) -> None:
        """Mark this moment in the picture."""
        self._notes.append((self.now_s, what))

    def begin(self) -> None:
        """Start the next resize, if one is left."""
        if self.counts:
            self.resizes.append(Resize(self.count, self.counts.pop(0), self.now_s))
            self._quiet_from_s = 0.0
            self._thread = threading.Thread(target=self._run, name="resize")
            self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether a resize is under way, or has just ended. Raises what it failed with."""
        if self._failure is not None:
            raise self._failure
        under_way = self._thread is not None and self._thread.is_alive()
        return under_way or self.now_s < self._quiet_from_s

    def acknowledged(self) -> None:
        """Note that a record was acknowledged."""
        now_s = self.now_s
        self._slots[int(now_s / _SLOT_S)] += 1
        if self.resizes and (not self._quiet_from_s or now_s < self._quiet_from_s):
            last = self.resizes[-1]
            last.acked += 1
            last.stall_s = max(last.stall_s, now_s - max(self._last_ack_s, last.begun_s))
        self._last_ack_s = now_s

    def _run(self) -> None:
        resize = self.resizes[-1]
        try:
            asyncio.run(self._change(resize.after))
        except Exception as error:
            self._failure = error
        resize.ended_s = self.now_s
        self._quiet_from_s = resize.ended_s + _SETTLES_S
        if self._failure is None:
            self.say(f"{describe(self.initial, resize)}: {resize.seconds:.2f} s, under load")

    async def _change(self, count: int) -> None:
        """As `tidelog topics --alter` does; what is refused meanwhile is asked for again."""
        end_s = self.now_s + _DEADLINE_S
        said = ""
        async with Cluster(self.bootstrap) as client:
            while True:
                outcome = (await create_partitions(client, {self.topic: count}))[self.topic]
                if not isinstance(outcome, ClientError):
                    return
                if self.now_s > end_s:
                    raise outcome
                if str(outcome) != said:
                    said = str(outcome)
                    self.say(f"not yet: {said}")
                await asyncio.sleep(_AGAIN_S)

    def table(self) -> str:
        """What each resize cost."""
        return text_table(_HEAD, self._rows())

    def _rows(self) -> list[tuple[object, ...]]:
        return [
            (
                f"{each.before} to {each.after}",
                round(each.seconds, 2),
                each.acked,
                round(each.stall_s * 1000),
            )
            for each in self.resizes
        ]

    def picture(self) -> str:
        """Acknowledgements over time, and the life of each partition, as text."""
        end_s = max(self._last_ack_s, self.resizes[-1].ended_s) + _SLOT_S
        step_s = end_s / _COLUMNS
        acked = [0] * _COLUMNS
        for slot, count in self._slots.items():
            acked[min(_COLUMNS - 1, int(slot * _SLOT_S / step_s))] += count
        most = max(acked)
        marks = "".join(_LEVELS[-(-count * (len(_LEVELS) - 1) // most)] for count in acked)
        lines = [
            f"{'acknowledged':>14} {marks} {most / step_s:,.0f} a second at most",
            *(
                f"{name:>14} {''.join(_cells(spans, step_s))}"
                for name, spans in _lanes(self.initial, self.resizes, end_s)
            ),
            f"{'':>14} █ takes records  ░ retired: readable, takes no records",
        ]
        return "\n".join(lines)

    def parts(self) -> list[str]:
        """The same for the page: a picture, and the table."""
        end_s = max(self._last_ack_s, self.resizes[-1].ended_s) + _SLOT_S
        lanes = list(_lanes(self.initial, self.resizes, end_s))
        title = "Flights acknowledged over time, and the partitions of their topic"
        drawn = picture(title, lambda width: self._drawn(width, lanes, end_s))
        return [drawn, table(_HEAD, self._rows())]

    def _drawn(self, width: int, lanes: Sequence[tuple[str, Spans]], end_s: float) -> Figure:
        made = figure(width, 230 + 15 * len(lanes))
        above, below = made.subplots(2, sharex=True, height_ratios=[130, 15 * len(lanes)])
        slots = range(int(end_s / _SLOT_S) + 1)
        rates = [self._slots[slot] / _SLOT_S for slot in slots]
        above.stairs(
            rates, [slot * _SLOT_S for slot in (*slots, len(slots))], fill=True, color=GOOD
        )
        above.set_ylabel("acknowledged\na second")
        thousands(above.yaxis)
        for row, (_, spans) in enumerate(lanes):
            for begun_s, ended_s, takes in spans:
                colour = LOG if takes else GONE
                below.broken_barh([(begun_s, ended_s - begun_s)], (row - 0.4, 0.8), color=colour)
        below.set_yticks(range(len(lanes)), [name for name, _ in lanes])
        below.tick_params(axis="y", length=0)
        below.spines["left"].set_visible(False)
        below.set_ylim(len(lanes) - 0.5, -0.5)
        below.set_ylabel("partition, and of which it took keys")
        below.set_xlabel("seconds of publishing")
        below.set_xlim(0, end_s)
        marks = [(each.begun_s, f"{each.before} to {each.after}", SOFT) for each in self.resizes]
        marks += [(at_s, what, BAD) for at_s, what in self._notes]
        for level, (at_s, what, colour) in enumerate(sorted(marks)):
            for axes in (above, below):
                axes.axvline(at_s, color=colour, lw=1, ls="-" if colour == BAD else "--")
            _labelled(above, at_s / end_s, level, what, colour)
        legend(made, width, (("takes records", LOG), ("retired: readable, takes none", GONE)))
        return made


Spans = list[tuple[float, float, bool]]
"""When a partition takes records (True) and when it is retired, from and to, in seconds."""


def _labelled(axes: Axes, share: float, level: int, what: str, colour: str) -> None:
    """A name of a mark above the picture, on the side with room; neighbours on other heights."""
    right = share > 0.7
    axes.annotate(
        what, (share, 1.04 + 0.13 * (level % 3)), (-4 if right else 4, 0), color=colour,
        xycoords="axes fraction", textcoords="offset points", ha="right" if right else "left",
    )  # fmt: skip


def describe(initial: int, resize: Resize) -> str:
    """Which partitions come or go, and the partitions that they share their keys with."""
    moves = moves_of_keys(initial, resize.before, resize.after)
    some, others = [move.target for move in moves], [move.source for move in moves]
    if resize.after > resize.before:
        return (
            f"{resize.before} to {resize.after} partitions: {_range(some)} take keys of"
            f" {_range(others)}"
        )
    return (
        f"{resize.before} to {resize.after} partitions: {_range(others)} retire, their keys go back"
        f" to {_range(some)}"
    )


def _range(numbers: Sequence[int]) -> str:
    return f"{min(numbers)}-{max(numbers)}"


def _lanes(initial: int, resizes: Sequence[Resize], end_s: float) -> Iterator[tuple[str, Spans]]:
    for number in range(max([initial, *(each.after for each in resizes)])):
        name = str(number)
        spans: Spans = [] if number >= initial else [(0.0, end_s, True)]
        for each in resizes:
            if each.before <= number < each.after:
                parents = moves_of_keys(initial, each.before, each.after)
                name = f"{number} of {parents[number - each.before].source}"
                spans.append((each.ended_s, end_s, True))
            elif each.after <= number < each.before:
                begun_s, _, _ = spans.pop()
                spans += [(begun_s, each.ended_s, True), (each.ended_s, end_s, False)]
        yield name, spans


def _cells(spans: Spans, step_s: float) -> Iterator[str]:
    for column in range(_COLUMNS):
        at_s = (column + 0.5) * step_s
        here = [takes for begun_s, ended_s, takes in spans if begun_s <= at_s < ended_s]
        yield ("█" if here[0] else "░") if here else " "
