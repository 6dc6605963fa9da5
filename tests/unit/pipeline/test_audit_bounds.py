"""The lake audit at its bounds: losses, ends of files, ids, and what goes on meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.lakes import new_layout, write_batch
from tidelog.partitioning.audit_rules import TopicCounts
from tidelog.partitioning.hashing import hash_of_key
from tidelog.pipeline.audit import record
from tidelog.pipeline.audit.comparing import differences
from tidelog.pipeline.audit.facts import UNKNOWN, Keys, Piece, PieceFacts
from tidelog.pipeline.audit.gather import _gone
from tidelog.pipeline.audit.homes import away_from_home
from tidelog.pipeline.audit.lake_side import CONTENT, LakeFileRows
from tidelog.pipeline.audit.live import Live
from tidelog.pipeline.audit.pieces import losses_of, overlaps, pieces_of
from tidelog.pipeline.audit.record import known_and_new
from tidelog.pipeline.lake import offsets
from tidelog.pipeline.lake.chain import read_manifests, summary
from tidelog.pipeline.lake.layout import Layout
from tidelog.pipeline.lake.manifest import LakeFile, Manifest
from tidelog.pipeline.lake.offsets import LakePartition
from tidelog.pipeline.lake.summary import Summary, SummaryPart
from tidelog.pipeline.schema import arrow_schema

HOME = LakePartition("t", "id", 0)


def manifest_of(
    number: int,
    begin: int,
    end: int,
    *bounds: tuple[int, int],
    lost: Sequence[tuple[int, int]] = (),
) -> Manifest:
    def at(offset: int) -> dict[str, object]:
        return {
            "version": 2,
            "topics": {"t": {"id": "id", "positions": {"0": [offset, 0]}}},
        }

    files = tuple(
        LakeFile(f"{first}-{last}", HOME, first, last, last - first + 1, 100, digest="sha256:x")
        for first, last in bounds
    )
    losses = tuple(offsets.SkippedRange(HOME, *each, "retention") for each in lost)
    return replace(Manifest(number, "q", at(begin), at(end), files), losses=losses)


def line_of(piece: Piece) -> tuple[Piece, PieceFacts]:
    return piece, PieceFacts(piece.start, found_rows=piece.rows)


def table_of(*pieces: Piece) -> pa.Table:
    return record.lines_of(map(line_of, pieces), [(1, 1)] * len(pieces), Keys.ANY, "")


# Pieces and losses


def test_a_loss_counts_in_the_pieces_that_it_meets_alone() -> None:
    made = manifest_of(1, 0, 30, (0, 4), (20, 24), (25, 29), lost=[(2, 3), (12, 15)])
    assert [each.lost for each in pieces_of(made)] == [1, 3, 0]


def test_a_loss_of_an_unknown_number_of_offsets_is_one_of_none() -> None:
    made = manifest_of(1, 0, 9, lost=[(4, offsets.UNKNOWN_END)])
    (loss,) = losses_of(made)
    assert (loss.start, loss.offsets) == (4, 0)


def test_files_that_share_one_offset_overlap_and_neighbours_do_not() -> None:
    a, b, c = (
        Piece("t", "id", 0, first, last + 1, path, first, last, last - first + 1)
        for first, last, path in ((0, 9, "a"), (9, 12, "b"), (13, 14, "c"))
    )
    assert overlaps(table_of(a, b, c)) == [("b", "a")]


# The record of earlier audits


def lake_of(tmp_path: Path, *manifests: Manifest) -> Layout:
    layout = Layout(tmp_path)
    layout.manifests.mkdir(exist_ok=True)
    for each in manifests:
        layout.manifest(each.batch).write_text(each.to_line())
    return layout


def test_batches_that_an_archive_job_adds_meanwhile_are_left_to_the_next_audit(
    tmp_path: Path,
) -> None:
    first, second = manifest_of(0, 0, 5, (0, 4)), manifest_of(1, 5, 10, (5, 9))
    layout = lake_of(tmp_path, first)
    whole, _ = summary(layout)
    lake_of(tmp_path, second)
    known, fresh = known_and_new(layout, whole, None)
    assert known.batch == 0
    assert known.seal == record.seal_of(first)
    # Its batch 0 says where the query begins, and has no range.
    assert [each.path for each in fresh] == ["0-4"]


def test_a_record_of_a_later_audit_is_none_of_the_batches_before(tmp_path: Path) -> None:
    """Two audits at once: the slower one began before the last batch."""
    chain = [manifest_of(0, 0, 5, (0, 4)), manifest_of(1, 5, 10, (5, 9))]
    layout = lake_of(tmp_path, chain[0])
    whole, _ = summary(layout)
    lake_of(tmp_path, chain[1])
    pieces = [piece for each in chain for piece in pieces_of(each)]
    later = record.AuditRecord(table_of(*pieces), 1, record.seal_of(chain[1]), ())
    known, fresh = known_and_new(layout, whole, later)
    assert (len(known.table), len(fresh)) == (0, 1)


# Keys


def test_a_topic_that_grew_before_its_first_resize_has_old_records_by_fewer_partitions() -> None:
    """From 2 to 4 below level 1.5, which then was its initial count, and from 4 to 8 above it."""
    keys = [b"key-%d" % number for number in range(200)]
    resized = TopicCounts(4, {1: (8,)})
    epochs = pa.array([0] * len(keys), pa.int32())
    away = away_from_home(pa.array(keys, pa.binary()), 1, (2, 8), epochs, resized).tolist()
    homes = [{hash_of_key(key) % count for count in (2, 3, 4)} for key in keys]
    assert away == [1 not in found for found in homes]
    assert not all(away) and any(away)


@pytest.mark.parametrize("partition", [0, 1])
def test_a_record_without_a_key_is_at_home_everywhere(partition: int) -> None:
    assert away_from_home(pa.array([None], pa.binary()), partition, (2, 2)).tolist() == [False]


# Rows and files


def with_headers(*lists: Sequence[tuple[str, bytes]]) -> pa.RecordBatch:
    made = [
        {
            "key": b"k",
            "value": b"v",
            "offset": number,
            "timestamp": 0,
            "timestampType": 0,
            "headers": [{"key": key, "value": value} for key, value in each],
            "epoch": 0,
        }
        for number, each in enumerate(lists)
    ]
    return pa.RecordBatch.from_pylist(made, schema=arrow_schema(CONTENT))


def test_headers_differ_in_the_row_that_has_them() -> None:
    """Also beside a row with another number of headers."""
    one, two = ("h", b"1"), ("h", b"2")
    lake = with_headers([one, one], [one], [], [one, one], [one])
    log = with_headers([one], [one], [], [one, two], [two])
    assert differences(lake, log).tolist() == [True, False, False, True, True]


def test_what_a_file_holds_twice_or_outside_of_its_range_is_counted(tmp_path: Path) -> None:
    layout = new_layout(tmp_path)
    write_batch(layout, 0, 0, 9)
    (manifest,) = read_manifests(layout)
    (piece,) = pieces_of(manifest)

    def checked(piece: Piece) -> PieceFacts:
        return LakeFileRows(tmp_path, piece, Keys.ANY, (1, 1)).check()

    assert checked(piece).outside == 0
    assert checked(replace(piece, end=9)).outside == 1
    assert checked(replace(piece, start=1)).outside == 1
    place = tmp_path / piece.path
    table = pq.read_table(place)
    pq.write_table(pa.concat_tables([table.slice(0, 5), table.slice(4)]), place)
    found = checked(piece)
    assert (found.disorder, found.distinct, found.found_rows, found.wrong_bytes) == (
        1,
        10,
        11,
        True,
    )
    # A manifest of version 1 has no digest.
    assert not checked(replace(piece, digest="")).wrong_bytes


# Topics as they are now


@pytest.mark.parametrize(
    ("now", "then", "found", "became"),
    [
        ("id", "id", (2, 9), None),
        # A cluster without topic ids, and a lake of one.
        ("", "id", (2, 9), None),
        ("id", "", (2, 9), None),
        ("new", "id", (-1, -1), "deleted and created again with the id new"),
        (None, "id", (-1, -1), "the topic is deleted"),
    ],
)
def test_which_topic_a_lake_is_compared_with(
    now: str | None, then: str, found: tuple[int, int], became: str | None
) -> None:
    live = Live() if now is None else Live({"t": now}, {("t", now, 0): (2, 9)})
    assert live.of(("t", then, 0)) == found
    said = live.what_became_of("t", then)
    assert said is None if became is None else became in (said or "")


@pytest.mark.parametrize(("reached", "lacking"), [(7, 2), (9, 0), (10, 0)])
def test_what_a_lake_lacks_of_a_removed_partition_ends_with_its_data(
    reached: int, lacking: int
) -> None:
    """Its seal may have been read, which is no record."""
    gone = LakePartition("t", "id", 1)
    whole = Summary(0, 0, 0, {HOME: SummaryPart(0, 5), gone: SummaryPart(0, reached, 6)})
    live = Live({"t": "id"}, {tuple(HOME): (0, 5)}, data_ends={tuple(gone): 9})
    (found,) = _gone(whole, live)
    assert (found.partition, found.lacking) == ("1", lacking)
    (unknown,) = _gone(whole, replace(live, data_ends={}))
    assert (unknown.what, unknown.lacking) == ("the partition is gone", UNKNOWN)
