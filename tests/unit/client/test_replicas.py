"""Where replicas differ: equal logs, flipped bits, missing tails, and what compaction may do."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tidelog.client.replicas.differences import (
    ComparedChunk,
    first_difference,
    first_different_record,
)
from tidelog.records.batch import HEADER_SIZE, read_header, seal_batch
from tidelog.records.builder import NewRecord, build_batch


def batch(offset: int, count: int = 3, *, epoch: int = 1) -> bytes:
    records = [NewRecord(1000 + i, b"k", b"value %d" % (offset + i)) for i in range(count)]
    return build_batch(records, base_offset=offset, leader_epoch=epoch)


def sealed_again(whole: bytes) -> bytes:
    """The batch with a CRC that fits what it holds now."""
    return seal_batch(read_header(whole), whole[HEADER_SIZE:])


def flipped(whole: bytes, at: int) -> bytes:
    return whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]


def compared(*logs: bytes, offset: int = 0) -> ComparedChunk:
    return first_difference({n + 1: memoryview(log) for n, log in enumerate(logs)}, offset)


LOG = batch(0) + batch(3) + batch(6)


def test_equal_logs_are_compared_as_far_as_the_shortest_chunk_has_whole_batches() -> None:
    assert compared(LOG, LOG, LOG) == ComparedChunk(9, len(LOG))
    cut = LOG[:-1]
    assert compared(LOG, cut) == ComparedChunk(6, len(batch(0) + batch(3)))


def test_a_flipped_bit_is_found_with_its_record_even_under_a_right_crc() -> None:
    second = batch(3)
    at = second.index(b"value 4")
    wrong = sealed_again(flipped(second, at))
    found = compared(LOG, batch(0) + wrong + batch(6), LOG)
    assert found.difference is not None
    assert found.difference.offset == 4
    assert (found.next_offset, found.size) == (0, len(batch(0)))
    words = found.difference.held
    assert all("offsets 3..5 of leader epoch 1, 3 records" in said for said in words.values())
    assert all("CRC right" in said for said in words.values())
    assert words[1] == words[3] != words[2]
    unsealed = compared(LOG, batch(0) + flipped(second, at) + batch(6))
    assert unsealed.difference is not None and "CRC wrong" in unsealed.difference.held[2]


def test_a_wrong_crc_that_all_replicas_share_is_a_difference_too() -> None:
    second = batch(3)
    log = batch(0) + flipped(second, second.index(b"value 4"))
    found = compared(log, log)
    assert found.difference is not None
    assert found.difference.offset == 3
    assert set(found.difference.held.values()) == {"a batch with a wrong CRC"}


def test_other_batches_at_the_same_offset() -> None:
    other_epoch = compared(LOG, batch(0) + batch(3, epoch=2))
    assert other_epoch.difference is not None and other_epoch.difference.offset == 3
    assert "leader epoch 2" in other_epoch.difference.held[2]
    missing = compared(LOG, batch(0) + batch(6))
    assert missing.difference is not None and missing.difference.offset == 3
    garbage = compared(LOG, batch(0) + bytes(200))
    assert garbage.difference is not None
    assert garbage.difference.held[2] == "bytes that are not a batch"


@pytest.mark.parametrize("seed", range(20))
def test_a_random_flip_is_found_in_its_batch(seed: int) -> None:
    chance = random.Random(seed)
    at = chance.randrange(len(LOG))
    found = compared(LOG, flipped(LOG, at), LOG)
    assert found.difference is not None, seed
    begin = at // len(batch(0)) * len(batch(0))
    assert found.size == begin, seed


def compacted(*logs: Sequence[bytes], offset: int = 0, ends: int = 9) -> ComparedChunk:
    chunks = {n + 1: memoryview(b"".join(log)) for n, log in enumerate(logs)}
    return first_different_record(chunks, offset, ends)


def without(whole: bytes, *gone: int) -> bytes:
    """The batch as compaction leaves it when it takes the records at its first offsets."""
    header = read_header(whole)
    kept = [at for at in range(header.base_offset, header.next_offset) if at not in gone]
    first = 1000 + kept[0] - header.base_offset
    records = [NewRecord(first + n, b"k", b"value %d" % at) for n, at in enumerate(kept)]
    return build_batch(records, base_offset=kept[0], leader_epoch=1)


def test_replicas_of_a_compacted_topic_may_lack_records_and_nothing_else() -> None:
    full = [batch(0), batch(3), batch(6)]
    assert compacted(full, [batch(0), batch(6)]).difference is None
    assert compacted(full, [batch(0), batch(6)]).next_offset == 9
    assert compacted(full, [without(batch(0), 0), batch(3), batch(6)]).difference is None
    assert compacted(full, []).next_offset == 9
    wrong = sealed_again(flipped(batch(3), batch(3).index(b"value 4")))
    found = compacted(full, [batch(0), wrong, batch(6)], [batch(6)])
    assert found.difference is not None and found.difference.offset == 4
    assert set(found.difference.held) == {1, 2}


def test_only_what_all_chunks_reach_is_compared() -> None:
    found = compacted([batch(0)], [batch(0), batch(3)])
    assert (found.next_offset, found.difference) == (3, None)
