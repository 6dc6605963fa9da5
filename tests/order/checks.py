"""The checks of a history of a topic that grows and shrinks: none may find anything.

Owns the rules, one function each. Not the order that they compare with: see ``reference``. Each
takes O(n log n) for n events, and more only for records that were rewound again and again.

| rule | function |
|---|---|
| C1 placement | ``each_record_is_in_a_home_of_its_key`` |
| C2 divergence | ``one_offset_is_one_record`` |
| C3 duplicates | ``no_record_is_there_twice`` |
| C4 aborted | ``what_was_refused_is_not_there`` |
| C5 lost | ``what_was_acknowledged_is_there`` |
| C6 real time | ``no_record_was_sent_after_a_later_one_was_acknowledged`` |
| C7 order of a writer | ``each_writer_is_in_order`` |
| C8 order of delivery | ``keys_are_delivered_in_order`` |
| C9 completeness | ``everything_is_delivered`` |
| C10 compaction | ``the_newest_value_wins`` |
| C12 metadata | ``metadata_agrees`` |
| C16 offsets | ``commits_follow_deliveries`` |
| C17 state | ``states_hold_all_that_was_before`` |

The lag (C15) has no bound here: ``lags_of`` returns it, and a run compares it with its faults.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tests.order.clean import FOR_EVER
from tests.order.compaction import may_be_cleaned, may_be_gone, wrong_ends
from tests.order.history import (
    Commit,
    CommitsLost,
    Delivery,
    KeyState,
    LeaderSeen,
    LogStart,
    MetadataSeen,
    Outcome,
    Registration,
    Removal,
    Rewind,
    Stored,
    Unaware,
)
from tests.order.reference import Placed, Reference


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a history breaks, in a sentence; ``key`` is empty where no key is concerned."""

    rule: str
    key: str
    text: str


Check = Callable[[Reference], Iterator[Violation]]


def each_record_is_in_a_home_of_its_key(reference: Reference) -> Iterator[Violation]:
    """C1: no record was written to a partition that did not take its key at that offset."""
    for key, homes in reference.homes.items():
        for (partition, offset), send in reference.in_order(key).items():
            if not any(
                home.partition == partition and home.start <= offset < home.end for home in homes
            ):
                yield Violation("C1", key, f"{_name(send.uid, partition, offset)}: wrong home")


def one_offset_is_one_record(reference: Reference) -> Iterator[Violation]:
    """C2: an offset is the same record in all reads, replicas, times and incarnations."""
    history = reference.history
    for read in (*history.of(Stored), *history.of(Delivery)):
        first = reference.places[read.partition, read.offset]
        if first != read.uid:
            reader = read.reader if isinstance(read, Stored) else read.member
            yield Violation(
                "C2",
                "",
                f"partition {read.partition} offset {read.offset} is record {first}, and record "
                f"{read.uid} for {reader or 'another reader'}",
            )


def no_record_is_there_twice(reference: Reference) -> Iterator[Violation]:
    """C3: one batch never stands in two places, as it would in both homes of its key."""
    seen: dict[int, tuple[int, int]] = {}
    for place, uid in reference.places.items():
        first = seen.setdefault(uid, place)
        if first[0] != place[0] and not reference.unclean.keys().isdisjoint((first[0], place[0])):
            continue  # An election may have cut one of them, before it was sent to the other.
        if first != place:
            key = reference.sends[uid].key if uid in reference.sends else ""
            yield Violation("C3", key, f"{_name(uid, *first)} is in {place} as well")


def what_was_refused_is_not_there(reference: Reference) -> Iterator[Violation]:
    """C4: a definite refusal stays one, and only what was sent is there."""
    for place, uid in reference.places.items():
        send = reference.sends.get(uid)
        if send is None:
            yield Violation("C4", "", f"{_name(uid, *place)}: no client sent it")
        elif send.outcome is Outcome.FAIL:
            yield Violation("C4", send.key, f"{_name(uid, *place)} was refused")


def what_was_acknowledged_is_there(reference: Reference) -> Iterator[Violation]:
    """C5: what was acknowledged is there, unless it was removed below a proven log start, or by the
    cleaner of a compacted topic."""
    starts = {each.partition: each.offset for each in reference.history.of(LogStart)}
    for send in reference.sends.values():
        if send.outcome is Outcome.OK and send.uid not in reference.there:
            if may_be_gone(reference, send):
                continue
            if send.offset >= 0:
                if send.offset < starts.get(send.partition, 0):
                    continue
            elif any(home.partition in starts for home in reference.homes[send.key]):
                continue  # Its response did not say where it was.
            yield Violation("C5", send.key, f"record {send.uid} was acknowledged and is gone")


