"""Gates of groups in the output of ``topics --describe`` and ``groups --describe`` (KIP-253).

Owns the questions to leaders and coordinators, the lines, the JSON, and which groups and topics are
shown. Not which partitions wait: see ``client.groups.gated``. A topic without children and retired
partitions costs no request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tidelog.cli.many_requests import ask_each
from tidelog.cli.output import note, say
from tidelog.client.admin.groups import list_groups
from tidelog.client.admin.open_transactions import first_open
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.client.fences import DescribedFences, describe_fences
from tidelog.client.fetching.left_to_read import PARTITION_BYTES, first_readable
from tidelog.client.groups.consumer_protocol import PROTOCOL_TYPE
from tidelog.client.groups.gated import (
    Awaited,
    GatedPartition,
    gated_partitions,
    is_gated_topic,
    places_of,
    short_commits,
    unaware_among_aware,
    with_nothing_left,
)
from tidelog.client.groups.progress import GroupProgress, MemberProgress, describe_progress
from tidelog.client.metadata import Topic
from tidelog.model.topics import TopicPartition
from tidelog.model.wording import moment_text

STABLE = "Stable"

STILL_MS = 10_000
"""A position that did not move for so long is worth a word."""

SILENT_SHARE = 3
"""A member without a request for a third of its session has missed a heartbeat: Kafka's rule."""

FENCES_TIMEOUT_MS = 5_000


