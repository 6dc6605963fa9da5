"""The lake's files and commits: crashes at every step, two writers, what tasks write."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.lakes import (
    HOME,
    at,
    first_lake,
    lake_file,
    new_layout,
    offsets,
    rows,
    stage,
    staged,
    write_batch,
    write_first_version,
)
from tidelog.pipeline.errors import LakeRefused
from tidelog.pipeline.lake import chain, files
from tidelog.pipeline.lake import commit as committing
from tidelog.pipeline.lake.chain import read_manifests
from tidelog.pipeline.lake.commit import (
    check_nothing_beyond,
    commit,
    lock,
    recover,
    recover_first_version,
)
from tidelog.pipeline.lake.layout import Layout, file_name, folder, parse_file_name
from tidelog.pipeline.lake.manifest import LakeFile, Manifest, check_files, check_new
from tidelog.pipeline.lake.offsets import LakePartition, SkippedRange


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return new_layout(tmp_path / "lake")


def test_names_sort_as_offsets_and_tell_topics_of_one_name_apart() -> None:
    name = file_name(HOME, 5, 7)
    assert name == "t/id=id/p=0/00000000000000000005-00000000000000000007.parquet"
    assert file_name(LakePartition("t", "other", 0), 5, 7) != name
    for home in (HOME, LakePartition("t", "", 3), LakePartition("a.b", "_9-x", 70_000)):
        parsed = parse_file_name(file_name(home, 5, 7))
        assert parsed is not None
        assert LakePartition(parsed.topic, parsed.topic_id or "", parsed.partition) == home
        assert (parsed.first, parsed.last) == (5, 7)
    assert (
        parse_file_name("t/p=0/00000000000000000005-00000000000000000007.parquet").topic_id is None
    )  # type: ignore[union-attr]
    assert parse_file_name("t/p=0/part-0000.parquet") is None


def test_batches_form_a_chain(layout: Layout) -> None:
    write_batch(layout, 0, 0, 9)
    (layout.inflight / "of-a-task-that-failed.staged").write_bytes(b"PAR1")
    write_batch(layout, 1, 10, 14)
    assert offsets(layout) == list(range(15))
    assert [each.rows for each in read_manifests(layout)] == [10, 5]
    assert list(layout.inflight.iterdir()) == []


class Crash(BaseException):
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
    ("owner", "name", "steps"),
    [
        (os, "link", 2),
        (committing, "sync", 7),
        (os, "fsync", 9),
        (Path, "unlink", 2),
        (Path, "mkdir", 1),
    ],
)
def test_a_crash_at_any_step_and_the_batch_again(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, steps: int
) -> None:
    write_batch(layout, 0, 0, 9)
    crashed = 0
    for nth in range(1, steps + 2):
        before = len(list(read_manifests(layout)))
        with monkeypatch.context() as patch:
            crash_at(patch, owner, name, nth)
            try:
                write_batch(layout, before, 10 * before, 10 * before + 9)
            except Crash:
                crashed += 1
        found = list(read_manifests(layout))
        recover(layout)
        if len(found) == before:
            # Spark runs the uncommitted batch again.
            write_batch(layout, before, 10 * before, 10 * before + 9)
        assert offsets(layout) == list(range(10 * (before + 1)))
        listed = {file.path for each in read_manifests(layout) for file in each.files}
        assert set(layout.data_files()) == listed
        assert list(layout.inflight.iterdir()) == [] == list(layout.manifests.glob("*.draft"))
    assert crashed == steps


def test_each_name_is_durable_before_what_rests_on_it(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T11: the folders of the data files, new ones too, are synced before the manifest is there."""
    made = staged(layout, rows(0, 9))
    ((name, _),) = made.places.items()
    done: list[tuple[str, Path]] = []
    fsync, link = os.fsync, os.link

    def syncing(handle: int) -> None:
        fsync(handle)
        done.append(("sync", Path(os.readlink(f"/proc/self/fd/{handle}"))))

    def linking(source: Path, place: Path) -> None:
        link(source, place)
        done.append(("link", place))

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(os, "link", linking)
    commit(layout, Manifest(0, "q", None, at(10), made.files), made.places)
    file, manifest = ("link", layout.root / name), ("link", layout.manifest(0))
    (draft,) = [place for what, place in done if what == "sync" and place.suffix == ".draft"]
    before_files = {place for what, place in done[: done.index(file)] if what == "sync"}
    assert {draft, layout.inflight, layout.manifests} <= before_files
    between = done[done.index(file) : done.index(manifest)]
    folders = [each for each in file[1].parents if each.is_relative_to(layout.root)]
    assert len(folders) == 4, "topic, id, partition and the lake itself"
    assert set(folders) <= {place for what, place in between if what == "sync"}
    assert ("sync", layout.manifests) in done[done.index(manifest) :]


