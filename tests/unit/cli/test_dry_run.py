"""What a dry run says of a resize: how much of it, and when a topic that shrinks may grow again."""

from __future__ import annotations

from uuid import UUID

import pytest

from tidelog.cli.resizing.dry_run import MOST_SHOWN, DryRun, as_json, print_dry_run, until_it_grows
from tidelog.cli.resizing.preview import moves_of
from tidelog.client.metadata import Partition, Topic

DAY = "2026-01-02T03:04:05Z"
AT_MS = 1_767_323_045_000


@pytest.mark.parametrize(
    ("purge", "at_ms", "words"),
    [
        ("retention", AT_MS, f"empty: retention.ms keeps the newest until {DAY}."),
        ("retention", None, "empty: no time limit removes them."),
        ("drained", AT_MS, "committed past their records; otherwise retention.ms keeps"),
        ("drained", None, "committed past their records; otherwise no time limit removes them."),
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
