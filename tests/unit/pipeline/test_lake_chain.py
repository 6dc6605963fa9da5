"""The chain of a lake's manifests: JSON of both versions, checkpoints, what a start costs."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.lakes import (
    HOME,
    at,
    first_lake,
    first_version,
    lake_file,
    new_layout,
    offsets,
    positions,
    write_batch,
    write_first_version,
)
from tidelog.pipeline.errors import LakeRefused
from tidelog.pipeline.lake import chain
from tidelog.pipeline.lake.chain import fold, is_there, read_manifests, summary
from tidelog.pipeline.lake.layout import Layout, file_name
from tidelog.pipeline.lake.manifest import LakeFile, Manifest, check_follows
from tidelog.pipeline.lake.offsets import (
    LakePartition,
    SkippedRange,
    begins,
    ends,
    leader_epochs,
    losses_between,
)
from tidelog.pipeline.lake.summary import Summary, SummaryPart


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return new_layout(tmp_path / "lake")


FULL = Manifest(
    7,
    "q",
    at(5),
    at(40),
    (
        LakeFile(
            file_name(HOME, 5, 9), HOME, 5, 9, 5, 1234, 99, 1000, 1004, ((3, 5), (4, 8)), "sha256:0"
        ),
    ),
    (
        SkippedRange(HOME, 10, 20, "retention"),
        SkippedRange(LakePartition("u", "id2", 1), 3, -1, "deleted"),
    ),
    "read_committed",
    {"t": "compact"},
)
# The form on disk, by hand from docs/decisions/0052.
FULL_JSON = {
    "version": 2,
    "batch": 7,
    "queryId": "q",
    "start": at(5),
    "end": at(40),
    "isolation": "read_committed",
    "policies": {"t": "compact"},
    "losses": [
        {
            "topic": "t",
            "topicId": "id",
            "partition": 0,
            "from": 10,
            "to": 20,
            "cause": "retention",
        },
        {"topic": "u", "topicId": "id2", "partition": 1, "from": 3, "to": -1, "cause": "deleted"},
    ],
    "files": [
        {
            "path": "t/id=id/p=0/00000000000000000005-00000000000000000009.parquet",
            "topic": "t",
            "topicId": "id",
            "partition": 0,
            "first": 5,
            "last": 9,
            "rows": 5,
            "sizeBytes": 1234,
            "rawBytes": 99,
            "minTimeMs": 1000,
            "maxTimeMs": 1004,
            "leaderEpochs": [[3, 5], [4, 8]],
            "digest": "sha256:0",
        }
    ],
}


def test_the_form_on_disk() -> None:
    line = FULL.to_line()
    assert "\n" not in line and json.loads(line) == FULL_JSON
    assert Manifest.from_text(line) == FULL


def test_a_manifest_of_version_1(layout: Layout) -> None:
    write_first_version(layout, 0, 0, -1)
    write_first_version(layout, 1, 0, 9)
    _, found = read_manifests(layout)
    name = "t/p=0/00000000000000000000-00000000000000000009.parquet"
    assert found.files == (LakeFile(name, HOME, 0, 9, 10, 1),)
    assert (found.version, found.isolation, found.losses) == (1, None, ())
    assert (ends(found.end), begins(found.start, found.end)) == ({HOME: 10}, {HOME: 0})
    # The next batch is of version 2; its start is what Spark's log has from version 1.
    check_follows(found, 2, "q", first_version(10))
    with pytest.raises(LakeRefused, match="does not begin where batch 1 ended"):
        check_follows(found, 2, "q", first_version(11))


def test_where_partitions_begin() -> None:
    end = positions({"0": 9, "1": 90, "2": 7})
    end["topics"]["t"]["new"] = {"1": 80}
    assert [*begins(at(5), end).values()] == [5, 80, 0]
    assert begins(None, end) == ends(end)
    assert leader_epochs(end)[HOME] == 3 and leader_epochs(first_version(4)) == {HOME: -1}
    # A topic of another id shares nothing with the former one.
    again = LakePartition("t", "other", 0)
    assert begins(at(5), at(9, topic_id="other")) == {again: 0}
    assert losses_between(at(5), at(9, topic_id="other")) == [SkippedRange(HOME, 5, -1, "deleted")]
    assert losses_between(at(50), at(40)) == [SkippedRange(HOME, 40, 50, "rewound")]
    assert losses_between(None, at(40)) == losses_between(at(4), at(40)) == []
    assert losses_between(at(40), at(40)) == []


@pytest.mark.parametrize(
    "offset",
    [
        {"version": 3, "topics": {}},
        {"topics": {}},
        {"version": 2, "topics": {"t": {"id": "id"}}},
        {"version": 2, "topics": {"t": {"id": "id", "positions": {"0": 7}}}},
        {"version": 1, "topics": {"t": {"id": "id", "positions": {"0@1": 7}}}},
    ],
)
def test_offsets_that_are_none(offset: dict[str, object]) -> None:
    with pytest.raises(LakeRefused, match=r"version|damaged"):
        ends(offset)


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


def test_the_first_manifests_are_missing(layout: Layout) -> None:
    write_batch(layout, 0, 0, 9)
    write_batch(layout, 1, 10, 19)
    layout.manifest(0).unlink()
    with pytest.raises(LakeRefused, match="batch 1 is the first of the lake"):
        list(read_manifests(layout))


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"version":1,"batch":0,"queryId":"q","start":null,"end":5,"files":[]}',
        '{"version":3}',
        json.dumps({**FULL_JSON, "batch": 0, "files": [{}]}),
    ],
)
def test_a_damaged_manifest_is_named(layout: Layout, text: str) -> None:
    write_batch(layout, 0, 0, 9)
    layout.manifest(0).write_text(text)
    with pytest.raises(LakeRefused, match="is damaged"):
        list(read_manifests(layout))


def many(layout: Layout, batches: int) -> None:
    """A lake of so many batches of one record, the first two of version 1, without data files."""
    write_first_version(layout, 0, 0, -1)
    for batch in range(1, batches):
        start = first_version(batch - 1) if batch <= 2 else at(batch - 1)
        end = first_version(batch) if batch < 2 else at(batch)
        name = file_name(HOME, batch - 1, batch - 1)
        made = Manifest(batch, "q", start, end, (lake_file(batch - 1, batch - 1, name),))
        text = made.to_line()
        if batch == 1:
            write_first_version(layout, 1, 0, 0)
        else:
            layout.manifest(batch).write_text(text)


def test_checkpoints_take_the_place_of_manifests(layout: Layout) -> None:
    """P11: what a start reads does not grow with the lake."""
    many(layout, 30)
    plain, (before, last) = list(read_manifests(layout)), summary(layout)
    assert fold(layout, 8) == 3
    singles, folded = sorted(layout.manifests.glob("*.json")), layout.manifests.glob("*.checkpoint")
    assert len(singles) == 6 and len(list(folded)) == 3
    assert list(read_manifests(layout)) == plain and summary(layout) == (before, last)
    assert last == plain[-1] and before.parts == {HOME: SummaryPart(0, 29, 29, 29, 29)}
    for after in (0, 7, 8, 20, 28, 29, 99):
        assert [each.batch for each in read_manifests(layout, after)] == [*range(after + 1, 30)]
    assert is_there(layout, 3) and is_there(layout, 29) and not is_there(layout, 30)
    assert fold(layout, 8) == 0
    # The newest one always lies by itself.
    assert fold(layout, 1) == 5 and layout.manifest(29).exists()
    assert summary(layout) == (before, last)


def test_a_start_reads_a_head_and_what_follows(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    many(layout, 100)
    fold(layout, 10)
    parsed: list[str] = []
    real = Manifest.from_text
    monkeypatch.setattr(Manifest, "from_text", lambda text: parsed.append(text) or real(text))
    assert summary(layout)[0].batch == 99
    assert len(parsed) == 10


class Crash(BaseException):
    pass


@pytest.mark.parametrize(
    ("name", "nth"),
    [
        (name, nth)
        for name, count in (("link", 2), ("fsync", 4), ("unlink", 10))
        for nth in range(count)
    ],
)
def test_a_crash_while_manifests_are_folded(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, name: str, nth: int
) -> None:
    many(layout, 10)
    plain = list(read_manifests(layout))
    real: Callable[..., object] = getattr(os, name)
    calls = 0

    def crashing(*args: object, **more: object) -> object:
        nonlocal calls
        calls += 1
        if calls == nth + 1:
            raise Crash
        return real(*args, **more)

    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(os, name, crashing)
        fold(layout, 4)
    assert list(read_manifests(layout)) == plain
    fold(layout, 4)
    assert len(list(layout.manifests.glob("*.json"))) == 2
    assert list(read_manifests(layout)) == plain


def test_a_reader_beside_a_writer_that_folds(layout: Layout) -> None:
    many(layout, 12)
    reader = read_manifests(layout)
    found = [next(reader).batch for _ in range(3)]
    fold(layout, 5)
    found += [each.batch for each in reader]
    assert found == list(range(12))


@pytest.mark.parametrize("what", ["cut", "other bytes", "no head", "of other batches", "gone"])
def test_a_damaged_checkpoint_is_named(layout: Layout, what: str) -> None:
    many(layout, 12)
    fold(layout, 5)
    first, second = sorted(layout.manifests.glob("*.checkpoint"))
    whole = second.read_bytes()
    if what == "cut":
        second.write_bytes(whole[: len(whole) // 2])
    elif what == "other bytes":
        second.write_bytes(whole[:40] + bytes(20) + whole[60:])
    elif what == "no head":
        second.write_bytes(gzip.compress(b""))
    elif what == "of other batches":
        second.write_bytes(first.read_bytes())
    else:
        first.unlink()
    with pytest.raises(LakeRefused, match=r"checkpoint|where 5 belongs"):
        list(read_manifests(layout))
    if what != "cut":
        with pytest.raises(LakeRefused, match="checkpoint"):
            chain.summary(layout)


def test_the_records_stay_where_they_are(layout: Layout) -> None:
    first_lake(layout)
    for batch in range(1, 6):
        write_batch(layout, batch, 10 * batch - 10, 10 * batch - 1)
    fold(layout, 2)
    assert offsets(layout) == list(range(50))


def test_a_reading_that_goes_on_misses_the_manifest_that_is_next(layout: Layout) -> None:
    for batch in range(3):
        write_batch(layout, batch, 10 * batch, 10 * batch + 9)
    layout.manifest(1).unlink()
    with pytest.raises(LakeRefused, match="no manifest of batch 1"):
        list(read_manifests(layout, after=0))


def test_a_manifest_that_is_merged_before_it_is_read_is_read_from_the_checkpoint(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive job goes on while an audit reads, here after the folder was listed."""
    for batch in range(3):
        write_batch(layout, batch, 10 * batch, 10 * batch + 9)
    read_single = chain._single

    def merged_first(layout: Layout, batch: int) -> Manifest:
        if batch == 0:
            assert fold(layout, least=2) == 1
        return read_single(layout, batch)

    monkeypatch.setattr(chain, "_single", merged_first)
    assert [each.batch for each in read_manifests(layout)] == [0, 1, 2]


