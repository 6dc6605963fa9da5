"""The public clients for asyncio: producer, consumer and admin, on the loop that runs.

Owns arguments, results and life of these classes. Not the protocol work: see ``tidelog.client``.
The classes of ``tidelog.blocking`` stand on these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.lazy_names import loader

if TYPE_CHECKING:
    from tidelog.model.topics import TopicPartition

_HOMES = {"TopicPartition": "tidelog.model.topics"}

__all__ = ["TopicPartition"]

__getattr__ = loader(__name__, _HOMES)
