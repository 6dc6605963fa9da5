"""How a broker's former registration ended, as BrokerRegistration reports it (tag 10000).

Owns the numbers. Not the judgement of what was left on the disk: see `storage.directory.identity`.
Source: docs/design/who-may-lead.md.
"""

from __future__ import annotations

from enum import IntEnum


class FormerRegistration(IntEnum):
    """How the process registered before has ended; ``SAME``: it is this one, registered again."""

    UNCLEAN = 0
    CRASHED = 1
    CLEAN = 2
    SAME = 3