def test_a_lake_without_its_newest_manifest_is_not_summed_up(layout: Layout) -> None:
    """It is never merged, so it was lost."""
    for batch in range(3):
        write_batch(layout, batch, 10 * batch, 10 * batch + 9)
    assert fold(layout, least=2) == 1
    assert summary(layout)[0].batch == 2
    layout.manifest(2).unlink()
    with pytest.raises(LakeRefused, match="no manifest after batch 1"):
        summary(layout)


@pytest.mark.parametrize("gone", [0, 1])
def test_no_checkpoint_is_made_over_a_manifest_that_is_missing(layout: Layout, gone: int) -> None:
    for batch in range(4):
        write_batch(layout, batch, 10 * batch, 10 * batch + 9)
    layout.manifest(gone).unlink()
    before = sorted(layout.manifests.iterdir())
    with pytest.raises(LakeRefused, match=f"no manifest of batch {gone}: put it back"):
        fold(layout, least=2)
    assert sorted(layout.manifests.iterdir()) == before


def test_no_checkpoint_is_made_of_manifests_that_do_not_follow_one_another(layout: Layout) -> None:
    for batch in range(3):
        write_batch(layout, batch, 10 * batch, 10 * batch + 9)
    made = json.loads(layout.manifest(1).read_text())
    layout.manifest(1).write_text(json.dumps({**made, "queryId": "another"}))
    before = sorted(layout.manifests.iterdir())
    with pytest.raises(LakeRefused, match="another"):
        fold(layout, least=2)
    assert sorted(layout.manifests.iterdir()) == before


def test_a_lake_begins_where_its_first_batch_says(layout: Layout) -> None:
    """A query that began with the latest offsets."""
    chain_of = [Manifest(0, "q", None, at(7)), Manifest(1, "q", at(7), at(9))]
    for each in chain_of:
        layout.manifest(each.batch).write_text(each.to_line())
    whole, _ = summary(layout)
    assert whole.parts == {HOME: SummaryPart(7, 9)}
    assert whole.bounds == {HOME: 9}


def test_records_reach_as_far_as_the_last_file_in_whatever_order_they_are_listed() -> None:
    whole = Summary()
    files = tuple(LakeFile(f"{first}", HOME, first, first + 9, 10, 100) for first in (0, 10))
    whole.add(Manifest(0, "q", at(0), at(15), files[::-1]))
    assert whole.reached == whole.bounds == {HOME: 20}, "also of what is no longer read"
