"""The plan file of reassignments: Kafka's JSON of partitions with their new replicas. Pure.

Owns its reading, with one-line refusals, and its writing. Not the comparison with a cluster: see
``checks``. The forms, each with an optional "version": 1:

| file | form |
|---|---|
| a plan | {"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2]}]} |
| topics to move | {"topics": [{"topic": "t"}]} |

A partition may have "log_dirs", one for each replica: an absolute path, or "any".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from tidelog.cli.connecting import text_of
from tidelog.cli.output import say
from tidelog.cli.refusal import WrongUsage
from tidelog.client.admin.log_dirs import Replica
from tidelog.model.topics import TopicPartition

Item = TypeVar("Item")

VERSION = 1
"""The newest version of these files; Kafka's, too."""

MOST_BYTES = 32 << 20
"""The largest file that is read: a plan of 100,000 partitions of long names is smaller."""

ANY = "any"
"""The log directory that leaves the choice to the broker."""

Targets = dict[TopicPartition, tuple[int, ...]]
"""The new replicas of each partition of a plan."""


LogDirs = Mapping[Replica, str]
"""The log directories of the replicas for which a plan names one."""


@dataclass(frozen=True, slots=True)
class PlanFile:
    """What a plan says of replicas and of their log directories."""

    targets: Targets
    log_dirs: LogDirs = field(default_factory=dict)


class _Row(msgspec.Struct):
    topic: str
    partition: int
    replicas: list[int]
    log_dirs: list[str] | None = None


class _Plan(msgspec.Struct):
    partitions: list[_Row]
    version: int = VERSION


class _Topic(msgspec.Struct):
    topic: str


class _Topics(msgspec.Struct):
    topics: list[_Topic]
    version: int = VERSION


_File = TypeVar("_File", _Plan, _Topics)


def text_of_plan(file: Path, option: str) -> str:
    """Return the text of a file of a plan. Raises WrongUsage for one that is too large."""
    size = file.stat().st_size
    if size > MOST_BYTES:
        raise WrongUsage(
            f"{option}: {file} has {size} bytes, and a plan may have {MOST_BYTES}: split it"
        )
    return text_of(file)


def parse_plan(text: str, option: str = "--reassignment-json-file") -> PlanFile:
    """Parse a plan. Raises WrongUsage with what is wrong and where."""
    targets: Targets = {}
    log_dirs: dict[Replica, str] = {}
    for number, row in enumerate(_decoded(text, _Plan, option).partitions):
        tp = TopicPartition(row.topic, row.partition)
        wrong = _why_wrong(row)
        if wrong is None and tp in targets:
            wrong = "it is named more than once"
        if wrong is not None:
            raise WrongUsage(f"{option}: {tp} (partitions[{number}]): {wrong}")
        targets[tp] = tuple(row.replicas)
        for broker, path in zip(row.replicas, row.log_dirs or (), strict=False):
            if path != ANY:
                log_dirs[Replica(tp, broker)] = path
    if not targets:
        raise WrongUsage(f"{option}: the plan names no partition")
    return PlanFile(targets, log_dirs)


def _why_wrong(row: _Row) -> str | None:
    if row.partition < 0:
        return "a partition is numbered from 0"
    if not row.replicas:
        return 'its "replicas" are empty; --cancel ends a move'
    if min(row.replicas) < 0:
        return f"{min(row.replicas)} is no broker id"
    again = _repeated(row.replicas)
    if again is not None:
        return f"broker {again} is named more than once"
    if row.log_dirs is not None:
        if len(row.log_dirs) != len(row.replicas):
            # Kafka's wording.
            return (
                f"Size of replicas list {row.replicas} is different from size of log dirs list "
                f"[{', '.join(row.log_dirs)}]"
            )
        relative = [path for path in row.log_dirs if path != ANY and not path.startswith("/")]
        if relative:
            return f'log directory {relative[0]!r} is neither "{ANY}" nor an absolute path'
    return None


def parse_topics(text: str, option: str = "--topics-to-move-json-file") -> list[str]:
    """Parse the topics to move. Raises WrongUsage with what is wrong and where."""
    names = [topic.topic for topic in _decoded(text, _Topics, option).topics]
    if not names:
        raise WrongUsage(f"{option}: the file names no topic")
    again = _repeated(names)
    if again is not None:
        raise WrongUsage(f"{option}: topic {again!r} is named more than once")
    return names


def _repeated(items: Iterable[Item]) -> Item | None:
    """Return the first item that is there twice, or None."""
    seen: set[Item] = set()
    for item in items:
        if item in seen:
            return item
        seen.add(item)
    return None


def _decoded(text: str, form: type[_File], option: str) -> _File:
    if not text.strip():
        raise WrongUsage(f"{option}: the file is empty")
    if text.lstrip().startswith(("Current partition", "Proposed partition")):
        raise WrongUsage(f"{option}: of what --generate prints, keep the JSON of the proposal only")
    try:
        version = msgspec.json.decode(text, type=_Versioned).version
        if version > VERSION:
            raise WrongUsage(
                f"{option}: the file has version {version}, and this tool reads up to {VERSION}"
            )
        if version < 1:
            raise WrongUsage(f"{option}: there is no version {version} of this file")
        return msgspec.json.decode(text, type=form)
    except (msgspec.DecodeError, RecursionError) as error:
        # A ValidationError says where: "… - at `$.partitions[0].topic`".
        raise WrongUsage(f"{option}: this is not the JSON of such a file: {error}") from None


class _Versioned(msgspec.Struct):
    version: int = VERSION


def parse_brokers(text: str, option: str = "--broker-list") -> list[int]:
    """Parse broker ids with commas between them. Raises WrongUsage."""
    pieces = [piece.strip() for piece in text.split(",")]
    for piece in pieces:
        if not (piece.isascii() and piece.isdecimal()):
            raise WrongUsage(f"{option} takes broker ids with commas, not {piece!r}")
    node_ids = [int(piece) for piece in pieces]
    again = _repeated(node_ids)
    if again is not None:
        raise WrongUsage(f"{option} names broker {again} more than once")
    return node_ids


def plan_data(
    targets: Mapping[TopicPartition, Iterable[int]], log_dirs: LogDirs | None = None
) -> dict[str, object]:
    """Return a plan as the data of its JSON; partitions are sorted."""
    chosen = log_dirs or {}
    rows = [(tp, list(targets[tp])) for tp in sorted(targets)]
    return {
        "version": VERSION,
        "partitions": [
            {
                **tp._asdict(),
                "replicas": replicas,
                "log_dirs": [chosen.get(Replica(tp, broker), ANY) for broker in replicas],
            }
            for tp, replicas in rows
        ],
    }


def plan_text(
    targets: Mapping[TopicPartition, Iterable[int]], log_dirs: LogDirs | None = None
) -> str:
    """Return a plan as JSON in one line, as Kafka's tool prints it; ``parse_plan`` reads it."""
    return json.dumps(plan_data(targets, log_dirs), separators=(",", ":"), ensure_ascii=False)


def say_rollback(
    before: Mapping[TopicPartition, Iterable[int]], log_dirs: LogDirs | None = None
) -> None:
    """Print the plan that leads back, in the words of Kafka's tool: scripts look for them."""
    say(f"Current partition replica assignment\n\n{plan_text(before, log_dirs)}\n")
    say("Save this to use as the --reassignment-json-file option during rollback")
