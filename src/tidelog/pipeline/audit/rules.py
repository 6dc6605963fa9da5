"""The verdict of an audit: faults, skipped records, notes. Pure.

Owns the rules, as a function of the facts. A fault violates exactly-once or the order of a key.
Skipped are records that the lake lacks, or may lack, although everything in it is right: they were
lost before they were archived, or that cannot be decided. A note is useful to know (the lake lags,
the log no longer has the records).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tidelog.partitioning.audit_rules import AuditVerdict, Kind, sentence_of
from tidelog.pipeline.audit.facts import (
    AuditFacts,
    KeyFacts,
    PartitionFacts,
    Piece,
    PieceFacts,
    RecordedLoss,
)


class Weight(StrEnum):
    """What a finding does to the verdict."""

    FAULT = "fault"
    SKIPPED = "skipped"
    NOTE = "note"


_NOTE = Weight.NOTE


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One sentence about one subject."""

    rule: str
    subject: str
    text: str
    weight: Weight = Weight.FAULT

    @property
    def is_fault(self) -> bool:
        return self.weight is Weight.FAULT


def judge(facts: AuditFacts, *, complete: bool = False) -> list[AuditFinding]:
    """All findings, faults first. `complete`: the lake must hold all that the log holds now."""
    findings = [AuditFinding("chain", facts.lake, problem) for problem in facts.problems]
    for piece, seen in facts.bad:
        findings += _piece(piece, seen)
    findings += [
        AuditFinding("duplicates", path, f"overlaps {before}") for path, before in facts.overlaps
    ]
    for part in facts.partitions:
        findings += _partition(part, complete)
    findings += _losses(facts)
    findings += _gone(facts)
    findings += _keys(facts.keys)
    findings += [
        AuditFinding("orphan", name, "the file is in no manifest (an interrupted batch)", _NOTE)
        for name in facts.orphans
    ]
    findings += [AuditFinding("audit", facts.lake, remark, _NOTE) for remark in facts.remarks]
    order = list(Weight)
    return sorted(findings, key=lambda finding: order.index(finding.weight))


def verdict(facts: AuditFacts, findings: Sequence[AuditFinding]) -> AuditVerdict:
    """RIGHT is said of nothing that was skipped, and of no topic that was not compared at all."""
    if any(finding.is_fault for finding in findings):
        return AuditVerdict.FAULTS
    if any(finding.weight is Weight.SKIPPED for finding in findings):
        return AuditVerdict.INCOMPLETE
    archived, compared = Counter[str](), Counter[str]()
    for part in facts.partitions:
        archived[part.topic] += part.archived
        compared[part.topic] += part.compared
    if any(archived[topic] and not compared[topic] for topic in archived):
        return AuditVerdict.INCOMPLETE
    return AuditVerdict.RIGHT


def _piece(piece: Piece, seen: PieceFacts) -> Iterator[AuditFinding]:
    if not piece.path:
        return
    if seen.problem:
        yield AuditFinding(
            "file", piece.path, f"a file of the manifest cannot be read: {seen.problem}"
        )
        return
    listed = (piece.rows, piece.first, piece.last)
    if (seen.found_rows, seen.found_first, seen.found_last) != listed:
        yield AuditFinding(
            "file",
            piece.path,
            f"holds {seen.found_rows} records from {seen.found_first} to {seen.found_last}; the"
            f" manifest says {piece.rows} from {piece.first} to {piece.last}",
        )
    if seen.wrong_bytes:
        yield AuditFinding(
            "digest", piece.path, "its bytes are not those that the manifest has the digest of"
        )
    if seen.disorder:
        yield AuditFinding("order", piece.path, f"{seen.disorder} records are not in offset order")


def _partition(part: PartitionFacts, complete: bool) -> Iterator[AuditFinding]:
    yield from _contents(part)
    if lag := part.behind:
        weight = Weight.FAULT if complete else _NOTE
        text = f"the lake lags the log by {lag} offsets"
        yield AuditFinding("behind", part.name, text, weight)
    if part.unexplained:
        yield AuditFinding(
            "unexplained",
            part.name,
            f"{part.unexplained} offsets have no record in the lake, the log now begins at"
            f" {part.log_start}, and the manifests (version 1) do not say whether records were"
            " lost",
            Weight.SKIPPED,
        )
    if part.below:
        yield AuditFinding(
            "below",
            part.name,
            f"{part.below} records were never compared: the log no longer reached back to them",
            _NOTE,
        )
    if part.quarantined:
        text = f"{part.quarantined} offsets of the log cannot be read; the lake has their bytes"
        yield AuditFinding("quarantined", part.name, text, _NOTE)
    if part.compacted_away:
        text = f"{part.compacted_away} records of the lake are no longer in the log (compaction)"
        yield AuditFinding("compacted", part.name, text, _NOTE)


