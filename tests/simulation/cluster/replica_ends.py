"""Where a replica's log begins and ends: the measure of elections, joins and the verdict.

A broker is asked nothing: what it believes of itself may be what is wrong.
"""

from __future__ import annotations

from tests.simulation.cluster.disks import Batch, replica_log
from tests.simulation.cluster.nodes import LOGS
from tests.simulation.kernel import SimulatedDisk
from tests.simulation.kernel.inodes import DirectoryNode
from tidelog.storage.names import LOG, offset_of


def end_offset(disk: SimulatedDisk, topic: str, partition: int) -> int:
    """Return the offset after the last whole batch; of an empty log, where it begins."""
    found = disk.lookup(f"{LOGS}/{topic}-{partition}")
    names = list(found.entries) if isinstance(found, DirectoryNode) else []
    begun = max((at for name in names if (at := offset_of(name, LOG)) is not None), default=0)
    log = replica_log(disk, topic, partition)
    return max(begun, log[-1].last + 1 if log else 0)


def epoch_start(disk: SimulatedDisk, topic: str, partition: int, epoch: int) -> int:
    """Return where a leader's epoch begins in its log; nothing written yet: at its end."""
    bases = (batch.base for batch in replica_log(disk, topic, partition) if batch.epoch == epoch)
    return min(bases, default=end_offset(disk, topic, partition))


def from_start(log: list[Batch], start: int) -> list[Batch]:
    """Return the batches not wholly below the log's start: no read gets the rest of its segment.

    Bits that are turned over there stay. They may be in an offset: the order decides, not each
    batch for itself.
    """
    below = (index for index, batch in enumerate(log) if batch.last < start)
    return log[max(below, default=-1) + 1 :]
