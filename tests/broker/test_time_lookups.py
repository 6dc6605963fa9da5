"""ListOffsets by time against batches that are large inside, or lie: the loop goes on, and no
response is too late (S4, N6)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.lone_broker import LoneBroker, Peer, until, with_broker
from tests.support.lying_batches import changed
from tests.support.storage_logs import NOW_MS, batch, new_log, newest_record, offset_for_time
from tests.support.turn_costs import TurnCosts
from tidelog.model.errors import ErrorCode
from tidelog.model.work import finish
from tidelog.protocol import messages
from tidelog.records.compression import Codec, compress, decompress_start
from tidelog.records.record import encode_record
from tidelog.runtime import pace
from tidelog.storage.log import time_lookup
from tidelog.storage.log.results import TimeOffset
from tidelog.storage.segments.soundness import check_batch

STALL_S = 0.1
"""What one request may hold the loop for (docs/design/speed.md): CPU time of one turn."""


def many(count: int, last_ms: int, codec: int = Codec.ZSTD) -> bytes:
    """A batch of ``count`` empty records, a few hundred bytes; only the last is as new as said."""
    tiny = encode_record(0, 0, None, None) * (count - 1)
    payload = compress(codec, tiny + encode_record(count - 1, last_ms - NOW_MS, None, None))
    plain = batch(1, timestamp=NOW_MS)
    fields = {"record_count": count, "last_offset_delta": count - 1, "max_timestamp": last_ms}
    return changed(plain, payload, attributes=codec, **fields)


class Threads(ThreadPoolExecutor):
    """The threads of a broker, which count what they did for searches."""

    def __init__(self) -> None:
        super().__init__(2)
        self.searched = 0
        asyncio.get_running_loop().set_default_executor(self)

    def submit(self, call: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        self.searched += isinstance(call, partial) and call.func in (check_batch, decompress_start)
        return super().submit(call, *given, **named)


def bomb(size: int) -> bytes:
    """A batch of one record of ``size`` zeros."""
    return batch(1, size=size, codec=Codec.ZSTD)


def question(times: dict[int, int], topic: str = "t") -> Any:
    request = messages.ListOffsetsRequest
    parts = [request.ListOffsetsPartition(index, -1, at) for index, at in times.items()]
    return request(-1, 0, [request.ListOffsetsTopic(topic, parts)])


async def ask(peer: Peer, whole: Any) -> list[tuple[int, int, int]]:
    answer = await peer.ask(whole, 7)
    return [(p.error_code, p.offset, p.timestamp) for p in answer.topics[0].partitions]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_batch_of_very_many_records_is_searched_in_turns(tmp_path: Path, codec: int) -> None:
    """S4: 300,000 records of a few bytes took the loop for a second."""

    async def story(lone: LoneBroker, peer: Peer) -> None:
        partition = lone.lead("t", configs={"max.message.bytes": "10000000"})
        partition.append(many(300_000, NOW_MS + 5, codec), NOW_MS)
        partition.append(batch(1, timestamp=NOW_MS + 9), NOW_MS)
        async with TurnCosts() as turns:
            found = await ask(peer, question({0: NOW_MS + 1}))
        assert found == [(0, 299_999, NOW_MS + 5)]
        assert turns.longest_s < STALL_S and turns.turns > 100
        assert (await ask(peer, question({0: NOW_MS + 6}))) == [(0, 300_000, NOW_MS + 9)]

    with_broker(tmp_path, story)


def test_few_bytes_that_decompress_to_very_many_are_not_waited_for(tmp_path: Path) -> None:
    """N6: 3.2 kB became 100 MB, 4,000 times in one request. The record's head says its time."""
    content = bomb(100_000_000)

    async def story(lone: LoneBroker, peer: Peer) -> None:
        threads = Threads()
        lone.lead("t", 40)
        for index in range(40):
            hosted = lone.broker.partitions.get("t", index)
            assert hosted is not None
            hosted.append(content, NOW_MS)
        async with TurnCosts() as turns:
            found = await ask(peer, question(dict.fromkeys(range(40), NOW_MS)))
            newest = await ask(peer, question(dict.fromkeys(range(40), -3)))
        assert found == newest == [(0, 0, NOW_MS)] * 40
        assert turns.longest_s < STALL_S
        # The loop's own look was enough for each.
        assert threads.searched == 0

    with_broker(tmp_path, story)


def test_a_partition_that_is_named_twice_is_looked_up_once(tmp_path: Path) -> None:
    """N6: as Kafka, which answers INVALID_REQUEST for the second."""

    async def story(lone: LoneBroker, peer: Peer) -> None:
        lone.lead("t").append(batch(1, timestamp=NOW_MS), NOW_MS)
        request = messages.ListOffsetsRequest
        for at in (NOW_MS, -1, -2, -3):
            part = request.ListOffsetsPartition(0, -1, at)
            whole = request(-1, 0, [request.ListOffsetsTopic("t", [part, part, part])])
            first, *others = await ask(peer, whole)
            assert first[0] == 0
            assert others == [(ErrorCode.INVALID_REQUEST, -1, -1)] * 2

    with_broker(tmp_path, story)


