"""The high watermark of a partition as its leader computes it: pure rules.

The watermark is the smallest end offset of the maximal ISR (members of the committed ISR and of a
change in flight), and it does not move while the committed ISR is smaller than
``min.insync.replicas``, or on fewer machines than ``min.insync.machines``, both capped at the
replication factor (docs/design/who-may-lead.md). It never steps back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidelog.model.racks import Machine


def required_in_sync(min_insync_replicas: int, replication_factor: int) -> int:
    """Return how many members the committed ISR needs before the watermark may move."""
    return min(min_insync_replicas, replication_factor)


def machines_missing(
    isr: Iterable[int],
    machines: Mapping[int, Machine],
    min_insync_machines: int,
    replication_factor: int,
) -> int:
    """Return how many machines the committed ISR lacks before the watermark may move. O(ISR).

    A member of unknown machine counts as no machine: an error must not acknowledge on too few.
    """
    required = min(min_insync_machines, replication_factor)
    if required <= 1:
        return 0
    return max(0, required - len({machines[member] for member in isr if member in machines}))


def high_watermark(
    current: int,
    maximal_isr: Iterable[int],
    end_offsets: Mapping[int, int],
    committed_isr_size: int,
    required: int,
    *,
    lacks_machines: bool = False,
) -> int:
    """Return the new high watermark, at least ``current``. O(ISR).

    ``end_offsets`` has what each member is known to hold (with ``log.durability=sync``: to hold
    durably); a member without an entry is unknown and holds the watermark where it is.
    """
    if lacks_machines or committed_isr_size < required:
        return current
    lowest = min((end_offsets.get(member, -1) for member in maximal_isr), default=-1)
    return max(current, lowest)
