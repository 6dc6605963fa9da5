"""Levels of the requests between controllers and brokers: ``inter.broker.protocol.version``.

Owns the table from a level to the versions that are sent at it. Every version is understood at
every level. Not the rule by which a cluster may go down a level: see
`controller.decisions.levels`.
Source: docs/design/levels.md.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Level:
    """One level: the versions of the control requests, and the features that they bring."""

    name: str
    leader_and_isr: int
    stop_replica: int
    update_metadata: int
    transactions: bool = False
    """Brokers offer transactions while their controller has this level (KIP-98)."""

    @property
    def one_stop_request(self) -> bool:
        """One StopReplica per broker: delete flag and leader epoch per partition (KIP-570)."""
        return self.stop_replica >= 3

    @property
    def target_replicas(self) -> bool:
        """LeaderAndIsr has the targets of a reassignment; below, they are among the replicas
        (KIP-455)."""
        return self.leader_and_isr >= 3

    @property
    def unclean_flag(self) -> bool:
        """LeaderAndIsr brings the unclean flag, AlterIsr may clear it (KIP-704)."""
        return self.leader_and_isr >= 4

    @property
    def topic_ids(self) -> bool:
        """Requests carry topic ids, and a LeaderAndIsr may be FULL (KIP-516)."""
        return self.leader_and_isr >= 5

    @property
    def resizes(self) -> bool:
        """Topics grow and shrink in order: counts, resize epochs, partition epochs (KIP-253)."""
        return self.leader_and_isr >= 6


LEVELS = (
    Level("1.0", leader_and_isr=2, stop_replica=2, update_metadata=5),
    Level("1.1", leader_and_isr=2, stop_replica=3, update_metadata=5),
    Level("1.2", leader_and_isr=3, stop_replica=3, update_metadata=5),
    Level("1.3", leader_and_isr=4, stop_replica=3, update_metadata=5),
    Level("1.4", leader_and_isr=5, stop_replica=4, update_metadata=7),
    Level("1.5", leader_and_isr=6, stop_replica=4, update_metadata=8),
    Level("1.6", leader_and_isr=6, stop_replica=4, update_metadata=8, transactions=True),
)
"""Lowest first."""

LATEST = LEVELS[-1]
"""The level of a cluster whose configuration names none."""

HIGHEST = LEVELS[-1]
"""The highest level that this code knows: a broker says it when it registers."""

LEVEL_NAMES = tuple(level.name for level in LEVELS)
_BY_NAME = {level.name: level for level in LEVELS}


def numbers_of(name: str) -> tuple[int, ...] | None:
    """Return the numbers by which levels are compared, also one of newer code; None for a text
    that is no level."""
    parts = name.split(".")
    return tuple(map(int, parts)) if all(x.isascii() and x.isdigit() for x in parts) else None


def offers_transactions(controller: str) -> bool:
    """Return whether brokers offer transactions whose controller has this level: "" for a
    controller that does not say it, and every level above ours has them."""
    first = next(level for level in LEVELS if level.transactions)
    return (numbers_of(controller) or ()) >= (numbers_of(first.name) or ())


def level_of(name: str) -> Level:
    """Return a level by its name. Raises KeyError for a name that configurations refuse."""
    return _BY_NAME[name]