def no_record_was_sent_after_a_later_one_was_acknowledged(
    reference: Reference,
) -> Iterator[Violation]:
    """C6: an order of a key that no clock contradicts; it finds inversions across producers."""
    for key, placed in reference.lists.items():
        earliest, by = float("inf"), -1
        for each in reversed(placed):
            if earliest < each.send.sent_at:
                yield Violation(
                    "C6",
                    key,
                    f"record {by} was acknowledged at {earliest}, before record {each.send.uid} "
                    f"was sent at {each.send.sent_at}, and stands after it",
                )
            if each.send.outcome is Outcome.OK and each.send.done_at < earliest:
                earliest, by = each.send.done_at, each.send.uid


def each_writer_is_in_order(reference: Reference) -> Iterator[Violation]:
    """C7: the records of one writer and key stand in the order of its sends."""
    for key, placed in reference.lists.items():
        newest: dict[str, int] = {}
        for each in placed:
            before = newest.get(each.send.writer, -1)
            if each.send.number <= before:
                yield Violation(
                    "C7",
                    key,
                    f"{_name(each.send.uid, each.partition, each.offset)}: number "
                    f"{each.send.number} of {each.send.writer} stands after {before}",
                )
            newest[each.send.writer] = max(before, each.send.number)


def keys_are_delivered_in_order(reference: Reference) -> Iterator[Violation]:
    """C8: a group receives each key in its order, with no record skipped, and hands keys over
    between partitions only after the earlier record was done with."""
    unaware = {each.name for each in reference.history.of(Unaware)}
    for group in _groups(reference):
        if group.name not in unaware:
            yield from _deliveries_of(reference, group)


def _deliveries_of(reference: Reference, group: _Group) -> Iterator[Violation]:
    cursors: dict[str, int] = defaultdict(int)
    ended: dict[tuple[int, int], float] = {}
    last_begun: dict[tuple[int, int], float] = {}
    for delivery in group.deliveries:
        place = delivery.partition, delivery.offset
        send = reference.sends.get(delivery.uid)
        at = group.index_of.get(place)
        if send is None or at is None or reference.places[place] != delivery.uid:
            continue  # C4, C1 and C2 say it.
        if not reference.is_in_order(send.key, delivery.begun_at):
            continue
        placed = group.lists[send.key]
        cursor = cursors[send.key]
        if at > cursor:
            missing = placed[cursor]
            yield Violation(
                "C8",
                send.key,
                f"{_of_delivery(delivery)} before "
                f"{_name(missing.send.uid, missing.partition, missing.offset)}",
            )
        elif at < cursor and not group.may_repeat(delivery, last_begun.get(place, -1.0)):
            yield Violation("C8", send.key, f"{_of_delivery(delivery)} again, without a cause")
        if at >= cursor and at > 0 and placed[at - 1].partition != delivery.partition:
            before = placed[at - 1]
            done = ended.get((before.partition, before.offset))
            if done is not None and done > delivery.begun_at:
                yield Violation(
                    "C8",
                    send.key,
                    f"{_of_delivery(delivery)} at {delivery.begun_at}, while record "
                    f"{before.send.uid} was in the hands of the application until {done}",
                )
        cursors[send.key] = max(cursor, at + 1)
        ended[place] = max(ended.get(place, -1.0), group.end_of(delivery))
        last_begun[place] = delivery.begun_at


def everything_is_delivered(reference: Reference) -> Iterator[Violation]:
    """C9: each group received all that was there, also with ``latest`` and in new partitions."""
    for group in _groups(reference):
        delivered = {(each.partition, each.offset) for each in group.deliveries}
        if group.forgot_at < FOR_EVER:
            continue  # It may begin anywhere since.
        for key, placed in group.due.items():
            for each in placed:
                if each.partition in reference.unclean:
                    continue  # It may have been cut before the group came to it.
                if (each.partition, each.offset) not in delivered:
                    name = _name(each.send.uid, each.partition, each.offset)
                    yield Violation("C9", key, f"{name} was not delivered to {group.name}")


def the_newest_value_wins(reference: Reference) -> Iterator[Violation]:
    """C10: a reader from the beginning of a compacted topic ends with the newest record of each
    key, and without those that were deleted."""
    for key, text in wrong_ends(reference):
        yield Violation("C10", key, text)


