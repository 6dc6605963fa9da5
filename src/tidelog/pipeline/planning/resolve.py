"""The resolution of startingOffsets and endingOffsets to positions.

Owns which offset each form of startingOffsets and endingOffsets means, and whether a batch read can
be between two of them; the look-ups by time and of a group's offsets are given as functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidelog.pipeline.errors import OptionRefused
from tidelog.pipeline.places import EARLIEST, LATEST, ByPartition, Place, PlaceKind
from tidelog.pipeline.planning.positions import Pid, Positions
from tidelog.pipeline.planning.snapshot import Snapshot

# Partition -> milliseconds, to partition -> first offset at or after it; -1 where there is none.
FindByTime = Callable[[Mapping[Pid, int]], Mapping[Pid, int]]
# The offsets that a group committed; partitions without one are left out.
FindCommitted = Callable[[], Mapping[Pid, int]]

_NO_MATCH = -1


def resolve(
    place: Place,
    snapshot: Snapshot,
    *,
    option: str,
    latest_if_no_match: bool,
    by_time: FindByTime,
    committed: FindCommitted,
) -> Positions:
    """The position of every partition of the snapshot. Raises OptionRefused.

    `option` is the one for offsets; errors name the one that was given.
    """
    states = snapshot.partitions
    option = _name_of(option, place.kind)
    match place.kind:
        case PlaceKind.EARLIEST:
            positions = {pid: state.start for pid, state in states.items()}
        case PlaceKind.LATEST:
            positions = {pid: state.end for pid, state in states.items()}
        case PlaceKind.GROUP:
            offsets = committed()
            positions = {pid: offsets.get(pid, state.start) for pid, state in states.items()}
        case PlaceKind.OFFSETS:
            named = _named(place.by_partition, snapshot, option)
            positions = {pid: _special(named[pid], pid, snapshot) for pid in states}
        case PlaceKind.TIMESTAMP | PlaceKind.TIMESTAMPS:
            positions = _by_time(place, snapshot, option, latest_if_no_match, by_time)
    # A removed partition has no records for this read; where it comes back, it goes on there.
    positions |= {
        pid: end.final_offset for pid, end in snapshot.former.items() if snapshot.is_removed(pid)
    }
    # What was looked up after the snapshot may be of a later epoch than it knows.
    epochs = {
        pid: states[pid].leader_epoch
        for pid, offset in positions.items()
        if pid in states and offset <= states[pid].end and states[pid].leader_epoch >= 0
    }
    return Positions(positions, dict(snapshot.topic_ids), epochs, dict(snapshot.resize_epochs))


def check_order(starting: Place, ending: Place) -> None:
    """Raise OptionRefused for a start after the end, where both are given as numbers.

    A group, and the end of the log, may well be past the other place: then there is nothing to
    read.
    """
    if starting.kind is ending.kind is PlaceKind.TIMESTAMP:
        begin, end = starting.timestamp_ms, ending.timestamp_ms
        if begin > end:
            raise OptionRefused(f"option startingTimestamp is {begin}, after endingTimestamp {end}")
    if starting.kind is not ending.kind or not starting.by_partition:
        return
    first, last = _name_of("startingOffsets", starting.kind), _name_of("endingOffsets", ending.kind)
    for topic, parts in starting.by_partition.items():
        for number, begin in parts.items():
            end = ending.by_partition.get(topic, {}).get(number, LATEST)
            if begin > end >= 0:
                raise OptionRefused(
                    f"option {first} names {begin} for {topic}-{number}, after its end in"
                    f" option {last}, {end}"
                )


def beyond_the_log(positions: Positions, snapshot: Snapshot, option: str) -> dict[Pid, str]:
    """A line for each partition whose log ends before the position that an option names."""
    states = snapshot.partitions
    return {
        pid: f"option {option} names {offset} for {pid}, whose log ends at {states[pid].end}"
        for pid, offset in positions.at.items()
        if pid in states and offset > states[pid].end
    }


def _name_of(option: str, kind: PlaceKind) -> str:
    if kind is PlaceKind.TIMESTAMP:
        return option.replace("Offsets", "Timestamp")
    return f"{option}ByTimestamp" if kind is PlaceKind.TIMESTAMPS else option


def _special(offset: int, pid: Pid, snapshot: Snapshot) -> int:
    state = snapshot.partitions[pid]
    return {EARLIEST: state.start, LATEST: state.end}.get(offset, offset)


def _named(given: ByPartition, snapshot: Snapshot, option: str) -> dict[Pid, int]:
    """As in the stock source: the option names exactly the partitions that are read."""
    named = {
        Pid(topic, number): value
        for topic, parts in given.items()
        for number, value in parts.items()
    }
    by_number = {Pid(pid.topic, pid.partition): pid for pid in snapshot.partitions}
    for pid in by_number:
        if pid not in named:
            raise OptionRefused(f"option {option} does not name {pid}; it must name all partitions")
    for pid in named:
        if pid not in by_number:
            raise OptionRefused(f"option {option} names {pid}, which is not read or does not exist")
    return {by_number[pid]: value for pid, value in named.items()}


def _by_time(
    place: Place, snapshot: Snapshot, option: str, latest_if_no_match: bool, by_time: FindByTime
) -> dict[Pid, int]:
    if place.kind is PlaceKind.TIMESTAMP:
        times = dict.fromkeys(snapshot.partitions, place.timestamp_ms)
    else:
        times = _named(place.by_partition, snapshot, option)
    positions = {}
    for pid, offset in by_time(times).items():
        if offset == _NO_MATCH:
            if not latest_if_no_match:
                raise OptionRefused(
                    f"option {option}: {pid} has no record at or after {times[pid]} ms"
                    " (startingOffsetsByTimestampStrategy=latest starts at the end instead)"
                )
            offset = snapshot.partitions[pid].end
        positions[pid] = offset
    return positions
