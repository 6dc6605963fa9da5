"""The archive job at its start: which checkpoints continue a lake, and which it takes over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.lakes import (
    HOME,
    at,
    first_lake,
    new_layout,
    rows,
    staged,
    write_batch,
    write_first_version,
)
from tidelog.pipeline.errors import LakeRefused
from tidelog.pipeline.jobs.archive import Archive, ArchiveSettings
from tidelog.pipeline.lake.chain import read_manifests
from tidelog.pipeline.lake.commit import commit
from tidelog.pipeline.lake.layout import Layout
from tidelog.pipeline.lake.manifest import Manifest
from tidelog.pipeline.lake.offsets import dropped


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return new_layout(tmp_path / "lake")


def checkpoint_of(layout: Layout, query: str = "q", done: int = -1, **ends: int) -> Path:
    """A checkpoint of Spark's; `b3=5`: batch 3 ends at offset 5."""
    root = layout.checkpoint
    for log in ("offsets", "commits"):
        (root / log).mkdir(parents=True, exist_ok=True)
    (root / "metadata").write_text(json.dumps({"id": query}))
    for batch, end in ends.items():
        (root / "offsets" / batch[1:]).write_text(f"v1\n{{}}\n{json.dumps(at(end))}")
    for batch in range(done + 1):
        (root / "commits" / str(batch)).write_text("v1\n{}")
    return root


def start(layout: Layout, **more: object) -> Archive:
    settings = ArchiveSettings("h:1", ("t",), str(layout.root), **more)  # type: ignore[arg-type]
    return Archive(settings, layout)


def lake_of_two(layout: Layout) -> None:
    first_lake(layout)
    write_batch(layout, 1, 0, 9)
    write_batch(layout, 2, 10, 14)


def test_the_checkpoint_of_another_query_is_refused_before_it_loses_a_batch(
    layout: Layout,
) -> None:
    lake_of_two(layout)
    checkpoint_of(layout, "other", b0=0, b1=10, b2=15, done=2)
    for adopt in (False, True):
        with pytest.raises(LakeRefused, match="written by query q, this is other"):
            start(layout, adopt=adopt)


@pytest.mark.parametrize("done", [1, 2])
def test_a_checkpoint_that_fits(layout: Layout, done: int) -> None:
    lake_of_two(layout)
    root = checkpoint_of(layout, b0=0, b1=10, b2=15, done=done)
    (root / "offsets" / ".2.crc").write_bytes(b"crc")
    job = start(layout, adopt=True)
    assert not job.adopted and (job.batch, job.rows) == (2, 15)
    # Spark runs a batch again whose manifest is there: nothing is to be done.
    job.write_batch(None, 2)
    checkpoint_of(layout, b3=20)
    assert start(layout).batch == 2


def damaged(layout: Layout, how: str) -> None:
    root = checkpoint_of(layout, b0=0, b1=10, b2=15, done=2)
    if how == "lost":
        for log in ("offsets", "commits"):
            for each in (root / log).iterdir():
                each.unlink()
            (root / log).rmdir()
        (root / "metadata").unlink()
    elif how == "without its metadata":
        (root / "metadata").write_text("")
    elif how == "older":
        (root / "offsets" / "2").unlink()
        (root / "commits" / "2").unlink()
    elif how == "planned again":
        checkpoint_of(layout, b2=20)
    elif how == "last offsets empty":
        (root / "offsets" / "2").write_text("")
    elif how == "begun batch empty":
        (root / "offsets" / "3").write_text("")
    elif how == "commit empty":
        (root / "commits" / "2").write_text("")
    elif how == "ahead":
        checkpoint_of(layout, b3=20, done=3)


REASONS = {
    "lost": "there is no checkpoint in",
    "without its metadata": "metadata cannot be read",
    "older": "is older than the lake: it is at batch 1, the lake at batch 2",
    "planned again": "batch 2 of the checkpoint does not end where batch 2 of the lake ends",
    "last offsets empty": "offsets/2 cannot be read",
    "begun batch empty": "offsets/3 cannot be read",
    "commit empty": "the commit log of .* is not whole",
    "ahead": "no manifest of batch 3, but its checkpoint is at batch 3",
}


