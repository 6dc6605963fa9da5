"""What readers of committed records get from a topic, once no transaction in it is open."""

from __future__ import annotations

import confluent_kafka
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.support.processes import DEADLINE_S, wait_until


def committed_values(
    bootstrap: str, topic: str, *, some_are_open: bool = False
) -> list[bytes | None]:
    """The values of all committed records. Fails where a transaction stays open, unless
    ``some_are_open``: then up to there.

    A coordinator of Kafka responds before the markers of a transaction are written.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap})
    listed = admin.list_topics(topic, DEADLINE_S).topics[topic].partitions
    places = [confluent_kafka.TopicPartition(topic, part, 0) for part in listed]

    def ends(isolation: confluent_kafka.IsolationLevel) -> list[int]:
        asked = {place: OffsetSpec.latest() for place in places}
        futures = admin.list_offsets(asked, isolation_level=isolation)
        return [futures[place].result(DEADLINE_S).offset for place in places]

    committed, all_of_them = (
        confluent_kafka.IsolationLevel.READ_COMMITTED,
        confluent_kafka.IsolationLevel.READ_UNCOMMITTED,
    )
    wait_until(
        lambda: some_are_open or ends(committed) == ends(all_of_them),
        DEADLINE_S,
        f"no transaction in {topic} is open",
    )
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign(places)
    found: list[bytes | None] = []
    left = set(listed)
    while left:
        message = consumer.poll(DEADLINE_S)
        assert message is not None, f"partitions {left} have no end"
        if message.error() is None:
            found.append(message.value())
        else:
            left.discard(message.partition())
    consumer.close()
    return found
