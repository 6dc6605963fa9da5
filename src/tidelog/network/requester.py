"""In whose name a request is made. Owns the value; what it may do is judged elsewhere."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.model.principals import PROCESS, Principal


class Requester(NamedTuple):
    """In whose name a request is made, and from which address: what an Envelope says of both."""

    principal: Principal
    client_host: str


THIS_PROCESS = Requester(PROCESS, "")
"""A broker that asks the controller in an Envelope on its own account."""