@pytest.mark.parametrize("how", REASONS)
def test_a_checkpoint_that_does_not_fit_is_refused_and_adopted(layout: Layout, how: str) -> None:
    """P7: the manifests are the truth of a lake."""
    lake_of_two(layout)
    damaged(layout, how)
    with pytest.raises(LakeRefused, match=REASONS[how]) as refused:
        start(layout)
    assert "--adopt continues" in str(refused.value)
    there = layout.checkpoint.exists() and any(layout.checkpoint.iterdir())
    job = start(layout, adopt=True)
    assert job.adopted and job.batch == 2
    assert (layout.checkpoint / "left-0").exists() == there, "nothing is thrown away"
    # It is a checkpoint like any other now.
    again = start(layout)
    assert not again.adopted
    assert json.loads((layout.checkpoint / "metadata").read_text()) == {"id": "q"}


def test_a_crash_while_a_checkpoint_is_adopted(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake_of_two(layout)
    real = Path.rename

    class Crash(BaseException):
        pass

    for nth in range(1, 8):
        damaged(layout, "planned again")
        calls = 0

        def crashing(self: Path, target: Path) -> Path:
            nonlocal calls
            calls += 1
            if calls == nth:  # noqa: B023
                raise Crash
            return real(self, target)

        with monkeypatch.context() as patch, pytest.raises(Crash):
            patch.setattr(Path, "rename", crashing)
            start(layout, adopt=True)
        assert start(layout, adopt=True).adopted
        assert not start(layout).adopted


def test_an_empty_lake_adopts_nothing(layout: Layout) -> None:
    checkpoint_of(layout, b0=0, b1=10, done=1)
    with pytest.raises(LakeRefused, match="the lake is empty, but its checkpoint is at batch 1"):
        start(layout, adopt=True)


def test_a_lake_that_lost_manifests_is_not_adopted(layout: Layout) -> None:
    lake_of_two(layout)
    layout.manifest(2).unlink()
    checkpoint_of(layout, b0=0, b1=10, b2=15, done=2)
    with pytest.raises(LakeRefused, match="no manifest of batch 2, but its checkpoint is at"):
        start(layout)
    with pytest.raises(LakeRefused, match=r"0014\.parquet, which no manifest names"):
        start(layout, adopt=True)


def test_an_older_copy_of_the_checkpoint_does_not_skip_records(layout: Layout) -> None:
    lake_of_two(layout)
    root = checkpoint_of(layout, b0=0, b1=10, b2=15, done=2)
    job = start(layout)
    # An older copy is restored while the job runs; Spark planned the batch again, further.
    (root / "offsets" / "2").write_text(f"v1\n{{}}\n{json.dumps(at(20))}")
    with pytest.raises(LakeRefused, match="batch 2 of the checkpoint does not end where"):
        job.write_batch(None, 2)
    with pytest.raises(LakeRefused, match="batch 1 of the checkpoint does not end where"):
        job.write_batch(None, 1)


def test_a_crash_of_version_1_is_taken_back(layout: Layout) -> None:
    for batch, first, last in ((0, 0, -1), (1, 0, 9), (2, 10, 14)):
        write_first_version(layout, batch, first, last)
    layout.manifest(2).unlink()
    checkpoint = checkpoint_of(layout, b2=15)
    for batch, end in ((0, 0), (1, 10)):
        offset = list(read_manifests(layout))[batch].end
        assert offset["topics"]["t"]["positions"]["0"] == end
        (checkpoint / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(offset)}")
    job = start(layout)
    assert len(job.removed) == 1 and len(list(layout.data_files())) == 1


@pytest.mark.parametrize("version", [1, 2])
def test_a_topic_that_the_lake_no_longer_reads_keeps_its_files(
    layout: Layout, version: int
) -> None:
    """With failOnDataLoss=false its positions are gone from the newest manifest."""
    if version == 1:
        write_first_version(layout, 0, 0, -1)
        write_first_version(layout, 1, 0, 9)
    else:
        first_lake(layout)
        write_batch(layout, 1, 0, 9)
    last = list(read_manifests(layout))[-1]
    nothing = {"version": version, "topics": {}}
    line = json.loads(Manifest(2, "q", last.end, nothing).to_line())
    layout.manifest(2).write_text(json.dumps({**line, "version": version}))
    job = start(layout, adopt=True)
    assert job.adopted and len(list(layout.data_files())) == 1
    assert not start(layout).adopted


def test_a_topic_with_an_underscore_is_data_and_our_folders_are_not(layout: Layout) -> None:
    for name in ("_schemas/p=0/a.parquet", "_checkpoint/p=0/b.parquet"):
        (layout.root / name).parent.mkdir(parents=True)
        (layout.root / name).write_bytes(b"PAR1")
    assert list(layout.data_files()) == ["_schemas/p=0/a.parquet"]
    settings = ArchiveSettings("h:1", ("t,_manifest",), str(layout.root))
    with pytest.raises(LakeRefused, match="topic _manifest cannot be archived"):
        Archive(settings, layout)


def test_a_lake_whose_topics_are_not_all_named_is_refused_in_one_line(layout: Layout) -> None:
    """Spark ended with 28 lines and the advice to set failOnDataLoss=false."""
    lake_of_two(layout)
    checkpoint_of(layout, b0=0, b1=10, b2=15, done=2)

    def named(*topics: str, **options: str) -> Archive:
        return Archive(ArchiveSettings("h:1", topics, str(layout.root), options=options), layout)

    with pytest.raises(LakeRefused) as refused:
        named("flow", "more")
    said = str(refused.value)
    assert said.startswith("the lake and its checkpoint have t, too: name all of its topics")
    assert "(-t t,flow,more)" in said and "failOnDataLoss" not in said
    for topics in (("flow,t",), ("flow", " t "), ("t",)):
        assert named(*topics).batch == 2
    assert named("flow", failOnDataLoss="false").batch == 2, "asked for by name"
    assert "--drop t ends the archiving of it" in said
    dropping = ArchiveSettings("h:1", ("flow",), str(layout.root), drop=("t",))
    assert Archive(dropping, layout).batch == 2
    for pattern, is_left_out in (("[tu]", False), ("t", False), ("flow.*", True)):
        settings = ArchiveSettings("h:1", (), str(layout.root), pattern=pattern)
        assert settings.source_options["subscribePattern"] == pattern
        if not is_left_out:
            assert Archive(settings, layout).batch == 2
            continue
        with pytest.raises(LakeRefused, match="have t, too"):
            Archive(settings, layout)


def test_a_topic_that_the_lake_records_as_dropped_need_not_be_named(layout: Layout) -> None:
    """Its position stays in each batch; and a topic that our folders would hide is refused, too,
    when a pattern finds it."""
    first_lake(layout)
    made = staged(layout, rows(0, 9))
    end = at(10)
    end["topics"]["t"]["dropped"] = [0]
    commit(layout, Manifest(1, "q", at(0), end, made.files), made.places)
    root = checkpoint_of(layout, b0=0, done=1)
    (root / "offsets" / "1").write_text(f"v1\n{{}}\n{json.dumps(end)}")
    job = Archive(ArchiveSettings("h:1", ("flow",), str(layout.root)), layout)
    assert job.batch == 1 and dropped(end) == {HOME} and not dropped(at(10))
    later = {**end, "topics": {**end["topics"], "_bad": at(0)["topics"]["t"]}}
    (root / "offsets" / "2").write_text(f"v1\n{{}}\n{json.dumps(later)}")
    with pytest.raises(LakeRefused, match="topic _bad cannot be archived"):
        job.write_batch(None, 2)


def test_the_places_of_staged_files_are_those_of_the_batch(layout: Layout) -> None:
    made = staged(layout, rows(0, 4))
    assert made.files[0].home == HOME and list(made.places) == [made.files[0].path]
