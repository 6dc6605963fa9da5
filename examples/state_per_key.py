"""State per key that goes where its key goes, while a topic grows and shrinks.

Run it on a topic that has records with keys:

    python examples/state_per_key.py 127.0.0.1:9092 [topic] [file] [number]

Without further arguments the topic is ``events``, the file ``counts.db``, and it runs for ever
rather than until it has counted that number of records. Start it several times beside each other,
add partitions with ``tidelog topics --alter --partitions``, and stop one of them: the counts go on.

Each process counts the records of each key. It keeps the counts in memory, writes them to a
database when its keys may go elsewhere, and forgets them; it reads them again when keys come. The
database refuses the count of a member of an older generation than the one that wrote last.
"""

from __future__ import annotations

import sqlite3
import sys
from collections import Counter
from collections.abc import Collection

from tidelog import Consumer, PartitionKeyRebalanceListener, TopicPartition

TABLE = """CREATE TABLE IF NOT EXISTS counts
    (key TEXT PRIMARY KEY, count INTEGER NOT NULL, generation INTEGER NOT NULL)"""
WRITE = """INSERT INTO counts VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE
    SET count = excluded.count, generation = excluded.generation
    WHERE generation <= excluded.generation"""


class Store:
    """The counts of all keys, each with the generation that wrote it; many processes share it."""

    def __init__(self, path: str) -> None:
        self.database = sqlite3.connect(path, timeout=30)
        with self.database:
            self.database.execute(TABLE)

    def read(self) -> dict[str, int]:
        """Return the count of each key."""
        return dict(self.database.execute("SELECT key, count FROM counts"))

    def write(self, counts: dict[str, int], generation: int) -> None:
        """Write these counts, all or none, except where a newer generation has written."""
        with self.database:
            for key, count in counts.items():
                done = self.database.execute(WRITE, (key, count, generation))
                if not done.rowcount:
                    print(f"{key}: a newer owner has written, {count} is dropped", file=sys.stderr)


class CountPerKey(PartitionKeyRebalanceListener):
    """The counts of the keys that this process has."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.counts: Counter[str] = Counter()
        self.loaded: dict[str, int] = {}

    def on_partition_key_maybe_revoked(
        self, partitions: Collection[TopicPartition], generation: int, member: str
    ) -> None:
        """Write, and forget: another process may have these keys next."""
        self.store.write(dict(self.counts), generation)
        self.loaded |= self.counts
        self.counts.clear()

    def on_partition_key_assigned(
        self, partitions: Collection[TopicPartition], generation: int, member: str
    ) -> None:
        """Read what others have written since."""
        self.loaded = self.store.read()

    def on_partition_key_lost(self, partitions: Collection[TopicPartition]) -> None:
        """Forget: another process has these keys, and uncommitted records come again."""
        self.counts.clear()

    def count(self, key: str) -> int:
        """Count one record of a key and return how many there were."""
        if key not in self.counts:
            self.counts[key] = self.loaded.get(key, 0)
        self.counts[key] += 1
        return self.counts[key]


def main(bootstrap: str, topic: str, path: str, until: int | None = None) -> None:
    """Count the records of a topic, for ever or until so many were counted here."""
    state = CountPerKey(Store(path))
    consumer = Consumer(
        bootstrap_servers=bootstrap, group_id="counting", auto_offset_reset="earliest"
    )
    consumer.subscribe([topic], partition_key_listener=state)
    seen = 0
    with consumer:
        while until is None or seen < until:
            for records in consumer.poll(timeout_ms=500).values():
                for record in records:
                    seen += 1
                    key = (record.key or b"").decode()
                    print(f"{key}: {state.count(key)}")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(
        arguments[0] if arguments else "127.0.0.1:9092",
        arguments[1] if len(arguments) > 1 else "events",
        arguments[2] if len(arguments) > 2 else "counts.db",
        int(arguments[3]) if len(arguments) > 3 else None,
    )
