"""The audit's verdict as a table, and its reports."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tidelog.partitioning.audit_rules import AuditVerdict
from tidelog.pipeline.audit.facts import (
    AuditFacts,
    GoneTopic,
    KeyFacts,
    Keys,
    PartitionFacts,
    Piece,
    PieceFacts,
    RecordedLoss,
)
from tidelog.pipeline.audit.rules import Weight, judge, verdict
from tidelog.pipeline.jobs.audit import AuditResult
from tidelog.pipeline.report.page import shown, text_table

PART = PartitionFacts(
    "t", "0", 0, 10, log_start=0, log_end=10, lake_rows=10, lake_distinct=10, log_rows=10,
    header_rows=10, compared=10, compared_now=10,
)  # fmt: skip
PIECE = Piece("t", "id", 0, 0, 10, "t/id=id/p=0/a.parquet", 0, 9, 10, 99, lost=0)
SEEN = PieceFacts(
    0, found_rows=10, distinct=10, found_first=0, found_last=9, log_rows=10, header_rows=10
)
RIGHT = AuditFacts("/lake", 1, (PART,), KeyFacts(unkeyed=1), files=1, files_now=1)

FAULT, SKIPPED, NOTE = Weight


def rules(facts: AuditFacts, *, complete: bool = False) -> list[tuple[str, Weight]]:
    return [(each.rule, each.weight) for each in judge(facts, complete=complete)]


def word(facts: AuditFacts) -> AuditVerdict:
    return verdict(facts, judge(facts))


def test_a_right_lake_has_no_findings() -> None:
    assert judge(RIGHT, complete=True) == []
    assert word(RIGHT) is AuditVerdict.RIGHT


@pytest.mark.parametrize(
    ("part", "wanted"),
    [
        ({"missing": 2, "missing_first": 3, "missing_last": 4}, ("missing", FAULT)),
        ({"lake_rows": 11}, ("duplicates", FAULT)),
        ({"differing": 1}, ("content", FAULT)),
        ({"outside": 1}, ("range", FAULT)),
        ({"extra": 1}, ("extra", FAULT)),
        ({"header_rows": 11}, ("count", FAULT)),
        ({"read_twice": 5, "read_otherwise": 1}, ("decoding", FAULT)),
        ({"compacted_away": 1}, ("compacted", NOTE)),
        ({"log_end": 12}, ("behind", NOTE)),
        ({"log_end": 8}, ("ahead", FAULT)),
        ({"below": 4, "compared": 6}, ("below", NOTE)),
        ({"unexplained": 4, "compared": 6}, ("unexplained", SKIPPED)),
    ],
)
def test_partitions(part: dict[str, int], wanted: tuple[str, Weight]) -> None:
    facts = replace(RIGHT, partitions=(replace(PART, **part),))  # type: ignore[arg-type]
    assert rules(facts) == [wanted]
    verdicts = {
        FAULT: AuditVerdict.FAULTS,
        SKIPPED: AuditVerdict.INCOMPLETE,
        NOTE: AuditVerdict.RIGHT,
    }
    assert word(facts) is verdicts[wanted[1]]


def test_a_lake_that_lags_is_a_fault_where_it_should_be_complete() -> None:
    behind = replace(RIGHT, partitions=(replace(PART, log_end=12),))
    assert rules(behind, complete=True) == [("behind", FAULT)]


@pytest.mark.parametrize(
    ("seen", "rule"),
    [
        (PieceFacts(10, problem="no magic bytes"), "file"),
        (replace(SEEN, found_rows=9, distinct=9), "file"),
        (replace(SEEN, disorder=1), "order"),
        (replace(SEEN, wrong_bytes=True), "digest"),
    ],
)
def test_files(seen: PieceFacts, rule: str) -> None:
    assert not seen.is_clean(PIECE)
    assert rules(replace(RIGHT, bad=((PIECE, seen),))) == [(rule, FAULT)]


@pytest.mark.parametrize(
    "wrong",
    ["disorder", "outside", "differing", "missing", "extra", "read_otherwise", "log_rows"],
)
def test_what_is_wrong_with_a_piece_is_compared_again_next_time(wrong: str) -> None:
    assert SEEN.is_clean(PIECE)
    assert not replace(SEEN, **{wrong: 1}).is_clean(PIECE)  # type: ignore[arg-type]
    assert not replace(SEEN, distinct=9).is_clean(PIECE)
    assert replace(SEEN, below=3, compacted_away=2, log_from=3).is_clean(PIECE)


def test_overlapping_files_orphans_and_keys() -> None:
    facts = replace(
        RIGHT,
        overlaps=(("t/id=id/p=0/b.parquet", PIECE.path),),
        orphans=("t/p=0/z.parquet",),
        keys=KeyFacts(away=1, homes=Keys.MURMUR2, sequence="n", out_of_sequence=1),
        problems=("broken",),
        remarks=("no record",),
    )
    assert rules(facts) == [
        ("chain", FAULT),
        ("duplicates", FAULT),
        ("home", FAULT),
        ("sequence", FAULT),
        ("orphan", NOTE),
        ("audit", NOTE),
    ]


def test_right_is_not_said_over_records_that_were_skipped() -> None:
    """P1: 490 of 1,000 records were removed before they were archived."""
    part = replace(
        PART, archived_to=1000, log_start=500, log_end=1000, lake_rows=510, lake_distinct=510,
        log_rows=500, header_rows=500, compared=500, compared_now=500, below=10,
    )  # fmt: skip
    lost = (RecordedLoss("t", "id", 0, 10, 490, "retention"),)
    known = replace(RIGHT, partitions=(part,), losses=lost)
    assert rules(known) == [("lost", SKIPPED), ("below", NOTE)]
    unknown = replace(RIGHT, partitions=(replace(part, unexplained=490),))
    assert rules(unknown) == [("unexplained", SKIPPED), ("below", NOTE)]
    for facts in (known, unknown):
        audit = AuditResult(facts, judge(facts))
        assert not audit.is_right and audit.status == 3
        assert "RIGHT" not in audit.text
        assert audit.text.endswith("compared: 500 of 1,000 offsets (50.0 %)")
        assert json.loads(audit.json)["right"] is False


def test_what_was_never_compared_is_not_called_right() -> None:
    part = replace(PART, log_start=10, below=10, compared=0, compared_now=0)
    facts = replace(RIGHT, partitions=(part, replace(PART, topic="u")))
    assert word(facts) is AuditVerdict.INCOMPLETE, "a topic of which nothing was compared"
    partly = replace(RIGHT, partitions=(replace(part, below=4, compared=6, compared_now=2),))
    audit = AuditResult(partly, judge(partly))
    assert audit.is_right and audit.status == 0
    assert audit.text.splitlines()[-1] == (
        "RIGHT as far as it was compared: 10 records, each once; compared: 6 of 10 offsets"
        " (60.0 %), 4 of them by earlier audits; 1 record without a key"
    )
    # Nothing was archived, and nothing left out.
    assert word(replace(RIGHT, partitions=(replace(PART, archived_to=0, compared=0),))) == "RIGHT"


def test_a_deleted_topic_has_its_own_answer() -> None:
    gone = replace(PART, topic_id="id", log_start=-1, log_end=-1, below=10, compared=0)
    facts = replace(RIGHT, partitions=(gone,), gone=(GoneTopic("t", "id", "the topic is deleted"),))
    found = judge(facts)
    assert [(each.rule, each.weight) for each in found] == [("gone", SKIPPED), ("below", NOTE)]
    assert found[0].text == "the topic is deleted: 10 of 10 archived offsets can never be compared"
    assert AuditResult(facts, found).status == 3
    earlier = replace(facts, partitions=(replace(gone, below=0, compared=10),))
    assert [each.text for each in judge(earlier)] == [
        "the topic is deleted; earlier audits have compared all of it"
    ]
    assert word(earlier) is AuditVerdict.RIGHT
    # Another topic of the same name is not meant, nor another partition.
    other = replace(gone, topic_id="other")
    assert not facts.gone[0].has(other)
    assert not replace(facts.gone[0], partition="1").has(gone)


def test_a_partition_that_a_shrink_removed_is_complete_up_to_the_end_of_its_data() -> None:
    """As after retention: the share says what was compared. What the lake lacks is skipped."""
    part = replace(PART, topic_id="id", log_start=-1, log_end=-1, below=4, compared=6)
    gone = GoneTopic("t", "id", "the partition was removed after a shrink", PART.partition, 0)
    facts = replace(RIGHT, partitions=(part,), gone=(gone,))
    assert rules(facts) == [("below", NOTE), ("gone", NOTE)]
    assert "holds it to its end, 4 of its offsets not compared" in judge(facts)[1].text
    assert word(facts) is AuditVerdict.RIGHT
    lacking = replace(facts, gone=(replace(gone, lacking=3),))
    assert word(lacking) is AuditVerdict.INCOMPLETE
    assert "the lake lacks its last 3 offsets" in judge(lacking)[0].text
    compared = replace(facts, partitions=(replace(part, below=0, compared=10),))
    assert "earlier audits have compared all of it" in judge(compared)[0].text


def test_keys_in_order_is_said_only_with_what_proves_it() -> None:
    """P19."""
    assert "key" not in AuditResult(replace(RIGHT, keys=KeyFacts()), []).text
    proven = KeyFacts(homes=Keys.MURMUR2, sequence="n", keys=3)
    assert AuditResult(replace(RIGHT, keys=proven), []).text.endswith(
        "compared: all 10 offsets; keys where murmur2 puts them; 3 keys in order of n"
    )


def test_a_field_that_no_record_has_proves_nothing() -> None:
    lacking = replace(RIGHT, keys=KeyFacts(sequence="n", keys_without=3))
    assert word(lacking) is AuditVerdict.INCOMPLETE
    assert judge(lacking)[0].text.startswith("3 keys have no number in the JSON field n, and none")
    some = replace(RIGHT, keys=KeyFacts(sequence="n", keys=2, keys_without=3))
    assert word(some) is AuditVerdict.RIGHT and rules(some) == [("sequence", NOTE)]


def test_reports_say_the_same_in_three_forms() -> None:
    part = replace(PART, topic="<t>", missing=2, missing_first=3, missing_last=4)
    facts = replace(RIGHT, partitions=(part,))
    audit = AuditResult(facts, judge(facts))
    assert not audit.is_right and audit.status == 1
    assert "FAULTS: 1" in audit.text
    assert "2 records of the log are not in the lake, between offsets 3 and 4" in audit.text
    made = json.loads(audit.json)
    assert (made["right"], made["partitions"][0]["missing"]) == (False, 2)
    assert (made["verdict"], made["findings"][0]["is_fault"]) == ("FAULTS", True)
    html = audit.html(["<p>more</p>"])
    assert "&lt;t&gt;" in html and "<t>" not in html and "<svg" in html
    # Self-contained: nothing is fetched.
    assert not re.search(r"https?:|<script|<link|@import|url\(", html)
    right = AuditResult(RIGHT, [])
    assert right.is_right and "RIGHT: 10 records, each once; compared: all 10 offsets" in right.text


def test_a_share_is_rounded_down() -> None:
    facts = replace(RIGHT, partitions=(replace(PART, archived_to=10_000, compared=9_999),))
    assert "9,999 of 10,000 offsets (99.9 %)" in AuditResult(facts, []).text


def test_tables() -> None:
    assert text_table(("a", "n"), [("x", 1000), ("yy", 5)]) == "a       n\nx   1,000\nyy      5"
    assert [shown(value) for value in (None, True, 1.25, "s")] == ["", "true", "1.2", "s"]


@pytest.mark.parametrize("to_file", [False, True])
def test_standard_output_has_json_and_nothing_else(tmp_path: Path, to_file: bool) -> None:
    """P20: what Spark's JVM and libraries write there goes to standard error."""
    place = tmp_path / "found.json"
    script = f"""
import subprocess, sys
from tidelog.pipeline.json_output import json_output
with json_output(True, {str(place)!r} if {to_file} else None) as out:
    print("a library")
    subprocess.run(["echo", "a child"], check=True)
    print('{{"a": 1}}', file=out)
print("after")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    if to_file:
        assert place.read_text() == '{"a": 1}\n'
        assert sorted(done.stdout.split("\n")) == ["", "a child", "a library", "after"]
    else:
        assert done.stdout == '{"a": 1}\nafter\n'
        assert "a child" in done.stderr and "a library" in done.stderr
