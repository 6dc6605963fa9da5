"""State per key that goes where its key goes, while a topic grows and shrinks.

Run it with a cluster's address: ``python examples/state_per_key.py 127.0.0.1:9092``. Start it
several times beside each other, add partitions with ``tidelog topics --alter --partitions``, and
stop one of them: the counts go on.

Each process counts the records of each key. It keeps the counts in memory, writes them to a file
when its keys may go elsewhere, and forgets them; it reads them again when keys come. The file
stands for a database: it refuses to be written by a member of an older generation than the newest
that wrote.
"""

from __future__ import annotations

import fcntl
import json
import sys
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from tidelog import Consumer, PartitionKeyRebalanceListener, TopicPartition


class Store:
    """The counts of all keys, each with the generation that wrote it, in one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def read(self) -> dict[str, tuple[int, int]]:
        """Return count and generation of each key."""
        return {key: tuple(each) for key, each in json.loads(self.path.read_text() or "{}").items()}

    def write(self, counts: dict[str, int], generation: int) -> None:
        """Write these counts, except where a newer generation has written."""
        with self.path.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            stored = json.loads(file.read() or "{}")
            for key, count in counts.items():
                if stored.get(key, [0, -1])[1] <= generation:
                    stored[key] = [count, generation]
            file.seek(0)
            file.truncate()
            file.write(json.dumps(stored))


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
        self.loaded = {key: count for key, (count, _) in self.store.read().items()}

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
    state = CountPerKey(Store(Path(path)))
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
                    print(f"{record.key.decode()}: {state.count(record.key.decode())}")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(
        arguments[0] if arguments else "127.0.0.1:9092",
        arguments[1] if len(arguments) > 1 else "events",
        arguments[2] if len(arguments) > 2 else "counts.json",
        int(arguments[3]) if len(arguments) > 3 else None,
    )
