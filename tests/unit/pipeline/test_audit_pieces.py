"""What an audit reads: the pieces of a lake, the record of earlier audits, the second counts."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.lakes import new_layout, rows, write_batch
from tidelog.pipeline.audit import record
from tidelog.pipeline.audit.facts import Keys, Piece, PieceFacts, RecordedLoss
from tidelog.pipeline.audit.lake_side import LakeFileRows
from tidelog.pipeline.audit.log_side import Again, HeaderCount
from tidelog.pipeline.audit.pieces import OFFSETS_PER_TASK, explained, overlaps, pieces_of, tasks_of
from tidelog.pipeline.audit.reading import PieceToCompare, runs
from tidelog.pipeline.audit.record import known_and_new
from tidelog.pipeline.audit.totals import by_partition, partition_counts
from tidelog.pipeline.decoding.chunks import Decoder, Origin
from tidelog.pipeline.lake import offsets
from tidelog.pipeline.lake.chain import read_manifests, summary
from tidelog.pipeline.lake.files import COLUMNS
from tidelog.pipeline.lake.layout import Layout
from tidelog.pipeline.lake.manifest import LakeFile, Manifest
from tidelog.pipeline.lake.offsets import LakePartition, Offset
from tidelog.records.batch import read_header, seal_batch
from tidelog.records.builder import NewRecord, build_batch
from tidelog.records.record import encode_record

HOME = LakePartition("t", "id", 0)
OTHER = LakePartition("t", "id", 1)


def at(*positions: int) -> Offset:
    places = {str(number): [offset, 0] for number, offset in enumerate(positions)}
    return {"version": 2, "topics": {"t": {"id": "id", "positions": places}}}


def file(home: LakePartition, first: int, last: int) -> LakeFile:
    path = f"{home.topic}/id={home.topic_id}/p={home.partition}/{first}-{last}.parquet"
    return LakeFile(path, home, first, last, last - first + 1, 100, digest="sha256:x")


def batch(number: int, start: Offset | None, end: Offset, *files: LakeFile) -> Manifest:
    return Manifest(number, "q", start, end, files)


def ranges(manifest: Manifest) -> list[tuple[int, int, int, str]]:
    return [
        (each.partition, each.start, each.end, each.path.rpartition("/")[2])
        for each in pieces_of(manifest)
    ]


def test_pieces_cover_a_batch_without_a_gap() -> None:
    assert ranges(batch(0, None, at(5, 0))) == [], "the first batch says where the query begins"
    files = (file(HOME, 7, 8), file(OTHER, 0, 3), file(HOME, 12, 14))
    assert ranges(batch(1, at(5, 0), at(20, 4), *files)) == [
        (0, 5, 9, "7-8.parquet"),
        (0, 9, 20, "12-14.parquet"),
        (1, 0, 4, "0-3.parquet"),
    ]
    # Control records only in one partition, nothing at all in the other.
    assert ranges(batch(2, at(20, 4), at(25, 4))) == [(0, 20, 25, "")]


def test_pieces_say_what_their_manifest_says_and_what_it_cannot() -> None:
    losses = (
        offsets.SkippedRange(HOME, 5, 12, "retention"),
        offsets.SkippedRange(OTHER, 0, 9, "retention"),
    )
    told = replace(
        batch(1, at(2, 0), at(20, 0), file(HOME, 3, 4), file(HOME, 12, 19)),
        losses=losses,
        isolation="read_committed",
        policies={"t": "compact, delete"},
    )
    first, second = pieces_of(told)
    assert (first.lost, second.lost) == (0, 7)
    assert (first.isolation, first.compacted, first.partitions) == ("read_committed", True, 2)
    assert first.digest == "sha256:x"
    (old, *_) = pieces_of(replace(told, version=1, losses=(), isolation=None, policies={}))
    assert (old.lost, old.isolation, old.compacted) == (-1, "", False)


def test_files_share_a_task_while_they_are_small() -> None:
    small = [Piece("t", "id", 0, n * 1000, n * 1000 + 1000) for n in range(100)]
    large = [Piece("t", "id", 1, n * 10**6, (n + 1) * 10**6, f"f{n}", n * 10**6) for n in range(3)]
    made = tasks_of([*large, *reversed(small)])
    assert [piece for task in made for piece in task] == [*small, *large]
    assert [len(task) for task in made] == [-(-OFFSETS_PER_TASK // 1000), 34, 1, 1, 1]
    assert tasks_of([]) == []


def test_the_log_is_read_on_over_pieces_that_follow() -> None:
    pieces = [Piece("t", "id", 0, n, n + 10) for n in (0, 10, 20, 40)]
    other = Piece("t", "id", 1, 50, 60)
    wanted = [PieceToCompare(each, 5, 100, (2, 2)) for each in (*pieces, other)]
    assert [len(group) for group in runs(wanted)] == [3, 1, 1]
    assert [(each.begin, each.end) for each in wanted[:2]] == [(5, 10), (10, 20)]
    # Nothing is read of a log that is gone, begins after the piece or ends before it.
    for start, end in ((-1, -1), (90, 100), (0, 0)):
        assert all(
            each.begin == each.end
            for each in [PieceToCompare(p, start, end, (1, 1)) for p in pieces]
        )
    # What is compared begins within the piece, so that no share of it is below zero.
    assert [PieceToCompare(p, 15, 100, (1, 1)).begin for p in pieces] == [10, 15, 20, 40]
    changed = [wanted[0], replace(wanted[1], piece=replace(pieces[1], isolation="read_committed"))]
    assert len(list(runs(changed))) == 2


def facts_of(piece: Piece, **more: object) -> PieceFacts:
    rows = {"found_rows": piece.rows, "distinct": piece.rows, "log_rows": piece.rows}
    found = {"found_first": piece.first, "found_last": piece.last, "header_rows": piece.rows}
    return PieceFacts(**{"log_from": piece.start, **rows, **found, **more})  # type: ignore[arg-type]


def lines(*found: tuple[Piece, PieceFacts], seen: tuple[int, int] = (100, 1)) -> pa.Table:
    return record.lines_of(found, [seen] * len(found), Keys.ANY, "read_uncommitted")


def test_totals_of_what_was_compared_earlier_and_now() -> None:
    manifest = batch(
        1, at(0, 0), at(20, 10), file(HOME, 0, 9), file(HOME, 10, 19), file(OTHER, 0, 9)
    )
    one, two, three = pieces_of(manifest)
    # The log began at 4 when the first was compared; it had no record of 5 offsets of the third.
    found = (
        (one, facts_of(one, log_from=4, below=3)),
        (two, facts_of(two, missing=2, missing_first=12, missing_last=15)),
        (replace(three, lost=-1), facts_of(three, log_from=8, below=3)),
    )
    made = by_partition(lines(*found), pa.array([False, True, True]))
    first, second = made[HOME], made[OTHER]
    assert (first["lake_rows"], first["compared"], first["compared_now"]) == (20, 16, 10)
    assert (first["below"], first["unexplained"]) == (3, 0)
    assert (first["missing"], first["missing_first"], first["missing_last"]) == (2, 12, 15)
    assert (second["compared"], second["unexplained"], second["missing_first"]) == (2, 5, -1)
    assert by_partition(record.SCHEMA.empty_table(), pa.array([], pa.bool_())) == {}
    grown = partition_counts(lines(*found), [replace(one, partitions=4)], [HOME, OTHER])
    assert grown == {("t", "id"): (2, 4)}


def test_rows_that_the_log_lacks_are_a_fault_unless_compaction_took_them() -> None:
    """P2."""
    (piece,) = pieces_of(batch(1, at(0), at(10), file(HOME, 0, 9)))
    found = facts_of(piece, extra=3, log_rows=7, header_rows=7)
    assert explained(piece, found, False) == found and not found.is_clean(piece)
    for then, now in ((True, False), (False, True)):
        made = explained(replace(piece, compacted=then), found, now)
        assert (made.extra, made.compacted_away, made.is_clean(piece)) == (0, 3, True)


def test_overlapping_files_are_found_whenever_they_were_compared() -> None:
    names = [(0, 9, "a"), (5, 6, "b"), (8, 12, "c"), (13, 14, "d")]
    pieces = [
        Piece("t", "id", 0, first, last + 1, path, first, last) for first, last, path in names
    ]
    other = Piece("u", "id", 0, 0, 5, "e", 0, 4)
    found = [(piece, facts_of(piece)) for piece in (*reversed(pieces), other)]
    assert overlaps(lines(*found)) == [("b", "a"), ("c", "a")]


def test_the_record_comes_back_as_it_was_and_is_not_believed_when_it_is_damaged(
    tmp_path: Path,
) -> None:
    assert record.load(tmp_path) is None
    (piece,) = pieces_of(batch(1, at(0), at(10), file(HOME, 0, 9)))
    table = lines((piece, facts_of(piece, away_example=b"\xff")))
    made = record.AuditRecord(table, 1, "seal", (RecordedLoss("t", "id", 0, 1, 2, "retention"),))
    record.save(tmp_path, made)
    again = record.load(tmp_path)
    assert again is not None and (again.batch, again.seal, again.losses) == (1, "seal", made.losses)
    assert record.pairs_of(again.table) == [(piece, facts_of(piece, away_example=b"\xff"))]
    place = tmp_path / "_audit" / "compared.arrow"
    assert [each.name for each in place.parent.iterdir()] == [place.name]
    whole = place.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"x" * 100):
        place.write_bytes(damaged)
        assert record.load(tmp_path) is None


def test_what_of_the_record_still_stands(tmp_path: Path) -> None:
    (piece,) = pieces_of(batch(1, at(0), at(10), file(HOME, 0, 9)))
    place = tmp_path / piece.path
    place.parent.mkdir(parents=True)
    place.write_bytes(b"x" * 100)
    seen = record.size_and_time(tmp_path, piece.path)

    def stands(
        facts: PieceFacts, keys: Keys = Keys.ANY, isolation: str = "read_uncommitted"
    ) -> bool:
        made = lines((piece, facts), seen=seen)
        (found,) = record.standing(tmp_path, made, keys, isolation).to_pylist()
        return bool(found)

    right = facts_of(piece)
    assert stands(right)
    assert not stands(facts_of(piece, differing=1)), "a fault is looked at again"
    assert not stands(right, Keys.MURMUR2), "its keys were not judged"
    assert stands(facts_of(piece, away=2)), "where keys lie is not asked"
    # The manifest does not say how the log was read: the option counts.
    assert not stands(right, isolation="read_committed")
    place.write_bytes(b"y" * 101)
    assert not stands(right), "the file is another one"
    place.unlink()
    assert not stands(right)


def test_a_second_audit_reads_the_manifests_since_the_first(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.manifests.mkdir()
    chain = [
        batch(0, None, at(0)),
        batch(1, at(0), at(10), file(HOME, 0, 9)),
        batch(2, at(10), at(20), file(HOME, 10, 19)),
    ]

    def write(*manifests: Manifest) -> None:
        for each in manifests:
            layout.manifest(each.batch).write_text(each.to_line())

    write(*chain[:2])
    known, fresh = known_and_new(layout, summary(layout)[0], None)
    assert [each.start for each in fresh] == [0] and known.batch == 1
    known = replace(known, table=lines((fresh[0], facts_of(fresh[0]))))
    write(chain[2])
    later, fresh = known_and_new(layout, summary(layout)[0], known)
    assert ([each.start for each in fresh], later.batch, len(later.table)) == ([10], 2, 1)
    same, none = known_and_new(layout, summary(layout)[0], replace(later))
    assert (none, same.batch, same.seal) == ([], 2, later.seal)
    # Another lake in the same folder, longer or shorter: the record is none of its.
    for manifest in chain:
        write(replace(manifest, query_id="other"))
    other, fresh = known_and_new(layout, summary(layout)[0], later)
    assert (len(fresh), len(other.table)) == (2, 0)
    layout.manifest(2).unlink()
    other, fresh = known_and_new(layout, summary(layout)[0], later)
    assert (len(fresh), len(other.table)) == (1, 0)


def made_batch(first: int, deltas: Sequence[int], last_delta: int) -> memoryview:
    """A batch of records at these offsets, as compaction leaves it when some are missing."""
    header = read_header(build_batch([NewRecord(1000, b"k", b"v")], base_offset=first))
    fields = {"record_count": len(deltas), "last_offset_delta": last_delta}
    records = b"".join(encode_record(delta, 0, b"k", b"v") for delta in deltas)
    return memoryview(seal_batch(header._replace(**fields), records))


def test_headers_are_counted_range_by_range() -> None:
    rng = random.Random(5)
    for _ in range(100):
        end = rng.randrange(20, 60)
        cuts = sorted(rng.sample(range(1, end), 3))
        first = rng.randrange(cuts[0])
        counted, wanted = HeaderCount(first, cuts), [0] * len(cuts)
        at_ = 0
        while at_ < end:
            size = rng.randrange(1, 12)
            gone = 0.4 if rng.random() < 0.5 else 0.0
            deltas = [delta for delta in range(size) if rng.random() >= gone]
            made = made_batch(at_, deltas, size - 1)
            counted.add(read_header(made), made)
            if rng.random() < 0.2:
                # A fetch after a loss brings a batch once more.
                counted.add(read_header(made), made)
            for delta in deltas:
                if first <= at_ + delta < cuts[-1]:
                    wanted[bisect_right(cuts, at_ + delta)] += 1
            at_ += size
        assert counted.rows == wanted


def test_a_batch_up_to_the_end_of_a_range_lies_in_it_and_no_offset_is_counted_twice() -> None:
    counted = HeaderCount(0, [5, 20])
    for first, size, at_ in ((0, 5, 0), (3, 2, 0), (3, 7, None), (5, 15, 1), (15, 6, None)):
        assert counted.range_of(read_header(made_batch(first, range(size), size - 1))) == at_
    # Another leader's batch after a loss lies in part below what was counted.
    for first, size in ((5, 5), (8, 7)):
        made = made_batch(first, range(size), size - 1)
        counted.add(read_header(made), made)
    assert counted.rows == [0, 10]


def decoded(raw: memoryview, end: int) -> pa.RecordBatch:
    columns = ("key", "value", "offset", "timestamp", "headers")
    (rows,) = Decoder(Origin("t", 0), columns, 0, end).decode(raw)
    return rows


def test_a_batch_is_decoded_a_second_way() -> None:
    records = [
        NewRecord(1_700_000_000_000 + n, None if n % 2 else b"k", b"v", [("h", None)])
        for n in range(9)
    ]
    raw = memoryview(build_batch(records))
    header = read_header(raw)
    again = Again()
    again.offer(header, raw)
    rows = decoded(raw, 9)
    again.compare(rows)
    assert (again.rows, again.differing) == (9, 0)
    changed = rows.set_column(1, "value", pa.array([b"v"] * 8 + [b"w"], pa.binary()))
    for wrong, differing in ((changed, 1), (rows.slice(1), 9), (rows.slice(0, 7), 2)):
        again = Again()
        again.offer(header, raw)
        again.compare(wrong)
        assert again.differing == differing
    # A record that the other decoder gives twice shifts all after it.
    again = Again()
    again.offer(header, raw)
    twice = pa.Table.from_batches([rows.slice(0, 1), rows]).combine_chunks().to_batches()[0]
    again.compare(twice)
    assert again.differing == 9
    # The first batch of a range is the one that is decoded.
    again = Again()
    again.offer(header, raw)
    short = memoryview(build_batch(records[:2], base_offset=9))
    again.offer(read_header(short), short)
    assert again.rows == 9
    # Records that a decoder never gave differ all.
    again = Again()
    again.offer(header, raw)
    assert (again.rows, again.differing) == (9, 9)
    again = Again()
    again.offer(header._replace(record_count=5000), raw)
    assert again.rows == 0, "too long for plain Python"


def test_the_seal_tells_manifests_apart() -> None:
    manifest = batch(1, at(0), at(10))
    assert record.seal_of(manifest) == record.seal_of(replace(manifest))
    assert record.seal_of(manifest) != record.seal_of(replace(manifest, end=at(11)))


def test_a_file_is_read_in_the_order_of_its_offsets_whatever_lies_in_it(tmp_path: Path) -> None:
    layout = new_layout(tmp_path)
    write_batch(layout, 0, 0, 9)
    (manifest,) = read_manifests(layout)
    (piece,) = pieces_of(manifest)

    def look() -> tuple[PieceFacts, LakeFileRows, list[int]]:
        file = LakeFileRows(tmp_path, piece, Keys.MURMUR2, (1, 1))
        facts = file.check()
        found = [each for part in file.batches() for each in part.column("offset").to_pylist()]
        return facts, file, found

    facts, file, found = look()
    assert (facts.found_rows, facts.found_first, facts.found_last, facts.disorder) == (10, 0, 9, 0)
    assert (facts.wrong_bytes, file.misplaced, file.away, found) == (False, 0, 0, [*range(10)])
    table = pa.Table.from_batches([rows(5, 9), rows(0, 5)])
    pq.write_table(table.select(COLUMNS), tmp_path / piece.path)
    facts, file, found = look()
    assert (facts.disorder, facts.distinct, facts.wrong_bytes) == (1, 10, True)
    assert found == [0, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9]
    piece = replace(piece, partition=1)
    assert look()[1].misplaced == 11
    pq.write_table(table.select(["key", "value"]), tmp_path / piece.path)
    assert "offset" in look()[1].problem
    (tmp_path / piece.path).write_bytes(b"PAR1 nothing")
    assert look()[1].problem and not look()[2]
    (tmp_path / piece.path).unlink()
    assert look()[1].problem
