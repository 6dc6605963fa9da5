"""A client of a broker, as the controller sees it: the sender of a request in an Envelope.

Owns which rights it has: those of the principal in the Envelope. The connection that carried the
Envelope is a broker's, and lends it nothing but its end and its memory. Not how the Envelope is
read: see `controller.handlers.envelope`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.model.api_keys import ApiKey
from tidelog.model.principals import PROCESS, Principal

if TYPE_CHECKING:
    from tidelog.network.limits import Account
    from tidelog.network.router import Peer, Router
    from tidelog.protocol.secret_exchange import Exchange


class ForwardedClient:
    """A ``router.Peer`` without a connection of its own."""

    exchange: Exchange | None = None
    """It proves nothing here: its broker has judged what it proved there."""

    is_tidelog = False
    trusts_all = False
    """Whatever this server requires of connections: a client's rights are those of its
    principal."""

    def __init__(self, carrier: Peer, principal: Principal, client_host: str) -> None:
        """``carrier`` is the broker's connection; ``client_host`` may be empty."""
        self.carrier = carrier
        self.principal = principal
        self.client_host = client_host or carrier.client_host
        self.listener_name = carrier.listener_name
        self.router: Router = carrier.router
        self.is_trusted = principal == PROCESS
        self.is_broker = principal == PROCESS and not client_host
        """Whether the broker asks on its own account (``requester.THIS_PROCESS``): in a cluster
        without a secret each client has that principal, too, and an address."""

    @property
    def account(self) -> Account:
        """The account of the broker's connection: what it holds is held there."""
        return self.carrier.account

    @property
    def is_closing(self) -> bool:
        """Whether no response can leave any longer."""
        return self.carrier.is_closing

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once when the broker's connection has ended."""
        self.carrier.on_close(callback)

    def close(self, reason: str | None) -> None:
        """Do nothing: a broker's connection has the requests of other clients, too."""

    def trust(self) -> None:
        """Refuse: no request in an Envelope is a proof."""
        raise RuntimeError("a forwarded request cannot prove the cluster secret")

    def refused(self, api_key: ApiKey, why: str, client: Peer | None = None) -> None:
        """Count a refused request and write it to the audit log, with the client's address."""
        broker = f"forwarded by the broker at {self.carrier.client_host}"
        self.carrier.refused(api_key, f"{why}; {broker}", client or self)

    def answer_budget(self) -> int:
        """Return how many bytes of records a response may have now."""
        return self.carrier.answer_budget()

    def can_send_files(self) -> bool:
        """Return False: the response travels within another one."""
        return False
