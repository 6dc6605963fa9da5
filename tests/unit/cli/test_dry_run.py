"""What a dry run says of a topic that shrinks: when it may grow again."""

from __future__ import annotations

import pytest

from tidelog.cli.resizing.dry_run import until_it_grows

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
