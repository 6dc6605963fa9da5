"""Plans that even out a cluster: leaders, replicas and bytes of brokers, with few bytes moved.

Owns the search. It makes one improvement after the other until there is none, in the order of the
parts of the imbalance (see ``layout``), and an improvement never worsens a part before its own:

| step | what it changes | what it copies |
|---|---|---|
| racks | a replica goes to a rack without one, then to a machine without one | one replica |
| replicas | a replica goes to a broker with at least two fewer | one replica |
| leaders | replicas change places, along a chain of partitions if need be | nothing |
| bytes | a large replica and a smaller one change brokers, or one moves | one or two replicas |

Then each change that the result can do without is taken back, the dearest first. The plan depends
on nothing but its arguments, so the same cluster has the same plan.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence

from tidelog.model.topics import TopicPartition
from tidelog.planning.layout import ReplicaLayout, Sized
from tidelog.planning.plan import Assigned, Change, Plan, Racks

SMALLER = 64
"""How many of a light broker's replicas are considered for an exchange, the smallest first."""

NEAR = 4
"""How many of a heavy broker's replicas on each side of the ideal size are considered."""

LEAST_GAIN = 1_000
"""An exchange improves the measure of bytes by at least this part of it: no endless polish."""


def rebalance(
    partitions: Sequence[Assigned],
    brokers: Collection[int],
    racks: Racks,
    fixed: Collection[TopicPartition] = (),
) -> Plan:
    """Return the plan that evens out ``brokers``; an empty one if they are even.

    ``racks`` has every live broker. Those that are not in ``brokers`` get nothing, and keep what
    they have unless its rack or machine has another replica. Partitions in ``fixed`` keep their
    replicas.
    """
    if not brokers:
        return Plan()
    before = {each.where: each.replicas for each in partitions}
    layout = ReplicaLayout(partitions, brokers, racks, fixed)
    # Each kind of step only where the ones before it find nothing: none may worsen what they have
    # done.
    changed = True
    while changed:
        while _widen(layout) or _even_replicas(layout) or _even_leaders(layout) or _even(layout):
            pass
        changed = _take_back(layout, before)
    return Plan(tuple(_changes(layout, before)))


def _changes(layout: ReplicaLayout, before: dict[TopicPartition, tuple[int, ...]]) -> list[Change]:
    """Return what differs, the cheapest change first."""
    found = [
        Change(where, replicas, layout.replicas[where], layout.sizes[where])
        for where, replicas in before.items()
        if layout.replicas[where] != replicas
    ]
    return sorted(found, key=lambda each: (len(each.adding) * each.size, each.where))


def _take_back(layout: ReplicaLayout, before: dict[TopicPartition, tuple[int, ...]]) -> bool:
    """Undo each change without which the imbalance is no higher; return whether there was one."""
    undone = False
    for change in reversed(_changes(layout, before)):
        measure = layout.imbalance()
        layout.change(change.where, change.before)
        if layout.imbalance() <= measure:
            undone = True
        else:
            layout.change(change.where, change.after)
    return undone


def _widen(layout: ReplicaLayout) -> bool:
    """Move one replica into a rack that has none of its partition, if one needs it; if none does,
    to a machine that has none."""
    for where in sorted(layout.narrow):
        now = layout.replicas[where]
        # A follower first: then the leader stays.
        sources = [broker for broker in (*now[:0:-1], now[0]) if broker in layout.racks]
        moves = (
            (-layout.span_after(where, source, target), place, layout.counts[target], target)
            for place, source in enumerate(sources)
            for target in layout.brokers
            if target not in now
        )
        best = min(
            moves, default=None, key=lambda move: (*move[:3], layout.bytes[move[3]], move[3])
        )
        if best is not None and -best[0] > layout.span(where):
            layout.change(where, layout.replaced(where, sources[best[1]], best[3]))
            return True
    return False


def _even_replicas(layout: ReplicaLayout) -> bool:
    """Move one replica from a broker to one with at least two fewer."""
    counts = layout.counts
    if max(counts.values()) - min(counts.values()) < 2:
        return False
    heavy = sorted(layout.brokers, key=lambda b: (-counts[b], -layout.bytes[b], b))
    light = sorted(layout.brokers, key=lambda b: (counts[b], layout.bytes[b], b))
    for source in heavy:
        # Within its rack a replica can move whatever the others are.
        rack = layout.racks[source]
        for target in sorted(light, key=lambda b: layout.racks[b] != rack):
            surplus = counts[source] - counts[target]
            if surplus < 2 or layout.is_stuck(source, target):
                continue
            # The size with which both would come to the same bytes and the same count.
            ideal = max(0, layout.bytes[source] - layout.bytes[target]) // surplus
            for _, where in _nearest(layout.on[source], ideal):
                if layout.may_replace(where, source, target):
                    layout.change(where, layout.replaced(where, source, target))
                    return True
            layout.note_stuck(source, target)
    return False


