"""The greatest timestamp of a batch is that of its records (B1): look-ups, retention and the limits
on times rest on it.

The kind: a field of a batch's header that a feature rests on is derived or compared
(docs/decisions/0088). Header fields that are wrong by themselves: see ``tests/unit/records``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.support.inspected_appends import codes, produce
from tests.support.lone_broker import LoneBroker, Peer, until
from tests.support.lying_batches import changed
from tests.support.storage_logs import NOW_MS, records_of
from tidelog.broker.partitions.log_directories import LogDirectories
from tidelog.model.configs.server import ServerConfigs, from_mapping
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.records.batch import (
    LOG_APPEND_TIME_BIT,
    NO_TIMESTAMP,
    Rejected,
    crc_is_right,
    read_header,
)
from tidelog.records.builder import NewRecord, build_batch
from tidelog.records.record import encode_record
from tidelog.runtime.clock import RealClock
from tidelog.runtime.loop import run
from tidelog.runtime.seams import Seams

PRESENT_MS = RealClock().wall_ms()
FIRST_MS = PRESENT_MS - 9000
EARLIER_MS = FIRST_MS - 60_000
TEN_YEARS_MS = 10 * 365 * 86_400_000
FULL, HEADER = {"log.batch.check": "full"}, {"log.batch.check": "header"}

Story = Callable[[LoneBroker, Peer], Coroutine[Any, Any, None]]


def timed(*times: int, codec: int = 0, **fields: int) -> bytes:
    records = [NewRecord(time, b"k", b"v%d" % at) for at, time in enumerate(times)]
    return changed(build_batch(records, codec=codec), **fields)


EARLIER = [timed(EARLIER_MS)] * 2
TIMES = [FIRST_MS + 1000 * at for at in range(10)]


def with_lone(folder: Path, config: dict[str, str], story: Story) -> None:
    async def main() -> None:
        lone = LoneBroker(folder, config)
        await lone.start()
        peer = await Peer.connect(lone.port)
        try:
            await story(lone, peer)
        finally:
            peer.writer.close()
            await lone.stop()

    run(main())


async def offset_at(peer: Peer, time: int) -> tuple[int, int]:
    request = messages.ListOffsetsRequest
    part = request.ListOffsetsPartition(0, timestamp=time)
    topic = request.ListOffsetsTopic("t", [part])
    answer = await peer.ask(request(-1, topics=[topic]), 5)
    found = answer.topics[0].partitions[0]
    assert found.error_code == 0
    return found.offset, found.timestamp


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize(
    ("config", "claimed"),
    [
        pytest.param(HEADER, NO_TIMESTAMP, id="header, none"),
        pytest.param(HEADER, 0, id="header, 0"),
        pytest.param(HEADER, FIRST_MS - 1, id="header, too low"),
        pytest.param(FULL, NO_TIMESTAMP, id="full, none"),
        pytest.param(FULL, FIRST_MS, id="full, low"),
        pytest.param(FULL, PRESENT_MS, id="full, high"),
    ],
)
def test_records_are_found_by_their_times(
    tmp_path: Path, config: dict[str, str], claimed: int, codec: int
) -> None:
    """Sarama wrote -1: look-ups found nothing, and retention by time kept the data."""

    async def story(lone: LoneBroker, peer: Peer) -> None:
        partition = lone.lead("t")
        sent = timed(*TIMES, codec=codec, max_timestamp=claimed)
        for each in (*EARLIER, sent):  # the third one finds that the segment has room
            assert codes(await peer.ask(produce((0, each)), 9)) == [0]
        for at, time in enumerate(TIMES, 2):
            assert await offset_at(peer, time - 500) == (at, time)
        assert await offset_at(peer, TIMES[-1] + 1) == (-1, -1)
        assert partition.log.segments[-1].newest == (TIMES[-1], 11)
        data = partition.read(2, 1, committed=False)
        assert not isinstance(data, Rejected)
        header = read_header(data)
        assert header.max_timestamp == TIMES[-1] and crc_is_right(data, header.crc)
        assert bytes(data)[61:] == sent[61:], "the records are kept as they were sent"
        assert [each.timestamp for each in records_of(partition.log)] == [
            EARLIER_MS,
            EARLIER_MS,
            *TIMES,
        ]

    with_lone(tmp_path, config, story)


@pytest.mark.parametrize(
    ("config", "claimed"),
    [(HEADER, -1), (FULL, -1), (FULL, PRESENT_MS)],
    ids=["header, none", "full, none", "full, innocent"],
)
def test_records_years_ahead_do_not_pass(
    tmp_path: Path, config: dict[str, str], claimed: int
) -> None:
    async def story(lone: LoneBroker, peer: Peer) -> None:
        partition = lone.lead("t", configs={"message.timestamp.before.max.ms": "3600000"})
        for each in EARLIER:
            assert codes(await peer.ask(produce((0, each)), 9)) == [0]
        for far, named in ((TEN_YEARS_MS, "after"), (-TEN_YEARS_MS, "before")):
            times = PRESENT_MS, PRESENT_MS + far, PRESENT_MS
            sent = timed(*times, max_timestamp=claimed)
            answer = await peer.ask(produce((0, sent)), 9)
            assert codes(answer) == [ErrorCode.INVALID_TIMESTAMP]
            part = answer.responses[0].partition_responses[0]
            assert f"message.timestamp.{named}.max.ms" in part.error_message
            assert [each.batch_index for each in part.record_errors] == [1]
        assert partition.end_offset == 2

    with_lone(tmp_path, config, story)


@pytest.mark.parametrize("config", [HEADER, FULL], ids=str)
def test_records_without_a_time_stay_as_they_were_sent(
    tmp_path: Path, config: dict[str, str]
) -> None:
    async def story(lone: LoneBroker, peer: Peer) -> None:
        partition = lone.lead("t", configs={"message.timestamp.before.max.ms": "3600000"})
        sent = timed(NO_TIMESTAMP, NO_TIMESTAMP)
        assert codes(await peer.ask(produce((0, sent)), 9)) == [0]
        data = partition.read(0, 1, committed=False)
        assert not isinstance(data, Rejected) and bytes(data)[16:] == sent[16:]
        # One that has a time beside one without: the limits hold for it.
        sent = timed(NO_TIMESTAMP, PRESENT_MS - TEN_YEARS_MS)
        answer = await peer.ask(produce((0, sent)), 9)
        assert codes(answer) == [ErrorCode.INVALID_TIMESTAMP]

    with_lone(tmp_path, config, story)


def test_the_brokers_own_time_needs_none_of_the_records(tmp_path: Path) -> None:
    async def story(lone: LoneBroker, peer: Peer) -> None:
        configs = {"message.timestamp.type": "LogAppendTime"}
        partition = lone.lead("t", configs=configs)
        sent = timed(PRESENT_MS + TEN_YEARS_MS, max_timestamp=-1)
        assert codes(await peer.ask(produce((0, sent)), 9)) == [0]
        (record,) = records_of(partition.log)
        assert abs(record.timestamp - RealClock().wall_ms()) < 600_000
        data = partition.read(0, 1, committed=False)
        assert not isinstance(data, Rejected)
        assert read_header(data).attributes == LOG_APPEND_TIME_BIT

    with_lone(tmp_path, FULL, story)


@pytest.mark.parametrize("config", [HEADER, FULL], ids=str)
def test_what_is_recompressed_is_counted(tmp_path: Path, config: dict[str, str]) -> None:
    """With ``compression.type`` the broker has the records in its hands, whatever is checked."""
    one = encode_record(0, 0, b"k", b"value" * 9)
    twice = changed(timed(PRESENT_MS, PRESENT_MS), one + one)
    after = changed(timed(PRESENT_MS), one + b"bytes after it")

    async def story(lone: LoneBroker, peer: Peer) -> None:
        partition = lone.lead("t", configs={"compression.type": "zstd"})
        for sent in (twice, after):
            answer = await peer.ask(produce((0, sent)), 9)
            assert codes(answer) == [ErrorCode.INVALID_RECORD]
        assert codes(await peer.ask(produce((0, changed(timed(PRESENT_MS), one))), 9)) == [0]
        assert partition.end_offset == 1

    with_lone(tmp_path, config, story)


def test_a_large_batch_is_checked_beside_the_loop_and_in_order(tmp_path: Path) -> None:
    """With ``full``: the later small batch of another connection waits for it."""
    large = timed(*[PRESENT_MS - at for at in range(5000)], max_timestamp=-1)

    async def story(lone: LoneBroker, peer: Peer) -> None:
        partition = lone.lead("t")
        other = await Peer.connect(lone.port)
        first = asyncio.ensure_future(peer.ask(produce((0, large)), 9))
        await until(lambda: partition.has_uninspected)
        second = await other.ask(produce((0, timed(NOW_MS))), 9)
        assert second.responses[0].partition_responses[0].base_offset == 5000
        assert codes(await first) == [0]
        assert partition.log.segments[-1].newest == (PRESENT_MS, 4999)
        other.writer.close()

    with_lone(tmp_path, FULL, story)


@pytest.mark.parametrize("config", [{}, HEADER, FULL], ids=str)
def test_the_configuration_of_the_process_decides(tmp_path: Path, config: dict[str, str]) -> None:
    texts = {"process.roles": "broker", "node.id": "1", "log.dirs": str(tmp_path), **config}
    texts["controller.quorum.bootstrap.servers"] = "127.0.0.1:1"
    configs = from_mapping(texts)
    assert isinstance(configs, ServerConfigs), configs
    directories = LogDirectories(configs, Seams())
    directories.open("c", "boot", 64)
    (directory,) = directories.all
    assert directory.resources.checks_records is (config == FULL)
    directory.close()
