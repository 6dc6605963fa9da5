"""The list of a log's fences, its look-ups, and the text of its file."""

from __future__ import annotations

import pytest

from tidelog.records.control_records import ChangeKind
from tidelog.storage.checkpoints import DamagedFile
from tidelog.storage.log.fences import FenceEntry, Fences, decode_fences, encode_fences

ONE = FenceEntry(1, 8, ChangeKind.FENCE, 120, 118)
THREE = FenceEntry(3, 4, ChangeKind.SEAL, 200, 200)
FENCES = Fences((ONE, THREE))
FILE = b"0\n2\n1 8 0 120 118\n3 4 1 200 200\ncrc32c: %d\n"


def test_a_fence_is_found_by_its_resize_epoch() -> None:
    assert FENCES.of(1) == ONE
    assert FENCES.of(3) == THREE
    assert [FENCES.of(epoch) for epoch in (0, 2, 4)] == [None] * 3
    assert FENCES.newest == THREE
    assert Fences().newest is None


def test_the_first_fence_after_a_resize_epoch_is_of_any_newer_one() -> None:
    found = [FENCES.first_after(epoch) for epoch in (-1, 0, 1, 2, 3)]
    assert found == [ONE, ONE, THREE, THREE, None]


def test_the_first_fence_of_an_epoch_counts_and_later_ones_must_be_newer() -> None:
    newer = FenceEntry(4, 6, ChangeKind.FENCE, 201, 200)
    assert FENCES.with_one(newer).entries == (ONE, THREE, newer)
    assert FENCES.with_one(THREE._replace(offset=300)) is FENCES
    assert FENCES.with_one(FenceEntry(2, 6, ChangeKind.FENCE, 300, 300)) is FENCES
    assert FENCES.with_one(newer._replace(offset=200)) is FENCES


def test_a_cut_keeps_the_fences_below_it() -> None:
    assert FENCES.below(201) is FENCES
    assert FENCES.below(200).entries == (ONE,)
    assert FENCES.below(120).entries == ()


def test_the_file_is_a_checkpoint_with_a_crc() -> None:
    content = encode_fences(FENCES.entries)
    _, _, crc = content.rpartition(b"crc32c: ")
    assert content == FILE % int(crc)
    assert decode_fences(content) == FENCES
    assert decode_fences(encode_fences(())) == Fences()


def test_each_flipped_bit_and_each_torn_end_is_seen() -> None:
    content = encode_fences(FENCES.entries)
    damaged = [content[:end] for end in range(len(content) - 1)]
    for at in range(len(content) - 1):
        for bit in range(8):
            changed = bytearray(content)
            changed[at] ^= 1 << bit
            damaged.append(bytes(changed))
    for each in damaged:
        try:
            assert decode_fences(each) == FENCES  # a space for another one, a zero in front
        except DamagedFile:
            continue


@pytest.mark.parametrize(
    "entries",
    [
        (THREE, ONE),
        (ONE, ONE._replace(offset=121)),
        (ONE, THREE._replace(offset=120)),
        (ONE._replace(kind=2),),  # type: ignore[arg-type]
    ],
)
def test_entries_that_do_not_rise_or_are_no_fences_are_damage(
    entries: tuple[FenceEntry, ...],
) -> None:
    with pytest.raises(DamagedFile):
        decode_fences(encode_fences(entries))
