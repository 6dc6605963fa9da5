"""Random histories of transactions and plain commits: what the table has is what its log says.

``tests.support.transaction_driver.expected`` says that, from the log alone. Checked again and
again: the table, a coordinator that reads the log, and one that reads the log after a cleaning. A
failing seed is in the assertion; ``run(seed)`` replays it.
"""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest

from tests.support.group_driver import GROUP
from tests.support.transaction_driver import TransactionDriver, compacted, expected
from tidelog.groups.committing_producers import ProducerEpochs
from tidelog.groups.events import DeleteGroup, DeleteOffsets, Expire, MarkerResult, RemoveTopics
from tidelog.groups.offset_columns import one_by_one
from tidelog.groups.records import FirstSight, OffsetRecord
from tidelog.groups.settings import GroupSettings
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

SETTINGS = GroupSettings(offsets_retention_minutes=2)
GROUPS, TOPICS, PARTITIONS, PRODUCERS = ("g", "h"), ("t", "u"), range(3), range(1, 5)


class World:
    """The driver, the producers' epochs, and the checks."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.driver = TransactionDriver(SETTINGS, seed, hold=True)
        self.random = self.driver.random
        self.epochs = dict.fromkeys(PRODUCERS, 0)
        self.coordinator = 0
        self.ids = 0
        self.done: Counter[str] = Counter()
        for topic in TOPICS:
            self.remake(topic)

    def remake(self, topic: str) -> None:
        self.ids += 1
        self.driver.topics[topic] = FirstSight(UUID(int=self.ids), 0, -1)

    def offsets(self) -> tuple[dict[tuple[str, int], int], UUID]:
        rng = self.random
        topic = rng.choice(TOPICS)
        taken = rng.sample(PARTITIONS, rng.randint(1, len(PARTITIONS)))
        topic_id = self.driver.topics[topic].topic_id
        return {(topic, at): rng.randrange(1_000_000) for at in taken}, topic_id

    def step(self) -> None:
        d, rng = self.driver, self.random
        group_id, producer_id = rng.choice(GROUPS), rng.choice(PRODUCERS)
        what = rng.choices(
            ["txn", "end", "plain", "commit", "delete", "group", "topic", "refuse", "time", "move"],
            [30, 18, 14, 22, 4, 2, 2, 3, 3, 2],
        )[0]
        self.done[what] += 1
        producer = producer_id, self.epochs[producer_id]
        if what == "txn":
            offsets, topic_id = self.offsets()
            d.commit_in_transaction(offsets, producer, group_id=group_id, topic_id=topic_id)
        elif what == "end":
            self.end(producer_id)
        elif what == "plain":
            offsets, topic_id = self.offsets()
            d.commit_offsets(offsets, group_id=group_id, topic_id=topic_id)
        elif what == "commit":
            d.commit(rng.randint(1, 6))
        elif what == "delete":
            at = tuple(TopicPartition(*at) for at in self.offsets()[0])
            d.send(DeleteOffsets(d.pending_response(), at), group_id)
        elif what == "group":
            d.send(DeleteGroup(d.pending_response()), group_id)
        elif what == "topic":
            self.delete_topic(rng.choice(TOPICS))
        elif what == "refuse":
            if d.in_flight:
                d.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
        elif what == "time":
            d.advance(rng.choice([100, 50_000]))
            d.send(Expire(), group_id)
        else:
            self.move()

    def end(self, producer_id: int) -> None:
        rng, epoch = self.random, self.epochs[producer_id]
        committed = rng.random() < 0.6
        if not committed and rng.random() < 0.5:
            # Its time-out: the next epoch aborts.
            epoch = self.epochs[producer_id] = epoch + 1
        self.coordinator += rng.random() < 0.2
        for _ in range(rng.choice([1, 1, 1, 2])):
            asked = self.driver.end(
                (producer_id, epoch), committed=committed, coordinator=self.coordinator
            )
            known = self.driver.answers.get(asked, MarkerResult(ErrorCode.NONE))
            assert known.error is ErrorCode.NONE, (self.seed, known)

    def delete_topic(self, topic: str) -> None:
        d = self.driver
        if self.random.random() < 0.6:
            self.remake(topic)
        present = d.topics[topic].topic_id if self.random.random() < 0.6 else UUID(int=0)
        for group_id in GROUPS:
            d.send(RemoveTopics(frozenset({topic}), lambda _: present), group_id)

    def move(self) -> None:
        """Another broker leads: what was not committed to the log may be lost."""
        old = self.driver
        old.commit(self.random.randrange(len(old.in_flight) + 1))
        self.driver = old.reloaded()
        self.driver.random, self.driver.hold = self.random, True
        self.driver.topics = old.topics
        self.driver.pending_responses = old.pending_responses

    def check(self) -> None:
        d, seed = self.driver, self.seed
        committed, pending = expected(d.journal)
        assert d.committed() == committed, seed
        assert d.pending() == pending, seed
        for name in d.table:
            group = d.table.get(name)
            assert group is not None
            assert group.offset_count == sum(map(len, group.offsets.values())), seed
            rows = [at for positions in pending.values() for at in positions if at[0] == name]
            waiting = group.flying.pending
            assert (0 if waiting is None else waiting.count) == len(rows), seed
            flown = {
                TopicPartition(record.columns.topic, at)
                for write in d.in_flight
                if write.key == name and write.transaction is not None
                for record in write.transaction.records
                for at in record.columns.partitions
            }
            shown = {
                TopicPartition(topic, at) for topic in TOPICS for at in group.flying.unstable(topic)
            }
            assert shown == {at for _, at in rows} | flown, seed
            written = {
                TopicPartition(record.topic, record.partition)
                for write in d.in_flight
                if write.key == name
                for record in one_by_one(write.records)
                if isinstance(record, OffsetRecord)
            }
            uncounted, held = {at for _, at in rows} | flown | written, group.in_flight
            assert set(held) == uncounted and len(held) == len(uncounted), seed
            for topic in TOPICS:
                here = [at for at in uncounted if at.topic == topic]
                assert sorted(group.flying.partitions_of(topic)) == sorted(
                    at.partition for at in here
                ), seed
                assert group.flying.has_topic(topic) == bool(here), seed
                some = set(self.random.sample(PARTITIONS, 2))
                asked = group.flying.unstable(topic, some)
                assert asked.keys() == group.flying.unstable(topic).keys() & some, seed

    def compare(self) -> None:
        """With all committed, a coordinator that reads the log has the same."""
        self.driver.commit()
        self.check()
        here, there = self.driver, self.driver.reloaded()
        assert there.committed() == here.committed(), self.seed
        assert there.pending() == here.pending(), self.seed
        for producer_id in PRODUCERS:
            mine, theirs = here.table.transactions, there.table.transactions
            assert mine.epochs(producer_id) == theirs.epochs(producer_id), self.seed
            assert (producer_id in mine) == (producer_id in theirs), self.seed
        for name in GROUPS:
            one, other = here.table.get(name), there.table.get(name)
            assert (one is None) == (other is None), (self.seed, name)
            if one is not None and other is not None:
                assert one.first_sights == other.first_sights, (self.seed, name)
                for topic in TOPICS:
                    mine_, theirs_ = one.flying.unstable(topic), other.flying.unstable(topic)
                    assert mine_ == theirs_, (self.seed, name, topic)
        cleaned = TransactionDriver(SETTINGS, self.seed, topics=here.topics)
        cleaned.journal = compacted(here.journal, self.random)
        fresh = cleaned.reloaded()
        assert fresh.committed() == here.committed(), (self.seed, "after a cleaning")
        assert fresh.pending() == here.pending(), (self.seed, "after a cleaning")


def run(seed: int, steps: int = 400) -> World:
    world = World(seed)
    for step in range(steps):
        world.step()
        if step % 5 == 0:
            world.check()
        if step % 40 == 39:
            world.compare()
    # Every transaction ends: no group stays unstable.
    world.driver.commit()
    for producer_id in PRODUCERS:
        world.end(producer_id)
    world.compare()
    d = world.driver
    assert d.pending() == {} and len(d.table.transactions) == 0, seed
    assert all(d.table.unstable(name, topic) == () for name in GROUPS for topic in TOPICS), seed
    for producer_id in PRODUCERS:
        assert d.table.transactions.epochs(producer_id) != ProducerEpochs(), seed
    return world


@pytest.mark.parametrize("seed", range(12))
def test_the_table_has_what_its_log_says(seed: int) -> None:
    assert GROUP in GROUPS
    run(seed)


def test_a_seed_is_a_whole_history_with_all_there_is() -> None:
    first, second = run(4711), run(4711)
    assert first.driver.journal == second.driver.journal
    assert len(first.done) == 10
    assert sum(entry.producer_id >= 0 for entry in first.driver.journal) > 50
