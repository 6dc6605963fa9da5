"""The dry run of ``topics --alter --partitions``: what a resize would move, and what would wait.

Owns the questions to the cluster, the output, and its JSON. Not the numbers: see ``preview``. It
changes nothing: the controller only says whether it would refuse the count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tidelog.cli import resized
from tidelog.cli.findings import readable
from tidelog.cli.many_requests import ask_each
from tidelog.cli.output import note, print_table, say
from tidelog.cli.reassigning.situation import log_dirs
from tidelog.cli.resizing.gates_shown import seconds
from tidelog.cli.resizing.preview import (
    GroupStanding,
    MovedKeys,
    Wait,
    moves_of,
    percent,
    total_share,
    total_size,
    waits_of,
)
from tidelog.client.admin.configs import describe_topics_configs
from tidelog.client.admin.groups import list_groups
from tidelog.client.admin.resizes import TopicResize, describe_resizes
from tidelog.client.admin.topics import create_partitions
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, Refused
from tidelog.client.groups.committed_offsets import committed_offsets
from tidelog.client.groups.consumer_protocol import PROTOCOL_TYPE
from tidelog.client.groups.lag import lags_of
from tidelog.client.groups.progress import GroupProgress, describe_progress
from tidelog.client.metadata import Topic
from tidelog.client.offsets import EARLIEST, LATEST, MAX_TIMESTAMP, list_offsets
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

HOW_ESTIMATED = {
    True: "estimated: the log of each parent, times the share of its keys that the child takes",
    False: "the logs of the partitions that retire",
}
"""How the bytes of a growth, and of a shrink, are found."""

MOST_SHOWN = 128
"""Most pairs of partitions in the table."""


@dataclass(slots=True)
class DryRun:
    """What a resize of one topic would do; ``refusal`` says why the controller would not do it."""

    topic: Topic
    after: int
    refusal: Refused | None = None
    moves: tuple[MovedKeys, ...] = ()
    waits: list[Wait] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    """The groups that have committed offsets of the partitions whose keys move."""
    without_gates: list[str] = field(default_factory=list)
    """Of these, those whose members know no resizes: they wait for nothing."""
    state: TopicResize | None = None
    purge: str | None = None
    """What empties the partitions that retire, as in ``topics --describe``; None for a growth."""
    kept_until_ms: int | None = None
    """Until when retention by time keeps their newest record, which is how long the topic cannot
    grow again; None: no record, or no limit."""
    retires_records: bool = False
    """Whether a partition that retires has a record at all."""

    @property
    def before(self) -> int:
        return self.topic.count

    @property
    def grows(self) -> bool:
        return self.after > self.before


async def try_out(
    cluster: Cluster,
    topic: Topic,
    count: int,
    assignments: Mapping[str, Sequence[Sequence[int]]],
    *,
    force: bool,
) -> DryRun:
    """Find out what a resize of a topic to a count would do. Raises ClientError."""
    asked = await create_partitions(
        cluster, {topic.name: count}, assignments=assignments, validate_only=True, force=force
    )
    found = DryRun(topic, count, asked[topic.name])
    if found.refusal is not None and found.refusal.code is ErrorCode.REQUEST_TIMED_OUT:
        raise found.refusal
    if not topic.is_ordered:
        return found
    states = await describe_resizes(cluster, [topic.name])
    found.state = None if states is None else states[topic.name]
    sizes = await _sizes(cluster, topic)
    found.moves = moves_of(topic.initial_partition_count, topic.count, count, sizes)
    if found.moves:
        await _add_waits(cluster, found)
        if not found.grows:
            await _add_retention(cluster, found)
    return found


async def _add_retention(cluster: Cluster, found: DryRun) -> None:
    """Add what empties the partitions that retire: the topic cannot grow again before."""
    entries = (await describe_topics_configs(cluster, [found.topic.name]))[found.topic.name]
    if isinstance(entries, Refused):
        note(f"how long retired partitions keep their records is not known: {entries}")
        return
    settings = {each.name: each.value for each in entries}
    places = [TopicPartition(found.topic.name, move.source) for move in found.moves]
    starts = await list_offsets(cluster, dict.fromkeys(places, EARLIEST))
    ends = await list_offsets(cluster, dict.fromkeys(places, LATEST))
    data = await lags_of(
        cluster,
        {where: each.offset for where, each in starts.items()},
        {where: each.offset for where, each in ends.items()},
    )
    # A fence has a time, too.
    holding = [where for where in places if data[where]]
    newest = await list_offsets(cluster, dict.fromkeys(holding, MAX_TIMESTAMP))
    kept = [resized.kept_until(each.timestamp, settings) for each in newest.values()]
    found.retires_records = bool(holding)
    found.purge = resized.purge_of(settings)
    found.kept_until_ms = max((each for each in kept if each is not None), default=None)


async def _sizes(cluster: Cluster, topic: Topic) -> dict[int, int]:
    """Return the bytes of the log of each partition at its leader, where that says it."""
    brokers = sorted(
        {each.leader for each in topic.partitions.values()} & set(cluster.view.brokers)
    )
    dirs = await log_dirs(cluster, brokers)
    found: dict[int, int] = {}
    for broker, entries in dirs.items():
        if isinstance(entries, ClientError):
            note(f"the sizes of logs on broker {broker} are not known: {entries}")
            continue
        for entry in entries:
            for where, size in entry.replicas.items():
                led = topic.partitions.get(where.partition) if where.topic == topic.name else None
                if led is not None and led.leader == broker:
                    found[where.partition] = size
    return found


async def _add_waits(cluster: Cluster, found: DryRun) -> None:
    topic = found.topic
    sources = {TopicPartition(topic.name, move.source) for move in found.moves}
    ends = await list_offsets(cluster, dict.fromkeys(sources, LATEST))
    unlisted: list[str] = []
    listed = await list_groups(cluster, unlisted=unlisted)
    for line in unlisted:
        note(line)
    names = [each.group_id for each in listed if each.protocol_type in (PROTOCOL_TYPE, "")]
    asked = await ask_each(names, lambda group: _standings(cluster, topic, group), "group")
    standings: dict[int, list[GroupStanding]] = {}
    for name, each in zip(names, asked, strict=True):
        if isinstance(each, ClientError):
            note(f"what group {name} would wait for is not known: {each}")
            continue
        committed, progress = each
        if not committed.keys() & sources:
            continue
        found.groups.append(name)
        if _has_no_gates(progress):
            found.without_gates.append(name)
            continue
        offsets = {where: end.offset for where, end in ends.items()}
        lags = await lags_of(cluster, committed, offsets)
        for where, end in offsets.items():
            owner = None if progress is None else progress.partitions.get(where)
            standing = GroupStanding(
                name,
                committed.get(where),
                end,
                lags.get(where),
                None if owner is None else owner.member,
            )
            standings.setdefault(where.partition, []).append(standing)
    found.waits = waits_of(found.moves, standings)


async def _standings(
    cluster: Cluster, topic: Topic, group: str
) -> tuple[dict[TopicPartition, int], GroupProgress | None]:
    committed = await committed_offsets(cluster, group)
    own = {where: each.offset for where, each in committed.items() if where.topic == topic.name}
    return own, await describe_progress(cluster, group, [topic.name]) if own else None


def _has_no_gates(progress: GroupProgress | None) -> bool:
    members = () if progress is None else progress.members.values()
    return bool(members) and all(member.aware is False for member in members)


# The output ------------------------------------------------------------------------------------


def as_json(found: DryRun) -> dict[str, Any]:
    """Return the dry run as ``--json`` shows it."""
    state = found.state
    return {
        "topic": found.topic.name,
        "dry_run": True,
        "from_count": found.before,
        "to_count": found.after,
        "refused": None
        if found.refusal is None
        else {"code": found.refusal.code.name, "reason": found.refusal.reason},
        "keys_that_move": float(total_share(found.moves)),
        "bytes_of_these_keys": total_size(found.moves),
        "bytes_are": HOW_ESTIMATED[found.grows],
        "moves": [
            {
                "from_partition": move.source,
                "to_partition": move.target,
                "share_of_keys": float(move.share),
                "share_of_source": float(move.share_of_source),
                "bytes": move.size,
            }
            for move in found.moves
        ],
        "retired_purge": found.purge,
        "kept_until_ms": found.kept_until_ms,
        "groups": found.groups,
        "groups_without_gates": found.without_gates,
        "waits": [
            {
                "group": wait.standing.group,
                "partition": wait.partition,
                "waits_for": wait.source,
                "position": wait.standing.position,
                "log_end_offset": wait.standing.end,
                "lag": wait.standing.lag,
                "member": wait.standing.member,
            }
            for wait in found.waits
        ],
        "writers_without_count": None
        if state is None
        else [
            {"broker": broker, "ago_ms": ago_ms}
            for broker, ago_ms in state.unaware_ms.items()
            if ago_ms is not None
        ],
        "client_ids_without_count": None if state is None else list(state.unaware_clients),
        "brokers_that_have_not_said": None if state is None else list(state.unknown),
    }


def print_dry_run(found: DryRun) -> None:
    """Print the dry run of one topic."""
    topic = found.topic
    what = "grow" if found.grows else "shrink"
    if found.refusal is None:
        say(f"Topic {topic.name} would {what} from {found.before} to {found.after} partitions.")
    else:
        say(f"Topic {topic.name} keeps its {found.before} partitions: {found.after} are refused.")
    if not topic.is_ordered:
        say(
            "The order of keys is not kept: the topic has enable.ordered.delivery=false, or the "
            "cluster is below level 1.5."
        )
        return
    if found.moves:
        _print_moves(found)
        if found.purge is not None:
            say(until_it_grows(found.purge, found.kept_until_ms, has_records=found.retires_records))
        _print_waits(found)
    _print_writers(found)


def _print_moves(found: DryRun) -> None:
    size = total_size(found.moves)
    say(
        f"Keys that move: {percent(total_share(found.moves))} of all. Their records now: "
        f"{'unknown' if size is None else readable(size)} ({HOW_ESTIMATED[found.grows]}). No "
        "record is copied: records stay where they are."
    )
    ends = ("Parent", "Child") if found.grows else ("Retires", "Survivor")
    columns = [*ends, "Keys", f"Of{ends[0]}", "Bytes"]
    print_table(
        columns,
        [
            [
                move.source,
                move.target,
                percent(move.share),
                percent(move.share_of_source),
                None if move.size is None else readable(move.size),
            ]
            for move in found.moves[:MOST_SHOWN]
        ],
        right=columns,
    )
    if len(found.moves) > MOST_SHOWN:
        say(f"And {len(found.moves) - MOST_SHOWN:,} pairs more: --json has all of them.")


def until_it_grows(purge: str, kept_until_ms: int | None, *, has_records: bool = True) -> str:
    """Return the sentence about when a topic that shrinks may grow again."""
    if not has_records:
        return (
            "The topic can grow again as soon as the controller has removed these partitions: they "
            "hold no records (retired.purge.delay.ms, retired.check.interval.ms)."
        )
    at = "no time limit removes them"
    if kept_until_ms is not None:
        newest = datetime.fromtimestamp(kept_until_ms / 1000, UTC).strftime("%FT%TZ")
        at = f"retention.ms keeps the newest until {newest}"
    how = {
        "nothing": "compaction keeps their records for good",
        "drained": "every group must have committed past their records, and "
        f"retired.purge.delay.ms must have passed; otherwise {at}",
        "retention": at,
    }[purge]
    return f"The topic cannot grow again before these partitions are empty: {how}."


def _print_waits(found: DryRun) -> None:
    if found.without_gates:
        say(
            f"Groups whose members know no resizes: {', '.join(found.without_gates)}. They wait "
            "for nothing: at the resize a key may overtake itself there."
        )
    if not found.waits:
        say("No group would wait: each has read what would come before the fence.")
        return
    say("What would wait, if the fence were written now:")
    columns = ["Group", "Partition", "WaitsFor", "Position", "End", "Lag", "Member"]
    print_table(
        columns,
        [
            [
                wait.standing.group,
                wait.partition,
                wait.source,
                wait.standing.position,
                wait.standing.end,
                wait.standing.lag,
                wait.standing.member,
            ]
            for wait in found.waits
        ],
        right=columns[1:6],
        spare=["Position", "End"],
    )


def _print_writers(found: DryRun) -> None:
    state = found.state
    if state is None:
        say("Which writers send no partition count is not known: the controller does not say it.")
        return
    seen = {broker: ago for broker, ago in state.unaware_ms.items() if ago is not None}
    if seen:
        said = ", ".join(
            f"{'a former controller' if x < 0 else f'broker {x}'} {seconds(ago)} ago"
            for x, ago in sorted(seen.items())
        )
        say(f"Writers without a partition count, last seen by: {said}.")
        if state.unaware_clients:
            say(f"Their client ids: {resized.client_ids_text(state.unaware_clients)}.")
    if state.unknown:
        names = ", ".join(map(str, state.unknown))
        say(f"Brokers that have not said yet whether they saw such writers: {names}.")
    if not seen and not state.unknown:
        say("No writer without a partition count was seen.")
