"""A client's side of a fetch session, without a connection."""

from __future__ import annotations

from tidelog.broker.fetching.client_sessions import (
    PART_OF_ACCOUNT,
    bytes_of,
)
from tidelog.network.limits import Account

EACH = bytes_of("t")


class Client:
    """Whose account has room for sessions of 100 partitions, and four times as much in all."""

    client_host = "a"

    def __init__(self) -> None:
        self.account = Account(100 * EACH * PART_OF_ACCOUNT)
