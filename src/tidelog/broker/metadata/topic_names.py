"""The names of topics by their ids (KIP-516)."""

from __future__ import annotations

from uuid import UUID


class TopicNames:
    """Which topic has an id, for requests that name topics by id."""

    def __init__(self) -> None:
        self.by_bytes: dict[bytes, tuple[str, UUID]] = {}
        """Name and id by the bytes of the id, for the fast paths: it costs a microsecond to make a
        UUID of bytes."""

    def get(self, topic_id: UUID) -> str:
        """Return the name of the topic with this id, "" when none is known."""
        name = self.by_bytes.get(topic_id.bytes)
        return "" if name is None else name[0]

    def put(self, name: str, topic_id: UUID) -> None:
        """Note that a topic has this id."""
        self.by_bytes[topic_id.bytes] = name, topic_id

    def drop(self, topic_id: UUID) -> None:
        """Forget an id; nothing happens when it is not known."""
        self.by_bytes.pop(topic_id.bytes, None)
