"""Bits turned over in a log and beside it: what is read is what was written, or an error."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.put_files import put
from tests.support.storage_logs import (
    NOW_MS,
    PARTITION,
    FaultyDisk,
    batch,
    new_log,
    newest_record,
    offset_for_time,
    reopen,
    resources,
)
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.model.work import finish
from tidelog.records.batch import Rejected, walk
from tidelog.records.builder import Producer
from tidelog.storage.checkpoints import (
    DamagedFile,
    PartitionMetadata,
    decode_offsets,
    decode_partition_metadata,
    encode_offsets,
    encode_partition_metadata,
    encode_uuid,
)
from tidelog.storage.epochs import LeaderEpochs
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.recovery import Ending
from tidelog.storage.log.results import Appended
from tidelog.storage.segments.soundness import Unsound, sound_part

SMALL = TopicConfigs(segment_bytes=1000, index_interval_bytes=150)


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << (bit % 8)
    return bytes(changed)


def write(path: Path, epochs: tuple[int, ...] = (0, 0, 2, 2, 3, 3)) -> PartitionLog:
    """A log of five batches for each of these leader epochs, stopped cleanly."""
    log = new_log(path, SMALL)
    for number in range(5 * len(epochs)):
        made = batch(2, timestamp=NOW_MS + number, producer=Producer(3, 0, number * 2))
        appended = log.append_as_leader(made, epochs[number // 5], NOW_MS)
        assert isinstance(appended, Appended)
    log.high_watermark = log.end_offset
    assert log.close()
    return log


def read(log: PartitionLog, offset: int) -> int:
    """Return where the first batch begins that is answered for an offset."""
    found = log.read(offset, 200)
    assert not isinstance(found, Rejected), found
    return next(header.base_offset for _, header in walk(found))


def test_no_bit_of_a_batch_is_without_a_guard() -> None:
    epochs = LeaderEpochs([(1, 0), (4, 4)])
    whole = b""
    for place, epoch in enumerate((1, 1, 4, 4)):
        content = bytearray(batch(2))
        content[0:8] = (place * 2).to_bytes(8, "big")
        content[12:16] = epoch.to_bytes(4, "big")
        whole += content
    assert sound_part(whole, 0, 8, 8, epochs) == (len(whole), 8)
    for bit in range(len(whole) * 8):
        spoilt = flipped(whole, bit)
        try:
            size, _ = sound_part(spoilt, 0, 8, 8, epochs)
        except Unsound:
            continue
        assert spoilt[:size] == whole[:size], f"bit {bit} was not noticed"


def test_a_batch_beyond_the_limit_is_checked_too() -> None:
    whole = bytes(batch(2)) + flipped(bytes(batch(2)), 700)
    with pytest.raises(Unsound):
        sound_part(whole, 0, 2, 4, LeaderEpochs())


@pytest.mark.parametrize("room", [1, 400, 100_000])
@pytest.mark.parametrize("bit", [0, 1])
def test_a_base_offset_that_moved_up_is_found_by_reads_of_single_batches(
    bit: int, room: int, tmp_path: Path
) -> None:
    """Nothing but the next batch says so, and that was not looked at in such a read."""
    log = write(tmp_path)
    path = Path(log.segments[0].log_path)
    size = next(header.size for _, header in walk(path.read_bytes()))
    put(path, flipped(path.read_bytes(), 8 * (2 * size + 7) + bit))
    log = reopen(tmp_path, SMALL, ending=Ending(log.end_offset, log.end_offset, clean=True))
    offset, found = 0, log.read(0, room)
    while not isinstance(found, Rejected):
        for _, header in walk(found):
            assert header.base_offset == offset
            offset = header.next_offset
        found = log.read(offset, room)
    assert offset <= 4 and log.damaged


def test_a_log_that_is_found_damaged_stays_so_over_a_start(tmp_path: Path) -> None:
    log = write(tmp_path)
    path = Path(log.segments[1].log_path)
    content = path.read_bytes()
    put(path, flipped(content, 1500))
    shared = resources()
    told: list[TopicPartition] = []
    shared.on_damage = told.append
    clean = Ending(clean=True, recovery_point=log.end_offset, high_watermark=log.end_offset)
    found = reopen(tmp_path, SMALL, shared, ending=clean)
    assert found.damaged is None, "after a clean stop nothing is read"
    offset = log.segments[1].base_offset
    refused = [found.read(each, 5000) for each in range(offset, log.segments[2].base_offset)]
    assert isinstance(refused[-1], Rejected) and refused[-1].error is ErrorCode.KAFKA_STORAGE_ERROR
    assert found.damaged is not None and told == [PARTITION]
    assert isinstance(found.append_as_leader(batch(1), 9, NOW_MS), Rejected)
    found.close()
    again = reopen(tmp_path, SMALL, ending=clean)
    assert again.damaged is not None and str(path) in again.damaged
    again.close()
    put(path, content)
    healed = reopen(tmp_path, SMALL, ending=clean)
    assert healed.damaged is None and healed.end_offset == log.end_offset


@pytest.mark.parametrize("lost", [1, 61, 62, 200, 10_000])
def test_a_file_that_was_cut_is_damage_and_no_end(lost: int, tmp_path: Path) -> None:
    """A read of the batch that was cut was empty for ever, and one at the cut raised an error."""
    log = write(tmp_path)
    log.close()
    clean = Ending(clean=True, recovery_point=log.end_offset, high_watermark=log.end_offset)
    found = reopen(tmp_path, SMALL, ending=clean)
    first, path = found.segments[0].base_offset, Path(found.segments[0].log_path)
    size = path.stat().st_size
    os.truncate(path, max(0, size - lost))
    read = [found.read(offset, 100) for offset in range(first, found.segments[1].base_offset)]
    assert isinstance(read[-1], Rejected) and read[-1].error is ErrorCode.KAFKA_STORAGE_ERROR
    assert found.damaged is not None and str(path) in found.damaged


def test_damage_that_is_met_by_a_cut_takes_the_log_out_of_service(tmp_path: Path) -> None:
    log = write(tmp_path)
    cut, path = log.segments[2].base_offset - 1, Path(log.segments[1].log_path)
    for index in (path.with_suffix(".index"), path.with_suffix(".timeindex")):
        index.unlink()
    log.close()
    clean = Ending(clean=True, recovery_point=log.end_offset, high_watermark=log.end_offset)
    found = reopen(tmp_path, SMALL, ending=clean)
    content = bytearray(path.read_bytes())
    content[8:12] = b"\0\0\0\1"  # the length of its first batch
    put(path, content)
    got = finish(found.truncation(cut, NOW_MS))
    assert isinstance(got, Rejected) and got.error is ErrorCode.KAFKA_STORAGE_ERROR
    assert found.damaged is not None and str(path) in found.damaged
    assert (found.high_watermark, found.end_offset) == (log.end_offset, log.end_offset)


@pytest.mark.parametrize("met_by", ["a read", "a start"])
def test_damage_that_is_met_on_a_full_disk_is_not_forgotten(tmp_path: Path, met_by: str) -> None:
    log = write(tmp_path)
    path = Path(log.segments[1].log_path)
    put(path, flipped(path.read_bytes(), 1500))
    disk = FaultyDisk()
    disk.failing = ("tidelog.damaged.tmp",)
    disk.fill_up()
    clean = Ending(clean=True, recovery_point=log.end_offset, high_watermark=log.end_offset)
    crashed = Ending(recovery_point=0, high_watermark=log.end_offset)
    met = reopen(tmp_path, SMALL, resources(disk), ending=clean if met_by == "a read" else crashed)
    offset = log.segments[1].base_offset
    for each in range(offset, log.segments[2].base_offset):
        met.read(each, 5000)
    assert met.damaged is not None and met.resources.failed is None
    # Killed, and started when there is room: below the recovery point nothing is looked at unasked.
    again = reopen(tmp_path, SMALL, ending=clean)
    assert again.damaged is not None and str(path) in again.damaged


def test_no_bit_of_an_index_leads_astray(tmp_path: Path) -> None:
    log = write(tmp_path)
    segment = log.segments[0]
    path = Path(segment.index_path)
    content = path.read_bytes()
    assert len(content) > 16
    clean = Ending(clean=True, recovery_point=log.end_offset, high_watermark=log.end_offset)
    for bit in range(len(content) * 8):
        put(path, flipped(content, bit))
        found = reopen(tmp_path, SMALL, ending=clean)
        for offset in range(segment.base_offset, segment.next_offset):
            assert read(found, offset) == offset // 2 * 2, f"bit {bit} leads astray"
        found.resources.files.close()


def test_a_time_index_that_lies_does_not_expire_a_segment(tmp_path: Path) -> None:
    log = write(tmp_path)
    segment = log.segments[0]
    path = Path(segment.time_index_path)
    content = path.read_bytes()
    clean = Ending(clean=True, recovery_point=log.end_offset, high_watermark=log.end_offset)
    for bit in range((len(content) - 12) * 8, len(content) * 8):
        put(path, flipped(content, bit))
        found = reopen(tmp_path, SMALL, ending=clean)
        assert found.segments[0].newest == segment.newest, f"bit {bit} was believed"
        found.resources.files.close()


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_no_bit_of_an_index_leads_a_time_astray(tmp_path: Path, suffix: str) -> None:
    log = write(tmp_path, (0,) * 6)
    segment = log.segments[1]
    index, other = segment.index_path, segment.time_index_path
    contents = {path: Path(path).read_bytes() for path in (index, other)}
    spoilt = index if suffix == ".index" else other
    clean = Ending(clean=True, recovery_point=log.end_offset, high_watermark=log.end_offset)
    places = range(segment.base_offset + 7, segment.next_offset, 4)
    looks: list[Callable[[PartitionLog], object]] = [
        *(lambda found, at=at: offset_for_time(found, NOW_MS + (at + 1) // 2) for at in places),
        *(lambda found, at=at: newest_record(found, at + 1) for at in places),
    ]
    sound = reopen(tmp_path, SMALL, ending=clean)
    expected = [look(sound) for look in looks]
    # All eight of each byte: three of them missed a time of which one bit was not compared.
    for bit in range(len(contents[spoilt]) * 8):
        for look, answer in zip(looks, expected, strict=True):
            for path, content in contents.items():
                # A rebuilt file has fewer entries.
                put(Path(path), flipped(content, bit) if path == spoilt else content)
            found = reopen(tmp_path, SMALL, ending=clean)
            assert look(found) == answer, f"bit {bit} leads astray"
            found.resources.files.close()


def test_a_look_up_of_a_time_that_meets_damage_says_so(tmp_path: Path) -> None:
    log = write(tmp_path, (0,) * 6)
    segment = log.segments[1]
    path = Path(segment.log_path)
    content = path.read_bytes()
    indexes = {each: each.read_bytes() for each in path.parent.glob(f"{path.stem}.*index")}
    clean = Ending(clean=True, recovery_point=log.end_offset, high_watermark=log.end_offset)
    looks: list[Callable[[PartitionLog], object]] = [
        lambda found: offset_for_time(found, NOW_MS + segment.next_offset // 2 - 1),
        lambda found: newest_record(found, segment.next_offset - 1),
    ]
    sound = reopen(tmp_path, SMALL, ending=clean)
    expected = [look(sound) for look in looks]
    lengths = [8 * (at + byte) + 3 for at, _ in walk(content) for byte in range(8, 12)]
    magics = [8 * (at + 16) + 1 for at, _ in walk(content)]
    refused = 0
    for bit in lengths + magics:
        put(path, flipped(content, bit))
        for look, answer in zip(looks, expected, strict=True):
            for each, sound_index in indexes.items():
                put(each, sound_index)
            found = reopen(tmp_path, SMALL, ending=clean)
            met = look(found)
            assert isinstance(met, Rejected) == (found.damaged is not None)
            assert isinstance(met, Rejected) or met == answer, f"bit {bit} leads astray"
            refused += isinstance(met, Rejected)
            found.resources.files.close()
            (path.parent / "tidelog.damaged").unlink(missing_ok=True)
    assert refused


@pytest.mark.parametrize("with_indexes", [False, True])
def test_a_segment_that_cannot_be_walked_is_not_taken_for_an_old_one(
    tmp_path: Path, with_indexes: bool
) -> None:
    log = write(tmp_path, (0,) * 6)
    path = Path(log.segments[0].log_path)
    content = bytearray(path.read_bytes())
    places = [at for at, _ in walk(content)]
    content[places[-1 if with_indexes else 1] + 16] = 9  # there is no such magic
    put(path, content)
    if not with_indexes:
        for each in path.parent.glob(f"{path.stem}.*index"):
            each.unlink()
    configs = replace(SMALL, retention_ms=1000)
    clean = Ending(clean=True, recovery_point=log.end_offset, high_watermark=log.end_offset)
    found = reopen(tmp_path, configs, ending=clean)
    newest = log.segments[0].newest[0]
    assert finish(found.housekeeping(newest + 999)) is None
    finish(found.housekeeping(newest + 1000))
    assert found.start_offset == 0, "the records after the damage are as young as they were"


def test_no_bit_of_an_epoch_checkpoint_is_believed(tmp_path: Path) -> None:
    log = write(tmp_path)
    path = tmp_path / "t-0" / "leader-epoch-checkpoint"
    content = path.read_bytes()
    clean = Ending(clean=True, recovery_point=log.end_offset, high_watermark=log.end_offset)
    for bit in range(len(content) * 8):
        put(path, flipped(content, bit))
        found = reopen(tmp_path, SMALL, ending=clean)
        assert found.epochs.entries == [(0, 0), (2, 20), (3, 40)], f"bit {bit} was believed"
        found.resources.files.close()


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_no_bit_of_a_base_offset_hides_an_epoch(tmp_path: Path, has_checkpoint: bool) -> None:
    """Simulation seed 94069: all that a follower had from later epochs was cut, for it was taken to
    be of the first one."""
    log = write(tmp_path)
    path = Path(log.segments[0].log_path)
    content = path.read_bytes()
    if not has_checkpoint:
        (tmp_path / "t-0" / "leader-epoch-checkpoint").unlink()
    crashed = Ending(recovery_point=log.end_offset, high_watermark=log.end_offset)
    for position, _ in list(walk(content))[:3]:
        for bit in range(8 * position, 8 * position + 64):
            put(path, flipped(content, bit))
            found = reopen(tmp_path, SMALL, ending=crashed)
            if found.damaged is None:
                assert found.epochs.entries == [(0, 0), (2, 20), (3, 40)], f"bit {bit}"
            found.resources.files.close()
            for note in (tmp_path / "t-0").glob("tidelog.damaged"):
                note.unlink()


def test_epochs_of_a_log_that_begins_within_a_batch_are_believed(tmp_path: Path) -> None:
    """DeleteRecords does that."""
    log = write(tmp_path, epochs=(1, 2))
    clean = Ending(clean=True, recovery_point=log.end_offset, high_watermark=log.end_offset)
    log = reopen(tmp_path, SMALL, ending=clean)
    log.high_watermark = log.end_offset
    assert log.advance_start(3) is None
    assert log.close()
    from_there = replace(clean, log_start=3)
    found = reopen(tmp_path, SMALL, ending=from_there)
    assert found.epochs.entries == [(1, 3), (2, 10)]
    assert found.recovered.mended == []


@pytest.mark.parametrize("epoch", [0, 1, 7])
def test_a_leader_epoch_that_falls_is_damage(tmp_path: Path, epoch: int) -> None:
    log = write(tmp_path, (2, 3))
    path = Path(log.segments[0].log_path)
    content = bytearray(path.read_bytes())
    position = next(at for at, header in walk(content) if header.base_offset == 4)
    content[position + 12 : position + 16] = epoch.to_bytes(4, "big")
    put(path, content)
    found = reopen(tmp_path, SMALL, ending=Ending(high_watermark=log.end_offset))
    assert found.damaged is not None and "leader epoch" in found.damaged


def test_a_false_leader_epoch_does_not_get_about(tmp_path: Path) -> None:
    log = write(tmp_path)
    path = Path(log.segments[1].log_path)
    content = bytearray(path.read_bytes())
    content[12:16] = (2048).to_bytes(4, "big")
    put(path, content)
    (tmp_path / "t-0" / "leader-epoch-checkpoint").unlink()
    ending = Ending(clean=True, recovery_point=log.end_offset, high_watermark=log.end_offset)
    found = reopen(tmp_path, SMALL, ending=ending)
    assert found.damaged is not None and found.latest_epoch < 2048


def test_no_bit_of_a_checkpoint_is_believed() -> None:
    offsets = {TopicPartition("t", 0): 1234, TopicPartition("other", 12): 0}
    content = encode_offsets(offsets)
    assert decode_offsets(content) == offsets
    for bit in range(len(content) * 8):
        try:
            found = decode_offsets(flipped(content, bit))
        except DamagedFile:
            continue
        assert {key: found.get(key) for key in offsets} == offsets, f"bit {bit} was believed"


def test_no_bit_of_a_checkpoint_is_believed_when_its_crc_is_not_found() -> None:
    content = encode_offsets({TopicPartition("t", 0): 1234})
    name = content.index(b"#crc32c")
    for bit in range(name * 8, (name + 7) * 8):
        with pytest.raises(DamagedFile):
            decode_offsets(flipped(flipped(content, bit), 8 * content.index(b"1234")))


def test_checkpoints_without_a_crc_are_read() -> None:
    assert decode_offsets(b"0\n1\nt 0 7\n") == {TopicPartition("t", 0): 7}


def test_no_bit_of_the_partition_metadata_is_believed() -> None:
    metadata = PartitionMetadata(uuid.UUID(int=0x1234_5678_9ABC_DEF0_1111), 7)
    content = encode_partition_metadata(metadata)
    for bit in range(len(content) * 8):
        try:
            found = decode_partition_metadata(flipped(content, bit))
        except DamagedFile:
            continue
        assert found == metadata, f"bit {bit} was believed"


def test_no_bit_of_the_partition_metadata_is_believed_when_its_crc_is_not_found() -> None:
    """Simulation seed 91010: the id of another topic, and the replica was removed as stale."""
    content = encode_partition_metadata(PartitionMetadata(uuid.UUID(int=0x1234_5678), 7))
    for bit in range(content.index(b"crc32c") * 8, len(content) * 8):
        changed = flipped(flipped(content, bit), 8 * content.index(b"topic_id: ") + 120)
        with pytest.raises(DamagedFile):
            decode_partition_metadata(changed)


def test_kafkas_partition_metadata_is_read() -> None:
    topic_id = uuid.UUID(int=0x1234_5678_9ABC_DEF0_1111)
    content = f"version: 0\ntopic_id: {encode_uuid(topic_id)}"
    for each in (content, f"{content}\n"):
        assert decode_partition_metadata(each.encode()) == PartitionMetadata(topic_id, -1)


def test_producers_are_found_with_an_index_that_lies(tmp_path: Path) -> None:
    log = write(tmp_path)
    for snapshot in (tmp_path / "t-0").glob("*.snapshot"):
        if int(snapshot.stem) > log.segments[1].base_offset:
            snapshot.unlink()
    saved = tmp_path / "saved"
    shutil.copytree(tmp_path / "t-0", saved)
    path = Path(log.segments[1].index_path)
    content = path.read_bytes()
    for bit in range(0, len(content) * 8, 5):
        put(path, flipped(content, bit))
        ending = Ending(clean=True, recovery_point=log.end_offset, high_watermark=log.end_offset)
        found = reopen(tmp_path, SMALL, ending=ending)
        assert found.producers.entries[3].last_offset == log.end_offset - 1
        found.resources.files.close()
