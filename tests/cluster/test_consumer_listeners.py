"""Listeners of the public consumer that raise, block or seek inside their callbacks (KIP-253)."""

from __future__ import annotations

import threading
from collections.abc import Collection

import pytest

from tests.support import clients
from tests.support.keyed_records import KEYS, numbers_of, opened, write
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.resizes import resize
from tests.support.target import TARGET
from tidelog import Consumer, PartitionKeyRebalanceListener, TopicPartition

pytestmark = [
    pytest.mark.long(40),
    pytest.mark.skipif(TARGET != "tidelog", reason="Kafka's topics do not shrink"),
]


class Raising(PartitionKeyRebalanceListener):
    """Notes its calls; raises in the flush while ``fails``."""

    def __init__(self) -> None:
        self.fails = False
        self.calls: list[tuple[str, set[int]]] = []

    def on_partition_key_maybe_revoked(
        self, partitions: Collection[TopicPartition], generation: int, member: str
    ) -> None:
        if self.fails:
            raise OSError("the store is away")
        self.calls.append(("revoked", {each.partition for each in partitions}))

    def on_partition_key_assigned(
        self, partitions: Collection[TopicPartition], generation: int, member: str
    ) -> None:
        self.calls.append(("assigned", {each.partition for each in partitions}))


def test_nothing_is_committed_or_opened_before_a_flush_that_raised_has_ended(
    bootstrap: str, topic_name: str
) -> None:
    clients.create_topic(bootstrap, topic_name, 1)
    write(bootstrap, topic_name, 0)
    listener = Raising()
    consumer = opened(bootstrap, topic_name, listener, auto_commit_interval_ms=60_000)
    got: list[int] = []
    wait_until(
        lambda: len(got) == len(KEYS) or got.extend(numbers_of(consumer.poll(50), 0)),
        DEADLINE_S,
        lambda: f"{got}",
    )
    resize(bootstrap, topic_name, 2)
    write(bootstrap, topic_name, 1)
    listener.fails = True
    errors = 0
    children: list[int] = []

    def step() -> bool:
        nonlocal errors
        try:
            children.extend(numbers_of(consumer.poll(50), 1))
        except OSError as error:
            assert str(error) == "the store is away"
            errors += 1
        return errors >= 5

    wait_until(step, DEADLINE_S, lambda: f"{errors} {listener.calls}", pause_s=0)
    assert not children
    assert consumer.committed(TopicPartition(topic_name, 0)) in (None, 0)
    listener.fails = False

    def reads_children() -> bool:
        children.extend(numbers_of(consumer.poll(50), 1))
        return bool(children)

    wait_until(reads_children, DEADLINE_S, lambda: f"{listener.calls}", pause_s=0)
    # The parent's state was written before the child's was read.
    first = next(place for place, (_, some) in enumerate(listener.calls) if 1 in some)
    assert listener.calls[first][0] == "assigned"
    assert ("revoked", {0}) in listener.calls[:first]
    assert set(children) == {1}
    consumer.close()


class Blocking(Raising):
    """One of its callbacks does not return before ``may_end``."""

    def __init__(self, which: str) -> None:
        super().__init__()
        self.which = which
        self.may_end = threading.Event()
        self.is_blocked = threading.Event()

    def block(self, which: str) -> None:
        if which == self.which:
            self.is_blocked.set()
            assert self.may_end.wait(DEADLINE_S)

    def on_partition_key_maybe_revoked(
        self, partitions: Collection[TopicPartition], generation: int, member: str
    ) -> None:
        self.block("revoked")
        super().on_partition_key_maybe_revoked(partitions, generation, member)

    def on_partition_key_assigned(
        self, partitions: Collection[TopicPartition], generation: int, member: str
    ) -> None:
        self.block("assigned")
        super().on_partition_key_assigned(partitions, generation, member)


