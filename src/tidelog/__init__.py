"""tidelog: a Kafka-compatible replicated log whose topics grow and shrink in order.

The public clients: ``from tidelog import Producer, Consumer, Admin`` block their caller, and
``tidelog.aio`` has the same for asyncio. ``tidelog.errors`` has their exceptions. The names here
are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.lazy_names import loader
from tidelog.version import __version__

if TYPE_CHECKING:
    from tidelog.model.topics import TopicPartition

_HOMES = {"TopicPartition": "tidelog.model.topics"}

__all__ = ["TopicPartition", "__version__"]

__getattr__ = loader(__name__, _HOMES)
