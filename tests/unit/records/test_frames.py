"""The frames of compressed payloads that a leader takes: those that every reader takes."""

from __future__ import annotations

import gzip
import random

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.support.lying_batches import FRAMES
from tidelog.records.compression import Codec, compress
from tidelog.records.frames import ZSTD_WINDOW_BYTES, frame_fault, start_fault

PLAIN = random.Random(7).randbytes(200) * 2000

AT_ONCE = {
    "gzip": None,
    "lz4": None,
    "lz4, block format": "not of LZ4",
    "lz4, block size": "block descriptor",
    "lz4, bytes after it": None,
    "lz4, linked": "depend on each other",
    "lz4, no size": None,
    "lz4, reserved flags": "flags",
    "lz4, sums": None,
    "lz4, unknown version": "flags",
    "lz4, wrong check of the header": "check of its LZ4 frame's header",
    "snappy, raw": None,
    "zstd": None,
    "zstd, a skipped frame": "not of Zstandard",
    "zstd, a window of 2 GB": "window",
    "zstd, no size": None,
}
"""What the first bytes show, of each batch."""

IN_ALL = {
    "lz4, bytes after it": "bytes follow it",
    "lz4, no end": "cut short",
    "lz4, two frames": "bytes follow it",
    "zstd, bytes after it": "bytes follow it",
    "zstd, cut": "cut short",
    "zstd, two frames": "bytes follow it",
}
"""What the whole frame shows, of a batch that is looked into."""


@pytest.mark.parametrize("name", AT_ONCE)
def test_the_first_bytes_of_a_payload(name: str) -> None:
    codec, make = FRAMES[name]
    fault = start_fault(codec, memoryview(make(PLAIN)))
    expected = AT_ONCE[name]
    assert fault is None if expected is None else expected in str(fault)


@pytest.mark.parametrize("name", IN_ALL)
def test_a_whole_frame(name: str) -> None:
    codec, make = FRAMES[name]
    payload = memoryview(make(PLAIN))
    assert start_fault(codec, payload) is None
    assert IN_ALL[name] in str(frame_fault(codec, payload))


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("other", list(Codec))
def test_a_payload_of_another_codec(codec: Codec, other: Codec) -> None:
    payload = memoryview(compress(other, PLAIN))
    assert (start_fault(codec, payload) is None) is (codec is other)


@given(
    st.binary(max_size=300_000),
    st.integers(4, 7),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
def test_every_frame_of_lz4_with_independent_blocks_is_taken(
    plain: bytes, block_size: int, options: tuple[bool, bool, bool]
) -> None:
    block_sums, sums, size = options
    payload = memoryview(
        lz4.frame.compress(
            plain,
            block_size=block_size,
            block_linked=False,
            block_checksum=block_sums,
            content_checksum=sums,
            store_size=size,
        )
    )
    assert start_fault(Codec.LZ4, payload) is None
    assert frame_fault(Codec.LZ4, payload) is None


@given(st.binary(max_size=300_000), st.integers(1, 19), st.booleans(), st.booleans())
def test_every_frame_of_zstandard_is_taken(
    plain: bytes, level: int, size: bool, sums: bool
) -> None:
    made = zstandard.ZstdCompressor(level=level, write_content_size=size, write_checksum=sums)
    payload = memoryview(made.compress(plain))
    assert start_fault(Codec.ZSTD, payload) is None
    assert frame_fault(Codec.ZSTD, payload) is None


@given(st.sampled_from(sorted(FRAMES)), st.lists(st.integers(0, 255), max_size=40), st.data())
def test_any_bytes_are_judged(name: str, tail: list[int], data: st.DataObject) -> None:
    """Nothing raises, whatever is cut, changed or added."""
    codec, make = FRAMES[name]
    payload = bytearray(make(b"some bytes " * 9))[: data.draw(st.integers(0, 80))] + bytes(tail)
    if payload:
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    view = memoryview(bytes(payload))
    if start_fault(codec, view) is None:
        frame_fault(codec, view)


@pytest.mark.parametrize(("exponent", "taken"), [(17, True), (18, False)])
def test_java_reads_windows_of_zstandard_up_to_128_mib(exponent: int, taken: bool) -> None:
    assert ZSTD_WINDOW_BYTES == 1 << 10 + 17
    head = b"\x28\xb5\x2f\xfd\x00" + bytes((exponent << 3,))
    assert (start_fault(Codec.ZSTD, memoryview(head + bytes(9))) is None) is taken


def test_an_empty_payload_is_of_no_codec() -> None:
    for codec in (Codec.GZIP, Codec.LZ4, Codec.ZSTD):
        assert start_fault(codec, memoryview(b"")) is not None
    assert start_fault(Codec.GZIP, memoryview(gzip.compress(b""))) is None
