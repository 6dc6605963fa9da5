"""A topic for tests of the batch planner: positions, bounds of its log, and gates.

Owns these short forms. Not the planner: see `tidelog.pipeline.planning`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.partitioning.gates import Fence, Gate, Prerequisite
from tidelog.pipeline.planning.admission import AdmissionLimits
from tidelog.pipeline.planning.positions import Pid, Positions
from tidelog.pipeline.planning.snapshot import FormerEnd, PartitionSnapshot, Snapshot

P = [Pid("t", number, "id") for number in range(12)]
IDS = {"t": "id"}
NO_LIMITS = AdmissionLimits()


def at(*offsets: int) -> Positions:
    """Return positions in the first partitions."""
    return Positions(dict(zip(P, offsets, strict=False)), IDS)


def log(*bounds: tuple[int, int], former: Mapping[Pid, FormerEnd] | None = None) -> Snapshot:
    """Return a log whose first partitions have these starts and ends."""
    states = {pid: PartitionSnapshot(*bound) for pid, bound in zip(P, bounds, strict=False)}
    return Snapshot(IDS, states, former or {})


def gate(epoch: int, offset: int, partition: int, upto: int) -> Gate:
    """From an offset on, after a partition was read up to a fence."""
    return Gate(epoch, offset, (Prerequisite(partition, Fence(epoch, upto, upto)),))
