"""What still counts where an unclean election has happened.

Owns which part of a history the checks are given. An unclean election may cut what was acknowledged
and read, and use its offsets again; so may fences be cut, with which a key changes its home.

| what | counts |
|---|---|
| reads, commits and responses of a partition | until its first unclean election; afterwards none |
| its records on disk at the end | none; what was acknowledged before counts as stored |
| the order of a key | until it is in a partition that is not clean, or was |
| records in partitions that are clean | all: none is lost, each is delivered |
| commits that were answered before the offsets partition had such an election | not afterwards |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tests.order.history import (
    Commit,
    Delivery,
    Event,
    History,
    LogStart,
    Outcome,
    Send,
    Stored,
    UncleanElection,
)

FOR_EVER = float("inf")
AS_ACKNOWLEDGED = "its acknowledgement before the unclean election"


def unclean_since(history: History) -> dict[int, float]:
    """Return when each partition that is not clean had its first unclean election."""
    found: dict[int, float] = {}
    for each in history.of(UncleanElection):
        found[each.partition] = min(each.at, found.get(each.partition, FOR_EVER))
    return found


def clean_part(history: History, since: dict[int, float]) -> History:
    """Return a history without what partitions that are not clean have done since."""
    if not since:
        return history

    def counted(partition: int, at: float) -> bool:
        return at < since.get(partition, FOR_EVER)

    events: list[Event] = []
    for event in history.events:
        if isinstance(event, Stored | LogStart):
            if event.partition not in since:
                events.append(event)
        elif isinstance(event, Delivery):
            if counted(event.partition, event.begun_at):
                events.append(event)
        elif isinstance(event, Commit):
            if counted(event.partition, event.at):
                events.append(event)
        elif isinstance(event, Send) and event.partition in since:
            if event.offset >= 0 and counted(event.partition, event.done_at):
                events.append(event)
                events.append(Stored(event.partition, event.offset, event.uid, AS_ACKNOWLEDGED))
            else:
                events.append(replace(event, outcome=Outcome.INFO, partition=-1, offset=-1))
        else:
            events.append(event)
    return History(history.initial_count, events)


def in_doubt_since(homes: Iterable[tuple[int, float]], since: dict[int, float]) -> float:
    """Return from when on a key's order is not promised: (partition, since when) of its homes."""
    return min((max(since.get(home, FOR_EVER), at) for home, at in homes), default=FOR_EVER)