def metadata_agrees(reference: Reference) -> Iterator[Violation]:
    """C12: a resize epoch has one count, no broker goes back, a leader epoch has one leader."""
    counts: dict[int, int] = {}
    newest: dict[int, int] = {}
    for seen in sorted(reference.history.of(MetadataSeen), key=lambda each: each.at):
        if counts.setdefault(seen.resize_epoch, seen.count) != seen.count:
            yield Violation(
                "C12",
                "",
                f"broker {seen.broker} says {seen.count} partitions at resize epoch "
                f"{seen.resize_epoch}, another said {counts[seen.resize_epoch]}",
            )
        if seen.resize_epoch < newest.get(seen.broker, 0):
            yield Violation(
                "C12",
                "",
                f"broker {seen.broker} went back to resize epoch {seen.resize_epoch} from "
                f"{newest[seen.broker]}",
            )
        newest[seen.broker] = max(newest.get(seen.broker, 0), seen.resize_epoch)
    leaders: dict[tuple[int, int], int] = {}
    for leader in reference.history.of(LeaderSeen):
        first = leaders.setdefault((leader.partition, leader.leader_epoch), leader.leader)
        if first != leader.leader:
            yield Violation(
                "C12",
                "",
                f"partition {leader.partition} has the leaders {first} and {leader.leader} in "
                f"leader epoch {leader.leader_epoch}",
            )


def commits_follow_deliveries(reference: Reference) -> Iterator[Violation]:
    """C16: a group commits what it was done with, and goes back only after a rewind."""
    for group in _groups(reference):
        ends: dict[int, list[tuple[int, float]]] = defaultdict(list)
        done: dict[tuple[int, int], float] = {}
        for delivery in group.deliveries:
            place = delivery.partition, delivery.offset
            done[place] = min(done.get(place, float("inf")), group.end_of(delivery))
        for placed in group.due.values():
            for each in placed:
                place = each.partition, each.offset
                ends[each.partition].append((each.offset, done.get(place, float("inf"))))
        for each in ends.values():
            each.sort()
        newest: dict[int, Commit] = {}
        at: dict[int, int] = defaultdict(int)
        latest: dict[int, float] = defaultdict(lambda: -1.0)
        for commit in group.commits:
            before = newest.get(commit.partition)
            if (
                before is not None
                and commit.offset < before.offset
                and not group.was_rewound(commit.partition, commit.offset, before.at, commit.at)
            ):
                yield Violation(
                    "C16",
                    "",
                    f"{group.name} committed {commit.offset} of partition {commit.partition} "
                    f"after {before.offset}",
                )
            newest[commit.partition] = commit
            listed, index = ends[commit.partition], at[commit.partition]
            while index < len(listed) and listed[index][0] < commit.offset:
                latest[commit.partition] = max(latest[commit.partition], listed[index][1])
                index += 1
            at[commit.partition] = index
            if latest[commit.partition] > commit.at:
                yield Violation(
                    "C16",
                    "",
                    f"{group.name} committed {commit.offset} of partition {commit.partition} at "
                    f"{commit.at}, before it was done with all records below",
                )


def states_hold_all_that_was_before(reference: Reference) -> Iterator[Violation]:
    """C17: with state per key, an application that receives a record has the state of all records
    of the key before it, whoever received those."""
    for group in _groups(reference):
        judged = {each.state: each for each in group.deliveries if each.state is not None}
        index_of = {
            each.send.uid: index
            for placed in group.lists.values()
            for index, each in reversed([*enumerate(placed)])
        }
        held: dict[int, int] = {}
        """How many records of the key's list a state has, from the first one on."""
        for state in group.states:
            has, at = held.get(state.after, 0), index_of.get(state.uid, -1)
            delivery = judged.get(state.number)
            if at > has and delivery is not None:
                send = reference.sends[state.uid]
                if reference.is_in_order(send.key, delivery.begun_at):
                    lacking = group.lists[send.key][has]
                    yield Violation(
                        "C17",
                        send.key,
                        f"{_of_delivery(delivery)} with a state of the key without "
                        f"{_name(lacking.send.uid, lacking.partition, lacking.offset)}",
                    )
                has = at
            held[state.number] = max(has, at + 1) if at <= has else has


def lags_of(reference: Reference) -> dict[str, float]:
    """C15: return the longest time from an acknowledgement to the first delivery, by group.

    What was written before a group began counts from its beginning; what it never received is C9's.
    """
    lags: dict[str, float] = {}
    for registration in reference.history.of(Registration):
        group = _Group(reference, registration)
        first: dict[tuple[int, int], float] = {}
        for delivery in group.deliveries:
            first.setdefault((delivery.partition, delivery.offset), delivery.begun_at)
        lags[group.name] = max(
            (
                first[each.partition, each.offset] - max(each.send.done_at, registration.at)
                for placed in group.lists.values()
                for each in placed
                if each.send.outcome is Outcome.OK and (each.partition, each.offset) in first
            ),
            default=0.0,
        )
    return lags