@pytest.mark.parametrize("step", range(1, 13))
def test_a_driver_killed_at_any_system_call_of_a_commit(layout: Layout, step: int) -> None:
    """A process of its own, ended with SIGKILL before the step-th link, sync or removal."""
    write_batch(layout, 0, 0, 9)
    child = os.fork()
    if child == 0:
        left = [step]

        def dying(real: Callable[..., object]) -> Callable[..., object]:
            def call(*args: object, **more: object) -> object:
                left[0] -= 1
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **more)

            return call

        os.link, os.fsync, os.unlink = dying(os.link), dying(os.fsync), dying(os.unlink)
        write_batch(layout, 1, 10, 19)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    is_in = len(list(read_manifests(layout))) == 2
    removed = recover(layout)
    assert not (is_in and removed)
    if not is_in:
        write_batch(layout, 1, 10, 19)
    assert offsets(layout) == list(range(20)) and len(list(layout.data_files())) == 2
    assert list(layout.inflight.iterdir()) == []


def leave_behind(layout: Layout, first: int, last: int) -> str:
    """A data file in its place, and no manifest that names it."""
    made = staged(layout, rows(first, last))
    ((name, now),) = made.places.items()
    (layout.root / name).parent.mkdir(parents=True, exist_ok=True)
    now.replace(layout.root / name)
    return name


def test_a_refused_commit_replaces_nothing(layout: Layout) -> None:
    """P6: the manifest is looked for before a file is moved."""
    write_batch(layout, 0, 0, 9)
    (name,) = layout.data_files()
    before = (layout.root / name).read_bytes()
    zombie = staged(layout, rows(0, 9, value=b"ZOMBIE"))
    with pytest.raises(LakeRefused, match="batch 0 is already in the lake: two writers"):
        commit(layout, Manifest(0, "q", None, at(10), zombie.files), zombie.places)
    assert (layout.root / name).read_bytes() == before
    # A name that is taken is never written over, whoever has it.
    stray = leave_behind(layout, 10, 19)
    theirs = (layout.root / stray).read_bytes()
    with pytest.raises(LakeRefused, match="which no manifest names"):
        write_batch(layout, 1, 10, 19)
    assert (layout.root / stray).read_bytes() == theirs
    assert list(layout.manifests.glob("*.draft")) == []


