"""Reads a topic, writes each record in capitals to another one, exactly once (KIP-447).

Run a server first (``tidelog up``, or Apache Kafka):
python examples/consume_transform_produce.py 127.0.0.1:9092 SOURCE TARGET [COUNT [NAME]]

Copies that run beside each other share the partitions; each needs a NAME of its own. The output
and the offsets of its input are one transaction: kill it at any time, and start it again with the
same arguments. It ends when COUNT records are in TARGET; without COUNT it never ends.
"""

from __future__ import annotations

import sys

from tidelog import Consumer, OffsetAndMetadata, Producer, TopicPartition
from tidelog.errors import ProducerEndedError, TransactionAbortableError


def run(bootstrap: str, source: str, target: str, count: int | None, name: str = "1") -> None:
    """Copy until ``count`` records of the source are done."""
    with (
        Producer(
            bootstrap_servers=bootstrap,
            transactional_id=f"capitals-{source}-{target}-{name}",
            transaction_timeout_ms=10_000,
        ) as producer,
        Consumer(
            source,
            bootstrap_servers=bootstrap,
            group_id=f"capitals-{source}-{target}",
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=1_000,
            max_poll_records=50,
        ) as consumer,
    ):
        # What a copy that was killed has left open is aborted here.
        producer.init_transactions()
        while count is None or done(consumer, source) < count:
            polled = consumer.poll(timeout_ms=500)
            if not polled:
                continue
            try:
                with producer.transaction():
                    for records in polled.values():
                        for record in records:
                            producer.send(target, value=record.value.upper(), key=record.key)
                    ends = {
                        place: OffsetAndMetadata(
                            records[-1].offset + 1, leader_epoch=records[-1].leader_epoch
                        )
                        for place, records in polled.items()
                    }
                    producer.send_offsets_to_transaction(ends, consumer.group_metadata())
            except TransactionAbortableError as error:
                # Read again what was not committed.
                print(f"aborted: {error}", file=sys.stderr)
                for place, records in polled.items():
                    if place in consumer.assignment():
                        consumer.seek(place, records[0].offset)


def done(consumer: Consumer, source: str) -> int:
    """Return how many records of a source without compaction are done."""
    partitions = consumer.partitions_for_topic(source) or ()
    return sum(consumer.committed(TopicPartition(source, each)) or 0 for each in partitions)


if __name__ == "__main__":
    given = sys.argv[1:]
    if len(given) not in (3, 4, 5):
        sys.exit(__doc__)
    try:
        run(*given[:3], int(given[3]) if len(given) > 3 else None, *given[4:])
    except ProducerEndedError as error:
        sys.exit(f"start it again: {error}")
