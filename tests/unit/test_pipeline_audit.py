"""The audit's verdict as a table, and its reports."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from tidelog.pipeline.audit.facts import Facts, KeyFacts, PartitionFacts
from tidelog.pipeline.audit.rules import judge
from tidelog.pipeline.jobs.audit import Audit
from tidelog.pipeline.lake.files import FileFacts
from tidelog.pipeline.lake.manifest import LakeFile
from tidelog.pipeline.lake.offsets import LakePartition
from tidelog.pipeline.report.page import shown, text_table
from tidelog.pipeline.report.pictures import heat_map

PART = PartitionFacts(
    "t", "0", 0, 10, log_start=0, log_end=10, lake_rows=10, lake_distinct=10, log_rows=10
)
FILE = LakeFile("t/id=id/p=0/a.parquet", LakePartition("t", "id", 0), 0, 9, 10, 99)
SEEN = FileFacts("t/id=id/p=0/a.parquet", 10, 0, 9)
RIGHT = Facts("/lake", 1, (PART,), KeyFacts(keys=3, unkeyed=1), (FILE,), {FILE.path: SEEN})


def rules(facts: Facts, *, complete: bool = False) -> list[tuple[str, bool]]:
    return [(each.rule, each.is_fault) for each in judge(facts, complete=complete)]


def test_a_right_lake_has_no_findings() -> None:
    assert judge(RIGHT, complete=True) == []


@pytest.mark.parametrize(
    ("part", "wanted"),
    [
        ({"missing": 2, "missing_first": 3, "missing_last": 4}, ("missing", True)),
        ({"lake_rows": 11}, ("duplicates", True)),
        ({"differing": 1}, ("content", True)),
        ({"outside": 1}, ("range", True)),
        ({"extra": 1}, ("extra", False)),
        ({"log_end": 12}, ("behind", False)),
        ({"log_end": 8}, ("ahead", True)),
        ({"log_start": -1, "log_end": -1}, ("gone", False)),
        ({"log_start": 5, "lake_distinct": 4, "lake_rows": 4}, ("unverifiable", False)),
    ],
)
def test_partitions(part: dict[str, int], wanted: tuple[str, bool]) -> None:
    assert rules(replace(RIGHT, partitions=(replace(PART, **part),))) == [wanted]  # type: ignore[arg-type]


def test_a_lake_behind_is_a_fault_where_it_should_be_complete() -> None:
    behind = replace(RIGHT, partitions=(replace(PART, log_end=12),))
    assert rules(behind, complete=True) == [("behind", True)]


@pytest.mark.parametrize(
    ("seen", "rule"),
    [
        (None, "file"),
        (FileFacts(FILE.path, problem="no magic bytes"), "file"),
        (replace(SEEN, rows=9), "file"),
        (replace(SEEN, disorder=1), "order"),
    ],
)
def test_files(seen: FileFacts | None, rule: str) -> None:
    found = {} if seen is None else {FILE.path: seen}
    assert rules(replace(RIGHT, found=found)) == [(rule, True)]


def test_overlapping_files_orphans_and_keys() -> None:
    twice = replace(FILE, path="t/id=id/p=0/b.parquet", first=9)
    facts = replace(
        RIGHT,
        listed=(FILE, twice),
        found={FILE.path: SEEN, twice.path: replace(SEEN, path=twice.path, first=9)},
        orphans=("t/id=id/p=0/z.parquet",),
        keys=KeyFacts(two_homes=1, sequence="n", out_of_sequence=1),
        problems=("broken",),
    )
    assert rules(facts) == [
        ("chain", True),
        ("duplicates", True),
        ("home", True),
        ("sequence", True),
        ("orphan", False),
    ]


def test_reports_say_the_same_in_three_forms() -> None:
    part = replace(PART, topic="<t>", missing=2, missing_first=3, missing_last=4)
    facts = replace(RIGHT, partitions=(part,))
    audit = Audit(facts, judge(facts))
    assert not audit.is_right
    assert "FAULTS: 1" in audit.text
    assert "2 records of the log are not in the lake, between offsets 3 and 4" in audit.text
    made = json.loads(audit.json)
    assert (made["right"], made["partitions"][0]["missing"]) == (False, 2)
    html = audit.html(["<p>more</p>"])
    assert "&lt;t&gt;" in html and "<t>" not in html and "<svg" in html
    # Self-contained: nothing is fetched.
    assert not re.search(r"https?:|<script|<link|@import|url\(", html)
    right = Audit(RIGHT, [])
    assert right.is_right and "RIGHT: 10 records, each once; 3 keys in order" in right.text


def test_tables_and_pictures() -> None:
    assert text_table(("a", "n"), [("x", 1000), ("yy", 5)]) == "a       n\nx   1,000\nyy      5"
    assert [shown(value) for value in (None, True, 1.25, "s")] == ["", "true", "1.2", "s"]
    assert heat_map(["r"], ["c"], {("r", "c"): 1.0}, "t", "min").count("<rect") == 1
    assert "<rect" not in heat_map([], [], {}, "t", "min")
