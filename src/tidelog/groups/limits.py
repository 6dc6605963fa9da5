"""Hard limits of groups; Kafka's own settings default to "no limit".

Owns the numbers. Not their checks: see `joining`, `offsets` and `table`.
"""

from __future__ import annotations

MAX_MEMBERS = 10_000
"""Most members of one group, whatever ``group.max.size`` says: a generation's response to the
leader and its record in the log name them all."""

MAX_PENDING_MEMBERS = 10_000
"""Most member ids of one group that were sent to clients and not used yet (KIP-394)."""

MAX_PROTOCOLS = 100
"""Most assignors one member may offer."""

MAX_METADATA_BYTES = 1_048_576
"""Most bytes of subscription one member may send, over all its assignors."""

MAX_GROUP_METADATA_BYTES = 16_777_216
"""Most bytes of subscriptions of all members of one group."""

MAX_OFFSETS = 200_000
"""Most partitions for which one group keeps an offset; those of open transactions count too."""

MAX_OPEN_TRANSACTIONS = 10_000
"""Most transactions with offsets in one partition of the log that have not ended; more producers
are refused until some have. Those in the log are loaded in any case."""

MAX_ENDED_PRODUCERS = 10_000
"""Most producers of ended transactions that one partition remembers for their epochs."""

MAX_METADATA_OF_OFFSET_BYTES = 32_767
"""Longest text beside an offset, whatever ``offset.metadata.max.bytes`` says, as ``MAX_ID_BYTES``.
"""

MAX_EXPIRED_AT_ONCE = 1_000
"""Most offsets that one check of a group's retention removes; the next check removes more."""

MAX_GROUPS = 100_000
"""Most groups of one coordinator (2.3 kB each); groups in its logs are loaded in any case."""

MAX_HELD_BYTES = 134_217_728
"""Most bytes that the members of all groups of one coordinator take: subscriptions, assignments,
names; unused member ids; and the group itself as long as it has either."""

HELD_BY_GROUP, HELD_BY_PENDING_ID = 2_000, 500
HELD_BY_MEMBER, HELD_BY_PROTOCOL = 900, 150
"""The memory of each of these, without the bytes and texts in them."""

MAX_OWNED, MAX_OWNED_TOPICS = 200_000, 50_000
"""Most partitions, and most entries of a topic over all members, of the generations whose positions
members may ask for; those of a larger one stay unknown. Reading them takes up to 0.1 s."""

HELD_BY_OWNED, HELD_BY_OWNED_TOPIC = 350, 800
"""The memory of the owner and the position of a partition with its time, and of a topic with such.
"""

MAX_REASON_CHARACTERS = 255
"""How much of a client's reason to join or leave is kept for the log (KIP-800)."""

MAX_ID_BYTES = 32_767
"""Longest group id in bytes: the records of Kafka count a string's bytes in an int16."""

MAX_NAME_CHARACTERS = 249
"""Longest instance id, protocol type and assignor name (Kafka's limit for instance ids)."""

MAX_CLIENT_ID_CHARACTERS = 255
"""How much of a client id goes into the member ids made for it."""


def text_bytes(text: str) -> int:
    """Return the most memory that a text takes, without checking each of its characters."""
    return len(text) if text.isascii() else 4 * len(text)
