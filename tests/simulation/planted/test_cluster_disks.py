"""Planted bugs of disks: bits that flipped are believed, or a full disk is not; a seed finds each.

As in ``test_cluster``; the search for a seed is in ``search``.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.planted.search import LOSSES, PROOF, SEEDS, Planted, directed, find
from tidelog.broker.partitions.repairs import Repairs
from tidelog.storage import checkpoints, names
from tidelog.storage.segments import soundness
from tidelog.storage.segments.resources import Resources
from tidelog.storage.segments.scan import scan
from tidelog.storage.segments.segment import Segment

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quiet")]

Patch = pytest.MonkeyPatch
FLIPS = {"flip_bits": 6.0, "bounce_broker": 1.5, "stop_broker": 1.0}
DAMAGE = ("damage_is_never_served",)


def serve_without_checking(patch: Patch) -> None:
    patch.setattr(soundness, "crc32c", AnyCrc)


class AnyCrc:
    """Equal to whatever it is compared with."""

    def __init__(self, content: object) -> None:
        pass

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


def believe_every_checkpoint(patch: Patch) -> None:
    patch.setattr(checkpoints, "_check_crc", lambda content, expected: None)


def believe_every_index(patch: Patch) -> None:
    """A look-up of an offset goes on from where the index says, whatever is there."""

    def trusting(self: Any, offset: int, entry: tuple[int, int] | None) -> Any:
        position = 0 if entry is None else entry[0]
        for found in scan(self.open_log(), position, self.size, check=False):
            if found[1].last_offset >= offset:
                return found, True
        return None, True

    patch.setattr(Segment, "_walk_to", trusting)


def leave_damage_as_it_is(patch: Patch) -> None:
    patch.setattr(Repairs, "is_due", lambda self, hosted, state: False)


def take_a_full_disk_for_a_broken_one(patch: Patch) -> None:
    patch.setattr(Resources, "passing", lambda self, error: None)


PLANTED = (
    Planted(serve_without_checking, DAMAGE, directed(FLIPS)),
    Planted(
        believe_every_checkpoint,
        (*DAMAGE, *LOSSES, *PROOF, "only_what_was_asked_goes", "recovery_is_bounded"),
        directed(FLIPS, corrupted={names.PARTITION_METADATA: 1.0, names.LOG_STARTS: 1.0}),
        first_seed=10,
    ),
    Planted(
        believe_every_index,
        DAMAGE,
        directed(FLIPS, corrupted={names.INDEX: 1.0}, seconds=20.0, end_seconds=24.0),
    ),
    Planted(leave_damage_as_it_is, (*DAMAGE, "recovery_is_bounded"), directed(FLIPS), first_seed=3),
    Planted(
        take_a_full_disk_for_a_broken_one, ("a_full_disk_heals",), directed({"fill_the_disk": 1.0})
    ),
)


@pytest.mark.parametrize("planted", PLANTED, ids=[each.plant.__name__ for each in PLANTED])
def test_a_planted_bug_is_found(planted: Planted, monkeypatch: Patch) -> None:
    planted.plant(monkeypatch)
    found = find(planted)
    assert found is not None, f"{planted.plant.__name__} survived {SEEDS} seeds"
    result, line = found
    print(f"{planted.plant.__name__}: seed {result.seed}: {line}")
