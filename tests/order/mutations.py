"""One change to a legal history, each of which breaks one rule.

Owns the changes, with the rules that the checker must name. ``None`` says that a history gives no
occasion for the change.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

from tests.order.history import (
    Commit,
    Delivery,
    Event,
    History,
    KeyState,
    LeaderSeen,
    MetadataSeen,
    Outcome,
    Rewind,
    Send,
    Stored,
)
from tests.order.reference import Placed, Reference

Change = Callable[[History, random.Random], "History | None"]


@dataclass(frozen=True, slots=True)
class Mutation:
    """A change, the rule that it breaks, and those that it may break beside it."""

    change: Change
    rule: str
    beside: frozenset[str] = frozenset()


def _changed(history: History, *removed: Event, added: tuple[Event, ...] = ()) -> History:
    gone = {id(each) for each in removed}
    events = [each for each in history.events if id(each) not in gone]
    return History(history.initial_count, [*events, *added])


def _neighbours(history: History) -> list[tuple[Placed, Placed]]:
    return [pair for placed in Reference(history).lists.values() for pair in pairwise(placed)]


def _deliveries(history: History) -> dict[tuple[int, int], list[Delivery]]:
    found: dict[tuple[int, int], list[Delivery]] = defaultdict(list)
    for delivery in history.of(Delivery):
        found[delivery.partition, delivery.offset].append(delivery)
    return found


def swap(history: History, rng: random.Random) -> History | None:
    """Two records of one writer stand in each other's place, in the log and for each reader."""
    pairs = [(a, b) for a, b in _neighbours(history) if a.send.writer == b.send.writer]
    if not pairs:
        return None
    first, second = rng.choice(pairs)
    other = {first.send.uid: second.send.uid, second.send.uid: first.send.uid}
    place = {
        first.send.uid: (second.partition, second.offset),
        second.send.uid: (first.partition, first.offset),
    }
    events: list[Event] = []
    for event in history.events:
        if isinstance(event, Stored | Delivery | KeyState):
            events.append(replace(event, uid=other.get(event.uid, event.uid)))
        elif isinstance(event, Send) and event.uid in place and event.offset >= 0:
            partition, offset = place[event.uid]
            events.append(replace(event, partition=partition, offset=offset))
        else:
            events.append(event)
    return History(history.initial_count, events)


def drop(history: History, rng: random.Random) -> History | None:
    """An acknowledged record is gone."""
    there = {each.uid for each in history.of(Stored)}
    acked = [
        each
        for each in history.of(Send)
        if each.outcome is Outcome.OK and each.uid in there and each.offset >= 0
    ]
    if not acked:
        return None
    uid = rng.choice(acked).uid
    return _changed(
        history,
        *(
            each
            for each in history.events
            if isinstance(each, Stored | Delivery) and each.uid == uid
        ),
    )


def duplicate(history: History, rng: random.Random) -> History | None:
    """A record stands at the end of its partition again."""
    stored = history.of(Stored)
    if not stored:
        return None
    one = rng.choice(stored)
    end = max(each.offset for each in stored if each.partition == one.partition)
    return _changed(history, added=(replace(one, offset=end + 100),))


def move(history: History, rng: random.Random) -> History | None:
    """A record stands in a partition that is no home of its key."""
    reference = Reference(history)
    stored = history.of(Stored)
    if not stored:
        return None
    uid = rng.choice(stored).uid
    homes = {home.partition for home in reference.homes[reference.sends[uid].key]}
    elsewhere = next(each for each in range(100) if each not in homes)
    events: list[Event] = [
        replace(each, partition=elsewhere, offset=10_000)
        if isinstance(each, Stored) and each.uid == uid
        else each
        for each in history.events
        if not (isinstance(each, Delivery) and each.uid == uid)
    ]
    return History(history.initial_count, events)


