"""A start after a crash takes for sound what a walk with CRCs does, and makes the same entries."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.put_files import put
from tests.support.storage_logs import NOW_MS, batch, new_log, reopen, resources
from tests.support.watched_disk import WatchedDisk
from tidelog.model.configs.topic import TopicConfigs
from tidelog.records.batch import read_header, seal_batch
from tidelog.records.builder import Producer
from tidelog.runtime.disk import RealDisk
from tidelog.storage.loaded import Loading
from tidelog.storage.log.checking import Check, CheckedBatches, check_batches
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.producers import ProducerState
from tidelog.storage.log.recovery import Ending
from tidelog.storage.log.syncing import INDEX_BYTES_UNWRITTEN
from tidelog.storage.names import EPOCH_CHECKPOINT, EPOCH_CHECKSUM
from tidelog.storage.segments.index import OffsetIndex, TimeIndex
from tidelog.storage.segments.scan import indexable, scan

BASE = 1_000
INTERVAL = 300


def a_segment(source: random.Random) -> bytearray:
    content, offset, epoch = bytearray(), BASE, 3
    for _ in range(source.randrange(1, 40)):
        made = batch(
            source.randrange(1, 5),
            size=source.choice((0, 20, 400)),
            timestamp=NOW_MS + source.randrange(50),
        )
        offset += source.choice((0, 0, 0, 7))
        epoch += source.choice((0, 0, 0, 1))
        header = read_header(made)._replace(base_offset=offset, leader_epoch=epoch)
        content += seal_batch(header, made[61:])
        offset = header.next_offset
    return content


def flip_some_bit(source: random.Random, content: bytearray) -> None:
    kind = source.randrange(4)
    if kind == 0:
        del content[source.randrange(len(content)) :]
    elif kind < 3:
        for _ in range(source.randrange(1, 3)):
            content[source.randrange(len(content))] ^= 1 << source.randrange(8)


def by_walking(
    path: str, size: int
) -> tuple[int, int, tuple[int, int], list[tuple[int, int]], OffsetIndex, TimeIndex]:
    index, times = OffsetIndex(BASE), TimeIndex(BASE)
    end, following, newest, since = 0, BASE, (-1, BASE), 0
    epochs: list[tuple[int, int]] = []
    file = RealDisk().open(path)
    for position, header in indexable(scan(file, 0, size, check=True), BASE):
        if header.base_offset < following:
            break
        if epochs and 0 <= header.leader_epoch < epochs[-1][0]:
            break
        if not epochs or header.leader_epoch > epochs[-1][0]:
            epochs.append((header.leader_epoch, following))
        if header.newest_time > newest[0]:
            newest = header.newest_time, header.last_offset
        if since <= INTERVAL:
            since += header.size
        else:
            index.add(header.last_offset, position)
            times.add(*newest)
            since = header.size
        end, following = position + header.size, header.next_offset
    file.close()
    return end, following, newest, epochs, index, times


def test_it_agrees_with_a_walk_whatever_was_harmed(tmp_path: Path) -> None:
    stopped = 0
    for seed in range(1_500):
        source = random.Random(seed)
        content = a_segment(source)
        whole = len(content)
        flip_some_bit(source, content)
        path = tmp_path / "00000000000000001000.log"
        put(path, content)
        end, following, newest, epochs, index, times = by_walking(str(path), len(content))
        stopped += end != whole
        file = RealDisk().open(str(path))
        checked = CheckedBatches(BASE, 0, NOW_MS)
        asked = Check(str(path), len(content), BASE, INTERVAL, checked, 0, BASE, (-1, BASE))
        check_batches(file, asked, Loading())
        file.close()
        assert (asked.position, asked.next_offset) == (end, following), seed
        assert (asked.newest, checked.epochs) == (newest, epochs), seed
        both = OffsetIndex(BASE), TimeIndex(BASE)
        both[0].extend(*asked.entries)
        both[1].extend(*asked.times)
        assert both[0].unwritten() == index.unwritten(), seed
        assert both[1].unwritten() == times.unwritten(), seed
    assert 200 < stopped < 1_300


def sent(log: PartitionLog, sequences: dict[int, int], source: random.Random, epoch: int) -> None:
    producer, count = source.randrange(6), source.randrange(1, 4)
    sequence = sequences.get(producer, 0)
    whose = Producer(producer, sequence // 30, sequence % 30)
    if producer and sequence % 30 + count > 30:
        sequence = sequence // 30 * 30 + 30
        whose = Producer(producer, sequence // 30, 0)
    made = batch(count, size=300) if not producer else batch(count, producer=whose, size=300)
    log.append_as_leader(made, epoch, NOW_MS)
    sequences[producer] = sequence + count


def known(state: ProducerState) -> dict[int, tuple[int, list[tuple[int, ...]]]]:
    return {
        each.producer_id: (each.epoch, [batch[:4] for batch in each.batches])
        for each in state.entries.values()
    }


@pytest.mark.parametrize("has_file", [True, False])
def test_a_start_learns_epochs_and_producers_from_what_it_checks(
    tmp_path: Path, has_file: bool
) -> None:
    """S8. Whatever is synced, whichever snapshots there are: they are as they were."""
    for seed in range(12):
        source = random.Random(seed)
        path = tmp_path / str(seed)
        path.mkdir()
        log = new_log(path, TopicConfigs(segment_bytes=source.choice((4_000, 1_000_000))))
        sequences: dict[int, int] = {}
        epoch, synced = 0, [0]
        for _ in range(source.randrange(20, 120)):
            sent(log, sequences, source, epoch)
            epoch += source.random() < 0.05
            if source.random() < 0.1:
                log.take_snapshot()
                log.sync()
                synced.append(log.end_offset)
        epochs, producers, end = log.epochs.entries, known(log.producers), log.end_offset
        assert len(producers) > 3
        log.resources.files.close()
        for _ in range(6):
            if not has_file:
                (path / "t-0" / EPOCH_CHECKPOINT).unlink(missing_ok=True)
            point = source.choice((source.choice(synced), source.randrange(end + 1)))
            found = reopen(path, ending=Ending(point, end))
            assert found.damaged is None and found.end_offset == end, (seed, point)
            assert found.epochs.entries == epochs, (seed, point)
            assert known(found.producers) == producers, (seed, point)
            found.resources.files.close()


@pytest.mark.parametrize("is_synced", [False, True])
def test_a_start_reads_each_batch_once(tmp_path: Path, is_synced: bool) -> None:
    """S8. They were walked three times: for their CRCs, leader epochs and producers."""
    log = new_log(tmp_path)
    for sequence in range(3_000):
        log.append_as_leader(batch(size=4_000, producer=Producer(7, 0, sequence)), 0, NOW_MS)
        if is_synced and sequence % 250 == 0:
            log.sync()
    size, end, point = log.size, log.end_offset, log.synced_end_offset
    log.resources.files.close()
    disk = WatchedDisk()
    found = reopen(tmp_path, shared=resources(disk), ending=Ending(point, end))
    assert found.end_offset == end and found.producers.entries[7].last_sequence == end - 1
    read = sum(call.size for call in disk.of("read", ending=".log"))
    # Where a chunk of a megabyte, or one of headers, ends within a batch, that is read again.
    assert read < size * 1.3
    unsynced = size * (end - point) // end
    assert found.recovered.scanned_bytes < unsynced + INDEX_BYTES_UNWRITTEN + size // 20


def test_a_start_makes_the_index_entries_of_what_it_checks(tmp_path: Path) -> None:
    """S8: otherwise the first look-up after the recovery point walks all batches there."""
    log = new_log(tmp_path)
    for _ in range(60):
        log.append_as_leader(batch(size=3_000), 0, NOW_MS)
    end, index = log.end_offset, log.segments[-1].index
    entries = [index.entry_for(offset) for offset in range(end)]
    assert len(set(entries)) > 20
    log.resources.files.close()
    for path in (tmp_path / "t-0").glob("*index"):
        put(path, b"")
    found = reopen(tmp_path, ending=Ending(0, end))
    assert found.end_offset == end
    assert [found.segments[-1].index.entry_for(offset) for offset in range(end)] == entries


def test_an_epoch_that_the_file_lacks_is_learnt_from_what_a_start_checks(tmp_path: Path) -> None:
    """S8: what a kill left unwritten is no contradiction, for which all batches are read again."""
    log = new_log(tmp_path)
    folder = tmp_path / "t-0"
    for _ in range(5):
        log.append_as_leader(batch(), 0, NOW_MS)
    log.sync()
    before = {name: (folder / name).read_bytes() for name in (EPOCH_CHECKPOINT, EPOCH_CHECKSUM)}
    for _ in range(5):
        log.append_as_leader(batch(), 1, NOW_MS)
    epochs = log.epochs.entries
    assert epochs == [(0, 0), (1, 5)]
    log.resources.files.close()
    for name, content in before.items():
        put(folder / name, content)
    found = reopen(tmp_path, ending=Ending(5, 10))
    assert found.epochs.entries == epochs and found.end_offset == 10
    assert not found.recovered.mended and not found.recovered.compared
