"""Results of the log, as values: an expected refusal is not an exception.

Owns the shapes only. Not ``Rejected``: see `records.batch`.
"""

from __future__ import annotations

from typing import NamedTuple


class Appended(NamedTuple):
    """Batches are in the log (or were already: ``duplicate``), not necessarily synced.

    ``append_time_ms`` is -1 unless the topic's timestamps are the broker's (LogAppendTime).
    """

    first_offset: int
    last_offset: int
    append_time_ms: int
    start_offset: int
    duplicate: bool = False


as_appended = tuple.__new__
"""Makes one of its class and all five fields: a third of the time of the call by name."""


class TimeOffset(NamedTuple):
    """A record found by its time: its timestamp in ms, its offset, its batch's leader epoch."""

    timestamp: int
    offset: int
    leader_epoch: int
