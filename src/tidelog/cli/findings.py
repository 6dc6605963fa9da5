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
    kind: str = ""
    """A short name for scripts; "" for what is well."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What was seen. Values that could not be had are the error that was met instead."""

    cluster_id: str
    controller_id: int
    """Whom clients are told to ask: with controllers apart from brokers, one that forwards."""
    brokers: Sequence[Broker]
    topics: Mapping[str, Topic]
    minimum_isr: Mapping[str, int] = field(default_factory=dict)
    log_dirs: Mapping[int, list[LogDir] | ClientError] = field(default_factory=dict)
    groups: Sequence[ListedGroup] = ()
    groups_unknown: Mapping[int, ClientError] = field(default_factory=dict)
    """Brokers that did not say which groups they coordinate."""
    committed: Mapping[str, Mapping[TopicPartition, Position] | ClientError] = field(
        default_factory=dict
    )
    condition: Mapping[str, Any] | ClientError | None = None
    """What the active controller says itself; None where that is not served."""
    topics_later: Mapping[str, Topic] | None = None
    """The topics as they were after the log directories were seen; None for the same."""

    @property
    def told(self) -> Mapping[str, Any] | None:
        """What the controller says, if it answered."""
        return None if isinstance(self.condition, ClientError) else self.condition

    @property
    def controller(self) -> int:
        """The active controller by its own word, else whom clients are told to ask; -1 for none."""
        told = {} if self.told is None else self.told
        return int(told.get("controller_id", self.controller_id))


def judge(facts: Facts) -> list[Finding]:
    """Return the findings, the worst first."""
    found = [
        *_condition(facts),
        *_brokers(facts),
        *_partitions(facts),
        *_strays(facts),
        *_disks(facts),
        *_groups(facts),
    ]
    order = {Level.BAD: 0, Level.NOTICE: 1, Level.GOOD: 2}
    return sorted(found, key=lambda finding: order[finding.level])


def _condition(facts: Facts) -> list[Finding]:
    """Pass on what the controller says is wrong."""
    if isinstance(facts.condition, ClientError):
        what = f"the controller does not answer: {facts.condition}"
        advice = "start a process with the role controller, and look into its log"
        return [Finding(Level.BAD, what, advice, "controller_silent")]
    if facts.condition is None:
        return []
    return [
        Finding(
            Level.NOTICE if problem.get("level") == Level.NOTICE.value else Level.BAD,
            str(problem.get("what", "")).rstrip("."),
            str(problem.get("advice", "")).rstrip("."),
            str(problem.get("kind", "")),
        )
        for problem in facts.condition.get("problems", ())
    ]


def _brokers(facts: Facts) -> list[Finding]:
    found = []
    alive = {broker.node_id for broker in facts.brokers}
    missing = sorted(
        {
            node_id
            for topic in facts.topics.values()
            for partition in topic.partitions.values()
            for node_id in partition.replicas
        }
        - alive
    )
    if missing and facts.told is None:
        what = f"broker {named(missing)} has replicas and is not alive"
        found.append(Finding(Level.BAD, what, "start it", "brokers_dead"))
    if facts.controller_id < 0 and facts.told is None:
        what = "no controller is active: topics cannot be changed, leaders are not replaced"
        advice = "start a process with the role controller, and look into its log"
        found.append(Finding(Level.BAD, what, advice, "no_controller"))
    if not found and not missing:
        where = ", ".join(f"{b.node_id} at {b.host}:{b.port}" for b in facts.brokers)
        found.append(Finding(Level.GOOD, f"brokers: {where}; controller {facts.controller}"))
    return found