def test_a_writer_that_is_overtaken_takes_back_its_own_files_only(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_batch(layout, 0, 0, 9)
    real = committing._check_absent
    calls = 0

    def overtaken(place: Layout, batch: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            # Another host's driver, whose lock the file system does not know.
            monkeypatch.undo()
            write_batch(layout, 1, 10, 14)
        real(place, batch)

    monkeypatch.setattr(committing, "_check_absent", overtaken)
    with pytest.raises(LakeRefused, match="batch 1 is already in the lake"):
        write_batch(layout, 1, 10, 19)
    assert offsets(layout) == list(range(15)) and len(list(layout.data_files())) == 2


def test_recovery_removes_only_what_a_crash_left(layout: Layout) -> None:
    write_batch(layout, 0, 0, 9)
    made = staged(layout, rows(10, 12))
    ((name, now),) = made.places.items()
    draft = Manifest(1, "q", at(10), at(20), (*made.files, lake_file(13, 14, theirs := "t/x")))
    layout.manifests.joinpath("1.draft").write_text(draft.to_line())
    os.link(now, layout.root / name)
    (layout.root / theirs).write_bytes(b"PAR1")
    (layout.inflight / "half").write_bytes(b"PAR1")
    layout.manifests.joinpath("2.draft").write_text(draft.to_line()[:50])
    (layout.manifests / "0-0.1.folding").write_bytes(b"")
    assert recover(layout) == [name]
    assert offsets(layout) == list(range(10)) and (layout.root / theirs).exists()
    assert list(layout.inflight.iterdir()) == []
    assert [each.suffix for each in layout.manifests.iterdir()] == [".json"]


@pytest.mark.parametrize(
    ("lost", "first", "last", "cut_down"),
    [
        ("the manifests", 20, 24, at(25)),
        ("nothing, and no batch was begun", 20, 24, None),
        ("nothing, but the file ends after the batch", 20, 25, at(25)),
        ("nothing, but the file begins before the batch", 19, 24, at(25)),
    ],
)
def test_recovery_removes_nothing_that_no_crash_can_have_left(
    layout: Layout, lost: str, first: int, last: int, cut_down: dict[str, object] | None
) -> None:
    """A leftover of version 1 is known by its place only."""
    write_first_version(layout, 0, 0, -1)
    write_first_version(layout, 1, 0, 9)
    write_first_version(layout, 2, 10, 19)
    stray = leave_behind(layout, first, last)
    there = sorted(layout.data_files())
    total, last = chain.summary(layout)
    end = None if last is None or lost == "the manifests" else last.end
    reached = {} if end is None else total.bounds
    with pytest.raises(LakeRefused, match="which no manifest names") as refused:
        recover_first_version(layout, reached, end, cut_down)
    assert sorted(layout.data_files()) == there and len(there) == 3
    if end:
        assert stray in str(refused.value)
        with pytest.raises(LakeRefused, match=stray):
            check_nothing_beyond(layout, reached)


def test_recovery_of_a_batch_that_version_1_cut_down(layout: Layout) -> None:
    write_first_version(layout, 0, 0, -1)
    write_first_version(layout, 1, 0, 9)
    total, last = chain.summary(layout)
    assert last is not None
    write_first_version(layout, 2, 10, 14)
    layout.manifest(2).unlink()
    assert recover_first_version(layout, total.bounds, last.end, at(15)) == [
        "t/p=0/00000000000000000010-00000000000000000014.parquet"
    ]
    check_nothing_beyond(layout, total.bounds)


def test_a_folder_of_another_writer_is_refused(layout: Layout) -> None:
    (layout.root / "sales" / "p=3").mkdir(parents=True)
    theirs = layout.root / "sales" / "p=3" / "part-0000.parquet"
    theirs.write_bytes(b"PAR1")
    with pytest.raises(LakeRefused, match="part-0000"):
        recover_first_version(layout, {}, None, None)
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


def test_offsets_that_the_lake_has_reached_are_not_written_again() -> None:
    check_new([lake_file(10, 12, "x")], {HOME: 10})
    with pytest.raises(LakeRefused, match="t-0: the lake holds offsets below 10 already"):
        check_new([lake_file(8, 12, "x")], {HOME: 10})
    # The next topic of that name starts at 0 again.
    check_new([lake_file(0, 12, "x", LakePartition("t", "next", 0))], {HOME: 10})


def named(first: int, last: int) -> LakeFile:
    return lake_file(first, last, file_name(HOME, first, last))


@pytest.mark.parametrize(
    "made",
    [
        [named(0, 10)],
        [named(0, 5), named(5, 9)],
        [lake_file(0, 5, "t/id=id/p=0/x.parquet")],
        [lake_file(0, 5, file_name(HOME, 0, 5), LakePartition("t", "other", 0))],
    ],
)
def test_files_that_cannot_be_of_their_batch(made: list[LakeFile]) -> None:
    with pytest.raises(LakeRefused):
        check_files(made, at(0), at(10))


def test_a_task_of_two_partitions_stages_two_files(layout: Layout) -> None:
    homes = (HOME, LakePartition("t", "id", 1))
    made = staged(layout, rows(0, 4), rows(5, 6), rows(3, 4, partition=1), rows(0, -1), homes=homes)
    assert [(file.path, file.rows) for file in made.files] == [
        (file_name(HOME, 0, 6), 7),
        (file_name(homes[1], 3, 4), 2),
    ]


def test_files_roll_by_bytes(layout: Layout) -> None:
    """P12: a file ends when it holds so many bytes of records, and the next one goes on."""
    lines = stage(layout, *(rows(n, n + 9) for n in range(0, 100, 10)), roll_bytes=50)
    made = files.Staged.of(lines, [HOME])
    assert [(file.first, file.last) for file in made.files] == [
        (n, n + 19) for n in range(0, 20, 20)
    ] + [(n, min(n + 19, 99)) for n in range(20, 100, 20)]
    check_files(made.files, at(0), at(100))
    assert all(file.raw_bytes and file.raw_bytes >= 50 for file in made.files)


def test_what_a_manifest_says_of_a_file(layout: Layout) -> None:
    first = rows(3, 4, key=b"abc", headers=[{"key": "h", "value": b"12"}])
    made = staged(layout, first, rows(5, 9, leaderEpoch=4), rows(12, 12, leaderEpoch=4))
    (file,) = made.files
    # 2 keys of 3 bytes, 8 values of 2 or 3, 2 headers of 3.
    assert (file.rows, file.raw_bytes) == (8, 6 + 7 * 2 + 3 + 6)
    assert (file.min_time_ms, file.max_time_ms) == (1003, 1012)
    assert file.leader_epochs == ((3, 3), (4, 5))
    place = made.places[file.path]
    assert place.suffix == ".staged", "no reader of Parquet takes it for a file of the lake"
    assert file.size_bytes == place.stat().st_size
    assert file.digest == f"sha256:{hashlib.sha256(place.read_bytes()).hexdigest()}"
    assert pq.ParquetFile(place).schema_arrow.names == list(files.COLUMNS)


def test_losses_come_with_the_rows(layout: Layout) -> None:
    """P1: what a task passed over stands in the manifest."""
    lost = rows(5, 5, value=b"retention", timestamp=None, lostTo=20)
    tail = rows(30, 30, value=b"rewound", timestamp=None, lostTo=40)
    made = staged(layout, rows(0, 4), lost, rows(20, 29), tail)
    assert [(file.first, file.last, file.rows) for file in made.files] == [(0, 29, 15)]
    assert made.losses == (
        SkippedRange(HOME, 5, 20, "retention"),
        SkippedRange(HOME, 30, 40, "rewound"),
    )
    # A task of which nothing is left.
    assert staged(layout, lost).files == ()


def test_rows_out_of_order_are_refused(layout: Layout) -> None:
    with pytest.raises(LakeRefused, match="order"):
        stage(layout, rows(5, 6), rows(6, 7))
    with pytest.raises(LakeRefused, match="order"):
        stage(layout, rows(5, 6), rows(6, 7), roll_bytes=1)


def test_only_folders() -> None:
    for location in ("s3://bucket/lake", "file://host/lake"):
        with pytest.raises(LakeRefused, match="only folders"):
            Layout.at(location)
    assert Layout.at("file:/x/y").root == Layout.at("file:///x/y").root == Path("/x/y")
    with pytest.raises(LakeRefused, match="no folder is named"):
        Layout.at("")
    with pytest.raises(LakeRefused, match="checkpoint hdfs://host/x: only folders"):
        folder("checkpoint", "hdfs://host/x")
    # P9: Spark's default file system may be another.
    assert Layout.at("/x [1]").patterns(["t/a.parquet"]) == [r"file:///x \[1\]/t/a.parquet"]


def test_a_lake_that_cannot_be_written_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    place = Layout.at(str(tmp_path / "file" / "lake"))
    with pytest.raises(LakeRefused, match=r"^lake .* cannot be written: .*$"), lock(place):
        pass


def test_batch_0_is_no_file_but_a_place(layout: Layout) -> None:
    first_lake(layout)
    assert chain.summary(layout)[0].batch == 0 and list(layout.data_files()) == []