def _nearest(items: Sequence[Sized], size: int) -> Iterator[Sized]:
    """Yield items sorted by size from the nearest to ``size`` outwards."""
    above = bisect_left(items, size, key=lambda item: item[0])
    below = above - 1
    while below >= 0 or above < len(items):
        if below < 0 or (above < len(items) and items[above][0] - size <= size - items[below][0]):
            yield items[above]
            above += 1
        else:
            yield items[below]
            below -= 1


def _even_leaders(layout: ReplicaLayout) -> bool:
    """Lower the leaders of a broker that has at least two more than one that can take over.

    Along a chain: a partition of the first is led by the second afterwards, one of the second by
    the third. Only the ends of the chain lead another number of partitions.
    """
    leaders = layout.leaders
    fewest = min(leaders.values())
    for source in sorted(layout.brokers, key=lambda b: (-leaders[b], b)):
        if leaders[source] - fewest < 2:
            return False
        came_from: dict[int, int] = {source: source}
        queue = [source]
        for broker in queue:
            for other in layout.brokers:
                if other not in came_from and layout.led.get((broker, other)):
                    came_from[other] = broker
                    queue.append(other)
        # The first in the queue has the shortest chain.
        end = min(queue, key=lambda b: leaders[b])
        if leaders[source] - leaders[end] < 2:
            continue
        while end != source:
            leader = came_from[end]
            _, where = min(layout.led[leader, end])
            layout.change(where, _exchanged(layout.replicas[where], leader, end))
            end = leader
        return True
    return False


def _exchanged(replicas: Sequence[int], one: int, other: int) -> tuple[int, ...]:
    swap = {one: other, other: one}
    return tuple(swap.get(broker, broker) for broker in replicas)


def _even(layout: ReplicaLayout) -> bool:
    """Make the exchange of replicas that evens the bytes of two brokers most for what it copies."""
    ordered = sorted(layout.brokers, key=lambda b: (layout.bytes[b], b))
    for source in reversed(ordered):
        for target in ordered:
            beyond = layout.beyond(layout.bytes[source]), layout.beyond(layout.bytes[target])
            if max(beyond[0], -beyond[1]) <= 0 or beyond[0] < 0 or beyond[1] > 0:
                break
            found = _best_exchange(layout, source, target)
            if found is not None:
                given, taken = found
                layout.change(given, layout.replaced(given, source, target))
                if taken is not None:
                    layout.change(taken, layout.replaced(taken, target, source))
                return True
    return False


def _best_exchange(
    layout: ReplicaLayout, source: int, target: int
) -> tuple[TopicPartition, TopicPartition | None] | None:
    """Return the replica to give and the one to take for it; None if no exchange is worth it."""
    heavy, light = layout.bytes[source], layout.bytes[target]
    needed = max(layout.beyond(heavy), -layout.beyond(light))
    now = _beyond_squared(layout, heavy, light)
    least = max(1, layout.imbalance()[3] // LEAST_GAIN)
    best: tuple[float, int, TopicPartition, TopicPartition | None] | None = None
    smaller: list[Sized | None] = [*layout.on[target][:SMALLER]]
    if layout.counts[source] > layout.counts[target]:
        smaller.insert(0, None)
    for other in smaller:
        base = 0 if other is None else other[0]
        for item in _around(layout.on[source], base + needed):
            moved = item[0] - base
            if moved <= 0:
                continue
            gain = now - _beyond_squared(layout, heavy - moved, light + moved)
            if gain < least:
                continue
            copied = max(1, item[0] + base)
            taken = None if other is None else other[1]
            key = (-gain / copied, copied, item[1], taken)
            if (best is None or key[:3] < best[:3]) and _may_exchange(
                layout, item[1], taken, source, target
            ):
                best = key
    return None if best is None else (best[2], best[3])


def _around(items: Sequence[Sized], size: int) -> Sequence[Sized]:
    at = bisect_left(items, size, key=lambda item: item[0])
    return items[max(0, at - NEAR) : at + NEAR]


def _beyond_squared(layout: ReplicaLayout, *sizes: int) -> int:
    return sum(layout.beyond(size) ** 2 for size in sizes)


def _may_exchange(
    layout: ReplicaLayout,
    given: TopicPartition,
    taken: TopicPartition | None,
    source: int,
    target: int,
) -> bool:
    """Return whether the exchange loses no rack and leaves the leaders as even as they are."""
    if not layout.may_replace(given, source, target):
        return False
    led = int(layout.replicas[given][0] == source)
    if taken is not None:
        if not layout.may_replace(taken, target, source):
            return False
        led -= layout.replicas[taken][0] == target
    # ``led`` leaders go from the source to the target: the sum of squares must not grow.
    return led * (layout.leaders[target] - layout.leaders[source] + led) <= 0
