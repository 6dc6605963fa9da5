"""One leadership of one partition: the leader's state in one leader epoch.

Owns the state of one leader epoch with one set of replicas: the start offset of the epoch, the log
ends of the followers, the ISR change in flight. Another epoch or another set of replicas has
another object, so that no state must be cleared:

| event | what the next object keeps |
|---|---|
| a newer leader epoch, the same leader | the first epoch without a break in the leadership |
| the same epoch, other replicas | the followers that stay; the start of the epoch |
| the same epoch and replicas, a newer ISR | the same object, without the change in flight |

The log end of a replica that was removed and assigned again is unknown until it fetches again.
"""

from __future__ import annotations

from tidelog.replication.isr import Follower
from tidelog.replication.isr_change import IsrChange


class Leadership:
    """A leader's state. Used on the event loop only."""

    __slots__ = (
        "certain_from",
        "change",
        "epoch",
        "followers",
        "is_shown",
        "replicas",
        "since",
        "start",
    )

    def __init__(
        self, epoch: int, replicas: tuple[int, ...], start: int, former: Leadership | None = None
    ) -> None:
        """``start``: the epoch's start offset. ``former``: None if this broker did not lead."""
        self.epoch = epoch
        self.replicas = replicas
        self.start = start
        self.since: int = epoch if former is None else former.since
        """The first leader epoch of those in which this broker has led without a break."""
        self.certain_from: int = start if former is None else former.certain_from
        """At this high watermark or above, no former leader had a higher one."""
        self.followers: dict[int, Follower] = {}
        """The state of each follower, from its fetches in this leader epoch."""
        self.change: IsrChange | None = None
        """The ISR change in flight, or None."""
        self.is_shown = False
        """Whether this broker's metadata were seen to show the partition: see ``resize_checks``."""

    def settled(self, replicas: tuple[int, ...]) -> Leadership:
        """Return the leadership after a LeaderAndIsr of the same epoch: it settles the change."""
        if replicas == self.replicas:
            self.change = None
            return self
        after = Leadership(self.epoch, replicas, self.start, self)
        after.followers = {
            node_id: follower for node_id, follower in self.followers.items() if node_id in replicas
        }
        return after
