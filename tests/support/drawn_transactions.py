"""Random states of transactional ids."""

from __future__ import annotations

import random

from tidelog.model.topics import TopicPartition
from tidelog.transactions.state import NO_EPOCH, NO_PRODUCER_ID, Transaction, TransactionState


def drawn_transaction(rng: random.Random) -> Transaction:
    """Any state that a record can have."""
    state = rng.choice(list(TransactionState))
    topics = rng.sample(["a", "b", "topic-with-a-long-name" * 8, "ü"], rng.randrange(4))
    partitions = [
        TopicPartition(topic, number)
        for topic in topics
        for number in range(rng.randrange(1, 200, 7))
    ]
    return Transaction(
        rng.randrange(2**63),
        rng.randrange(2**15),
        rng.randrange(2**31),
        state,
        () if state is TransactionState.EMPTY else tuple(sorted(partitions)),
        rng.randrange(-1, 2**60),
        rng.randrange(-1, 2**60),
        rng.choice((NO_PRODUCER_ID, rng.randrange(2**63))),
        rng.choice((NO_PRODUCER_ID, rng.randrange(2**63))),
        rng.choice((NO_EPOCH, rng.randrange(2**15))),
        rng.randrange(3),
    )
