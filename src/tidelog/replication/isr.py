"""The in-sync replicas of a partition as its leader sees them: pure rules.

Owns what a leader knows of each follower and when it proposes to change the ISR. Not the decision:
the controller compares leader epoch, ISR version and the broker epoch of each member (AlterIsr);
not sending: see `broker.control_plane.isr_changes`. Source: docs/design/who-may-lead.md; KIP-497;
KIP-903.

| event | rule |
|---|---|
| a follower fetched in this leader epoch | this broker epoch of it holds all below its offset |
| it held the whole log at this fetch, or the one before | it is caught up now, or was then |
| an ISR member not caught up for ``replica.lag.time.max.ms`` | leave the ISR |
| an ISR member that hosts the partition no longer (KIP-455) | leave the ISR at once |
| a follower at the high watermark and the epoch's start | may join, with its broker epoch |
| another broker epoch of it fetches | what the former one held no longer counts |
| a proposal is in flight | no other one; the watermark counts the larger ISR |
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

UNKNOWN = -1


@dataclass(slots=True)
class Follower:
    """What the leader knows of one follower in this leader epoch. Offsets; times in ms."""

    end_offset: int = UNKNOWN
    broker_epoch: int = UNKNOWN
    caught_up_ms: int = 0
    fetched_ms: int = 0
    leader_end_then: int = UNKNOWN
    start_offset: int = UNKNOWN

    def fetched(self, offset: int, leader_end: int, broker_epoch: int, now_ms: int) -> None:
        """Note a fetch from ``offset`` while the leader's log ended at ``leader_end``."""
        # Another life of the broker: what the former one held, this one may have lost (promise 16).
        if broker_epoch != self.broker_epoch:
            self.broker_epoch = broker_epoch
            self.leader_end_then = self.start_offset = UNKNOWN
        if offset >= leader_end:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif self.leader_end_then != UNKNOWN and offset >= self.leader_end_then:
            # While records come all the time, no fetch ever names the leader's present end: what
            # the leader held at the last fetch counts, as of then.
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        self.end_offset = offset
        self.fetched_ms = now_ms
        self.leader_end_then = leader_end

    def leader_appended(self, fetched_ms: int) -> None:
        """Note that the leader appended while this follower's fetch of ``fetched_ms`` waited.

        If it held the whole log at its last fetch, it held all until then. For leaders that do
        not visit a partition again while nothing changes in it.
        """
        if self.end_offset >= self.leader_end_then != UNKNOWN:
            self.caught_up_ms = max(self.caught_up_ms, fetched_ms)


def lagging(
    isr: Iterable[int],
    hosts: Container[int],
    leader: int,
    followers: Mapping[int, Follower],
    leader_end: int,
    now_ms: int,
    lag_max_ms: int,
) -> set[int]:
    """Return the members that must leave the ISR. O(ISR).

    A member that holds the whole log is never dropped, however long no record was written; one
    that is no host any more is dropped at once (KIP-455, the completion of a reassignment).
    """
    gone = set()
    for member in isr:
        follower = followers.get(member)
        if member not in hosts and member != leader:
            gone.add(member)
            continue
        if member == leader or (follower is not None and follower.end_offset >= leader_end):
            continue
        if follower is None or now_ms - follower.caught_up_ms > lag_max_ms:
            gone.add(member)
    return gone


def may_join(follower: Follower, high_watermark: int, epoch_start: int) -> bool:
    """Return whether a follower holds enough to join: all that is committed, and all of the log
    from before this leader epoch (otherwise a failover to it could cut committed records)."""
    return follower.end_offset >= high_watermark and follower.end_offset >= epoch_start


def maximal(committed: Iterable[int], proposed: Iterable[int] | None) -> frozenset[int]:
    """Return the ISR that the high watermark must count while a change may be in flight."""
    return frozenset(committed) | frozenset(proposed or ())
