"""How a broker's last life ended, as it travels in BrokerRegistration (tag 10000).

Owns the numbers; how an end is judged from what was left on the disk is ``storage.identity``'s.
Source: docs/design/who-may-lead.md.
"""

from __future__ import annotations

from enum import IntEnum


class LastLife(IntEnum):
    """How the last life ended."""

    UNCLEAN = 0
    CRASHED = 1
    CLEAN = 2
    SAME = 3