def test_a_search_whose_partition_moves_away_says_so(tmp_path: Path) -> None:
    async def story(lone: LoneBroker, peer: Peer) -> None:
        partition = lone.lead("t", configs={"max.message.bytes": "10000000"})
        partition.append(many(300_000, NOW_MS + 5), NOW_MS)
        threads = Threads()
        peer.send(question({0: NOW_MS + 1}), 7)
        await until(lambda: threads.searched)
        lone.lead("t", epoch=1, leader=2, replicas=(1, 2), isr=(1, 2))
        answer = await peer.receive()
        part = answer.topics[0].partitions[0]
        assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    with_broker(tmp_path, story)


# -- what lies


def test_a_batch_without_the_time_that_it_claims_is_passed_over(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    liar = changed(batch(3, timestamp=NOW_MS), max_timestamp=NOW_MS + 3_000_000)
    cut = compress(Codec.LZ4, bytes(99))[:-5]
    garbage = changed(batch(1, codec=Codec.LZ4), cut, max_timestamp=NOW_MS + 5000)
    log.append_as_leader(liar, 0, NOW_MS)
    log.append_as_leader(garbage, 0, NOW_MS)
    log.append_as_leader(batch(2, timestamp=NOW_MS + 1000), 0, NOW_MS)
    assert offset_for_time(log, NOW_MS + 500) == TimeOffset(NOW_MS + 1000, 4, 0)
    assert offset_for_time(log, NOW_MS + 2) == TimeOffset(NOW_MS + 2, 2, 0)
    assert offset_for_time(log, NOW_MS + 4000) is None
    # The newest is what the headers say: of the first batch, for it claims most.
    assert newest_record(log, 6) == TimeOffset(NOW_MS + 3_000_000, 2, 0)


def test_a_spent_allowance_answers_a_little_too_early(tmp_path: Path) -> None:
    """The answer is what the header claims; no reader begins after the record it asked for."""
    log = new_log(tmp_path)
    log.append_as_leader(batch(1, timestamp=NOW_MS - 9), 0, NOW_MS)
    log.append_as_leader(many(300_000, NOW_MS + 5), 0, NOW_MS)
    for spent in (
        time_lookup.Allowance(bytes=0),
        time_lookup.Allowance(records=0),
        time_lookup.Allowance(batches=0),
    ):
        found = finish(log.search_time(NOW_MS + 1, spent))
        assert found == TimeOffset(NOW_MS + 5, 1, 0)
    whole = time_lookup.Allowance()
    assert finish(log.search_time(NOW_MS + 1, whole)) == TimeOffset(NOW_MS + 5, 300_000, 0)
    assert whole.records == time_lookup.REQUEST_RECORDS - 299_999
    assert time_lookup.REQUEST_BYTES - whole.bytes < 3 * 300_000 * 7


def test_a_batch_that_is_too_large_inside_is_answered_by_its_header(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    hidden = encode_record(0, -5, None, bytes(time_lookup.MOST_SEARCHED_BYTES)) + encode_record(
        1, 0, None, b"new"
    )
    fields = {"attributes": Codec.ZSTD, "record_count": 2, "last_offset_delta": 1}
    log.append_as_leader(changed(batch(1), compress(Codec.ZSTD, hidden), **fields), 0, NOW_MS)
    assert offset_for_time(log, NOW_MS - 5) == TimeOffset(NOW_MS - 5, 0, 0)
    assert offset_for_time(log, NOW_MS) == TimeOffset(NOW_MS, 0, 0), "record 1 is the true answer"


def test_headers_are_walked_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index may have few entries (index.interval.bytes, times that fall)."""
    monkeypatch.setattr(pace, "PART", 10)
    log = new_log(tmp_path)
    for at in range(100):
        log.append_as_leader(batch(1, timestamp=NOW_MS - at), 0, NOW_MS)
    log.append_as_leader(batch(1, timestamp=NOW_MS + 1), 0, NOW_MS)
    log.high_watermark = 101
    log.advance_start(1)
    for pieces, expected in (
        (log.search_time(NOW_MS + 1, time_lookup.Allowance()), TimeOffset(NOW_MS + 1, 100, 0)),
        (log.search_newest(100, time_lookup.Allowance()), TimeOffset(NOW_MS - 1, 1, 0)),
    ):
        pauses = 0
        try:
            while True:
                assert next(pieces) is None
                pauses += 1
        except StopIteration as end:
            assert end.value == expected
        assert pauses >= 9
