"""The job `audit`: does a lake hold what its topics hold, each record once, each key in order?

Owns the steps: gather, judge, write the reports. Reads only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from tidelog.pipeline.audit.facts import Facts
from tidelog.pipeline.audit.gather import gather
from tidelog.pipeline.audit.rules import Finding, judge
from tidelog.pipeline.report import audit as words
from tidelog.pipeline.report.page import page
from tidelog.pipeline.spark_errors import in_one_line


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """What to audit. `sequence` is a JSON field that must not decrease for a key, if any."""

    bootstrap_servers: str
    lake: str
    sequence: str | None = None
    complete: bool = False
    report: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Audit:
    """The result; `is_right` decides the exit status."""

    facts: Facts
    findings: Sequence[Finding]

    @property
    def is_right(self) -> bool:
        return not any(finding.is_fault for finding in self.findings)

    @property
    def text(self) -> str:
        return words.as_text(self.facts, self.findings)

    @property
    def json(self) -> str:
        return json.dumps(words.as_json(self.facts, self.findings), indent=1)

    def html(self, more: Sequence[str] = ()) -> str:
        """One page; `more` are further parts."""
        return page("Audit of the lake", [*words.as_html(self.facts, self.findings), *more])


def run(spark: SparkSession, settings: AuditSettings) -> Audit:
    """Audit a lake and write the reports, if a folder for them is named.

    Raises PipelineError, one line, when it cannot be judged at all.
    """
    if settings.report is not None:
        # Not after minutes of work.
        Path(settings.report).mkdir(parents=True, exist_ok=True)
    with in_one_line():
        facts = gather(
            spark,
            settings.lake,
            settings.bootstrap_servers,
            settings.options,
            settings.sequence,
        )
    audit = Audit(facts, judge(facts, complete=settings.complete))
    if settings.report is not None:
        write_reports(audit, Path(settings.report))
    return audit


def write_reports(audit: Audit, folder: Path, more: Sequence[str] = ()) -> None:
    """report.txt, report.json and report.html."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.txt").write_text(audit.text + "\n")
    (folder / "report.json").write_text(audit.json + "\n")
    (folder / "report.html").write_text(audit.html(more))