@pytest.mark.parametrize("which", ["revoked", "assigned"])
def test_a_callback_that_blocks_too_long_costs_the_membership_and_no_record(
    bootstrap: str, topic_name: str, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    clients.create_topic(bootstrap, topic_name, 1)
    write(bootstrap, topic_name, 0)
    blocking = Blocking(which)
    slow = opened(bootstrap, topic_name, blocking, max_poll_interval_ms=1_500)
    ended = threading.Event()
    returned: list[tuple[int, list[int]]] = []

    def run() -> None:
        while not ended.is_set():
            found = numbers_of(slow.poll(50), 0)
            returned.append((len(blocking.calls), found))
        slow.close()

    thread = threading.Thread(target=run)
    thread.start()
    other = opened(bootstrap, topic_name, Raising())
    got: list[int] = []

    def step() -> bool:
        got.extend(numbers_of(other.poll(50), 0))
        return len(got) >= len(KEYS)

    try:
        assert blocking.is_blocked.wait(DEADLINE_S)
        # What the first one did not flush was not committed: all of it comes again.
        wait_until(step, DEADLINE_S, lambda: f"{got}", pause_s=0)
        assert "did not poll for max.poll.interval.ms=1500" in caplog.text
        blocking.may_end.set()
        other.close()
        write(bootstrap, topic_name, 1)
        wait_until(
            lambda: bool(returned) and 1 in returned[-1][1],
            DEADLINE_S,
            lambda: f"{blocking.calls} {returned[-5:]}",
        )
    finally:
        blocking.may_end.set()
        ended.set()
        thread.join(DEADLINE_S)
        other.close()
    assert not thread.is_alive()
    if which == "assigned":
        # The state that it loaded too late is of keys that another consumer had meanwhile.
        assert not any(found for calls, found in returned if calls <= 1), returned


class OwnPlaces(PartitionKeyRebalanceListener):
    """Keeps the positions with the state, outside of the cluster, and seeks to them."""

    def __init__(self) -> None:
        self.places: dict[TopicPartition, int] = {}
        self.consumer: Consumer | None = None
        self.calls: list[str] = []

    def on_partition_key_maybe_revoked(
        self, partitions: Collection[TopicPartition], generation: int, member: str
    ) -> None:
        assert self.consumer is not None
        for where in partitions:
            self.calls.append(f"revoked {where.partition}")
            self.places[where] = self.consumer.position(where)

    def on_partition_key_assigned(
        self, partitions: Collection[TopicPartition], generation: int, member: str
    ) -> None:
        assert self.consumer is not None
        for where in partitions:
            self.calls.append(f"assigned {where.partition}")
            if where in self.places:
                self.consumer.seek(where, self.places[where])


def test_a_listener_may_seek_to_the_position_that_it_keeps_with_its_state(
    bootstrap: str, topic_name: str
) -> None:
    clients.create_topic(bootstrap, topic_name, 1)
    listener = OwnPlaces()
    got: list[int] = []
    for number, count in ((0, 1), (1, 2), (2, 4)):
        if count > 1:
            resize(bootstrap, topic_name, count)
        write(bootstrap, topic_name, number)
        # Another consumer each time, in a group that commits nothing.
        consumer = opened(bootstrap, topic_name, None, enable_auto_commit=False)
        listener.consumer = consumer
        consumer.subscribe([topic_name], partition_key_listener=listener)

        def step(consumer: Consumer = consumer, number: int = number) -> bool:
            for records in consumer.poll(50).values():
                got.extend(int(record.value) for record in records)
            return len(got) >= (number + 1) * len(KEYS)

        wait_until(step, DEADLINE_S, lambda: f"{got} {listener.calls}", pause_s=0)
        consumer.close()
    assert got == [number for number in (0, 1, 2) for _ in KEYS], listener.calls
    ends = {TopicPartition(topic_name, index) for index in range(4)}
    assert set(listener.places) <= ends


class Rewinding(Raising):
    """Seeks back in its first flush, as one does whose store has lost what it wrote."""

    def __init__(self, where: TopicPartition) -> None:
        super().__init__()
        self.where = where
        self.consumer: Consumer | None = None
        self.sought = 0

    def on_partition_key_maybe_revoked(
        self, partitions: Collection[TopicPartition], generation: int, member: str
    ) -> None:
        super().on_partition_key_maybe_revoked(partitions, generation, member)
        if self.where in partitions and not self.sought:
            assert self.consumer is not None
            self.consumer.seek(self.where, 0)
            self.sought += 1


def test_a_flush_that_seeks_back_keeps_the_children_waiting(
    bootstrap: str, topic_name: str
) -> None:
    clients.create_topic(bootstrap, topic_name, 1)
    write(bootstrap, topic_name, 0)
    resize(bootstrap, topic_name, 2)
    write(bootstrap, topic_name, 1)
    listener = Rewinding(TopicPartition(topic_name, 0))
    consumer = opened(bootstrap, topic_name, listener, auto_commit_interval_ms=60_000)
    listener.consumer = consumer
    order: list[tuple[int, int]] = []

    def step() -> bool:
        for where, records in consumer.poll(50).items():
            order.extend((where.partition, int(record.value)) for record in records)
        return any(partition == 1 for partition, _ in order)

    wait_until(step, DEADLINE_S, lambda: f"{order} {listener.calls}", pause_s=0)
    consumer.close()
    assert listener.sought == 1
    # All of the parent's records from before the fence come twice, both times before the child's.
    first_of_child = next(place for place, (partition, _) in enumerate(order) if partition == 1)
    assert [each for each in order[:first_of_child] if each == (0, 0)] == 2 * len(KEYS) * [(0, 0)]
