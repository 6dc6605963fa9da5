"""The broker's settings for groups under Kafka's names, with Kafka's defaults.

Owns values only; their definitions are in `model.configs.broker`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tidelog.groups.records import FirstSight
from tidelog.groups.room import GroupRoom


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Times in ms, sizes in bytes; the field names are Kafka's with "_" for "."."""

    group_initial_rebalance_delay_ms: int = 3_000
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = 2_147_483_647
    group_new_member_join_timeout_ms: int = 300_000
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_minutes: int = 10_080

    @property
    def offsets_retention_ms(self) -> int:
        """``offsets.retention.minutes`` in ms."""
        return self.offsets_retention_minutes * 60_000


@dataclass(frozen=True, slots=True)
class GroupRules:
    """The inputs of every decision of a group besides its state, the event and the time.

    ``new_id`` returns a fresh random id (the randomness seam); Kafka uses a UUID as text.
    """

    new_id: Callable[[], str]
    settings: GroupSettings = field(default_factory=GroupSettings)
    room: GroupRoom = field(default_factory=GroupRoom)
    """The room of all groups under these rules."""
    topic_of: Callable[[str], FirstSight | None] = lambda _: None
    """Returns the present topic of a name as a group sees it now, without an assignment; None for
    an unknown one, and below level 1.5."""