def _partitions(facts: Facts) -> list[Finding]:
    offline, below, under = [], [], []
    total = 0
    for topic in facts.topics.values():
        for partition in topic.partitions.values():
            total += 1
            name = f"{topic.name}-{partition.index}"
            minimum = min(facts.minimum_isr.get(topic.name, 1), len(partition.replicas))
            if partition.leader == NO_LEADER:
                offline.append(name)
            elif len(partition.isr) < minimum:
                below.append(name)
            elif len(partition.isr) < len(partition.replicas):
                under.append(name)
    if not offline and not below and not under:
        partitions, topics = counted(total, "partition"), counted(len(facts.topics), "topic")
        what = f"{partitions} of {topics}: all lead, all in sync"
        return [Finding(Level.GOOD, what)]
    if facts.told is not None:
        # The controller says them itself.
        return []
    rows = (
        ("offline", offline, "no leader, cannot be read or written", "start their brokers"),
        (
            "below_min_insync",
            below,
            "fewer in-sync replicas than min.insync.replicas, acks=all fails",
            "start the missing brokers, or lower the minimum",
        ),
        (
            "under_replicated",
            under,
            "under-replicated",
            "start the missing brokers, or wait while replicas catch up",
        ),
    )
    return [
        Finding(Level.BAD, f"{named(names)}: {what}", advice, kind)
        for kind, names, what, advice in rows
        if names
    ]


def _strays(facts: Facts) -> list[Finding]:
    """Replicas that a broker holds and that are not assigned to it, before and after the look."""
    views = [facts.topics]
    if facts.topics_later is not None:
        views.append(facts.topics_later)
    strays = [
        f"{where} on broker {node_id}"
        for node_id, dirs in sorted(facts.log_dirs.items())
        if not isinstance(dirs, ClientError)
        for entry in dirs
        for where in sorted(entry.replicas)
        if not any(_is_assigned(view, where, node_id) for view in views)
    ]
    if not strays:
        return []
    what = f"replicas that nobody assigned there: {named(strays)}"
    advice = (
        "wait, if topics were just deleted or moved: they are removed once the controller says so; "
        "else look into those brokers' logs"
    )
    return [Finding(Level.BAD, what, advice, "strays")]


def _is_assigned(topics: Mapping[str, Topic], where: TopicPartition, node_id: int) -> bool:
    topic = topics.get(where.topic)
    partition = None if topic is None else topic.partitions.get(where.partition)
    return partition is not None and node_id in partition.replicas


def _disks(facts: Facts) -> list[Finding]:
    found = []
    for node_id, dirs in sorted(facts.log_dirs.items()):
        if isinstance(dirs, ClientError):
            what = f"broker {node_id} does not tell of its log directories: {dirs}"
            found.append(Finding(Level.BAD, what, "look into its log", "broker_silent"))
            continue
        for entry in dirs:
            where = f"broker {node_id}, {entry.path}"
            if entry.error is not None:
                what = f"{where}: out of service ({entry.error.code.name})"
                advice = "look into its log, repair the disk, start it again"
                found.append(Finding(Level.BAD, what, advice, "disk_failed"))
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
            found.append(Finding(level, said, advice, "disk_full" if advice else ""))
    return found


def _groups(facts: Facts) -> list[Finding]:
    found = []
    for node_id, error in facts.groups_unknown.items():
        # Of a broker that does not answer at all one line is enough.
        if not isinstance(facts.log_dirs.get(node_id), ClientError):
            what = f"broker {node_id} does not tell of its groups: {error}"
            found.append(Finding(Level.BAD, what, "look into its log", "groups_unknown"))
    for group, committed in facts.committed.items():
        if isinstance(committed, ClientError):
            what = f"group {group}: its offsets cannot be read: {committed}"
            advice = "look at the broker that coordinates it"
            found.append(Finding(Level.BAD, what, advice, "group_unreadable"))
            continue
        gone = sorted({where.topic for where in committed if where.topic not in facts.topics})
        if gone:
            what = f"group {group} has offsets of topics that do not exist: {named(gone)}"
            advice = "tidelog groups --delete-offsets, if they are not coming back"
            found.append(Finding(Level.NOTICE, what, advice, "group_offsets_of_nothing"))
    if not found:
        moving = sum(1 for group in facts.groups if "Rebalanc" in group.state)
        said = f", {moving} rebalancing" if moving else ""
        count = len(facts.groups)
        found.append(Finding(Level.GOOD, f"{count} group{'' if count == 1 else 's'}{said}"))
    return found


def counted(count: int, what: str) -> str:
    """Return a number of things in words: 1 topic, 2 topics."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def named(names: Sequence[object]) -> str:
    """Return the first of some names with commas, and how many more there are."""
    shown = ", ".join(map(str, names[:NAMES_SHOWN]))
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
