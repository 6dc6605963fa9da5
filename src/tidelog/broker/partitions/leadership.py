"""One leadership of one partition: the leader's state in one leader epoch.

Owns what counts in one leader epoch with one set of replicas: where the epoch began, what each
follower has said that it holds, the change of the ISR in flight. Another epoch or another set of
replicas is another leadership, so that nothing has to be cleared and nothing can be left over:

| what comes | what is kept |
|---|---|
| another leader epoch, this broker leads on | since when it leads without a break |
| the same epoch, other replicas | what those hold that stay; the start of the epoch |
| the same epoch and replicas, a newer ISR | all but the change in flight, which that settles |

A replica that was removed and assigned again holds nothing until it has fetched again.
"""

from __future__ import annotations

from tidelog.replication.isr import Follower
from tidelog.replication.isr_change import IsrChange


class Leadership:
    """What a leader knows. Used on the event loop only."""

    __slots__ = ("certain_from", "change", "epoch", "followers", "replicas", "since", "start")

    def __init__(
        self, epoch: int, replicas: tuple[int, ...], start: int, former: Leadership | None = None
    ) -> None:
        """``start``: where the epoch begins in the log. ``former``: this broker led until now."""
        self.epoch = epoch
        self.replicas = replicas
        self.start = start
        self.since: int = epoch if former is None else former.since
        """The first leader epoch of those in which this broker has led without a break."""
        self.certain_from: int = start if former is None else former.certain_from
        """From this high watermark on it is certain that no former leader's was higher."""
        self.followers: dict[int, Follower] = {}
        """What each follower holds, as it has said in this leader epoch."""
        self.change: IsrChange | None = None
        """The one change of the ISR in flight."""

    def settled(self, replicas: tuple[int, ...]) -> Leadership:
        """Return the leadership after an order of the same epoch: the controller has decided."""
        if replicas == self.replicas:
            self.change = None
            return self
        after = Leadership(self.epoch, replicas, self.start, self)
        after.followers = {
            node_id: each for node_id, each in self.followers.items() if node_id in replicas
        }
        return after
