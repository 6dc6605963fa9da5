"""What happens to a cluster in one run of the nemesis: drawn from a seed, and nothing else.

Owns the choice of faults; `nemesis.py` does them. Pure: the same seed gives the same rounds.

A round is one fault, or two at once on different victims, or all brokers killed; between rounds
the cluster recovers. What would take acknowledged data from more brokers than the cluster survives
is never drawn: at most one disk is emptied in a round, and no other data is lost in it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

CONTROLLER = "controller"
CLIENT = "client"
BROKERS = "brokers"

RECOVERY_S = 0.5
"""What a round takes beside its faults, at least: the time of a run ends before its rounds do."""


class Kind(StrEnum):
    """What can be done to a victim."""

    KILL = "kill -9"
    KILL_ALL = "all kill -9"
    STOP = "SIGSTOP"
    CUT = "cut off"
    DEAF = "receives nothing"
    MUTE = "reaches no other"
    DELAY = "is slow"
    RESET = "connections reset"
    EMPTY = "empty disk"
    FULL = "full disk"


PROCESSES = (Kind.KILL, Kind.KILL, Kind.STOP, Kind.STOP, Kind.KILL_ALL)
LINKS = (Kind.CUT, Kind.DEAF, Kind.MUTE, Kind.DELAY, Kind.RESET)
DISKS = (Kind.EMPTY, Kind.FULL)
EVERYTHING = PROCESSES + LINKS + DISKS

_LASTS_S = {
    # Shorter and longer than a session of 3 s.
    Kind.STOP: (0.4, 1.5, 4.5),
    Kind.CUT: (0.4, 1.5, 4.5),
    Kind.DEAF: (0.4, 1.5, 4.5),
    Kind.MUTE: (0.4, 1.5, 4.5),
    Kind.KILL: (0.0, 0.5, 4.0),
    Kind.KILL_ALL: (0.0, 0.5),
    Kind.EMPTY: (0.0, 1.0),
    Kind.DELAY: (2.0, 4.0),
    Kind.RESET: (0.0, 0.3),
    Kind.FULL: (1.0, 3.0),
}
_SCOPES = ((CONTROLLER,), (BROKERS,), (CONTROLLER, BROKERS), (CLIENT,))


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `victim` is "controller", "brokers" or a broker's rank: 0 is a leader then.

    `apart_from` names the ends that a link's fault parts the victim from.
    """

    kind: Kind
    victim: int | str
    lasts_s: float
    apart_from: tuple[str, ...] = ()
    delay_s: float = 0.0

    def __str__(self) -> str:
        name = self.victim if isinstance(self.victim, str) else f"broker of rank {self.victim}"
        where = f" with {' and '.join(self.apart_from)}" if self.apart_from else ""
        return f"{name} {self.kind}{where} for {self.lasts_s} s"


@dataclass(frozen=True, slots=True)
class Round:
    """Faults that begin together, `work_s` after the cluster has recovered from those before."""

    work_s: float
    faults: tuple[Fault, ...]

    @property
    def lasts_s(self) -> float:
        """How long its longest fault lasts."""
        return max(fault.lasts_s for fault in self.faults)

    def __str__(self) -> str:
        return f"after {self.work_s} s: " + " while ".join(map(str, self.faults))


def schedule(seed: int, duration_s: float, kinds: Sequence[Kind], brokers: int = 3) -> list[Round]:
    """Return rounds that fill `duration_s` at least; a kind named twice comes twice as often."""
    chance = random.Random(seed)
    rounds: list[Round] = []
    left_s = duration_s
    while left_s > 0:
        wanted = [chance.choice(kinds) for _ in range(chance.choice((1, 1, 1, 2)))]
        victims: list[int | str] = [*range(brokers), CONTROLLER]
        faults: list[Fault] = []
        if Kind.KILL_ALL in wanted:
            wanted = []
            faults.append(Fault(Kind.KILL_ALL, BROKERS, chance.choice(_LASTS_S[Kind.KILL_ALL])))
        for kind in wanted:
            if kind is Kind.EMPTY and any(fault.kind is Kind.EMPTY for fault in faults):
                continue
            # Disks are the brokers' alone; a leader is the most interesting victim.
            able = [each for each in victims if kind not in DISKS or each != CONTROLLER]
            weights = [3 if each == 0 else 1 for each in able]
            victim = chance.choices(able, weights)[0]
            victims.remove(victim)
            faults.append(_fault(chance, kind, victim))
        found = Round(chance.choice((0.1, 0.5, 1.0)), tuple(faults))
        rounds.append(found)
        left_s -= found.work_s + found.lasts_s + RECOVERY_S
    return rounds


def _fault(chance: random.Random, kind: Kind, victim: int | str) -> Fault:
    lasts_s = chance.choice(_LASTS_S[kind])
    if kind not in LINKS:
        return Fault(kind, victim, lasts_s)
    apart = (BROKERS,) if victim == CONTROLLER else chance.choice(_SCOPES)
    delay_s = chance.choice((0.05, 0.2)) if kind is Kind.DELAY else 0.0
    return Fault(kind, victim, lasts_s, apart, delay_s)