CHECKS: tuple[Check, ...] = (
    each_record_is_in_a_home_of_its_key,
    one_offset_is_one_record,
    no_record_is_there_twice,
    what_was_refused_is_not_there,
    what_was_acknowledged_is_there,
    no_record_was_sent_after_a_later_one_was_acknowledged,
    each_writer_is_in_order,
    keys_are_delivered_in_order,
    everything_is_delivered,
    the_newest_value_wins,
    metadata_agrees,
    commits_follow_deliveries,
    states_hold_all_that_was_before,
)


def violations_in(reference: Reference) -> list[Violation]:
    """Return what all checks find."""
    return [found for check in CHECKS for found in check(reference)]


class _Group:
    # What the checks of one group share: its deliveries in order, and its part of each list.
    def __init__(self, reference: Reference, registration: Registration) -> None:
        history = reference.history
        name = self.name = registration.group
        self.forgot_at = min((each.at for each in history.of(CommitsLost)), default=FOR_EVER)
        """Nothing counts since: the group may have gone back, and be of generation 1 again."""
        self.deliveries = sorted(
            (
                each
                for each in history.of(Delivery)
                if each.group == name and each.begun_at < self.forgot_at
            ),
            key=lambda each: each.begun_at,
        )
        self.commits = sorted(
            (
                each
                for each in history.of(Commit)
                if each.group == name and each.at < self.forgot_at
            ),
            key=lambda each: each.at,
        )
        self.states = sorted(
            (each for each in history.of(KeyState) if each.group == name),
            key=lambda each: each.number,
        )
        self._removals: dict[str, list[float]] = defaultdict(list)
        for removal in history.of(Removal):
            if removal.group == name:
                self._removals[removal.member].append(removal.at)
        self._commits: dict[int, list[Commit]] = defaultdict(list)
        for commit in self.commits:
            self._commits[commit.partition].append(commit)
        self._rewinds: dict[int, list[Rewind]] = defaultdict(list)
        for rewind in sorted(history.of(Rewind), key=lambda each: each.at):
            if rewind.group == name:
                self._rewinds[rewind.partition].append(rewind)
        starts = dict(registration.positions)
        for start in history.of(LogStart):
            starts[start.partition] = max(start.offset, starts.get(start.partition, 0))
        delivered = {(each.partition, each.offset) for each in self.deliveries}

        def due(placed: Sequence[Placed]) -> list[Placed]:
            return [
                each
                for each in placed
                if (each.partition, each.offset) in delivered
                or (
                    each.offset >= starts.get(each.partition, 0)
                    and not may_be_cleaned(reference, each)
                )
            ]

        self.lists = {key: due(placed) for key, placed in reference.lists.items()}
        self.due = self.lists | {
            key: due([Placed(*place, send) for place, send in reference.by_key[key].items()])
            for key in reference.in_doubt
            if key in reference.by_key
        }
        """With the records whose order is not promised any more."""
        self.index_of = {
            (each.partition, each.offset): index
            for placed in self.lists.values()
            for index, each in enumerate(placed)
        }

    def end_of(self, delivery: Delivery) -> float:
        """Return when the application was done with a record, or its member was removed."""
        ended = float("inf") if delivery.ended_at is None else delivery.ended_at
        removed = [at for at in self._removals[delivery.member] if at >= delivery.begun_at]
        return min([ended, *removed])

    def may_repeat(self, delivery: Delivery, last_begun: float) -> bool:
        """Whether a rewind since the last delivery of a record explains another one."""
        return self.was_rewound(delivery.partition, delivery.offset, last_begun, delivery.begun_at)

    def was_rewound(self, partition: int, offset: int, since: float, until: float) -> bool:
        """Whether a partition was rewound to an offset or below it, as far as it may be."""
        rewinds = self._rewinds[partition]
        first = bisect_left(rewinds, since, key=lambda each: each.at)
        last = bisect_right(rewinds, until, key=lambda each: each.at)
        return any(
            rewind.offset <= offset
            and (rewind.is_seek or rewind.offset >= self._committed(partition, rewind.at))
            for rewind in rewinds[first:last]
        )

    def _committed(self, partition: int, at: float) -> int:
        commits = self._commits[partition]
        before = bisect_right(commits, at, key=lambda each: each.at)
        return commits[before - 1].offset if before else -1


def _groups(reference: Reference) -> list[_Group]:
    return [_Group(reference, each) for each in reference.history.of(Registration)]


def _name(uid: int, partition: int, offset: int) -> str:
    return f"record {uid} (partition {partition} offset {offset})"


def _of_delivery(delivery: Delivery) -> str:
    return (
        f"{delivery.group} {delivery.member} received "
        f"{_name(delivery.uid, delivery.partition, delivery.offset)}"
    )
