"""The verdict of an audit: which facts break a promise, and which are worth a note.

Owns the rules, as a pure function of the facts. A fault is something that exactly-once or the order
of a key forbids; a note is something a reader should know (the lake is behind, the log forgot).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidelog.pipeline.audit.facts import Facts, KeyFacts, PartitionFacts
from tidelog.pipeline.lake.files import FileFacts
from tidelog.pipeline.lake.manifest import LakeFile


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence about one subject. Faults fail the audit."""

    rule: str
    subject: str
    text: str
    is_fault: bool = True


def judge(facts: Facts, *, complete: bool = False) -> list[Finding]:
    """All findings, faults first. `complete`: the lake must hold all that the log holds now."""
    found = [Finding("chain", facts.lake, problem) for problem in facts.problems]
    for file in facts.listed:
        found += _file(file, facts.found.get(file.path))
    found += _overlaps(facts)
    for part in facts.partitions:
        found += _partition(part, complete)
    found += _keys(facts.keys)
    found += [
        Finding("orphan", name, "the file is in no manifest (a batch that was cut down)", False)
        for name in facts.orphans
    ]
    return sorted(found, key=lambda finding: not finding.is_fault)


def _file(file: LakeFile, seen: FileFacts | None) -> Iterator[Finding]:
    if seen is None or seen.problem:
        why = seen.problem if seen else "it is not there"
        yield Finding("file", file.path, f"a file of the manifest cannot be read: {why}")
        return
    if (seen.rows, seen.first, seen.last) != (file.rows, file.first, file.last):
        yield Finding(
            "file",
            file.path,
            f"holds {seen.rows} records from {seen.first} to {seen.last}; the manifest says"
            f" {file.rows} from {file.first} to {file.last}",
        )
    if seen.disorder:
        yield Finding("order", file.path, f"{seen.disorder} records are not in offset order")


def _overlaps(facts: Facts) -> Iterator[Finding]:
    reached: dict[object, LakeFile] = {}
    for file in sorted(facts.listed, key=lambda each: (each.home, each.first)):
        before = reached.get(file.home)
        if before is not None and file.first <= before.last:
            yield Finding("duplicates", file.path, f"overlaps {before.path}")
        reached[file.home] = file


def _partition(part: PartitionFacts, complete: bool) -> Iterator[Finding]:
    name = f"{part.topic}-{part.partition}"
    if part.missing:
        yield Finding(
            "missing",
            name,
            f"{part.missing} records of the log are not in the lake, between offsets"
            f" {part.missing_first} and {part.missing_last}",
        )
    if part.duplicates:
        yield Finding("duplicates", name, f"{part.duplicates} records are in the lake twice")
    if part.differing:
        yield Finding("content", name, f"{part.differing} records differ from the log")
    if part.outside:
        yield Finding("range", name, f"{part.outside} records lie outside of the archived range")
    if part.ahead:
        yield Finding(
            "ahead",
            name,
            f"the lake reaches {part.ahead} offsets beyond the end of the log: the log lost its"
            " tail (unclean election or restored disk)",
        )
    if part.extra:
        yield Finding(
            "extra",
            name,
            f"{part.extra} records of the lake are no longer in the log (compaction)",
            False,
        )
    if part.behind:
        yield Finding("behind", name, f"the lake is {part.behind} offsets behind the log", complete)
    gap = part.unverifiable - part.lake_distinct
    if part.log_start < 0:
        yield Finding(
            "gone", name, "the partition is gone: only the lake itself was checked", False
        )
    elif gap > 0:
        yield Finding(
            "unverifiable",
            name,
            f"{gap} offsets below the log start {part.log_start} are in neither: control records,"
            " compaction or a loss; the log can no longer tell",
            False,
        )


def _keys(keys: KeyFacts) -> Iterator[Finding]:
    if keys.two_homes:
        examples = ", ".join(keys.two_homes_examples)
        yield Finding(
            "home",
            "keys",
            f"{keys.two_homes} keys are in two partitions of one resize epoch: {examples}",
        )
    if keys.out_of_sequence:
        examples = ", ".join(keys.out_of_sequence_examples)
        yield Finding(
            "sequence",
            "keys",
            f"{keys.out_of_sequence} records run backwards in {keys.sequence}: {examples}",
        )
