"""The tags of counts in the bytes of a request, as the fast paths meet them (KIP-253).

Owns the bytes before each number, of Produce and Fetch alike, and the tag buffers that end a plain
Produce request of one partition: those of the partition, of its topic and of the request. Not the
meaning of the numbers: see `replication.resize_rules`. The fast path of Produce compares the
buffers with those of an aware producer that is up to date, and parses none.
"""

from __future__ import annotations

import struct

NO_TAGS = b"\0\0\0"
"""Of a producer that sends no count."""

MOST_TAG_BYTES = 25
"""One more than an aware producer sends: of longer tags the fast path reads this many, which equal
none of those that it knows."""

_pack = struct.Struct(">4si4si3sib").pack

PARTITION_TAG = b"\1\x90\x4e\4"
"""In front of a partition epoch: one tag, 10000, of four bytes."""

COUNT_TAG, EPOCH_TAG = b"\2\x90\x4e\4", b"\x91\x4e\4"
"""In front of a count and of a resize epoch: two tags, 10000 and 10001, of four bytes each."""


def tags_of(undeleted_count: int, resize_epoch: int, partition_epoch: int) -> bytes:
    """Return the bytes of a producer that sends these numbers; none is -1, which is not sent."""
    return _pack(
        *(PARTITION_TAG, partition_epoch),
        *(COUNT_TAG, undeleted_count, EPOCH_TAG, resize_epoch),
        0,
    )
