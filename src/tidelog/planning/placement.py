"""Replica placement: the brokers of new partitions.

Owns the placement. Whether a topic may be created: see ``controller.decisions.creation``. Brokers
take turns as first replica; the distance to the second one grows by one with each turn, so that the
load of a dead broker spreads over all others; a rack without a replica comes before a rack that has
one, and within the racks a machine without a replica before one that has one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest

from tidelog.model.racks import Machine, machine_of, rack_of


def place_on(
    racks: Mapping[int, str | None],
    fit: Collection[int],
    partitions: int,
    replication_factor: int,
    start: int,
    first_partition: int = 0,
) -> list[list[int]]:
    """Return the replicas of each new partition, on ``fit`` brokers if there are enough.

    Otherwise every partition is on all of them and the other brokers take turns for the rest: a
    partition only on brokers that are suspected or leaving might have no leader. The other
    arguments are those of ``place``.
    """
    able = {broker: rack for broker, rack in racks.items() if broker in fit}
    if len(able) >= replication_factor or not able:
        return place(able or racks, partitions, replication_factor, start, first_partition)
    rest = {broker: rack for broker, rack in racks.items() if broker not in able}
    missing = replication_factor - len(able)
    wanted = (partitions, missing, start, first_partition)
    placed = []
    for index, others in enumerate(place(rest, *wanted), start + first_partition):
        replicas = [*sorted(able), *others]
        # A broker that is not fit now leads its share when it is fit again.
        first = index % replication_factor
        placed.append(replicas[first:] + replicas[:first])
    return placed


def place(
    racks: Mapping[int, str | None],
    partitions: int,
    replication_factor: int,
    start: int,
    first_partition: int = 0,
) -> list[list[int]]:
    """Return the replicas of each new partition, the preferred leader first.

    ``racks`` has every usable broker, at least ``replication_factor``; ``start`` is any number: it
    decides which broker comes first. ``first_partition`` is the index of the first new partition.
    """
    turn = _turn(racks)
    count = len(turn)
    placed = []
    for index in range(first_partition, first_partition + partitions):
        first = (start + index) % count
        shift = (start + index) // count
        others = [
            turn[(first + 1 + (shift + step) % (count - 1)) % count] for step in range(count - 1)
        ]
        placed.append(_spread(turn[first], others, racks, replication_factor))
    return placed


def _turn(racks: Mapping[int, str | None]) -> list[int]:
    """Return the brokers in an order in which neighbours are in different racks, if possible, and
    those of one rack on different machines."""
    by_rack: dict[str | None, dict[Machine, list[int]]] = {}
    for broker, text in sorted(racks.items()):
        machines = by_rack.setdefault(rack_of(text), {})
        machines.setdefault(machine_of(broker, text), []).append(broker)
    ordered = (by_rack[rack] for rack in sorted(by_rack, key=lambda rack: rack or ""))
    return _in_turn([_in_turn([*machines.values()]) for machines in ordered])


def _in_turn(columns: Sequence[Sequence[int]]) -> list[int]:
    return [broker for row in zip_longest(*columns) for broker in row if broker is not None]


def _spread(
    first: int, others: Sequence[int], racks: Mapping[int, str | None], wanted: int
) -> list[int]:
    chosen = [first]
    used_racks, used_machines = {rack_of(racks[first])}, {machine_of(first, racks[first])}
    # A rack without a replica, then a machine without one, then any other broker.
    for kinds in (2, 1, 0):
        for broker in others:
            rack, machine = rack_of(racks[broker]), machine_of(broker, racks[broker])
            unused = (machine not in used_machines) + (rack not in used_racks)
            if len(chosen) < wanted and unused >= kinds and broker not in chosen:
                chosen.append(broker)
                used_racks.add(rack)
                used_machines.add(machine)
    return chosen
