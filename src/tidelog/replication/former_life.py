"""How a broker's last life ended, from what it left on its disk: a pure rule.

Source: the design, "Who may lead". The numbers travel in BrokerRegistration (tag 10000).
"""

from __future__ import annotations

from enum import IntEnum


class LastLife(IntEnum):
    """How the last life ended."""

    UNCLEAN = 0
    CRASHED = 1
    CLEAN = 2
    SAME = 3


def judge(
    *, clean_marker: bool, recorded_boot: str | None, present_boot: str, synced: bool
) -> LastLife:
    """Judge the last life. ``synced``: it ran with ``log.durability=sync``.

    A clean stop left a marker. Without one, the same boot of the operating system still has every
    byte that was written; another boot (or an unknown one) may have lost what was not synced. A
    directory without any record is a first life, which has nothing to lose: it counts as clean.
    """
    if clean_marker or recorded_boot is None:
        return LastLife.CLEAN
    if synced or (recorded_boot and recorded_boot == present_boot):
        return LastLife.CRASHED
    return LastLife.UNCLEAN
