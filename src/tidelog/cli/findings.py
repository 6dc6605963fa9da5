"""What ``tidelog doctor`` makes of what it saw. Pure: facts in, findings out.

Owns the rules and their words. Each finding that is not good says what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tidelog.client.admin.groups import ListedGroup
from tidelog.client.admin.nodes import LogDir
from tidelog.client.errors import ClientError
from tidelog.client.group_offsets import Position
from tidelog.client.metadata import NO_LEADER, Broker, Topic
from tidelog.model.topics import TopicPartition

LOW_DISK_SHARE = 0.10
"""A directory with less than this share of its disk free is worth a note."""

FULL_DISK_SHARE = 0.03
"""Below this it is bad: appends will soon be refused."""

NAMES_SHOWN = 5
"""Partitions or topics named in one finding; the rest is counted."""


class Level(Enum):
    """How bad a finding is."""

    GOOD = "good"
    NOTICE = "notice"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line, and what to do about it."""

    level: Level
    what: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What was seen. Values that could not be had are the error that was met instead."""

    cluster_id: str
    controller_id: int
    brokers: Sequence[Broker]
    topics: Mapping[str, Topic]
    minimum_isr: Mapping[str, int] = field(default_factory=dict)
    log_dirs: Mapping[int, list[LogDir] | ClientError] = field(default_factory=dict)
    groups: Sequence[ListedGroup] = ()
    committed: Mapping[str, Mapping[TopicPartition, Position] | ClientError] = field(
        default_factory=dict
    )
    condition: Mapping[str, Any] | None = None
    """What the active controller says itself; None where that is not served."""


def judge(facts: Facts) -> list[Finding]:
    """Return the findings, the worst first."""
    found = [
        *_brokers(facts),
        *_partitions(facts),
        *_disks(facts),
        *_groups(facts),
        *_condition(facts),
    ]
    order = {Level.BAD: 0, Level.NOTICE: 1, Level.GOOD: 2}
    return sorted(found, key=lambda finding: order[finding.level])


def _brokers(facts: Facts) -> list[Finding]:
    found = []
    alive = {broker.node_id for broker in facts.brokers}
    assigned = {
        node_id
        for topic in facts.topics.values()
        for partition in topic.partitions.values()
        for node_id in partition.replicas
    }
    missing = sorted(assigned - alive)
    if missing:
        names = ", ".join(map(str, missing))
        found.append(
            Finding(Level.BAD, f"broker {names} has replicas and is not alive", "start it")
        )
    if facts.controller_id < 0:
        found.append(
            Finding(
                Level.BAD,
                "no controller is active: topics cannot be changed, leaders are not replaced",
                "start a process with the role controller, and look into its log",
            )
        )
    if not found:
        where = ", ".join(f"{b.node_id} at {b.host}:{b.port}" for b in facts.brokers)
        found.append(Finding(Level.GOOD, f"brokers: {where}; controller {facts.controller_id}"))
    return found


def _partitions(facts: Facts) -> list[Finding]:
    leaderless, too_few, under = [], [], []
    total = 0
    for topic in facts.topics.values():
        for partition in topic.partitions.values():
            total += 1
            name = f"{topic.name}-{partition.index}"
            minimum = min(facts.minimum_isr.get(topic.name, 1), len(partition.replicas))
            if partition.leader == NO_LEADER:
                leaderless.append(name)
            elif len(partition.isr) < minimum:
                too_few.append(name)
            elif len(partition.isr) < len(partition.replicas):
                under.append(name)
    found = []
    # The controller says these two itself, where it can be asked.
    if leaderless and facts.condition is None:
        what = f"{_named(leaderless)}: no leader, cannot be read or written"
        found.append(Finding(Level.BAD, what, "start the brokers that hold them"))
    if too_few and facts.condition is None:
        what = f"{_named(too_few)}: fewer in-sync replicas than min.insync.replicas, acks=all fails"
        found.append(Finding(Level.BAD, what, "start the missing brokers, or lower the minimum"))
    if under:
        what = f"{_named(under)}: under-replicated"
        found.append(Finding(Level.NOTICE, what, "wait if replicas are catching up"))
    if not found and not leaderless and not too_few:
        what = f"{total} partitions of {len(facts.topics)} topics: all lead, all in sync"
        found.append(Finding(Level.GOOD, what))
    return found


def _disks(facts: Facts) -> list[Finding]:
    found = []
    for node_id, dirs in sorted(facts.log_dirs.items()):
        if isinstance(dirs, ClientError):
            what = f"broker {node_id} does not tell of its log directories: {dirs}"
            found.append(Finding(Level.BAD, what, "look into its log"))
            continue
        for entry in dirs:
            where = f"broker {node_id}, {entry.path}"
            if entry.error is not None:
                what = f"{where}: out of service ({entry.error.code.name})"
                found.append(
                    Finding(Level.BAD, what, "look into its log, repair the disk, start it again")
                )
                continue
            size = sum(entry.replicas.values())
            said = f"{where}: {len(entry.replicas)} replicas, {readable(size)}"
            if entry.total_bytes <= 0:
                found.append(Finding(Level.GOOD, said))
                continue
            share = entry.usable_bytes / entry.total_bytes
            said += f", {readable(entry.usable_bytes)} of the disk free"
            level = Level.GOOD
            if share < LOW_DISK_SHARE:
                level = Level.BAD if share < FULL_DISK_SHARE else Level.NOTICE
            advice = "" if level is Level.GOOD else "make room, or shorten retention"
            found.append(Finding(level, said, advice))
    return found


def _groups(facts: Facts) -> list[Finding]:
    found = []
    for group, committed in facts.committed.items():
        if isinstance(committed, ClientError):
            what = f"group {group}: its offsets cannot be read: {committed}"
            found.append(Finding(Level.BAD, what, "look at the broker that coordinates it"))
            continue
        gone = sorted({where.topic for where in committed if where.topic not in facts.topics})
        if gone:
            what = f"group {group} has offsets of topics that do not exist: {_named(gone)}"
            advice = "tidelog groups --delete-offsets, if they are not coming back"
            found.append(Finding(Level.NOTICE, what, advice))
    if not found:
        moving = sum(1 for group in facts.groups if "Rebalanc" in group.state)
        said = f", {moving} rebalancing" if moving else ""
        found.append(Finding(Level.GOOD, f"{len(facts.groups)} groups{said}"))
    return found


def _condition(facts: Facts) -> list[Finding]:
    """Pass on what the controller says is wrong."""
    if facts.condition is None:
        return []
    return [
        Finding(
            Level.BAD,
            str(problem.get("what", "")).rstrip("."),
            str(problem.get("advice", "")).rstrip("."),
        )
        for problem in facts.condition.get("problems", ())
    ]


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMES_SHOWN])
    more = len(names) - NAMES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def readable(size: int) -> str:
    """Return a size in bytes as people read it."""
    number = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"
