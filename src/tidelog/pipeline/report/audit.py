"""An audit's result as text, as JSON and as the parts of an HTML page.

Owns the words; `rules` owns the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tidelog.partitioning.audit_rules import AuditVerdict, many, proven
from tidelog.pipeline.audit.facts import AuditFacts, Keys
from tidelog.pipeline.audit.rules import AuditFinding, verdict
from tidelog.pipeline.report.page import heading, paragraph, table, text_table
from tidelog.pipeline.report.pictures import coverage

_HEAD = (
    "partition",
    "archived",
    "records",
    "compared",
    "twice",
    "missing",
    "differing",
    "behind",
    "log",
)
_SHOWN = 50
_KINDS = {AuditVerdict.RIGHT: "good", AuditVerdict.INCOMPLETE: "note", AuditVerdict.FAULTS: "bad"}


def sentence(facts: AuditFacts, findings: Sequence[AuditFinding]) -> str:
    """The result in one sentence, which names the share of the lake that was compared."""
    word = verdict(facts, findings)
    faults = sum(finding.is_fault for finding in findings)
    records = many(facts.rows, "record")
    if word is AuditVerdict.FAULTS:
        return f"{word}: {faults} found in {records}; {share(facts)}"
    if word is AuditVerdict.INCOMPLETE:
        return (
            f"{word}: no fault in {records}, but some were skipped, or may have been;"
            f" {share(facts)}"
        )
    part = "" if facts.compared == facts.archived else " as far as it was compared"
    return f"{word}{part}: {records}, each once; {share(facts)}{_of_keys(facts)}"


def share(facts: AuditFacts) -> str:
    """How much of what the lake says it holds was compared with the log, rounded down."""
    archived, compared, now = facts.archived, facts.compared, facts.compared_now
    earlier = f", {compared - now:,} of them by earlier audits" if compared > now else ""
    if compared == archived:
        return f"compared: all {many(archived, 'offset')}{earlier}"
    percent = math.floor(1000 * compared / archived) / 10
    return f"compared: {compared:,} of {many(archived, 'offset')} ({percent:.1f} %){earlier}"


def _of_keys(facts: AuditFacts) -> str:
    """What was proven of keys."""
    keys = facts.keys
    homes = keys.homes is not Keys.ANY
    parts = proven(homes=homes, keys=keys.keys, field=keys.sequence, unkeyed=keys.unkeyed)
    return "".join(f"; {part}" for part in parts)


def _rows(facts: AuditFacts) -> list[tuple[object, ...]]:
    return [
        (
            part.name,
            f"{part.archived_from}..{part.archived_to}",
            part.lake_rows,
            part.compared,
            part.duplicates,
            part.missing,
            part.differing,
            part.behind,
            f"{part.log_start}..{part.log_end}" if part.log_start >= 0 else "gone",
        )
        for part in facts.partitions
    ]


def _lake(facts: AuditFacts) -> str:
    return (
        f"{facts.lake}: {facts.batches:,} batches,"
        f" {many(facts.files, 'file')}, {facts.files_now:,} of them read now"
    )


def as_text(facts: AuditFacts, findings: Sequence[AuditFinding]) -> str:
    """For a terminal."""
    lines = [f"audit of {_lake(facts)}", text_table(_HEAD, _rows(facts))]
    lines += [f"{one.weight}: {one.rule}: {one.subject}: {one.text}" for one in findings[:_SHOWN]]
    if len(findings) > _SHOWN:
        lines.append(f"and {len(findings) - _SHOWN} more")
    lines.append(sentence(facts, findings))
    return "\n".join(lines)


def as_json(facts: AuditFacts, findings: Sequence[AuditFinding]) -> dict[str, Any]:
    """For programs; names and units as in `AuditFacts`."""
    return {
        "lake": facts.lake,
        "verdict": verdict(facts, findings).value,
        "right": verdict(facts, findings) is AuditVerdict.RIGHT,
        "sentence": sentence(facts, findings),
        "batches": facts.batches,
        "files": facts.files,
        "files_now": facts.files_now,
        "records": facts.rows,
        "archived": facts.archived,
        "compared": facts.compared,
        "compared_now": facts.compared_now,
        "partitions": [
            {**asdict(part), "duplicates": part.duplicates, "behind": part.behind}
            for part in facts.partitions
        ],
        "keys": asdict(facts.keys),
        "losses": [asdict(loss) for loss in facts.losses],
        "gone": [asdict(gone) for gone in facts.gone],
        "orphans": list(facts.orphans),
        "findings": [{**asdict(finding), "is_fault": finding.is_fault} for finding in findings],
    }


def as_html(facts: AuditFacts, findings: Sequence[AuditFinding]) -> list[str]:
    """Parts of a page, the picture first."""
    parts = [
        paragraph(sentence(facts, findings), f"verdict {_KINDS[verdict(facts, findings)]}"),
        paragraph(f"{_lake(facts)}; compared record by record with the live topics.", "soft"),
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
                ((one.weight, one.rule, one.subject, one.text) for one in findings[:_SHOWN]),
            )
        )
    return parts