def write_late(history: History, rng: random.Random) -> History | None:
    """A home takes a record of its key after the cut: a sealed partition that is open."""
    reference = Reference(history)
    left = [
        (key, homes[0])
        for key, homes in reference.homes.items()
        if len(homes) > 1 and homes[1].partition != homes[0].partition
    ]
    free = [(key, home) for key, home in left if (home.partition, home.end) not in reference.places]
    if not free:
        return None
    key, home = rng.choice(free)
    uid = 1_000_000
    send = Send(uid, key, "late", 0, 0, 0.0, Outcome.INFO)
    return _changed(history, added=(send, Stored(home.partition, home.end, uid)))


def diverge(history: History, rng: random.Random) -> History | None:
    """A replica has another record at an offset."""
    stored = [each for each in history.of(Stored) if each.reader == "b"]
    if len(stored) < 2:
        return None
    one, other = rng.sample(stored, 2)
    return _changed(history, one, added=(replace(one, uid=other.uid),))


def refuse(history: History, rng: random.Random) -> History | None:
    """A record that is there was definitely refused."""
    there = {each.uid for each in history.of(Stored)}
    sends = [each for each in history.of(Send) if each.uid in there]
    if not sends:
        return None
    send = rng.choice(sends)
    return _changed(history, send, added=(replace(send, outcome=Outcome.FAIL),))


def invert(history: History, rng: random.Random) -> History | None:
    """A record was sent after one that stands after it was acknowledged."""
    pairs = [
        (a, b)
        for a, b in _neighbours(history)
        if a.send.writer != b.send.writer and b.send.outcome is Outcome.OK
    ]
    if not pairs:
        return None
    first, second = (placed.send for placed in rng.choice(pairs))
    sent_at = second.done_at + 0.5
    late = replace(first, sent_at=sent_at, done_at=max(first.done_at, sent_at + 0.25))
    return _changed(history, first, added=(late,))


def open_early(history: History, rng: random.Random) -> History | None:
    """A record of a new home is delivered before the last one of the former home."""
    found = _deliveries(history)
    pairs = [
        (found[a.partition, a.offset][0], found[b.partition, b.offset][0])
        for a, b in _neighbours(history)
        if a.partition != b.partition
        and len(found[a.partition, a.offset]) == len(found[b.partition, b.offset]) == 1
    ]
    if not pairs:
        return None
    before, after = rng.choice(pairs)
    early = replace(after, begun_at=before.begun_at - 0.5, ended_at=before.begun_at - 0.25)
    return _changed(history, after, added=(early,))


def end_late(history: History, rng: random.Random) -> History | None:
    """The application still has the last record of a former home when it gets the next one."""
    found = _deliveries(history)
    pairs = [
        (found[a.partition, a.offset][0], found[b.partition, b.offset][0])
        for a, b in _neighbours(history)
        if a.partition != b.partition
        and len(found[a.partition, a.offset]) == len(found[b.partition, b.offset]) == 1
    ]
    if not pairs:
        return None
    before, after = rng.choice(pairs)
    return _changed(history, before, added=(replace(before, ended_at=after.begun_at + 0.5),))


def repeat(history: History, rng: random.Random) -> History | None:
    """A record is delivered again, and nothing was rewound."""
    rewound = {each.partition for each in history.of(Rewind)}
    once = [each for each in history.of(Delivery) if each.partition not in rewound]
    if not once:
        return None
    one = rng.choice(once)
    end = max(each.begun_at for each in history.of(Delivery)) + 10
    return _changed(history, added=(replace(one, begun_at=end, ended_at=end + 1),))


def repeat_below_commit(history: History, rng: random.Random) -> History | None:
    """A partition is rewound below what was committed, though no application asked for it."""
    commits = {each.partition: each for each in history.of(Commit)}
    found = [
        each
        for each in history.of(Delivery)
        if each.partition in commits and each.offset < commits[each.partition].offset
    ]
    if not found:
        return None
    one = rng.choice(found)
    end = max(each.begun_at for each in history.of(Delivery)) + 10_000
    return _changed(
        history,
        added=(
            Rewind("g", one.partition, one.offset, end),
            replace(one, begun_at=end + 1, ended_at=end + 2),
        ),
    )


