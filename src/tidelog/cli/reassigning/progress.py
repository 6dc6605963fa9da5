"""The progress of running moves: bytes copied of all, rate, time left, what a copy waits for. Pure.

Owns one row for each target that is not in sync: a move waits for those that are replicas already,
too. The rate is that of the last minute.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tidelog.cli.reassigning.situation import Situation
from tidelog.client.admin.nodes import lacks_room
from tidelog.client.errors import ClientError
from tidelog.client.metadata import NO_LEADER
from tidelog.model.topics import TopicPartition

SAMPLES = 30
"""Samples that the rate covers: a minute. A target under a throttle gets its bytes in bursts."""

Held = dict[tuple[int, TopicPartition], int]


@dataclass(frozen=True, slots=True)
class TargetProgress:
    """One target of a move; sizes in bytes, None where they are unknown."""

    where: TopicPartition
    broker: int
    copied: int | None
    total: int | None
    rate: float | None
    """Bytes per second."""
    waits_for: str
    """What the move needs next; "" while the copy goes on."""

    @property
    def left_s(self) -> float | None:
        """The seconds until it has copied all, at this rate."""
        if self.copied is None or self.total is None or not self.rate:
            return None
        return max(0, self.total - self.copied) / self.rate


class Samples:
    """The sizes of the last samples."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Held]] = deque(maxlen=SAMPLES)

    def copies(
        self, now: Situation, time_s: float, throttle: int | None = None
    ) -> list[TargetProgress]:
        """Add a sample, taken at ``time_s``; return the rows of all moves, sorted.

        ``throttle``: the rate of the cluster in bytes per second, None if there is none.
        """
        held, sizes = now.held(), now.sizes()
        self._samples.append((time_s, held))
        rows = []
        for tp, move in sorted(now.moves.items()):
            in_sync = now.partitions[tp].isr
            for broker in move.targets:
                if broker in in_sync:
                    continue
                copied, total = held.get((broker, tp)), sizes.get(tp)
                rate, is_still = self._rate((broker, tp))
                waits_for = _waits(now, tp, broker, copied, total)
                if not waits_for and is_still:
                    waits_for = _why_still(throttle)
                rows.append(TargetProgress(tp, broker, copied, total, rate, waits_for))
        return rows

    def _rate(self, key: tuple[int, TopicPartition]) -> tuple[float | None, bool]:
        """Return bytes per second, None if they are unknown, and whether none came lately."""
        samples = [(time, held[key]) for time, held in self._samples if key in held]
        if len(samples) < 2 or samples[-1][0] <= samples[0][0]:
            return None, False
        rate = max(0, samples[-1][1] - samples[0][1]) / (samples[-1][0] - samples[0][0])
        return rate, samples[-1][1] <= samples[-2][1]


def _why_still(throttle: int | None) -> str:
    if throttle is not None:
        return f"the throttle: {throttle:,} bytes per second, in bursts"
    return "progress: nothing was copied lately"


def _waits(
    now: Situation, tp: TopicPartition, broker: int, copied: int | None, total: int | None
) -> str:
    if broker not in now.racks:
        return f"broker {broker} to start: it is not alive"
    if now.partitions[tp].leader == NO_LEADER:
        return "a leader"
    entries = now.dirs.get(broker)
    if isinstance(entries, ClientError):
        return f"broker {broker} to respond"
    failed = [entry.path for entry in entries or () if entry.error is not None]
    if copied is None and failed:
        return f"a log directory: {failed[0]} failed"
    if total is not None and lacks_room(entries or (), tp, total - (copied or 0)):
        return f"room in a log directory of broker {broker}"
    if copied is None:
        return "its turn"
    if total is not None and copied >= total:
        return "the in-sync replicas to take it in"
    return ""
