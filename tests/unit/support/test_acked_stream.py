"""The judge of the kill tests, shown a good history and every kind of bad one."""

from __future__ import annotations

from collections import Counter, defaultdict
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.support.acked_stream import SOMEWHERE, Writer, renumbered_values, violations
from tests.support.log_files import BatchOnDisk
from tests.support.offsets import asked_of_leaders

GOOD = {(0, 0): "w:0", (0, 1): "w:1", (0, 2): "w:2"}


def judge(
    found: dict[tuple[int, int], str],
    *,
    acked: dict[int, tuple[int, int]] | None = None,
    seen: dict[str, int] | None = None,
    commits: list[int] | None = None,
    idempotent: bool = True,
    keys: int = 0,
    noted: tuple[str, ...] = (),
    renumbered: frozenset[str] = frozenset(),
) -> list[str]:
    writer = SimpleNamespace(
        name="w",
        idempotent=idempotent,
        acked=acked or {0: (0, 0), 1: (0, 1)},
        wrong=list(noted),
        key=lambda number: f"w-{number % keys}" if keys else None,
    )
    reader = SimpleNamespace(
        seen=Counter(seen or dict.fromkeys(GOOD.values(), 1)),
        commits=defaultdict(list, {0: commits or [1, 2, 3]}),
    )
    return violations([writer], found, reader, renumbered)


def test_a_good_history_passes() -> None:
    assert judge(GOOD) == []
    assert judge({**GOOD, (1, 0): "w:2"}, idempotent=False) == []
    two_homes = {(0, 0): "w:0", (1, 0): "w:1", (0, 1): "w:2"}
    assert judge(two_homes, acked={0: (0, 0), 1: (1, 0)}, keys=2) == []
    assert judge(GOOD, acked={0: (0, SOMEWHERE), 1: (0, 1)}) == []


@pytest.mark.parametrize(
    ("history", "word"),
    [
        ({"found": {(0, 0): "w:0"}}, "lost"),
        ({"found": {**GOOD, (0, 1): "w:7"}}, "lost"),
        ({"found": GOOD, "acked": {7: (0, SOMEWHERE)}}, "lost: w:7 acked in partition 0"),
        ({"found": GOOD, "acked": {0: (1, SOMEWHERE)}}, "lost: w:0 acked in partition 1"),
        ({"found": {**GOOD, (1, 0): "w:2"}}, "2 times"),
        ({"found": {(0, 0): "w:1", (0, 1): "w:0"}, "acked": {0: (0, 1)}}, "order"),
        ({"found": GOOD, "seen": {"w:0": 1}}, "never read"),
        ({"found": GOOD, "seen": {"w:1": 1, "w:0": 1, "w:2": 1}}, "order to the group"),
        ({"found": GOOD, "seen": {**dict.fromkeys(GOOD.values(), 1), "w:9": 1}}, "not there"),
        ({"found": GOOD, "noted": ("w:1 at 0/1, sent after 5",)}, "sent after 5"),
        (
            {"found": {(0, 0): "w:0", (1, 0): "w:2", (0, 1): "w:1"}, "keys": 2},
            "of key w-0 after",
        ),
        ({"found": GOOD, "commits": [2, 1]}, "fell from 2 to 1"),
    ],
)
def test_bad_histories_are_named(history: dict[str, object], word: str) -> None:
    wrong = judge(**history)
    assert any(word in line for line in wrong), wrong


def on_disk(offset: int, count: int, epoch: int) -> BatchOnDisk:
    return BatchOnDisk(offset, 100, 0, 2, 0, count - 1, 7, 0, count, epoch)


def test_only_what_a_producer_renumbered_is_its_own_doing() -> None:
    found = {(0, 0): "w:0", (0, 1): "w:1", (0, 2): "w:1", (0, 3): "w:2", (1, 0): "v:0"}
    bumped = [on_disk(0, 2, epoch=0), on_disk(2, 2, epoch=1)]
    assert renumbered_values(found, {0: bumped}.__getitem__) == {"w:1"}
    same_epoch = [on_disk(0, 2, epoch=0), on_disk(2, 2, epoch=0)]
    assert renumbered_values(found, {0: same_epoch}.__getitem__) == frozenset()
    acked = {0: (0, 0), 1: (0, 2), 2: (0, 3)}
    found.pop((1, 0))
    assert judge(found, acked=acked, renumbered=frozenset({"w:1"})) == []
    assert judge(found, acked=acked)


class Report:
    """What librdkafka reports of a record that is stored."""

    def __init__(self, partition: int, offset: int | None) -> None:
        self._place = partition, offset

    def partition(self) -> int:
        return self._place[0]

    def offset(self) -> int | None:
        return self._place[1]


@pytest.fixture
def writer() -> Writer:
    """One that was never started; no broker listens where it would send to."""
    return Writer("127.0.0.1:1", "t", "w", 1, idempotent=True)


def test_only_what_was_in_flight_may_be_sent_again_in_a_new_epoch() -> None:
    """Seven batches of epoch 0, then all of them once more in epoch 1: five are excused."""
    found = {(0, offset): f"w:{offset % 7}" for offset in range(14)}
    on_record = [on_disk(offset, 1, int(offset >= 7)) for offset in range(14)]
    excused = renumbered_values(found, {0: on_record}.__getitem__)
    assert excused == {f"w:{number}" for number in (2, 3, 4, 5, 6)}
    assert len([x for x in judge(found, renumbered=excused) if x.startswith("2 times")]) == 2


def test_a_record_may_be_acknowledged_without_an_offset(writer: Writer) -> None:
    writer._sent_after = {0: {}, 1: {0: 5}, 2: {0: 5}}
    writer._delivered(0, None, Report(0, 5))
    writer._delivered(1, None, Report(0, None))
    writer._delivered(2, None, Report(0, 6))
    assert writer.acked == {0: (0, 5), 1: (0, SOMEWHERE), 2: (0, 6)}
    assert writer.has_acked(3) and not writer.has_acked(4)
    assert not writer.wrong


def test_a_writer_that_dies_says_so_to_whoever_waits_for_it(writer: Writer) -> None:
    # A report of a record that it never sent: its books cannot go on.
    writer._delivered(7, None, Report(0, 5))
    writer.start()
    for waiting in (lambda: writer.has_acked(1), writer.finish):
        with pytest.raises(AssertionError, match=r"w died:[^$]*KeyError: 7"):
            waiting()
    assert "KeyError: 7" in writer.state()


def test_a_request_that_fails_while_a_leader_moves_is_sent_again() -> None:
    refusals = [KafkaError.FENCED_LEADER_EPOCH, KafkaError.NOT_LEADER_FOR_PARTITION]

    def ask() -> int:
        if refusals:
            raise KafkaException(KafkaError(refusals.pop()))
        return 7

    assert asked_of_leaders(ask, "an offset") == 7
    refusals.append(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        asked_of_leaders(ask, "an offset")
