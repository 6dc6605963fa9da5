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
from html import escape

from tidelog.client.admin.topics import create_partitions
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.partitioning.lineage import moves_of_keys
from tidelog.pipeline.report.page import text_table

_DEADLINE_S = 60.0
_AGAIN_S = 0.25
# What a producer notices of a resize may come a moment after it.
_SETTLES_S = 0.25
_SLOT_S = 0.25
_COLUMNS = 60
_LEVELS = " ▁▂▃▄▅▆▇█"


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
        head = ("resize", "seconds", "acknowledged meanwhile", "longest time without one, ms")
        return text_table(
            head,
            [
                (
                    f"{each.before} to {each.after}",
                    round(each.seconds, 2),
                    each.acked,
                    round(each.stall_s * 1000),
                )
                for each in self.resizes
            ],
        )

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

    def svg(self) -> str:
        """The same as a picture for the page."""
        end_s = max(self._last_ack_s, self.resizes[-1].ended_s) + _SLOT_S
        return _drawn(self._slots, _lanes(self.initial, self.resizes, end_s), self.resizes, end_s)


Spans = list[tuple[float, float, bool]]
"""When a partition takes records (True) and when it is retired, from and to, in seconds."""


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


_WIDTH, _LEFT, _LANE, _TOP = 920, 70, 14, 96


def _drawn(
    slots: Counter[int], lanes: Iterator[tuple[str, Spans]], resizes: Sequence[Resize], end_s: float
) -> str:
    scale = (_WIDTH - _LEFT - 10) / end_s
    most = max(slots.values(), default=1)
    made = []
    for slot, count in sorted(slots.items()):
        height = 60 * count / most
        made.append(
            f'<rect x="{_LEFT + slot * _SLOT_S * scale:.1f}" y="{70 - height:.1f}"'
            f' width="{_SLOT_S * scale:.1f}" height="{height:.1f}" fill="var(--good)"><title>'
            f"{count / _SLOT_S:,.0f} flights a second acknowledged</title></rect>"
        )
    row = -1
    for row, (name, spans) in enumerate(lanes):
        y = _TOP + row * _LANE
        made.append(f'<text x="0" y="{y + 9}">{escape(name)}</text>')
        for begun_s, ended_s, takes in spans:
            fill, what = ("--log", "takes records") if takes else ("--gone", "retired")
            made.append(
                f'<rect x="{_LEFT + begun_s * scale:.1f}" y="{y}"'
                f' width="{max(1.5, (ended_s - begun_s) * scale):.1f}" height="10" rx="2"'
                f' fill="var({fill})"><title>{what}</title></rect>'
            )
    bottom = _TOP + (row + 1) * _LANE
    for each in resizes:
        x = _LEFT + each.begun_s * scale
        made.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="8" y2="{bottom}" stroke="var(--bad)"/>'
            f'<text class="soft" x="{x + 4:.1f}" y="88">{each.before} to {each.after}:'
            f" {each.stall_s * 1000:,.0f} ms without an acknowledgement</text>"
        )
    return (
        f'<div class="scroll"><svg viewBox="0 0 {_WIDTH} {bottom + 10}" width="{_WIDTH}"'
        f' height="{bottom + 10}" role="img"><title>Flights acknowledged over time, and the'
        f" partitions of their topic</title>{''.join(made)}</svg></div>"
    )
