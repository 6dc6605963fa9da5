"""An audit's result as text, as JSON and as the parts of an HTML page.

Owns the words; `rules` owns the verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tidelog.pipeline.audit.facts import Facts
from tidelog.pipeline.audit.rules import Finding
from tidelog.pipeline.report.page import heading, paragraph, table, text_table
from tidelog.pipeline.report.pictures import coverage

_HEAD = ("partition", "archived", "records", "twice", "missing", "differing", "behind", "log")
_SHOWN = 50


def verdict(facts: Facts, findings: Sequence[Finding]) -> str:
    """The result in one sentence."""
    faults = sum(finding.is_fault for finding in findings)
    rows = sum(part.lake_rows for part in facts.partitions)
    if faults:
        return f"FAULTS: {faults} found in {rows:,} records"
    keys = facts.keys
    noun = "key" if keys.keys == 1 else "keys"
    return (
        f"RIGHT: {rows:,} records, each once; {keys.keys:,} {noun} in order,"
        f" {keys.unkeyed:,} records without a key"
    )


def _rows(facts: Facts) -> list[tuple[object, ...]]:
    return [
        (
            f"{part.topic}-{part.partition}",
            f"{part.archived_from}..{part.archived_to}",
            part.lake_rows,
            part.duplicates,
            part.missing,
            part.differing,
            part.behind,
            f"{part.log_start}..{part.log_end}" if part.log_start >= 0 else "gone",
        )
        for part in facts.partitions
    ]


def as_text(facts: Facts, findings: Sequence[Finding]) -> str:
    """For a terminal."""
    lines = [
        f"audit of {facts.lake}: {facts.batches} batches, {len(facts.listed)} files",
        text_table(_HEAD, _rows(facts)),
    ]
    for finding in findings[:_SHOWN]:
        word = "fault" if finding.is_fault else "note"
        lines.append(f"{word}: {finding.rule}: {finding.subject}: {finding.text}")
    if len(findings) > _SHOWN:
        lines.append(f"and {len(findings) - _SHOWN} more")
    lines.append(verdict(facts, findings))
    return "\n".join(lines)


def as_json(facts: Facts, findings: Sequence[Finding]) -> dict[str, Any]:
    """For programs; names and units as in `Facts`."""
    return {
        "lake": facts.lake,
        "right": not any(finding.is_fault for finding in findings),
        "batches": facts.batches,
        "files": len(facts.listed),
        "records": sum(part.lake_rows for part in facts.partitions),
        "partitions": [
            {**asdict(part), "duplicates": part.duplicates, "behind": part.behind}
            for part in facts.partitions
        ],
        "keys": asdict(facts.keys),
        "orphans": list(facts.orphans),
        "findings": [asdict(finding) for finding in findings],
    }


def as_html(facts: Facts, findings: Sequence[Finding]) -> list[str]:
    """Parts of a page, the picture first."""
    bad = any(finding.is_fault for finding in findings)
    parts = [
        paragraph(verdict(facts, findings), "verdict bad" if bad else "verdict good"),
        paragraph(
            f"{facts.lake}: {facts.batches} batches in {len(facts.listed)} files,"
            " compared record by record with the live topics.",
            "soft",
        ),
        heading("What of the log is in the lake"),
        coverage(facts.partitions),
        heading("Partitions"),
        table(_HEAD, _rows(facts)),
    ]
    if findings:
        parts.append(heading("Findings"))
        parts.append(
            table(
                ("kind", "rule", "subject", "what"),
                (
                    ("fault" if each.is_fault else "note", each.rule, each.subject, each.text)
                    for each in findings[:_SHOWN]
                ),
            )
        )
    return parts
