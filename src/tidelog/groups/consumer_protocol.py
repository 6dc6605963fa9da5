"""Topics of a consumer's subscription: the only part of a member's metadata that is read here.

Owns the common prefix of all versions of ConsumerProtocolSubscription (version, topics) and
nothing after it: later versions only append. Source: the published protocol.
"""

from __future__ import annotations

from tidelog.groups.primitives import FieldReader, Malformed

PROTOCOL_TYPE = "consumer"
"""The protocol type of groups whose metadata this module can read."""


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """Return the topics of one member's subscription, or None when the bytes are none."""
    reader = FieldReader(subscription)
    try:
        if reader.int16() < 0:
            return None
        count = reader.int32()
        # A topic takes two bytes at least, so a wrong count ends here and not in a long loop.
        if not 0 <= count <= len(subscription) // 2:
            return None
        return frozenset(reader.string() for _ in range(count))
    except Malformed:
        return None
