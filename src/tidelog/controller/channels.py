"""The control channels of one controller: one outbox for each broker that has registered with it.

Owns which channels are open, what they share (keys, numbers, requests that are built once), and how
far the brokers have been sent the store's revisions. Not what a channel sends: see ``outbox``. Not
when a broker gets one or loses it: see ``session_watch``.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Collection, Sequence
from typing import Protocol
from uuid import UUID

from tidelog.controller.announcements import Announcements
from tidelog.controller.consequences import Kind
from tidelog.controller.decisions import deletion
from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.decision import Decision
from tidelog.controller.decisions.sessions import Proofs
from tidelog.controller.decisions.stops import Stop
from tidelog.controller.outbox import Outbox
from tidelog.controller.pending import Changes
from tidelog.controller.performing import NotActive, Performer
from tidelog.controller.requests import Sender, epoch_of
from tidelog.controller.slices import perform_in_slices
from tidelog.model.configs.server import ServerConfigs
from tidelog.runtime.cluster_secret import ClusterSecret
from tidelog.runtime.seams import Seams
from tidelog.runtime.tls_files import TlsFiles

KEY_BITS = 128


class ChannelKeys:
    """One key for each broker that registered, for the newest epochs only."""

    def __init__(self, entropy: random.Random) -> None:
        self._entropy = entropy
        self._keys: dict[int, tuple[tuple[int, int], UUID]] = {}

    def of(self, broker: int, controller_epoch: int, broker_epoch: int) -> UUID:
        """Return the key of a broker in these epochs; the first call makes it."""
        epochs = (controller_epoch, broker_epoch)
        kept = self._keys.get(broker)
        if kept is not None and kept[0] == epochs:
            return kept[1]
        # Never zero: on the wire zero means no key.
        key = UUID(int=self._entropy.getrandbits(KEY_BITS) or 1)
        self._keys[broker] = (epochs, key)
        return key


class ChannelsOwner(Performer, Protocol):
    """A controller, as its control channels see it."""

    configs: ServerConfigs
    seams: Seams


class Channels:
    """The control channels of one controller, while it is active."""

    def __init__(
        self,
        controller: ChannelsOwner,
        secret: ClusterSecret | None,
        tls: TlsFiles | None = None,
    ) -> None:
        """``secret`` is what control channels prove to brokers; ``tls`` has the keys for brokers
        whose listener has TLS."""
        configs = controller.configs
        self.secret, self.tls = secret, tls
        self.sender = Sender(configs.node_id, configs.inter_broker_listener_name)
        self.announcements = Announcements()
        self._controller = controller
        self.keys = ChannelKeys(controller.seams.random)
        self._outboxes: dict[int, Outbox] = {}
        self._opened = 0

    def begin(self) -> None:
        """Begin with a state that was just loaded: it has another controller epoch."""
        self._opened = 0
        self.announcements.forget()

    # -- which are open

    def has(self, broker: int) -> bool:
        """Return whether a broker has a channel."""
        return broker in self._outboxes

    def open(self, broker: int) -> None:
        """Open the channel to a broker that has none."""
        configs = self._controller.configs
        self._outboxes[broker] = Outbox(
            self,
            broker,
            configs.controller_socket_timeout_ms,
            configs.delete_topic_retry_ms,
            self._controller.seams.random,
        )

    def remove(self, broker: int) -> Outbox | None:
        """Take a broker's channel out, so that no change is noted in it; the caller closes it."""
        return self._outboxes.pop(broker, None)

    async def close(self) -> None:
        """Close all channels: the controller resigns."""
        # Taken out first: while one closes, no other part may see those that are left.
        outboxes, self._outboxes = self._outboxes, {}
        for outbox in outboxes.values():
            await outbox.close()

    # -- what the brokers have been sent

    def send(self, changes: Changes) -> None:
        """Have every channel send a change that the state has now."""
        self.announcements.forget()
        for outbox in self._outboxes.values():
            outbox.notice(changes)

    def reached(self, broker: int) -> int:
        """Return the revision up to which a broker has been sent everything, -1 if unknown."""
        outbox = self._outboxes.get(broker)
        return -1 if outbox is None else outbox.reached

    def all_reached(self, revision: int) -> bool:
        """Return whether every live broker has been sent ``revision``."""
        return all(
            broker in self.cluster.suspected or outbox.reached >= revision
            for broker, outbox in self._outboxes.items()
        )

    def all_know(self, revision: int) -> bool:
        """Return the same, where a live broker without a channel counts as one that knows nothing.

        Brokers that registered with an earlier active controller have no channel at first.
        """
        cluster = self.cluster
        silent = cluster.brokers.keys() - self._outboxes.keys() - cluster.suspected
        return not silent and self.all_reached(revision)

    def silent_since(self, revision: int) -> set[int]:
        """Return the live brokers that have not responded to all that came up to ``revision``."""
        return {broker for broker in self.cluster.fit if self.reached(broker) < revision}

    def probe(self) -> None:
        """Have every broker sent a request that changes nothing."""
        for outbox in self._outboxes.values():
            outbox.notice(Changes(brokers=True))

    def _unproved(self, since_s: float) -> set[int]:
        """Return the live brokers that have responded to no request sent since then."""
        return {
            broker
            for broker in self.cluster.fit
            if (outbox := self._outboxes.get(broker)) is None or outbox.proved_s < since_s
        }

    def proofs(self, since_s: float) -> Proofs:
        """Return what responses to requests show that were sent since then."""
        now_s = asyncio.get_running_loop().time()
        ages_ms = {x: (now_s - outbox.proved_s) * 1_000 for x, outbox in self._outboxes.items()}
        return Proofs(self._unproved(since_s), ages_ms)

    # -- what one channel needs (``outbox.ChannelOwner``)

    @property
    def cluster(self) -> ClusterState:
        """The state of the controller."""
        return self._controller.cluster

    def next_channel_number(self) -> int:
        """Return the number of the next control channel of this controller epoch."""
        self._opened += 1
        return self._opened

    def channel_key(self, broker: int) -> UUID:
        """Return the key that a broker got, or will get, in its registration response."""
        return self.key_of(broker, epoch_of(self.cluster, broker))

    def key_of(self, broker: int, broker_epoch: int) -> UUID:
        """Return the key of the channel to a broker in one of its broker epochs."""
        return self.keys.of(broker, self.cluster.controller_epoch, broker_epoch)

    def changed(self, *kinds: Kind) -> None:
        """Have the parts checked soon that a change concerns: ``consequences`` has the table."""
        self._controller.changed(*kinds)

    async def stopped(self, broker: int, stops: Collection[Stop]) -> None:
        """Note that a broker confirmed these replicas as stopped, or deleted."""

        def decide(cluster: ClusterState, part: Sequence[Sequence[Stop]]) -> Decision[list[None]]:
            confirmed = [stop for of_topic in part for stop in of_topic]
            deletion.note_confirmed(cluster, broker, confirmed)
            return deletion.confirm(cluster, broker, confirmed)

        with contextlib.suppress(NotActive):
            by_topic = deletion.by_topic(stops)
            await perform_in_slices(
                self._controller, by_topic, deletion.cost_of_confirmation, decide
            )
