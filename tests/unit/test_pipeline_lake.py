"""The lake's manifest: crashes at every step, wrong continuations, and the files of a task."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidelog.pipeline.errors import LakeRefused
from tidelog.pipeline.jobs.archive import Archive, ArchiveSettings
from tidelog.pipeline.lake import files, manifest
from tidelog.pipeline.lake.layout import Layout, file_name, folder
from tidelog.pipeline.lake.manifest import (
    LakeFile,
    Manifest,
    check_files,
    check_follows,
    check_new,
    commit,
    lock,
    read_manifests,
    recover,
)
from tidelog.pipeline.planning.positions import Pid, Positions
from tidelog.pipeline.schema import arrow_schema

PID = Pid("t", 0)
IDS = {"t": "id"}


def at(offset: int) -> Positions:
    return Positions({PID: offset}, IDS)


def rows(first: int, last: int, partition: int = 0) -> pa.RecordBatch:
    count = last - first + 1
    columns = {
        "key": [None] * count,
        "value": [b"v%d" % n for n in range(first, last + 1)],
        "topic": ["t"] * count,
        "partition": [partition] * count,
        "offset": list(range(first, last + 1)),
        "timestamp": [0] * count,
        "timestampType": [0] * count,
        "headers": [None] * count,
        "epoch": [0] * count,
        "incarnation": [0] * count,
    }
    schema = arrow_schema(files.COLUMNS)
    arrays = [pa.array(columns[field.name]).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout.at(str(tmp_path / "lake"))
    for place in (made.manifests, made.inflight):
        place.mkdir(parents=True)
    return made


def stage(layout: Layout, *batches: pa.RecordBatch) -> list[dict[str, object]]:
    out = files.stage(str(layout.inflight), "zstd")(batches)
    return [line for batch in out for line in batch.to_pylist()]


def write_batch(layout: Layout, batch: int, first: int, last: int, query: str = "q") -> Manifest:
    staged = stage(layout, rows(first, last))
    made = tuple(LakeFile(**{k: v for k, v in s.items() if k != "staged"}) for s in staged)  # type: ignore[arg-type]
    done = Manifest(batch, query, at(first), at(last + 1), made)
    check_files(made, done.start, done.end)
    commit(layout, done, {str(s["path"]): Path(str(s["staged"])) for s in staged})
    return done


def offsets(layout: Layout) -> list[int]:
    """What is in the lake: the records of the files of its manifests."""
    return [
        offset
        for each in read_manifests(layout)
        for file in each.files
        for offset in pq.ParquetFile(layout.root / file.path).read(["offset"])[0].to_pylist()
    ]


def test_names_sort_as_offsets_and_tell_lives_apart() -> None:
    assert file_name(PID, 5, 7).startswith("t/p=0/00000000000000000005-00000000000000000007")
    assert file_name(Pid("t", 3, 2), 0, 1).startswith("t/p=3@2/")


def test_batches_form_a_chain(layout: Layout) -> None:
    write_batch(layout, 0, 0, 9)
    write_batch(layout, 1, 10, 14)
    assert offsets(layout) == list(range(15))
    assert [each.rows for each in read_manifests(layout)] == [10, 5]
    assert list(layout.inflight.iterdir()) == []


class Crash(Exception):
    pass


def crash_at(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, nth: int) -> None:
    real: Callable[..., object] = getattr(owner, name)
    calls = 0

    def crashing(*args: object, **more: object) -> object:
        nonlocal calls
        calls += 1
        if calls == nth:
            raise Crash
        return real(*args, **more)

    monkeypatch.setattr(owner, name, crashing)


@pytest.mark.parametrize(
    ("owner", "name"),
    [(Path, "replace"), (manifest, "_sync"), (os, "fsync"), (os, "link"), (Path, "unlink")],
)
def test_a_crash_at_any_step_and_the_batch_again(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, owner: object, name: str
) -> None:
    write_batch(layout, 0, 0, 9)
    crashed = 0
    for nth in range(1, 6):
        before = len(read_manifests(layout))
        with monkeypatch.context() as patch:
            crash_at(patch, owner, name, nth)
            try:
                write_batch(layout, before, 10 * before, 10 * before + 9)
            except Crash:
                crashed += 1
        found = read_manifests(layout)
        recover(layout, found, at(10 * before + 10) if len(found) == before else None)
        if len(found) == before:
            # Spark runs the uncommitted batch again.
            write_batch(layout, before, 10 * before, 10 * before + 9)
        assert offsets(layout) == list(range(10 * (before + 1)))
        listed = {file.path for each in read_manifests(layout) for file in each.files}
        assert set(layout.data_files()) == listed
    assert crashed > 0


def leave_behind(layout: Layout, first: int, last: int) -> str:
    """A data file that was moved into its place, and no manifest that names it."""
    (staged,) = stage(layout, rows(first, last))
    (layout.root / "t/p=0").mkdir(parents=True, exist_ok=True)
    Path(str(staged["staged"])).replace(layout.root / str(staged["path"]))
    return str(staged["path"])


def test_recovery_removes_what_a_crash_left_behind(layout: Layout) -> None:
    write_batch(layout, 0, 0, 9)
    stray = leave_behind(layout, 10, 12)
    (layout.inflight / "half.parquet").write_bytes(b"PAR1")
    assert recover(layout, read_manifests(layout), at(15)) == [stray]
    assert offsets(layout) == list(range(10))
    assert list(layout.inflight.iterdir()) == []


@pytest.mark.parametrize(
    ("lost", "first", "last", "cut_down"),
    [
        ("the manifests", 20, 24, at(25)),
        ("nothing, and no batch was begun", 20, 24, None),
        ("nothing, but the file reaches behind the batch", 20, 25, at(25)),
        ("nothing, but the file begins before the batch", 19, 24, at(25)),
    ],
)
def test_recovery_removes_nothing_that_no_crash_can_have_left(
    layout: Layout, lost: str, first: int, last: int, cut_down: Positions | None
) -> None:
    write_batch(layout, 0, 0, 9)
    write_batch(layout, 1, 10, 19)
    stray = leave_behind(layout, first, last)
    there = layout.data_files()
    manifests = [] if lost == "the manifests" else read_manifests(layout)
    with pytest.raises(LakeRefused, match="which no manifest names") as refused:
        recover(layout, manifests, cut_down)
    assert layout.data_files() == there and len(there) == 3
    if manifests:
        assert stray in str(refused.value)


def test_a_folder_of_somebody_else_is_refused(layout: Layout) -> None:
    (layout.root / "sales" / "p=3").mkdir(parents=True)
    theirs = layout.root / "sales" / "p=3" / "part-0000.parquet"
    theirs.write_bytes(b"PAR1")
    with pytest.raises(LakeRefused, match="part-0000"):
        recover(layout, [], None)
    assert theirs.exists()


def test_two_writers_of_one_batch(layout: Layout) -> None:
    write_batch(layout, 0, 0, 9)
    with pytest.raises(LakeRefused, match="already in the lake"):
        write_batch(layout, 0, 0, 9)


def test_one_job_at_a_time(layout: Layout) -> None:
    with lock(layout), pytest.raises(LakeRefused, match=f"process {os.getpid()}"), lock(layout):
        pass
    with lock(layout):
        pass


@pytest.mark.parametrize(
    ("batch", "query", "start", "words"),
    [
        (1, "other", 10, "written by query q"),
        (2, "q", 10, "a manifest is missing"),
        (1, "q", 11, "do not belong together"),
    ],
)
def test_wrong_continuations(
    layout: Layout, batch: int, query: str, start: int, words: str
) -> None:
    last = write_batch(layout, 0, 0, 9)
    with pytest.raises(LakeRefused, match=words):
        check_follows(last, batch, query, at(start))


def checkpoint_of(layout: Layout, query: str, **ends: int) -> Archive:
    """The job over a lake whose checkpoint is of this query; `b3=5`: batch 3 ends at offset 5."""
    (layout.checkpoint / "offsets").mkdir(parents=True)
    (layout.checkpoint / "metadata").write_text(json.dumps({"id": query}))
    for batch, end in ends.items():
        text = f"v1\n{{}}\n{json.dumps(at(end).to_json())}\n"
        (layout.checkpoint / "offsets" / batch[1:]).write_text(text)
    return Archive(ArchiveSettings("h:1", ("t",), str(layout.root)), layout)


def test_the_checkpoint_of_another_query_is_refused_before_it_loses_a_batch(
    layout: Layout,
) -> None:
    write_batch(layout, 0, 0, 9)
    with pytest.raises(LakeRefused, match="written by query q, this is other"):
        checkpoint_of(layout, "other")


def test_an_older_copy_of_the_checkpoint_does_not_skip_records(layout: Layout) -> None:
    write_batch(layout, 0, 0, 9)
    write_batch(layout, 1, 10, 14)
    job = checkpoint_of(layout, "q", b0=10, b1=20)
    # Spark runs a batch again whose manifest is there: nothing is to be done.
    job.write_batch(None, 0)
    # It planned the next one anew, and it reaches further now.
    with pytest.raises(LakeRefused, match="batch 1 of the checkpoint does not end where"):
        job.write_batch(None, 1)


def test_offsets_that_the_lake_has_reached_are_not_written_again() -> None:
    check_new([lake_file(10, 12)], {PID: 10})
    with pytest.raises(LakeRefused, match="t-0: the lake holds offsets below 10 already"):
        check_new([lake_file(8, 12)], {PID: 10})


def test_a_topic_with_an_underscore_is_data_and_our_folders_are_not(layout: Layout) -> None:
    for name in ("_schemas/p=0/a.parquet", "_checkpoint/p=0/b.parquet"):
        (layout.root / name).parent.mkdir(parents=True)
        (layout.root / name).write_bytes(b"PAR1")
    assert layout.data_files() == ["_schemas/p=0/a.parquet"]
    settings = ArchiveSettings("h:1", ("t,_manifest",), str(layout.root))
    with pytest.raises(LakeRefused, match="topic _manifest cannot be archived"):
        Archive(settings, layout)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"version":1,"batch":0,"queryId":"q","start":null,"end":5,"files":[]}']
)
def test_a_damaged_manifest_is_named(layout: Layout, text: str) -> None:
    write_batch(layout, 0, 0, 9)
    layout.manifest(0).write_text(text)
    with pytest.raises(LakeRefused, match="is damaged"):
        read_manifests(layout)


def lake_file(first: int, last: int, path: str | None = None) -> LakeFile:
    return LakeFile(path or file_name(PID, first, last), "t", 0, 0, first, last, 1, 1)


@pytest.mark.parametrize(
    "made",
    [
        [lake_file(0, 10)],
        [lake_file(0, 5), lake_file(5, 9)],
        [lake_file(0, 5, "t/p=0/x.parquet")],
    ],
)
def test_files_that_cannot_be_of_their_batch(made: list[LakeFile]) -> None:
    with pytest.raises(LakeRefused):
        check_files(made, at(0), at(10))


def test_a_task_of_two_partitions_stages_two_files(layout: Layout) -> None:
    staged = stage(layout, rows(0, 4), rows(5, 6), rows(3, 4, partition=1), rows(0, -1))
    assert [(s["path"], s["rows"]) for s in staged] == [
        (file_name(PID, 0, 6), 7),
        (file_name(Pid("t", 1), 3, 4), 2),
    ]


def test_rows_out_of_order_are_refused(layout: Layout) -> None:
    with pytest.raises(LakeRefused, match="order"):
        stage(layout, rows(5, 6), rows(6, 7))


def test_inspection_sees_what_is_in_a_file(layout: Layout) -> None:
    write_batch(layout, 0, 0, 9)
    (name,) = layout.data_files()
    seen = files.inspect(layout.root, name)
    assert (seen.rows, seen.first, seen.last, seen.disorder) == (10, 0, 9, 0)
    table = pa.Table.from_batches([rows(5, 9), rows(0, 4)])
    pq.write_table(table, layout.root / name)
    assert files.inspect(layout.root, name).disorder == 1
    (layout.root / name).write_bytes(b"PAR1 nothing")
    assert files.inspect(layout.root, name).problem
    assert files.inspect(layout.root, "t/p=0/none.parquet").problem


def test_only_folders() -> None:
    with pytest.raises(LakeRefused, match="only folders"):
        Layout.at("s3://bucket/lake")
    assert Layout.at("file:/x/y").root == Path("/x/y")
    with pytest.raises(LakeRefused, match="no folder is named"):
        Layout.at("")
    with pytest.raises(LakeRefused, match="checkpoint hdfs://host/x: only folders"):
        folder("checkpoint", "hdfs://host/x")


def test_a_lake_that_cannot_be_written_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    place = Layout.at(str(tmp_path / "file" / "lake"))
    with pytest.raises(LakeRefused, match=r"^lake .* cannot be written: .*$"), lock(place):
        pass
