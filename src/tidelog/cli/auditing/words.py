"""An audit's result as text and as JSON. No I/O.

Owns the words of this audit alone. Those that both audits say: see ``partitioning.audit_rules``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tidelog.cli.auditing.facts import AuditedTopic, Example, PartitionAudit
from tidelog.cli.auditing.judging import TopicJudge
from tidelog.cli.auditing.reading import ChangesMeanwhile
from tidelog.partitioning.audit_rules import AuditVerdict, Kind, key_text, many, proven, sentence_of

COLUMNS = ("Partition", "From", "To", "Records", "NoKey", "Misplaced", "State")

ADVICE = {
    Kind.HOME: "written by a producer without a partition count, with another partitioner "
    "(librdkafka's default is not murmur2), or to a partition of its own choice: "
    "docs/operating/resize.md",
    Kind.TIMESTAMP: "if the application sets timestamps itself: --ignore-timestamps",
}
"""What to do about a kind of finding, where there is something to say."""


def as_text(
    audited: AuditedTopic, judge: TopicJudge, changes: ChangesMeanwhile, field: str | None
) -> list[str]:
    """Return the lines below the table: findings with examples, remarks, and the verdict."""
    lines = []
    for kind, count in sorted(judge.findings.counts.items()):
        lines.append(f"{kind.value}: {sentence_of(kind, count, field)}")
        lines += [f"  {_place(example)}" for example in judge.findings.examples[kind]]
        if kind in ADVICE:
            lines.append(f"  {ADVICE[kind]}")
    lines += [f"note: {remark}" for remark in remarks(audited, judge, changes, field)]
    lines.append(verdict(audited, judge, field))
    return lines


def rows(audited: AuditedTopic, judge: TopicJudge) -> list[Sequence[Any]]:
    """Return the rows of the table."""
    return [
        (
            index,
            part.begin,
            part.end,
            judge.partitions[index].records,
            judge.partitions[index].unkeyed,
            judge.partitions[index].misplaced,
            "retired" if part.is_retired else "",
        )
        for index, part in sorted(audited.partitions.items())
    ]


def verdict(audited: AuditedTopic, judge: TopicJudge, field: str | None) -> str:
    """Return the result in one sentence."""
    total = _sum(judge)
    records = f"{many(total.records, 'record')} in {many(len(audited.partitions), 'partition')}"
    if judge.findings.counts:
        kinds = ", ".join(kind.value for kind in sorted(judge.findings.counts))
        count = sum(judge.findings.counts.values())
        return f"{AuditVerdict.FAULTS}: {count:,} found in {records}: {kinds}"
    parts = proven(
        homes=True, timed=judge.timed, keys=judge.keys, field=field, unkeyed=total.unkeyed
    )
    return f"{AuditVerdict.RIGHT}: {records}: {'; '.join(parts)}"


def why_unproven(judge: TopicJudge, field: str | None) -> str | None:
    """Return why the order of a field is not known at all, though there are records to judge."""
    if field is None or judge.keys or not judge.without_number:
        return None
    count = many(judge.without_number, "record")
    return (
        f"none of {count} with a key has a number in the JSON field {field!r}, so that it proves "
        "nothing: name a field that the values have with --sequence, or leave it out"
    )


def remarks(
    audited: AuditedTopic, judge: TopicJudge, changes: ChangesMeanwhile, field: str | None
) -> list[str]:
    """Return what a reader should know of the audit itself."""
    total = _sum(judge)
    sentences = []
    if not audited.is_counted:
        sentences.append(
            "the cluster says no partition counts of the topic: keys are judged by the present one"
        )
    if total.unjudged:
        sentences.append(
            f"{many(total.unjudged, 'record')} not judged: no order was promised when they were "
            "written (enable.ordered.delivery=false)"
        )
    if total.aborted:
        sentences.append(f"{many(total.aborted, 'record')} of aborted transactions not judged")
    if judge.without_number:
        count = many(judge.without_number, "record")
        sentences.append(f"{count} with a key without a number in the JSON field {field!r}")
    if total.lost:
        sentences.append(f"retention removed {many(total.lost, 'offset')} before they were read")
    if changes.removed:
        names = ", ".join(map(str, sorted(changes.removed)))
        sentences.append(f"removed while the audit ran, and not read to the end: partition {names}")
    if changes.resize_epoch is not None:
        sentences.append(
            "the topic was resized while the audit ran (resize epoch "
            f"{audited.topic.resize_epoch} -> {changes.resize_epoch}): it is judged up to the ends "
            "at the start"
        )
    return sentences


def as_json(
    audited: AuditedTopic,
    judge: TopicJudge,
    changes: ChangesMeanwhile,
    field: str | None,
    topic_id: str,
) -> dict[str, Any]:
    """Return the result for ``--json``."""
    findings = judge.findings
    return {
        "topic": audited.topic.name,
        "topic_id": topic_id,
        "verdict": AuditVerdict.FAULTS if findings.counts else AuditVerdict.RIGHT,
        "initial_partition_count": audited.counts.initial,
        "partition_count": audited.topic.count,
        "resize_epoch": max(audited.topic.resize_epoch, 0),
        **asdict(_sum(judge)),
        "records_in_order_of_time": judge.timed,
        "sequence": field,
        "keys_in_sequence": judge.keys if field is not None else None,
        "partitions": [
            {
                "partition": index,
                "retired": part.is_retired,
                "from_offset": part.begin,
                "to_offset": part.end,
                **asdict(judge.partitions[index]),
            }
            for index, part in sorted(audited.partitions.items())
        ],
        "findings": [
            {
                "kind": kind.value,
                "count": count,
                "what": sentence_of(kind, count, field),
                "examples": [
                    {
                        "partition": example.partition,
                        "offset": example.offset,
                        "key": None if example.key is None else key_text(example.key),
                        "what": example.text,
                    }
                    for example in findings.examples[kind]
                ],
            }
            for kind, count in sorted(findings.counts.items())
        ],
        "remarks": remarks(audited, judge, changes, field),
    }


def _sum(judge: TopicJudge) -> PartitionAudit:
    """Return the numbers of all partitions together."""
    total = PartitionAudit()
    for part in judge.partitions.values():
        for name, value in asdict(part).items():
            setattr(total, name, getattr(total, name) + value)
    return total


def _place(example: Example) -> str:
    key = "" if example.key is None else f" key {key_text(example.key)}"
    return f"partition {example.partition} offset {example.offset}{key}: {example.text}"
