"""The tag buffers of a plain Produce request, in the bytes that end it (KIP-253).

Owns those bytes: a request of one partition ends with the tags of the partition, of its topic and
of the request. Not the meaning of the numbers: see `replication.resize_rules`. The fast path of
Produce compares the bytes with those of an aware producer that is up to date, and parses none.
"""

from __future__ import annotations

import struct

NO_TAGS = b"\0\0\0"
"""Of a producer that sends no count."""

_pack = struct.Struct(">4si4si3sib").pack

_PARTITION_TAG = b"\1\x90\x4e\4"
"""One tag, 10000, of four bytes."""

_COUNT_TAG, _EPOCH_TAG = b"\2\x90\x4e\4", b"\x91\x4e\4"
"""Two tags, 10000 and 10001, of four bytes each."""


def tags_of(undeleted_count: int, resize_epoch: int, partition_epoch: int) -> bytes:
    """Return the bytes of a producer that sends these numbers; none is -1, which is not sent."""
    return _pack(
        *(_PARTITION_TAG, partition_epoch),
        *(_COUNT_TAG, undeleted_count, _EPOCH_TAG, resize_epoch),
        0,
    )
