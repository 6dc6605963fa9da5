"""What brokers alone keep, as they report it for the acceptance of a restored store.

Owns the records: the newest command of each replica, and the configurations of topics. What follows
from them: see ``newest_commands`` and ``unknown_data``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from tidelog.model.topics import TopicPartition


class ReportedCommand(NamedTuple):
    """The newest leader and ISR that a LeaderAndIsr, or a response to AlterIsr, gave a broker."""

    partition_epoch: int
    leader_epoch: int
    isr_version: int
    leader: int
    isr: tuple[int, ...]

    @property
    def order(self) -> tuple[int, int, int]:
        """What grows from one command of a partition to the next."""
        return self.partition_epoch, self.leader_epoch, self.isr_version


Commands = dict[tuple[UUID, TopicPartition], ReportedCommand]
"""The commands of one broker's replicas, by topic id (all zero: it has none) and name."""


@dataclass(slots=True)
class KeptByBrokers:
    """What a store learns from brokers alone; ``soft_state`` changes it."""

    configs: dict[UUID, tuple[tuple[int, int], dict[str, str]]] = field(default_factory=dict)
    """The configurations that brokers keep of topics that the store does not have, with what the
    broker had seen."""
    commands: dict[int, Commands] = field(default_factory=dict)
    """The newest commands of each broker, while the store waits for its acceptance."""
    newest: Commands = field(default_factory=dict)
    """The newest command of each partition that any broker reported meanwhile: one that
    restarts has none."""
