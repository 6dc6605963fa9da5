"""Batches that a topic wants in another codec: the same records, at once or in a thread."""

from __future__ import annotations

import random

import pytest

from tests.support.drawn_seed import drawn_seed
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.work import finish
from tidelog.records.batch import crc_is_right, read_header
from tidelog.records.builder import NewRecord, build_batch
from tidelog.records.compression import CODEC_NAMES, Codec
from tidelog.records.reader import read_batch
from tidelog.storage.log.inspecting import (
    REQUEST_BYTES_AT_ONCE,
    SLOW_LEVEL_BYTES,
    SMALL_BYTES,
    SMALL_COMPRESSED_BYTES,
    UNINSPECTED,
    BatchDemands,
    InspectionAllowance,
    inspect,
)
from tidelog.storage.log.preparing import checked, prepare

NOW_MS = 1_700_000_000_000
BATCHES = 400


def _records(dice: random.Random) -> list[NewRecord]:
    size = dice.choice((0, 10, 100, 3000))
    count = dice.choice((1, 3, 30, 300)) if size < 3000 else dice.choice((1, 3, 60))
    return [
        NewRecord(
            NOW_MS + dice.randrange(-50, 50),
            b"key %d" % dice.randrange(50),
            dice.choice((None, dice.randbytes(size), bytes(size))),
            [("name", dice.choice((None, b"content")))] * dice.choice((0, 0, 0, 2)),
        )
        for _ in range(count)
    ]


def test_drawn_batches_keep_their_records() -> None:
    """From each codec to each, compacted or not; in one turn of the loop, and in threads."""
    dice = random.Random(drawn_seed())
    at_once = 0
    for _ in range(BATCHES):
        wanted, sent = dice.choice(list(CODEC_NAMES)), dice.choice(list(Codec))
        policy = frozenset({dice.choice(("compact", "delete"))})
        configs = TopicConfigs(compression_type=wanted, cleanup_policy=policy)
        records = _records(dice)
        content = build_batch(records, codec=sent)
        demands = BatchDemands(configs, NOW_MS)
        batches = checked(content, demands)
        assert isinstance(batches, list)
        threaded = finish(inspect(batches, demands, InspectionAllowance()))
        seen = prepare(content, demands, allowance=InspectionAllowance())
        if seen is not UNINSPECTED:
            at_once += 1
            assert seen == threaded
        assert isinstance(threaded, list)
        ((header, batch),) = threaded
        assert header == read_header(batch)
        assert header.codec == CODEC_NAMES[wanted]
        assert crc_is_right(batch, header.crc)
        assert header.max_timestamp == max(record.timestamp for record in records)
        read = [(*each[1:4], list(each.headers)) for each in read_batch(batch)]
        assert read == [tuple(each) for each in records]
    assert BATCHES // 4 < at_once < BATCHES, "of both kinds"


def _sized(size: int) -> bytes:
    return build_batch([NewRecord(NOW_MS, b"k", random.Random(size).randbytes(size))])


@pytest.mark.parametrize("name", ["gzip", "snappy", "lz4", "zstd"])
def test_what_is_compressed_at_once_is_bounded_by_the_codec(name: str) -> None:
    demands = BatchDemands(TopicConfigs(compression_type=name), NOW_MS)
    limit = SMALL_COMPRESSED_BYTES[CODEC_NAMES[name]]
    for size, is_small in ((limit - 200, True), (limit + 1, False)):
        seen = prepare(_sized(size), demands, allowance=InspectionAllowance())
        assert (seen is not UNINSPECTED) == is_small, size


@pytest.mark.parametrize(
    ("configs", "is_slow"),
    [
        (TopicConfigs(compression_type="gzip", compression_gzip_level=9), True),
        (TopicConfigs(compression_type="gzip", compression_gzip_level=1), False),
        (TopicConfigs(compression_type="lz4", compression_lz4_level=1), True),
        (TopicConfigs(compression_type="zstd", compression_zstd_level=19), True),
        (TopicConfigs(compression_type="zstd", compression_zstd_level=-5), False),
    ],
)
def test_a_level_that_takes_long_leaves_the_loop(configs: TopicConfigs, is_slow: bool) -> None:
    """Some bytes take a hundred times as long at such a level."""
    demands = BatchDemands(configs, NOW_MS)
    seen = prepare(_sized(SLOW_LEVEL_BYTES + 1), demands, allowance=InspectionAllowance())
    assert (seen is UNINSPECTED) == is_slow


def test_batches_that_become_too_much_are_counted_for_their_request() -> None:
    """Each of them was decompressed up to the limit of one batch."""
    large = build_batch([NewRecord(NOW_MS, b"k", bytes(2 * SMALL_BYTES))], codec=Codec.ZSTD)
    small = build_batch([NewRecord(NOW_MS, b"k", b"v")])
    demands = BatchDemands(TopicConfigs(compression_type="lz4"), NOW_MS)
    allowance = InspectionAllowance()
    for _ in range(REQUEST_BYTES_AT_ONCE // SMALL_BYTES):
        assert prepare(small, demands, allowance=allowance) is not UNINSPECTED
        assert prepare(large, demands, allowance=allowance) is UNINSPECTED
    assert prepare(small, demands, allowance=allowance) is UNINSPECTED
