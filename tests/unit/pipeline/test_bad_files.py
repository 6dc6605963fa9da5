"""Bad records in a lake: a table of their own, committed with their batch."""

from __future__ import annotations

import os
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.lakes import HOME, at, new_layout, offsets, staged, write_batch
from tidelog.pipeline.audit.bad_side import kept_offsets, not_kept
from tidelog.pipeline.audit.log_side import HeaderCount
from tidelog.pipeline.audit.pieces import pieces_of
from tidelog.pipeline.decoding.chunks import Decoder, Origin
from tidelog.pipeline.errors import LakeRefused
from tidelog.pipeline.lake import files
from tidelog.pipeline.lake.chain import fold, read_manifests, summary
from tidelog.pipeline.lake.commit import commit, recover
from tidelog.pipeline.lake.digests import file_digest
from tidelog.pipeline.lake.layout import Layout, bad_file_name
from tidelog.pipeline.lake.manifest import BadFile, Manifest, check_bad_files, check_files
from tidelog.pipeline.schema import choose_columns
from tidelog.records.batch import read_header
from tidelog.records.builder import NewRecord, build_batch

NANOSECONDS = 1_763_000_000_000_000_000


@pytest.fixture
def layout(tmp_path) -> Layout:  # type: ignore[no-untyped-def]
    return new_layout(tmp_path / "lake")


def read_rows(first: int = 0) -> list[pa.RecordBatch]:
    """As a task reads them: offsets 0, 2 and 6 are good, 1 and 3 to 5 are not."""
    records = [NewRecord(time, b"k", b"v") for time in (1000, NANOSECONDS, 2000)]
    torn = bytearray(build_batch([NewRecord(1000, b"k", b"v")] * 3, base_offset=first + 3))
    torn[-1] ^= 1
    data = [
        build_batch(records, base_offset=first),
        bytes(torn),
        build_batch([NewRecord(1000, b"k", b"v")], base_offset=first + 6),
    ]
    columns = choose_columns(files.READ_COLUMNS, headers=True, epoch=True, bad=True)
    decoder = Decoder(Origin("t", 0), columns, first, first + 7, quarantine=True)
    made = [row for part in range(3) for row in decoder.decode(b"".join(data[part:]))]
    assert decoder.next_offset == first + 7
    return made


def test_bad_records_are_committed_beside_the_good_ones(layout: Layout) -> None:
    made = staged(layout, *read_rows())
    assert [(file.first, file.last, file.rows) for file in made.files] == [(0, 6, 3)]
    (bad,) = made.bad
    assert (bad.first, bad.last, bad.rows, bad.offsets) == (1, 5, 2, 4)
    assert str(NANOSECONDS) in bad.reason and bad.path == bad_file_name(HOME, 1, 5)
    check_files(made.files, at(0), at(7))
    check_bad_files(made.bad, at(0), at(7))
    commit(layout, Manifest(0, "q", at(0), at(7), made.files, bad=made.bad), made.places)
    (manifest,) = read_manifests(layout)
    assert manifest.bad == made.bad and manifest.rows == 3 and manifest.bad_rows == 2
    assert bad.digest == file_digest(layout.root / bad.path)
    rows = pq.ParquetFile(layout.root / bad.path).read().to_pylist()
    assert [(row["offset"], row["badTo"], row["timestampMs"]) for row in rows] == [
        (1, 2, NANOSECONDS),
        (3, 6, None),
    ]
    assert rows[0]["value"] == b"v" and rows[1]["value"] is None and rows[1]["badRaw"]
    assert offsets(layout) == [0, 2, 6]
    assert list(layout.data_files()) == [file.path for file in made.files]
    assert summary(layout)[0].bad == 2
    write_batch(layout, 1, 7, 9)
    fold(layout, 1)
    assert summary(layout)[0].bad == 2, "a manifest checkpoint has the sum, too"


def test_a_batch_of_bad_records_alone_has_no_data_file(layout: Layout) -> None:
    made = staged(layout, *(batch.slice(1, 1) for batch in read_rows()[:1]))
    assert not made.files and [file.offsets for file in made.bad] == [1]


def test_a_crash_leaves_no_bad_records_of_a_batch_that_is_not_there(layout: Layout) -> None:
    made = staged(layout, *read_rows())
    draft = Manifest(0, "q", at(0), at(7), made.files, bad=made.bad)
    layout.manifests.joinpath("0.draft").write_text(draft.to_line())
    for name, now in made.places.items():
        (layout.root / name).parent.mkdir(parents=True)
        os.link(now, layout.root / name)
    assert sorted(recover(layout)) == sorted(made.places)
    assert not list(layout.root.rglob("*.parquet"))


def test_bad_files_that_do_not_lie_in_their_batch_are_refused() -> None:
    def bad(first: int, last: int) -> BadFile:
        return BadFile(bad_file_name(HOME, first, last), HOME, first, last, 1, 1, 1, "", "")

    check_bad_files([bad(3, 4), bad(0, 2)], at(0), at(5))
    for wrong in ([bad(3, 5)], [bad(0, 3), bad(3, 4)]):
        with pytest.raises(LakeRefused, match="does not lie in its batch or overlaps another"):
            check_bad_files(wrong, at(0), at(5))


def test_an_audit_knows_which_bad_records_the_lake_has_kept(layout: Layout) -> None:
    """By offset, from files whose bytes are those of the manifest."""
    made = staged(layout, *read_rows())
    manifest = Manifest(0, "q", at(0), at(7), made.files, bad=made.bad)
    commit(layout, manifest, made.places)
    (piece,) = pieces_of(manifest)
    assert kept_offsets(layout.root, piece.bad_files) == [(1, 2), (3, 6)]
    place = layout.root / made.bad[0].path
    place.write_bytes(place.read_bytes()[:-1] + b"?")
    assert kept_offsets(layout.root, piece.bad_files) == []
    place.unlink()
    assert kept_offsets(layout.root, piece.bad_files) == []
    without = replace(made.bad[0], first=7, last=9)
    assert not next(iter(pieces_of(replace(manifest, bad=(without,))))).bad_files


@pytest.mark.parametrize(
    ("log", "kept", "left"),
    [
        ([], [(0, 9)], []),
        ([(3, 6)], [], [(3, 6)]),
        ([(3, 6)], [(0, 9)], []),
        ([(3, 6)], [(4, 5)], [(3, 4), (5, 6)]),
        ([(3, 6), (8, 9)], [(5, 6), (3, 5)], [(8, 9)]),
        ([(0, 3), (3, 6)], [(2, 4), (5, 9)], [(0, 2), (4, 5)]),
    ],
)
def test_what_of_the_log_is_not_kept(log: list, kept: list, left: list) -> None:  # type: ignore[type-arg]
    assert not_kept(log, kept) == left


def test_headers_of_what_cannot_be_read_are_not_counted() -> None:
    whole = build_batch([NewRecord(1000, b"k", b"v")] * 4, base_offset=2)
    for ends, rows in (([10], [0]), ([4, 10], [0, 0])):
        count = HeaderCount(0, ends)
        count.add(read_header(whole), memoryview(whole))
        assert sum(count.rows) == 4
        count.forget(read_header(whole))
        assert count.rows == rows
    count.forget_one(5)
    assert count.rows == [0, -1]


def test_a_manifest_without_bad_records_is_what_it_was() -> None:
    assert "bad" not in Manifest(0, "q", at(0), at(7)).to_line()
