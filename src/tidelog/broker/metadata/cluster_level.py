"""The level of the cluster: that of its controller, as UpdateConfigs brings it.

Owns what a broker offers by it: transactions (KIP-98). Not the table of levels: see
``model.levels``. This broker's own level has no part in it: while a cluster is rolled from one
level to the next, its brokers differ in that, and agree in this (docs/decisions/0137).

| event | transactions are |
|---|---|
| a start | not known: requests that need them get errors that clients retry, for the listener is \
open before the first UpdateConfigs of a channel; no partition is led before it |
| UpdateConfigs with a level that has them | offered |
| UpdateConfigs with another level, or without one: an older controller | not offered |
| the controller is gone | as before: what is led is led on |
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tidelog.model.levels import offers_transactions

logger = logging.getLogger(__name__)

NO_TRANSACTIONS = (
    "transactions come with inter.broker.protocol.version 1.6, and the controller of this cluster "
    "has a lower one: raise it, or send without a transactional.id"
)
"""What a client gets that asks for them below that level."""

MOST_REFUSED = 1_000
"""Refused clients that are remembered; those forgotten get another line in the log."""

LONGEST_NAME = 200
"""So much of a client id counts here: clients choose it, at any length."""


class ClusterLevel:
    """What one broker offers by the level of its controller. Used on its loop."""

    def __init__(self) -> None:
        self.offers_transactions: bool | None = None
        """None while the level is not known. To be read only."""
        self.when_changed: list[Callable[[], None]] = []
        """Called after each change of what is offered."""
        self._refused: dict[tuple[str, str], None] = {}
        """Clients that were refused, the longest ago first."""

    def refused(self, client_id: str | None, host: str) -> None:
        """A client asked for transactions while they are not offered: one line in the log for each
        client, which sends the request again and again."""
        client = (client_id or "")[:LONGEST_NAME], host
        is_known = client in self._refused
        self._refused.pop(client, None)
        self._refused[client] = None
        if len(self._refused) > MOST_REFUSED:
            del self._refused[next(iter(self._refused))]
        if not is_known:
            logger.warning(
                "client %(client_id)s of %(host)s is refused: %(why)s",
                {"client_id": client[0], "host": host, "why": NO_TRANSACTIONS},
            )

    def take(self, level: str) -> None:
        """Take the level of a controller; "" if it does not say any."""
        offered = offers_transactions(level)
        before, self.offers_transactions = self.offers_transactions, offered
        if offered == bool(before):
            return
        self._refused.clear()
        logger.info(
            "transactions are %(now)s: the level of the controller is %(level)s",
            {"now": "offered" if offered else "not offered", "level": level or "not known"},
        )
        for follow in self.when_changed:
            follow()
