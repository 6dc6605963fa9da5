"""The course of a run of the cluster scenario: what a test may fix of it.

Owns the options and their defaults. What a run does with them: see ``cluster``.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.simulation.cluster import faults, faults_members
from tests.simulation.cluster.corruption import KINDS
from tests.simulation.cluster.mover import FEWEST

MIXED_SHARE = 0.5
"""Of the seeds, those with mixed levels."""
MOVES_SHARE = 0.1
"""Of the seeds of the scenario, those with a mover."""
MOVES_SECONDS, MOVES_END_SECONDS = 24.0, 32.0
"""They are shorter: copies cost time."""
RESIZES_SECONDS, RESIZES_END_SECONDS = 30.0, 38.0
GROUP_TOPICS = ("plain", "loose", "pair")
"""What the group of members reads."""


@dataclass(frozen=True)
class Course:
    """What a run consists of; the seed decides what is left open (None)."""

    seconds: float = 42.0
    end_seconds: float = 57.0
    """When the producers end: with what follows a run has 60 simulated seconds."""

    pause: tuple[float, float] = (0.1, 4.0)
    weights: Mapping[str, float] = field(default_factory=lambda: faults.ALL)
    controllers: int | None = None
    durability: str | None = None
    unclean: bool | None = None
    """Whether administrators allow and ask for unclean elections."""

    careful: bool = True
    """Whether a disk is only lost while everything is in sync, as promise 1 asks."""

    mixed: bool | None = None
    """Whether levels are mixed and roll up and down; without, every node has the newest."""
    members: Mapping[str, float] = field(default_factory=lambda: faults_members.WEIGHTS)
    """How often each fault of the group's members comes, relative to the others."""

    fetch_bytes: int | None = None
    """What followers fetch of a partition at once: little makes them catch up slowly."""

    deletes: bool = True
    """Whether topics can be deleted (``delete.topic.enable``), and are."""

    corrupted: Mapping[str, float] = field(default_factory=lambda: KINDS)
    """Which kinds of files have bits turned over, and how often."""

    moves: bool = False
    """Whether a mover reassigns partitions."""

    movers_pause: tuple[float, float] = (0.2, 3.0)
    fewest_replicas: int = FEWEST
    """The smallest replica set that the mover asks for."""

    brokers: int = 3

    resizes: tuple[float, float] = (0.3, 4.0)
    """How long the resizer pauses, in the scenario that has one."""
    resizer_moves: float = 0.0
    """The share of its requests that move a partition."""


def course_of(seed: int) -> Course:
    """Return the course of a seed of the scenario; one without moves has what a test has."""
    rng = random.Random(f"{seed}/with moves")
    return _moving(rng) if rng.random() < MOVES_SHARE else Course()


def moving_course(seed: int) -> Course:
    """Return the course of a seed with a mover, whatever share of the seeds has one."""
    return _moving(random.Random(f"{seed}/of moves"))


def resizing_course(seed: int) -> Course:
    """Return the course of a seed of the scenario with a topic that grows and shrinks."""
    rng = random.Random(f"{seed}/of resizes")
    return Course(
        seconds=RESIZES_SECONDS,
        end_seconds=RESIZES_END_SECONDS,
        mixed=False,
        # What reads bits that were turned over is in ``audit``, and reads other topics.
        weights={name: share for name, share in faults.ALL.items() if name != "flip_bits"},
        # The first ones meet a topic without records.
        resizes=rng.choice(((0.0, 0.5), (0.1, 1.5), (0.3, 4.0))),
        brokers=rng.choice((3, 3, 4)),
        resizer_moves=0.2,
    )


def _moving(rng: random.Random) -> Course:
    return Course(
        seconds=MOVES_SECONDS,
        end_seconds=MOVES_END_SECONDS,
        moves=True,
        brokers=rng.choice((3, 4)),
    )