def _contents(part: PartitionFacts) -> Iterator[AuditFinding]:
    """What is wrong with the records themselves."""
    first, last = part.missing_first, part.missing_last
    log_rows, header_rows = part.log_rows, part.header_rows
    sentences = (
        (
            "missing",
            part.missing,
            f"{part.missing} records of the log are not in the lake, between offsets {first} and"
            f" {last}",
        ),
        ("duplicates", part.duplicates, f"{part.duplicates} records are in the lake twice"),
        ("content", part.differing, f"{part.differing} records differ from the log"),
        ("range", part.outside, f"{part.outside} records lie outside of the range of their file"),
        (
            "extra",
            part.extra,
            f"{part.extra} records of the lake are not in the log, which is not compacted",
        ),
        (
            "count",
            log_rows != header_rows,
            f"{log_rows} records of the log were read, the headers of its batches announce"
            f" {header_rows}",
        ),
        (
            "decoding",
            part.read_otherwise,
            f"{part.read_otherwise} of {part.read_twice} records of the log are others when they"
            " are decoded a second way",
        ),
        (
            "ahead",
            part.ahead,
            f"the lake reaches {part.ahead} offsets beyond the end of the log: the log lost its"
            " tail (unclean election or restored disk)",
        ),
    )
    for rule, count, text in sentences:
        if count:
            yield AuditFinding(rule, part.name, text)


def _losses(facts: AuditFacts) -> Iterator[AuditFinding]:
    by_cause: defaultdict[tuple[str, str], list[RecordedLoss]] = defaultdict(list)
    for loss in facts.losses:
        by_cause[f"{loss.topic}-{loss.partition}", loss.cause].append(loss)
    for (name, cause), losses in sorted(by_cause.items()):
        offsets = sum(loss.offsets for loss in losses)
        many = f"{offsets} offsets" if offsets else "an unknown number of offsets"
        first = min(loss.start for loss in losses)
        yield AuditFinding(
            "lost",
            name,
            f"{many} from {first} on were lost before they could be archived ({cause}), as the"
            " manifests record",
            Weight.SKIPPED,
        )


def _gone(facts: AuditFacts) -> Iterator[AuditFinding]:
    for gone in facts.gone:
        parts = [part for part in facts.partitions if gone.has(part)]
        left = sum(part.archived - part.compared for part in parts)
        all_of = sum(part.archived for part in parts)
        weight = Weight.SKIPPED if left else _NOTE
        if gone.lacking > 0:
            text = f"{gone.what}: the lake lacks its last {gone.lacking} offsets"
            weight = Weight.SKIPPED
        elif gone.lacking == 0 and left:
            # As where retention has removed records: the share that was compared says it.
            text = f"{gone.what}; the lake holds it to its end, {left} of its offsets not compared"
            weight = _NOTE
        elif left:
            text = f"{gone.what}: {left} of {all_of} archived offsets can never be compared"
        else:
            text = f"{gone.what}; earlier audits have compared all of it"
        yield AuditFinding("gone", gone.name, text, weight)


def _keys(keys: KeyFacts) -> Iterator[AuditFinding]:
    for kind, count, examples in (
        (Kind.HOME, keys.away, keys.away_examples),
        (Kind.SEQUENCE, keys.out_of_sequence, keys.out_of_sequence_examples),
    ):
        if count:
            text = f"{sentence_of(kind, count, keys.sequence)}: {', '.join(examples)}"
            yield AuditFinding(kind.value, "keys", text)
    if keys.keys_without:
        sentence = f"{keys.keys_without} keys have no number in the JSON field {keys.sequence}"
        if keys.keys:
            yield AuditFinding("sequence", "keys", f"{sentence}, which says nothing of them", _NOTE)
        else:
            text = f"{sentence}, and none has: their order is not known by it"
            yield AuditFinding("sequence", "keys", text, Weight.SKIPPED)