async def describe_gates(
    cluster: Cluster, topics: Iterable[Topic], groups: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Return what the members of each group hold back, as JSON shows it, by group.

    ``gated``: None for a group whose coordinator does not say it; a note says why.
    ``members_without_gates``: those that know no resizes, in a group of others that do, by topic.
    """
    gated = {topic.name: topic for topic in topics if is_gated_topic(topic)}
    nothing: dict[str, Any] = {"gated": [], "members_without_gates": {}}
    if not gated or not groups:
        return dict.fromkeys(groups, nothing)
    failed: dict[TopicPartition, ClientError] = {}
    places = [tp for topic in gated.values() for tp in places_of(topic)]
    fences = await describe_fences(cluster, places, timeout_ms=FENCES_TIMEOUT_MS, failed=failed)
    for tp, error in failed.items():
        note(f"what waits for {tp} is not known: {error}")
    asked = await ask_each(groups, lambda group: describe_progress(cluster, group, gated), "group")
    shown: dict[str, dict[str, Any]] = {}
    for group, progress in zip(groups, asked, strict=True):
        if isinstance(progress, GroupProgress):
            counted = await _as_members_count(cluster, gated.values(), fences, progress)
            shown[group] = gates_of_group(gated.values(), fences, counted)
        else:
            why = ": its coordinator does not say it" if progress is None else f": {progress}"
            note(f"what group {group} waits for is not shown{why}")
            shown[group] = nothing | {"gated": None}
    await _add_transactions(cluster, shown)
    return shown


async def _as_members_count(
    cluster: Cluster,
    topics: Iterable[Topic],
    fences: Mapping[TopicPartition, DescribedFences],
    group: GroupProgress,
) -> GroupProgress:
    """Return the progress of a group with the commits that count as more than they say, because no
    committed record is left to read after them (decision 0140): its members count so, too."""
    short = {
        TopicPartition(topic.name, index): offset
        for topic in topics
        for index, offset in short_commits(
            gated_partitions(topic, _of_name(fences, topic.name), group)
        ).items()
    }
    if not short:
        return group
    # Of a leader that does not respond the commit counts as it is.
    failed: dict[TopicPartition, ClientError] = {}
    readable = await first_readable(
        cluster,
        short,
        timeout_ms=FENCES_TIMEOUT_MS,
        failed=failed,
        partition_bytes=PARTITION_BYTES,
    )
    return with_nothing_left(group, {tp: x for tp, x in readable.items() if x > short[tp]})


async def _add_transactions(cluster: Cluster, shown: Mapping[str, dict[str, Any]]) -> None:
    """Add ``transaction`` to what is waited for: the first one that is open there before the goal,
    or None. A reader of committed records waits for its end."""
    needs = [
        (TopicPartition(gated["topic"], need["partition"]), need)
        for gates in shown.values()
        for gated in gates["gated"] or ()
        for need in gated["waits_for"]
    ]
    places = dict.fromkeys(tp for tp, need in needs if need["upto"] is not None)
    failed: dict[TopicPartition, ClientError] = {}
    opened = await first_open(cluster, places, timeout_ms=FENCES_TIMEOUT_MS, failed=failed)
    for tp, need in needs:
        transaction = opened.get(tp)
        if transaction is not None and transaction.first_offset < need["upto"]:
            need["transaction"] = asdict(transaction)


def _of_name(
    fences: Mapping[TopicPartition, DescribedFences], topic: str
) -> dict[int, DescribedFences]:
    return {x.partition: fence for x, fence in fences.items() if x.topic == topic}


def gates_of_group(
    topics: Iterable[Topic],
    fences: Mapping[TopicPartition, DescribedFences],
    group: GroupProgress,
) -> dict[str, Any]:
    """Return what one group holds back of these topics, as JSON shows it."""
    gated: list[dict[str, Any]] = []
    mixed: dict[str, list[str]] = {}
    for topic in topics:
        own = _of_name(fences, topic.name)
        gated += (_gated(topic.name, one, group) for one in gated_partitions(topic, own, group))
        unaware = unaware_among_aware(topic.name, group)
        if unaware:
            mixed[topic.name] = unaware
    return {"gated": gated, "members_without_gates": mixed}


def _gated(topic: str, gated: GatedPartition, group: GroupProgress) -> dict[str, Any]:
    return {
        "topic": topic,
        "partition": gated.partition,
        "from_offset": gated.offset,
        "member": gated.member.member_id,
        "group_state": group.state,
        "waits_for": [_need(need) for need in gated.needs],
    }


def _need(need: Awaited) -> dict[str, Any]:
    member = need.member
    return {
        "partition": need.partition,
        "position": need.progress.position,
        "upto": need.upto,
        "is_commit": need.progress.is_commit,
        "still_ms": need.progress.still_ms,
        "is_gated": need.is_gated,
        "member": None if member is None else member.member_id,
        "client_id": None if member is None else member.client_id,
        "host": None if member is None else member.host,
        "silent_ms": None if member is None else member.silent_ms,
        "session_timeout_ms": None if member is None else member.session_timeout_ms,
        "transaction": None,
        "hint": hint(need),
    }


def hint(need: Awaited) -> str | None:
    """Return what is known of why a position does not reach its goal, as one clause."""
    progress, member = need.progress, need.member
    if need.upto is None:
        return "its fence is not known: its leader does not answer, or replicates it still"
    if need.is_gated:
        return "it waits itself"
    if member is None:
        return "no member owns it, so its committed offset counts: start a member"
    if is_silent(member):
        return (
            f"the member sent nothing for {seconds(member.silent_ms)}: crashed or stopped, it is "
            f"removed after {seconds(member.session_timeout_ms)}"
        )
    if progress.position is None and not progress.is_commit:
        return "the member has not reported its position in this generation"
    if progress.is_commit:
        return "the member knows no resizes, so its commits count"
    if progress.still_ms is not None and progress.still_ms >= STILL_MS:
        return "the member is alive: it is paused, or busy with the records that it has"
    return None


def is_silent(member: MemberProgress) -> bool:
    """Return whether a member has missed a heartbeat."""
    silent_ms = member.silent_ms
    return silent_ms is not None and silent_ms * SILENT_SHARE > member.session_timeout_ms


def seconds(ms: int | None) -> str:
    """Return a time in seconds as people read it."""
    if ms is None:
        return "an unknown time"
    return f"{ms / 1000:.1f} s" if ms < 10_000 else f"{ms // 1000:,} s"


def lines_of(gates: Mapping[str, Any], *, of_one_topic: bool = False) -> list[str]:
    """Return one line for each partition that another one waits for, and for stock members.

    ``of_one_topic``: without its name.
    """
    name = (lambda _: "") if of_one_topic else "{}: ".format
    lines = [
        f"{name(gated['topic'])}{_line(gated, need)}"
        for gated in gates["gated"] or ()
        for need in gated["waits_for"]
    ]
    return lines + [
        f"{name(topic)}{', '.join(members)} in this group know no resizes and wait for nothing: "
        "the keys of their partitions have no order over a resize"
        for topic, members in gates["members_without_gates"].items()
    ]


def _line(gated: Mapping[str, Any], need: Mapping[str, Any]) -> str:
    if need["partition"] == gated["partition"]:
        return f"partition {gated['partition']} waits for the publication of a newer resize"
    position = "unknown" if need["position"] is None else f"{need['position']:,}"
    upto = "unknown" if need["upto"] is None else f"{need['upto']:,}"
    parts = [
        f"partition {gated['partition']} waits for partition {need['partition']}: at {position} of "
        f"{upto}"
    ]
    if need["member"] is not None:
        parts.append(f"member {need['member']}")
    if need["still_ms"] is not None:
        what = "last commit" if need["is_commit"] else "last progress"
        parts.append(f"{what} {seconds(need['still_ms'])} ago")
    if need["transaction"] is not None:
        parts.append(_transaction(need["transaction"]))
    if gated["group_state"] != STABLE:
        parts.append(f"the group is in {gated['group_state']}")
    return ", ".join(parts) + (f" ({need['hint']})" if need["hint"] else "")


def _transaction(transaction: Mapping[str, Any]) -> str:
    """Return the clause that names an open transaction."""
    named, since_ms = transaction["transactional_id"], transaction["since_ms"]
    what = f"producer {transaction['producer_id']}"
    if named is not None:
        what = f"transactional id {named} ({what})"
    since = f" since {moment_text(since_ms)}" if since_ms >= 0 else ""
    return (
        f"consumers of committed records wait for the transaction of {what}, which is open{since} "
        f"from offset {transaction['first_offset']:,} on"
    )


def print_gates(gates: Mapping[str, Any]) -> None:
    """Print the lines of one group."""
    for line in lines_of(gates):
        say(line)


async def add_waiting_groups(
    cluster: Cluster, described: Iterable[Topic], shown: list[dict[str, Any]]
) -> None:
    """Add ``groups`` to each topic: what each group with something to show holds back, by id.

    None where the groups are not known. Only topics with gates cost requests.
    """
    for item in shown:
        item["groups"] = {}
    topics = {topic.name: topic for topic in described if is_gated_topic(topic)}
    items = {item["topic"]: item for item in shown if item["topic"] in topics}
    if not items:
        return
    try:
        unlisted: list[str] = []
        listed = await list_groups(cluster, unlisted=unlisted)
    except ClientError as error:
        note(f"waiting groups are not shown: {error}")
        for item in items.values():
            item["groups"] = None
        return
    for line in unlisted:
        note(line)
    names = [group.group_id for group in listed if group.protocol_type == PROTOCOL_TYPE]
    gates = await describe_gates(cluster, [topics[name] for name in items], names)
    for group, of_group in gates.items():
        for name, item in items.items():
            own = _of_topic(of_group, name)
            if own["gated"] or own["gated"] is None or own["members_without_gates"]:
                item["groups"][group] = own


def _of_topic(gates: dict[str, Any], topic: str) -> dict[str, Any]:
    """Return the part of one topic."""
    gated, without = gates["gated"], gates["members_without_gates"]
    return {
        "gated": None if gated is None else [row for row in gated if row["topic"] == topic],
        "members_without_gates": {name: ids for name, ids in without.items() if name == topic},
    }


def print_waiting_groups(shown: dict[str, Any]) -> None:
    """Print what waits in one topic, group by group."""
    for group, gates in (shown["groups"] or {}).items():
        for line in lines_of(gates, of_one_topic=True):
            say(f"Group {group}: {line}")
