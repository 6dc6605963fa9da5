"""The APIs that every broker forwards to the controller, in an Envelope: one table for both.

Owns their scopes and bounds. Not how they are forwarded: see
`broker.control_plane.forwarding`; not what they do: see `controller.handlers`, one file for each.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.model.api_keys import ApiKey
from tidelog.network.router import MOST_MOVED, NUMBERS_OF_MOVES, Scope

MOST_FORWARDED = 5_000
"""Most elements of a forwarded request: a broker decodes all of them in one turn. As many as a
client may send to the controller's own listener."""

MOST_SETTINGS = 10_000
"""The same at brokers for requests that name a topic with settings: 2,000 topics with two are
6,000."""


class ForwardedApi(NamedTuple):
    """One API as both serve it."""

    scope: Scope = Scope.CLIENT
    is_change: bool = True
    """Whether users change by it what brokers would have to be sent. A controller on a store that
    has gone back in time sends brokers nothing: it refuses these at once, with a sentence that says
    what to do."""
    most: int = MOST_FORWARDED
    most_at_brokers: int | None = None
    """None is as many."""
    is_whole: bool = True
    """Whether brokers forward every such request; otherwise those that they do not answer
    themselves, by a handler of their own."""
    numbers_in_one: int = 1


FORWARDED: dict[ApiKey, ForwardedApi] = {
    ApiKey.CREATE_TOPICS: ForwardedApi(is_whole=False),
    ApiKey.DELETE_TOPICS: ForwardedApi(),
    ApiKey.CREATE_PARTITIONS: ForwardedApi(),
    ApiKey.ELECT_LEADERS: ForwardedApi(),
    ApiKey.ALTER_CONFIGS: ForwardedApi(most_at_brokers=MOST_SETTINGS),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ForwardedApi(most_at_brokers=MOST_SETTINGS),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: ForwardedApi(
        most=MOST_MOVED, numbers_in_one=NUMBERS_OF_MOVES
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: ForwardedApi(
        is_change=False, most=MOST_MOVED, numbers_in_one=NUMBERS_OF_MOVES
    ),
    ApiKey.RESTORED_STORE: ForwardedApi(Scope.BROKER, is_change=False),
    ApiKey.DESCRIBE_CONDITION: ForwardedApi(is_change=False, is_whole=False),
    ApiKey.DESCRIBE_FENCES: ForwardedApi(is_change=False, is_whole=False),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: ForwardedApi(is_change=False, is_whole=False),
}
