"""The dry run of ``topics --alter --partitions``: what a resize would move, and what would wait.

Owns the questions to the cluster, the output, and its JSON. Not the numbers: see ``preview``. It
changes nothing: the controller only says whether it would refuse the count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from tidelog.model.wording import moment_text

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
    run = DryRun(topic, count, asked[topic.name])
    if run.refusal is not None and run.refusal.code is ErrorCode.REQUEST_TIMED_OUT:
        raise run.refusal
    if not topic.is_ordered:
        return run
    states = await describe_resizes(cluster, [topic.name])
    run.state = None if states is None else states[topic.name]
    sizes = await _sizes(cluster, topic)
    run.moves = moves_of(topic.initial_partition_count, topic.count, count, sizes)
    if run.moves:
        await _add_waits(cluster, run)
        if not run.grows:
            await _add_retention(cluster, run)
    return run


async def _add_retention(cluster: Cluster, run: DryRun) -> None:
    """Add what empties the partitions that retire: the topic cannot grow again before."""
    entries = (await describe_topics_configs(cluster, [run.topic.name]))[run.topic.name]
    if isinstance(entries, Refused):
        note(f"how long retired partitions keep their records is not known: {entries}")
        return
    settings = {entry.name: entry.value for entry in entries}
    places = [TopicPartition(run.topic.name, move.source) for move in run.moves]
    starts = await list_offsets(cluster, dict.fromkeys(places, EARLIEST))
    ends = await list_offsets(cluster, dict.fromkeys(places, LATEST))
    data = await lags_of(
        cluster,
        {tp: start.offset for tp, start in starts.items()},
        {tp: end.offset for tp, end in ends.items()},
    )
    # A fence has a time, too.
    holding = [tp for tp in places if data[tp]]
    newest = await list_offsets(cluster, dict.fromkeys(holding, MAX_TIMESTAMP))
    kept = [resized.kept_until(record.timestamp, settings) for record in newest.values()]
    run.retires_records = bool(holding)
    run.purge = resized.purge_of(settings)
    run.kept_until_ms = max((until_ms for until_ms in kept if until_ms is not None), default=None)


async def _sizes(cluster: Cluster, topic: Topic) -> dict[int, int]:
    """Return the bytes of the log of each partition at its leader, where that says it."""
    brokers = sorted(
        {partition.leader for partition in topic.partitions.values()} & set(cluster.view.brokers)
    )
    dirs = await log_dirs(cluster, brokers)
    sizes: dict[int, int] = {}
    for broker, entries in dirs.items():
        if isinstance(entries, ClientError):
            note(f"the sizes of logs on broker {broker} are not known: {entries}")
            continue
        for entry in entries:
            for tp, size in entry.replicas.items():
                led = topic.partitions.get(tp.partition) if tp.topic == topic.name else None
                if led is not None and led.leader == broker:
                    sizes[tp.partition] = size
    return sizes


async def _add_waits(cluster: Cluster, run: DryRun) -> None:
    topic = run.topic
    sources = {TopicPartition(topic.name, move.source) for move in run.moves}
    ends = await list_offsets(cluster, dict.fromkeys(sources, LATEST))
    unlisted: list[str] = []
    listed = await list_groups(cluster, unlisted=unlisted)
    for line in unlisted:
        note(line)
    names = [group.group_id for group in listed if group.protocol_type in (PROTOCOL_TYPE, "")]
    asked = await ask_each(names, lambda group: _standings(cluster, topic, group), "group")
    standings: dict[int, list[GroupStanding]] = {}
    for name, answer in zip(names, asked, strict=True):
        if isinstance(answer, ClientError):
            note(f"what group {name} would wait for is not known: {answer}")
            continue
        committed, progress = answer
        if not committed.keys() & sources:
            continue
        run.groups.append(name)
        if _has_no_gates(progress):
            run.without_gates.append(name)
            continue
        offsets = {tp: end.offset for tp, end in ends.items()}
        lags = await lags_of(cluster, committed, offsets)
        for tp, end in offsets.items():
            owner = None if progress is None else progress.partitions.get(tp)
            standing = GroupStanding(
                name,
                committed.get(tp),
                end,
                lags.get(tp),
                None if owner is None else owner.member,
            )
            standings.setdefault(tp.partition, []).append(standing)
    run.waits = waits_of(run.moves, standings)


async def _standings(
    cluster: Cluster, topic: Topic, group: str
) -> tuple[dict[TopicPartition, int], GroupProgress | None]:
    committed = await committed_offsets(cluster, group)
    own = {tp: position.offset for tp, position in committed.items() if tp.topic == topic.name}
    return own, await describe_progress(cluster, group, [topic.name]) if own else None


def _has_no_gates(progress: GroupProgress | None) -> bool:
    members = () if progress is None else progress.members.values()
    return bool(members) and all(member.aware is False for member in members)


# The output ------------------------------------------------------------------------------------


def as_json(run: DryRun) -> dict[str, Any]:
    """Return the dry run as ``--json`` shows it."""
    state = run.state
    return {
        "topic": run.topic.name,
        "dry_run": True,
        "from_count": run.before,
        "to_count": run.after,
        "refused": None
        if run.refusal is None
        else {"code": run.refusal.code.name, "reason": run.refusal.reason},
        "keys_that_move": float(total_share(run.moves)),
        "bytes_of_these_keys": total_size(run.moves),
        "bytes_are": HOW_ESTIMATED[run.grows],
        "moves": [
            {
                "from_partition": move.source,
                "to_partition": move.target,
                "share_of_keys": float(move.share),
                "share_of_source": float(move.share_of_source),
                "bytes": move.size,
            }
            for move in run.moves
        ],
        "retired_purge": run.purge,
        "kept_until_ms": run.kept_until_ms,
        "groups": run.groups,
        "groups_without_gates": run.without_gates,
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
            for wait in run.waits
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


def print_dry_run(run: DryRun) -> None:
    """Print the dry run of one topic."""
    topic = run.topic
    what = "grow" if run.grows else "shrink"
    if run.refusal is None:
        say(f"Topic {topic.name} would {what} from {run.before} to {run.after} partitions.")
    else:
        say(f"Topic {topic.name} keeps its {run.before} partitions: {run.after} are refused.")
    if not topic.is_ordered:
        say(
            "The order of keys is not kept: the topic has enable.ordered.delivery=false, or the "
            "cluster is below level 1.5."
        )
        return
    if run.moves:
        _print_moves(run)
        if run.purge is not None:
            say(until_it_grows(run.purge, run.kept_until_ms, has_records=run.retires_records))
        _print_waits(run)
    _print_writers(run)


def _print_moves(run: DryRun) -> None:
    size = total_size(run.moves)
    say(
        f"Keys that move: {percent(total_share(run.moves))} of all. Their records now: "
        f"{'unknown' if size is None else readable(size)} ({HOW_ESTIMATED[run.grows]}). No "
        "record is copied: records stay where they are."
    )
    ends = ("Parent", "Child") if run.grows else ("Retires", "Survivor")
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
            for move in run.moves[:MOST_SHOWN]
        ],
        right=columns,
    )
    if len(run.moves) > MOST_SHOWN:
        say(f"And {len(run.moves) - MOST_SHOWN:,} pairs more: --json has all of them.")


def until_it_grows(purge: str, kept_until_ms: int | None, *, has_records: bool = True) -> str:
    """Return the sentence about when a topic that shrinks may grow again."""
    if not has_records:
        return (
            "The topic can grow again as soon as the controller has removed these partitions: they "
            "hold no records (retired.purge.delay.ms, retired.check.interval.ms)."
        )
    time = "no time limit removes them"
    if kept_until_ms is not None:
        time = f"retention.ms keeps the newest until {moment_text(kept_until_ms)}"
    how = {
        "nothing": "compaction keeps their records for good",
        "drained": "every group must have committed past their records, and "
        f"retired.purge.delay.ms must have passed; otherwise {time}",
        "retention": time,
    }[purge]
    return f"The topic cannot grow again before these partitions are empty: {how}."


def _print_waits(run: DryRun) -> None:
    if run.without_gates:
        say(
            f"Groups whose members know no resizes: {', '.join(run.without_gates)}. They wait "
            "for nothing: at the resize a key may overtake itself there."
        )
    if not run.waits:
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
            for wait in run.waits
        ],
        right=columns[1:6],
        spare=["Position", "End"],
    )


def _print_writers(run: DryRun) -> None:
    state = run.state
    if state is None:
        say("Which writers send no partition count is not known: the controller does not say it.")
        return
    seen = {broker: ago for broker, ago in state.unaware_ms.items() if ago is not None}
    if seen:
        writers = ", ".join(
            f"{'a former controller' if x < 0 else f'broker {x}'} {seconds(ago)} ago"
            for x, ago in sorted(seen.items())
        )
        say(f"Writers without a partition count, last seen by: {writers}.")
        if state.unaware_clients:
            say(f"Their client ids: {resized.client_ids_text(state.unaware_clients)}.")
    if state.unknown:
        names = ", ".join(map(str, state.unknown))
        say(f"Brokers that have not said yet whether they saw such writers: {names}.")
    if not seen and not state.unknown:
        say("No writer without a partition count was seen.")
