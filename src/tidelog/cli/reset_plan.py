"""The new offsets of ``tidelog groups --reset-offsets``, calculated without a cluster. Pure.

Owns the parsing of its arguments (durations, times, topic lists, files) and the new offsets, which
are never before the start or past the end of a log.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

from tidelog.cli.refusal import WrongUsage
from tidelog.model.topics import TopicPartition


class Goal(Enum):
    """How the new offset is chosen."""

    EARLIEST = "--to-earliest"
    LATEST = "--to-latest"
    CURRENT = "--to-current"
    OFFSET = "--to-offset"
    SHIFT = "--shift-by"
    TIME = "--to-datetime"
    FILE = "--from-file"


@dataclass(frozen=True, slots=True)
class OffsetFacts:
    """The offsets of one partition: log start and end, the group's, the one at a given time."""

    earliest: int
    latest: int
    committed: int | None = None
    at_time: int | None = None


def new_offset(goal: Goal, facts: OffsetFacts, number: int = 0) -> int | None:
    """Return the new offset; None when the goal gives none (--to-current without a committed one).

    ``number`` is the offset of OFFSET and FILE, the distance of SHIFT.
    """
    if goal is Goal.EARLIEST:
        return facts.earliest
    if goal is Goal.LATEST:
        return facts.latest
    if goal is Goal.TIME:
        # No record is that late: the end of the log.
        offset = facts.latest if facts.at_time is None else facts.at_time
    elif goal is Goal.CURRENT:
        offset = facts.latest if facts.committed is None else facts.committed
    elif goal is Goal.SHIFT:
        if facts.committed is None:
            return None
        offset = facts.committed + number
    else:
        offset = number
    return min(max(offset, facts.earliest), facts.latest)


_DURATION = re.compile(
    r"(?P<sign>-)?P(?:(?P<days>\d+)D)?"
    r"(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?$"
)


def parse_duration_ms(text: str) -> int:
    """Parse an ISO 8601 duration of days, hours, minutes, seconds. Raises WrongUsage."""
    match = _DURATION.match(text.upper())
    if match is None or not any(match[part] for part in ("days", "hours", "minutes", "seconds")):
        raise WrongUsage(f"--by-duration takes PnDTnHnMnS (for example PT1H30M), not {text!r}")
    if match["sign"]:
        raise WrongUsage(f"--by-duration goes back in time already: {text!r} must not be negative")
    seconds = (
        int(match["days"] or 0) * 86_400
        + int(match["hours"] or 0) * 3_600
        + int(match["minutes"] or 0) * 60
        + float(match["seconds"] or 0)
    )
    return int(seconds * 1000)


def parse_datetime_ms(text: str, option: str = "--to-datetime") -> int:
    """Parse ``YYYY-MM-DDTHH:MM:SS.sss``, UTC unless it names a zone. Raises WrongUsage."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise WrongUsage(f"{option} takes YYYY-MM-DDTHH:MM:SS.sss, not {text!r}") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def parse_topic(text: str) -> tuple[str, list[int] | None]:
    """Parse ``topic`` or ``topic:0,1,2``; None means all partitions. Raises WrongUsage."""
    name, colon, indexes = text.partition(":")
    if not colon:
        return name, None
    pieces = [piece.strip() for piece in indexes.split(",")]
    if not name or not all(piece.isdecimal() for piece in pieces):
        raise WrongUsage(f"--topic takes NAME or NAME:0,1,2, not {text!r}")
    return name, [int(piece) for piece in pieces]


def parse_file(text: str, groups: list[str]) -> dict[str, dict[TopicPartition, int]]:
    """Parse lines ``topic,partition,offset``, or with the group in front when there are several.

    Raises WrongUsage with the line's number.
    """
    by_group: dict[str, dict[TopicPartition, int]] = {}
    for number, row in enumerate(csv.reader(io.StringIO(text)), 1):
        if not row:
            continue
        fields = [field.strip() for field in row]
        if len(fields) == 3 and len(groups) == 1:
            fields.insert(0, groups[0])
        if len(fields) != 4 or not fields[2].isdecimal() or not fields[3].isdecimal():
            raise WrongUsage(
                f"--from-file: line {number} is not topic,partition,offset "
                "(with the group in front for several groups)"
            )
        if fields[0] not in groups:
            raise WrongUsage(f"--from-file: line {number}: group {fields[0]!r} was not given")
        tp = TopicPartition(fields[1], int(fields[2]))
        by_group.setdefault(fields[0], {})[tp] = int(fields[3])
    return by_group


def write_file(plan: Mapping[str, Mapping[TopicPartition, int]]) -> str:
    """Return a plan as a file that ``parse_file`` reads: the form with groups for several."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for group, positions in plan.items():
        for tp, offset in sorted(positions.items()):
            front = [group] if len(plan) > 1 else []
            writer.writerow([*front, tp.topic, tp.partition, offset])
    return out.getvalue()