def forget(history: History, rng: random.Random) -> History | None:
    """The last record of a key is never delivered."""
    last = [placed[-1] for placed in Reference(history).lists.values() if placed]
    last = [each for each in last if any(s.uid == each.send.uid for s in history.of(Stored))]
    if not last:
        return None
    uid = rng.choice(last).send.uid
    return _changed(history, *(each for each in history.of(Delivery) if each.uid == uid))


def skip(history: History, rng: random.Random) -> History | None:
    """A record between others of its key is never delivered."""
    there = {each.uid for each in history.of(Stored)}
    pairs = [a for a, _ in _neighbours(history) if a.send.uid in there]
    if not pairs:
        return None
    uid = rng.choice(pairs).send.uid
    return _changed(history, *(each for each in history.of(Delivery) if each.uid == uid))


def commit_early(history: History, rng: random.Random) -> History | None:
    """An offset is committed before its records were delivered."""
    first = {each.partition: each for each in reversed(history.of(Delivery))}
    if not first:
        return None
    one = rng.choice(list(first.values()))
    return _changed(
        history, added=(Commit("g", one.partition, one.offset + 1, one.begun_at - 0.5),)
    )


def lose_state(history: History, rng: random.Random) -> History | None:
    """A consumer receives a record with a state of its key that others have written over."""
    later = {each.send.uid for _, each in _neighbours(history)}
    states = [each for each in history.of(KeyState) if each.uid in later]
    if not states:
        return None
    one = rng.choice(states)
    return _changed(history, one, added=(replace(one, after=-1),))


def go_back(history: History, rng: random.Random) -> History | None:
    """A broker shows an older resize epoch than before."""
    seen = [each for each in history.of(MetadataSeen) if each.resize_epoch > 0]
    if not seen:
        return None
    one = rng.choice(seen)
    first = MetadataSeen(one.broker, 0, history.initial_count, history_end(history) + 1)
    return _changed(history, added=(first,))


def count_otherwise(history: History, rng: random.Random) -> History | None:
    """Two brokers show different counts of one resize epoch."""
    seen = history.of(MetadataSeen)
    if not seen:
        return None
    one = rng.choice(seen)
    return _changed(history, added=(replace(one, count=one.count + 1, at=one.at + 0.5),))


def lead_twice(history: History, rng: random.Random) -> History | None:
    """A partition has two leaders in one leader epoch."""
    seen = history.of(LeaderSeen)
    if not seen:
        return None
    one = rng.choice(seen)
    return _changed(history, added=(replace(one, leader=one.leader + 1),))


def history_end(history: History) -> float:
    """Return a time after all events."""
    return max((each.at for each in history.of(MetadataSeen)), default=0.0)


MUTATIONS = (
    Mutation(swap, "C7", frozenset({"C6"})),
    Mutation(drop, "C5", frozenset({"C16"})),
    Mutation(duplicate, "C3", frozenset({"C1", "C6", "C7", "C9"})),
    Mutation(move, "C1", frozenset({"C16"})),
    Mutation(write_late, "C1"),
    Mutation(diverge, "C2", frozenset({"C3"})),
    Mutation(refuse, "C4"),
    Mutation(invert, "C6"),
    Mutation(open_early, "C8", frozenset({"C16"})),
    Mutation(end_late, "C8", frozenset({"C16"})),
    Mutation(repeat, "C8"),
    Mutation(repeat_below_commit, "C8"),
    Mutation(forget, "C9", frozenset({"C16"})),
    Mutation(skip, "C8", frozenset({"C9", "C16"})),
    Mutation(commit_early, "C16", frozenset({"C8"})),
    Mutation(lose_state, "C17"),
    Mutation(go_back, "C12"),
    Mutation(count_otherwise, "C12"),
    Mutation(lead_twice, "C12"),
)
