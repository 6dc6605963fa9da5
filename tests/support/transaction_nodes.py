"""Nodes for tests of transactions: tidelog, which offers them, and Apache Kafka as control."""

from __future__ import annotations

from pathlib import Path

from tests.support.kafka import KafkaNode
from tests.support.node import Node
from tests.support.server import TidelogNode

MAKES = ["tidelog", "kafka"]


def transaction_node(make: str, folder: Path) -> Node:
    """A node that is not started yet, with few partitions for its internal topics."""
    config = {
        "transaction.state.log.num.partitions": 2,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    }
    if make == "kafka":
        return KafkaNode(folder, {**config, "offsets.topic.num.partitions": 2})
    return TidelogNode(folder, {**config, "offsets.topic.num.partitions": 2})
