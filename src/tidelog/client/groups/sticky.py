"""The sticky assignors: evenly, and each member keeps what it has as far as possible. Pure.

Owns the algorithm, and what a cooperative assignment leaves for the next round. Source: Kafka's
AbstractStickyAssignor and CooperativeStickyAssignor (KIP-54, KIP-341, KIP-429): what is promised is
the same, which of several even assignments it is may differ.

An assignment is even when no partition could go to a subscribed member that has two fewer. A
partition claimed by two members is the one's of the newer generation; within one generation it is
no member's.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.client.groups.consumer_protocol import Subscription
from tidelog.model.topics import TopicPartition

Assignment = dict[str, list[TopicPartition]]


def sticky_assignment(
    members: Mapping[str, Subscription], partitions: Mapping[str, range]
) -> Assignment:
    """Assign evenly over all topics together. Grows with partitions times members at most."""
    readers = {
        topic: [member for member, joined in members.items() if topic in joined.topics]
        for topic in partitions
    }
    assigned = _kept(members, partitions)
    taken = {partition for share in assigned.values() for partition in share}
    free = [
        TopicPartition(topic, index)
        for topic, indexes in partitions.items()
        if readers[topic]
        for index in indexes
    ]
    free = [partition for partition in free if partition not in taken]
    wishes = {frozenset(joined.topics).intersection(partitions) for joined in members.values()}
    if len(wishes) <= 1:
        _fill_alike(assigned, free)
    else:
        # Those that few members can have come first.
        for partition in sorted(free, key=lambda tp: len(readers[tp.topic])):
            least = min(readers[partition.topic], key=lambda member: len(assigned[member]))
            assigned[least].append(partition)
        _even_out(assigned, readers)
    return {member: sorted(share) for member, share in assigned.items()}


def without_owned_by_others(
    members: Mapping[str, Subscription], assigned: Assignment
) -> Assignment:
    """Leave out partitions that another member still owns: it gives them up, and joins again."""
    owners: dict[TopicPartition, set[str]] = {}
    for member, joined in members.items():
        for partition in joined.owned:
            owners.setdefault(partition, set()).add(member)
    return {
        member: [tp for tp in share if not owners.get(tp, set()) - {member}]
        for member, share in assigned.items()
    }


def _kept(members: Mapping[str, Subscription], partitions: Mapping[str, range]) -> Assignment:
    """Return what each member has of the partitions that exist and that it subscribes to."""
    claims: dict[TopicPartition, tuple[int, str | None]] = {}
    for member, joined in members.items():
        subscribed = frozenset(joined.topics)
        for partition in joined.owned:
            exists = partition.partition in partitions.get(partition.topic, ())
            if not exists or partition.topic not in subscribed:
                continue
            other = claims.get(partition)
            if other is None or other[0] < joined.generation:
                claims[partition] = (joined.generation, member)
            elif other[0] == joined.generation and other[1] != member:
                claims[partition] = (joined.generation, None)
    kept: Assignment = {member: [] for member in members}
    for partition, (_, owner) in sorted(claims.items()):
        if owner is not None:
            kept[owner].append(partition)
    return kept


def _fill_alike(assigned: Assignment, free: list[TopicPartition]) -> None:
    """Fill up to even shares where all members subscribe to the same topics."""
    if not assigned:
        return
    total = len(free) + sum(map(len, assigned.values()))
    even, extra = divmod(total, len(assigned))
    # Those that have the most keep the one that is left over.
    by_size = sorted(assigned, key=lambda member: -len(assigned[member]))
    quota = {member: even + (1 if place < extra else 0) for place, member in enumerate(by_size)}
    for member, share in assigned.items():
        free += share[quota[member] :]
        del share[quota[member] :]
    for member, share in assigned.items():
        lacking = quota[member] - len(share)
        share += free[:lacking]
        del free[:lacking]


def _even_out(assigned: Assignment, readers: Mapping[str, list[str]]) -> None:
    """Move partitions to members with two fewer until none can be moved.

    Each move lowers the sum of the squares of the shares, so it ends.
    """
    has_moved = True
    while has_moved:
        givers = sorted(assigned, key=lambda member: -len(assigned[member]))
        has_moved = any(_move_one(assigned, readers, giver) for giver in givers)


def _move_one(assigned: Assignment, readers: Mapping[str, list[str]], giver: str) -> bool:
    share = assigned[giver]
    takers: dict[str, str] = {}
    for place in range(len(share) - 1, -1, -1):
        topic = share[place].topic
        if topic not in takers:
            takers[topic] = min(readers[topic], key=lambda member: len(assigned[member]))
        taker = takers[topic]
        if len(assigned[taker]) + 2 <= len(share):
            assigned[taker].append(share.pop(place))
            return True
    return False
