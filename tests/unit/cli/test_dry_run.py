"""What a dry run says: how much, when a topic grows again, which groups wait, which writers."""

from __future__ import annotations

from uuid import UUID

import pytest

from tidelog.cli.resizing.dry_run import (
    MOST_SHOWN,
    DryRun,
    _has_no_gates,
    _print_writers,
    as_json,
    print_dry_run,
    until_it_grows,
)
from tidelog.cli.resizing.preview import moves_of
from tidelog.client.admin.resizes import TopicResize
from tidelog.client.groups.progress import GroupProgress, MemberProgress
from tidelog.client.metadata import Partition, Topic

DAY = "2026-01-02T03:04:05Z"
AT_MS = 1_767_323_045_000


@pytest.mark.parametrize(
    ("purge", "at_ms", "words"),
    [
        ("retention", AT_MS, f"empty: retention.ms keeps the newest until {DAY}."),
        ("retention", None, "empty: no time limit removes them."),
        ("drained", AT_MS, "retired.purge.delay.ms must have passed; otherwise retention.ms keeps"),
        ("drained", None, "committed past their records, and retired.purge.delay.ms"),
        ("nothing", AT_MS, "empty: compaction keeps their records for good."),
    ],
)
def test_a_shrunk_topic_grows_again_when_what_retired_is_empty(
    purge: str, at_ms: int | None, words: str
) -> None:
    assert words in until_it_grows(purge, at_ms)


def test_partitions_without_records_are_soon_gone() -> None:
    assert "hold no records" in until_it_grows("retention", None, has_records=False)


def test_the_table_of_a_large_growth_has_an_end(capsys: pytest.CaptureFixture[str]) -> None:
    count = 10_000
    parts = {each: Partition(each, 1, 0, (1,), (1,), (), partition_epoch=1) for each in range(4)}
    topic = Topic("t", UUID(int=7), False, parts, 0, 4, 4, 0, 9)
    found = DryRun(topic, count, moves=moves_of(4, 4, count, {}))
    print_dry_run(found)
    out = capsys.readouterr().out
    assert f"And {count - 4 - MOST_SHOWN:,} pairs more: --json has all of them." in out
    assert len(out.splitlines()) < MOST_SHOWN + 10
    assert len(as_json(found)["moves"]) == count - 4


@pytest.mark.parametrize(
    ("aware", "has_none"),
    [
        ((), False),
        ((False,), True),
        ((False, True), False),
        # After a load of its coordinator that is not known for a while.
        ((False, None), False),
    ],
)
def test_a_group_waits_for_nothing_when_all_of_its_members_know_no_resizes(
    aware: tuple[bool | None, ...], has_none: bool
) -> None:
    members = {
        f"m{number}": MemberProgress(f"m{number}", "c", "/h", each, 0, 45_000)
        for number, each in enumerate(aware)
    }
    assert _has_no_gates(GroupProgress("g", "Stable", members)) == has_none
    assert not _has_no_gates(None)


@pytest.mark.parametrize(
    ("seen_ms", "unknown", "lines"),
    [
        ({1: None}, (), ["No writer without a partition count was seen."]),
        ({1: None}, (2,), ["Brokers that have not said yet whether they saw such writers: 2."]),
        ({1: 5_000, 3: None}, (), ["Writers without a partition count, last seen by: broker 1 "
                                   "5.0 s ago."]),
    ],
)  # fmt: skip
def test_no_writer_was_seen_only_where_every_leader_says_so(
    capsys: pytest.CaptureFixture[str],
    seen_ms: dict[int, int | None],
    unknown: tuple[int, ...],
    lines: list[str],
) -> None:
    topic = Topic("t", UUID(int=1), False, {}, 0, 2, 4, 1, 9)
    found = DryRun(topic, 4, state=TopicResize(4, 2, 1, None, None, seen_ms, unknown))
    assert not found.grows
    _print_writers(found)
    assert capsys.readouterr().out.splitlines() == lines
