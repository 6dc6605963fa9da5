"""The promises as pure functions: a history goes in, the violations come out as sentences.

Owns the checks of promises 1-5 and 25-28 (docs/promises.md) as far as one broker has them. Does
not run anything. Each checker stands alone and returns an empty list for a good history.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable

from tests.simulation.history import Final, History, Outcome, Write

Checker = Callable[[History], list[str]]


def acked_is_not_lost(history: History) -> list[str]:
    """Promise 1: an acked record stays readable, but for retention, compaction and deletion."""
    found = []
    for final in history.finals:
        newest = _newest_by_key(history, final)
        for write in _of(history, final.partition, Outcome.ACKED):
            if write.offset < final.start or write.offset in final.records:
                continue
            if final.compacted and _compaction_may_drop(write, newest):
                continue
            found.append(f"{_name(write)} acked at {write.offset} is gone")
    return found


def _newest_by_key(history: History, final: Final) -> dict[bytes | None, int]:
    newest: dict[bytes | None, int] = defaultdict(lambda: -1)
    for offset, key in final.keys.items():
        newest[key] = max(newest[key], offset)
    for write in _of(history, final.partition, Outcome.ACKED):
        if write.tombstone:
            newest[write.key] = max(newest[write.key], write.offset)
    return newest


def _compaction_may_drop(write: Write, newest: dict[bytes | None, int]) -> bool:
    """A record goes when its key has a newer one, a tombstone also by itself (in time)."""
    if write.key is None:
        return False
    return write.tombstone or newest[write.key] > write.offset


def refused_is_not_readable(history: History) -> list[str]:
    """Promise 2, first half: a definitely refused write never becomes readable."""
    refused = {
        (write.partition, write.value): write
        for write in history.writes
        if write.outcome is Outcome.REFUSED and not write.tombstone
    }
    return [
        f"{_name(refused[partition, value])} was refused and stands at {offset}"
        for partition, offset, value in _readable(history)
        if (partition, value) in refused
    ]


def idempotent_is_once(history: History) -> list[str]:
    """Promises 2 and 6: a write of an idempotent producer has at most one offset."""
    once = {(write.partition, write.value) for write in history.writes if write.idempotent}
    places: dict[tuple[str, bytes], set[int]] = defaultdict(set)
    for partition, offset, value in _readable(history):
        if (partition, value) in once:
            places[partition, value].add(offset)
    for write in history.writes:
        if write.idempotent and write.outcome is Outcome.ACKED and not write.tombstone:
            places[write.partition, write.value].add(write.offset)
    return [
        f"{value[:40]!r} in {partition} has several offsets: {sorted(offsets)}"
        for (partition, value), offsets in places.items()
        if len(offsets) > 1
    ]


def one_offset_one_record(history: History) -> list[str]:
    """Promise 3: an offset means the same record for ever, to every reader and producer."""
    seen: dict[tuple[str, int], bytes] = {}
    found = []
    acked = (
        (write.partition, write.offset, write.value)
        for write in history.writes
        if write.outcome is Outcome.ACKED and not write.tombstone
    )
    for partition, offset, value in [*acked, *_readable(history)]:
        if seen.setdefault((partition, offset), value) != value:
            found.append(
                f"{partition} {offset} was {seen[partition, offset][:40]!r}, is {value[:40]!r}"
            )
    return found


def read_is_not_unread(history: History) -> list[str]:
    """Promise 4: a record that was read stays; only written records are read."""
    written = {(write.partition, write.value) for write in history.writes}
    finals = {final.partition: final for final in history.finals}
    found = []
    for read in history.reads:
        if (read.partition, read.value) not in written:
            found.append(f"{read.partition} {read.offset}: no client wrote {read.value[:40]!r}")
            continue
        final = finals.get(read.partition)
        if final is None or read.offset < final.start or read.offset in final.records:
            continue
        if not final.compacted:
            found.append(f"{read.partition} {read.offset} was read and is gone (end {final.end})")
    return found


def producer_order_holds(history: History) -> list[str]:
    """Promise 5, first half: the offsets of one idempotent producer follow its order of sends."""
    offsets = _known_offsets(history)
    lines: dict[tuple[str, str], list[Write]] = defaultdict(list)
    for write in history.writes:
        if write.idempotent and (write.partition, write.value) in offsets:
            lines[write.partition, write.producer].append(write)
    found = []
    for writes in lines.values():
        writes.sort(key=lambda write: write.number)
        for earlier, later in itertools.pairwise(writes):
            first = offsets[earlier.partition, earlier.value]
            second = offsets[later.partition, later.value]
            if first >= second:
                found.append(f"{_name(earlier)} at {first}, but {_name(later)} at {second}")
    return found


def real_time_order_holds(history: History) -> list[str]:
    """Promise 5, second half: a record that was sent after an ack has a higher offset.

    Where a write stands that is neither acked nor readable is not known: with acks=1 a leader that
    was deposed may have named an offset that another has by now.
    """
    offsets = _known_offsets(history)
    found = []
    by_partition: dict[str, list[tuple[int, int, int, Write]]] = defaultdict(list)
    for write in history.writes:
        offset = offsets.get((write.partition, write.value), -1)
        if offset < 0 or write.tombstone:
            continue
        by_partition[write.partition].append((write.sent_at, 1, offset, write))
        if write.outcome is Outcome.ACKED:
            by_partition[write.partition].append((write.done_at, 0, offset, write))
    for events in by_partition.values():
        highest, holder = -1, None
        for _, is_send, offset, write in sorted(events, key=lambda event: event[:2]):
            if is_send and offset <= highest:
                found.append(f"{_name(write)} at {offset} was sent after the ack of {holder}")
            elif not is_send and offset > highest:
                highest, holder = offset, f"{_name(write)} at {offset}"
    return found


def failed_sync_is_final(history: History) -> list[str]:
    """Promise 25: after a failed write or fsync its directory neither acknowledges nor syncs."""
    failed: dict[tuple[str, str], int] = {}
    found = []
    for event in sorted(history.directories, key=lambda event: event.at):
        place = (event.directory, event.life)
        if event.what in ("write failed", "sync failed"):
            failed.setdefault(place, event.at)
        elif place in failed:
            found.append(f"{event.directory} of {event.life}: {event.what} after a failure")
    return found


def only_the_torn_tail_is_cut(history: History) -> list[str]:
    """Promise 26: recovery keeps a prefix that holds all that was written, or synced."""
    found = []
    for one in history.recoveries:
        where = f"{one.partition} after {one.kind}"
        end = max(one.after, default=one.start - 1) + 1
        must_end = one.synced_end if one.kind == "power" else max(one.before, default=-1) + 1
        if end < must_end:
            found.append(f"{where}: ends at {end}, but {must_end} was safe")
        for offset, value in one.after.items():
            if offset in one.before and one.before[offset] != value:
                found.append(
                    f"{where}: {offset} was {one.before[offset][:40]!r}, is {value[:40]!r}"
                )
            elif offset not in one.before and value not in one.in_doubt:
                found.append(f"{where}: {offset} is {value[:40]!r}, which was never there")
        missing = [o for o in one.before if one.start <= o < end and o not in one.after]
        if missing:
            found.append(f"{where}: holes at {missing[:5]} below the end {end}")
    return found


def epochs_end_where_they_did(history: History) -> list[str]:
    """Promises 3 and 4: a follower that truncates by a leader's response keeps what is committed.

    Above where the epoch ended, a replica keeps what its old leader never had committed; below the
    last record of it that the log has, it cuts what is committed.
    """
    found = []
    for one in history.epochs:
        where = f"{one.partition}: epoch {one.epoch} is said to end at {one.said}"
        if one.said > max(one.ended, one.start):
            found.append(f"{where}, it ended at {one.ended}")
        elif one.said < one.kept:
            found.append(f"{where}, its records go to {one.kept}")
    return found


def retention_stays_below_the_watermark(history: History) -> list[str]:
    """Promises 1 and 4: deletion by age or size never passes the high watermark."""
    return [
        f"{one.partition}: start {one.start} above the high watermark {one.high_watermark}"
        for one in history.deletions
        if one.start > one.high_watermark
    ]


def no_bad_crc_is_accepted(history: History) -> list[str]:
    """Promise 27: bytes with a bad CRC are neither acked nor readable."""
    corrupt = {(w.partition, w.value) for w in history.writes if w.corrupt}
    found = [
        f"{_name(write)} has a bad CRC and was acked"
        for write in history.writes
        if write.corrupt and write.outcome is Outcome.ACKED
    ]
    found += [
        f"{partition} {offset}: {value[:40]!r} has a bad CRC and is readable"
        for partition, offset, value in _readable(history)
        if (partition, value) in corrupt
    ]
    return found


def damage_is_never_served(history: History) -> list[str]:
    """Promise 26: damaged bytes are named, never served, and the replica is rebuilt."""
    found = []
    corrupted: set[tuple[str, str]] = set()
    named: dict[tuple[str, str], int] = {}
    refused: dict[tuple[str, str], int] = {}
    for event in sorted(history.corruptions, key=lambda event: event.at):
        place = (event.host, event.replica)
        if event.what == "corrupted":
            corrupted.add(place)
        elif event.what == "served":
            found.append(f"{event.host} served {event.replica} damaged: {event.detail}")
        elif event.what == "refused":
            refused.setdefault(place, event.at)
        elif event.what == "named":
            named.setdefault(place, event.at)
            if place not in corrupted and (event.host, "") not in corrupted:
                found.append(f"{event.host} named {event.replica} damaged, and no bit was flipped")
        elif event.what == "repaired":
            named.pop(place, None)
            refused.pop(place, None)
    found += [
        f"{host} refused corrupted bytes of {replica} at {at} and never named the damage"
        for (host, replica), at in refused.items()
        if (host, replica) not in named
    ]
    found += [
        f"{host} named {replica} damaged at {at}, and it was never repaired"
        for (host, replica), at in named.items()
    ]
    return found


def a_full_disk_heals(history: History) -> list[str]:
    """Promise 28: a full disk stops appends, not reads, and heals when there is room."""
    found = []
    full: set[str] = set()
    rooms: dict[str, int] = {}
    for event in sorted(history.space, key=lambda event: event.at):
        where = f" on {event.host}" if event.host else ""
        if event.what == "full":
            full.add(event.host)
            rooms.pop(event.host, None)
        elif event.what == "room":
            full.discard(event.host)
            rooms[event.host] = event.at
        elif event.what == "appended":
            rooms.pop(event.host, None)
        elif event.what == "read failed":
            state = "while full" if event.host in full else "with room"
            found.append(f"a read failed{where} at {event.at} {state}")
        elif event.what == "out of service":
            found.append(f"the disk{where} was only full and is out of service at {event.at}")
    last_room = rooms.pop("", -1)
    found += [
        f"there was room again on {host} at {at}, but nothing was appended there any more"
        for host, at in rooms.items()
    ]
    later = [w for w in history.writes if w.idempotent and 0 <= last_room < w.sent_at]
    if later and not any(write.outcome is Outcome.ACKED for write in later):
        found.append(f"there was room again, but none of {len(later)} later writes was acked")
    return found


ALL: tuple[Checker, ...] = (
    acked_is_not_lost,
    refused_is_not_readable,
    idempotent_is_once,
    one_offset_one_record,
    read_is_not_unread,
    producer_order_holds,
    real_time_order_holds,
    failed_sync_is_final,
    only_the_torn_tail_is_cut,
    epochs_end_where_they_did,
    retention_stays_below_the_watermark,
    no_bad_crc_is_accepted,
    damage_is_never_served,
    a_full_disk_heals,
)


def violations(history: History, checkers: Iterable[Checker] = ALL) -> list[str]:
    """Return what all checkers find, each line with the checker's name."""
    return [f"{check.__name__}: {line}" for check in checkers for line in check(history)]


def _of(history: History, partition: str, outcome: Outcome) -> list[Write]:
    return [w for w in history.writes if w.partition == partition and w.outcome is outcome]


def _readable(history: History) -> Iterable[tuple[str, int, bytes]]:
    for read in history.reads:
        yield read.partition, read.offset, read.value
    for final in history.finals:
        for offset, value in final.records.items():
            yield final.partition, offset, value


def _known_offsets(history: History) -> dict[tuple[str, bytes], int]:
    """The offset of each value: as acknowledged, otherwise as read."""
    known: dict[tuple[str, bytes], int] = {}
    for partition, offset, value in _readable(history):
        known.setdefault((partition, value), offset)
    for write in history.writes:
        if write.outcome is Outcome.ACKED:
            known[write.partition, write.value] = write.offset
    return known


def _name(write: Write) -> str:
    return f"{write.partition} {write.producer}#{write.number} {write.value[:40]!r}"
