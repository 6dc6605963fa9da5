"""The job `audit`: does a lake hold what its topics hold, each record once, as it is in the log?

Owns the steps: gather, judge, write the reports. Of the lake it writes only the record of what was
compared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from tidelog.partitioning.audit_rules import AuditVerdict
from tidelog.pipeline.audit.facts import AuditFacts, AuditRequest, Keys
from tidelog.pipeline.audit.gather import gather
from tidelog.pipeline.audit.rules import AuditFinding, judge, verdict
from tidelog.pipeline.report import audit as words
from tidelog.pipeline.report.page import page
from tidelog.pipeline.spark_errors import in_one_line

STATUS = {AuditVerdict.RIGHT: 0, AuditVerdict.FAULTS: 1, AuditVerdict.INCOMPLETE: 3}
"""Exit statuses; 2 is for an audit that could not be made."""


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """What to audit. `keys` says where producers put keys, `sequence` is a JSON field that must not
    decrease for a key, `full` compares again what earlier audits have compared."""

    bootstrap_servers: str
    lake: str
    sequence: str | None = None
    complete: bool = False
    report: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    keys: str = Keys.ANY.value
    full: bool = False


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The result; `status` is the exit status of the job."""

    facts: AuditFacts
    findings: Sequence[AuditFinding]

    @property
    def verdict(self) -> AuditVerdict:
        return verdict(self.facts, self.findings)

    @property
    def is_right(self) -> bool:
        return self.verdict is AuditVerdict.RIGHT

    @property
    def status(self) -> int:
        return STATUS[self.verdict]

    @property
    def text(self) -> str:
        return words.as_text(self.facts, self.findings)

    @property
    def json(self) -> str:
        return json.dumps(words.as_json(self.facts, self.findings), indent=1)

    def html(self, more: Sequence[str] = ()) -> str:
        """One page; `more` are further parts."""
        return page("Audit of the lake", [*words.as_html(self.facts, self.findings), *more])


def run(spark: SparkSession, settings: AuditSettings) -> AuditResult:
    """Audit a lake and write the reports, if a folder for them is named.

    Raises PipelineError, one line, when it cannot be judged at all.
    """
    if settings.report is not None:
        # Not after minutes of work.
        Path(settings.report).mkdir(parents=True, exist_ok=True)
    options = {**settings.options, "kafka.bootstrap.servers": settings.bootstrap_servers}
    question = AuditRequest(Keys(settings.keys), settings.sequence, settings.full)
    with in_one_line():
        facts = gather(spark, settings.lake, options, question)
    audit = AuditResult(facts, judge(facts, complete=settings.complete))
    if settings.report is not None:
        write_reports(audit, Path(settings.report))
    return audit


def write_reports(audit: AuditResult, folder: Path, more: Sequence[str] = ()) -> None:
    """report.txt, report.json and report.html."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.txt").write_text(audit.text + "\n")
    (folder / "report.json").write_text(audit.json + "\n")
    (folder / "report.html").write_text(audit.html(more))
