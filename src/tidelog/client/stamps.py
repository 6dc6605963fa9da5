"""Stamps: the partition count and the resize epoch under which a client works on a topic. Pure.

Owns the stamp and its order. Not the metadata that it comes from: see ``metadata``. Count, resize
epoch and partition epoch go together in each request: all of them, or none (KIP-253).
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from tidelog.client.metadata import Topic
from tidelog.replication.resize_rules import NOT_NAMED, Named


class Stamp(NamedTuple):
    """Of one topic id: how many partitions take records, and since which resize epoch."""

    topic_id: UUID
    undeleted_count: int
    resize_epoch: int


def stamp_of(topic: Topic) -> Stamp | None:
    """Return the stamp that metadata give; None for a topic that is not ordered."""
    if not topic.is_ordered:
        return None
    return Stamp(topic.topic_id, topic.undeleted_partition_count, topic.resize_epoch)


def partition_stamp(stamp: Stamp | None, partition_epoch: int) -> Named:
    """Return what a request says of a partition under a stamp."""
    if stamp is None or partition_epoch < 0:
        return NOT_NAMED
    return Named(stamp.undeleted_count, stamp.resize_epoch, partition_epoch)


def is_newer(stamp: Stamp | None, than: Stamp | None) -> bool:
    """Whether metadata with ``stamp`` came after a refusal of requests with ``than``.

    Those of another topic id did, and those of a topic that is not ordered any more.
    """
    if stamp is None or than is None or stamp.topic_id != than.topic_id:
        return stamp != than
    return stamp.resize_epoch > than.resize_epoch
