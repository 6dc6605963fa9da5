"""Progress of a group in some topics: the position of each partition, its owner, and the members.

Owns this view, for tools that show what a group waits for; it changes no group. Which position
counts is the table of `positions`: what gates wait for is what this shows. ConsumerGroupPosition
answers members only, and says neither when a position moved nor when a member last sent a request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any
from uuid import UUID

from tidelog.groups import first_sights, limits
from tidelog.groups.consumer_protocol import assigned_partitions
from tidelog.groups.group import Group, Member, session_of
from tidelog.groups.positions import present_id
from tidelog.model.work import Work
from tidelog.protocol.record_fields import Malformed

MOST_CHARACTERS = 255
"""How much of a client id, which may have 32 kB, is shown."""


def progress_of(
    group: Group, topics: Collection[str], topic_id_of: Callable[[str], UUID], now_ms: int
) -> Work[dict[str, Any]]:
    """Return the progress as data for JSON, in steps.

    ``members`` by id, without those that own nothing of ``topics``: ``aware`` (of resizes; None:
    not known) and ``silent_ms``, the time since its last request. ``partitions``: all that have an
    owner or a committed offset, each with ``position`` (None: not known), ``is_commit`` (it is the
    committed offset) and ``still_ms``, the time since it moved. Grows with the members and the
    partitions.
    """
    owners = yield from _owners(group, topics)
    shown: dict[str, dict[str, Any]] = {}
    rows: list[dict[str, Any]] = []
    for topic in topics:
        owned, committed = owners.get(topic, {}), group.offsets.get(topic, {})
        for index in sorted({*owned, *committed}):
            yield None
            member = group.members.get(owned.get(index, ""))
            if member is not None and member.member_id not in shown:
                shown[member.member_id] = _member(group, member, now_ms)
            row = {"topic": topic, "partition": index, "member": None}
            if member is not None:
                row["member"] = member.member_id
            rows.append(row | _position(group, member, topic, index, topic_id_of(topic), now_ms))
    return {
        "group": group.group_id,
        "state": group.state.value,
        "generation": group.generation,
        "members": shown,
        "partitions": rows,
    }


def _owners(group: Group, topics: Collection[str]) -> Work[dict[str, dict[int, str]]]:
    """Return the owners, in steps; those beyond the limits of a generation are shown as none."""
    wanted = frozenset(topics)
    owners: dict[str, dict[int, str]] = {}
    entries = partitions = 0
    for member in list(group.members.values()):
        yield None
        try:
            for topic, given in assigned_partitions(member.assignment):
                entries += 1
                partitions += len(given)
                if partitions > limits.MAX_OWNED or entries > limits.MAX_OWNED_TOPICS:
                    return owners
                yield None
                if topic in wanted:
                    owners.setdefault(topic, {}).update(dict.fromkeys(given, member.member_id))
        except Malformed:
            # Its partitions are shown without an owner.
            continue
    return owners


def _member(group: Group, member: Member, now_ms: int) -> dict[str, Any]:
    due_ms = group.deadlines.get(session_of(member.member_id))
    silent_ms = None
    if member.waits:
        # Its request is delayed here, which counts as a heartbeat.
        silent_ms = 0
    elif due_ms is not None:
        silent_ms = max(0, now_ms - (due_ms - member.session_timeout_ms))
    return {
        "client_id": member.client_id[:MOST_CHARACTERS],
        "host": member.client_host,
        "aware": member.aware,
        "silent_ms": silent_ms,
        "session_timeout_ms": member.session_timeout_ms,
    }


def _position(
    group: Group, owner: Member | None, topic: str, index: int, topic_id: UUID, now_ms: int
) -> dict[str, Any]:
    if owner is not None and owner.aware is not False:
        generation = group.positions
        reported = None if generation is None else generation.reported.get(topic)
        if reported is None or reported.topic_id != present_id(group, topic):
            return _row(None, None, is_commit=False)
        moved_ms = reported.moved_ms.get(index)
        still_ms = None if moved_ms is None else now_ms - moved_ms
        return _row(reported.offsets.get(index), still_ms, is_commit=False)
    committed = group.offsets.get(topic, {}).get(index)
    if committed is None or first_sights.is_former(group.first_sights.get(topic), topic_id):
        return _row(None, None, is_commit=True)
    since_ms = max(0, group.wall_ms(now_ms) - committed.committed_ms)
    return _row(committed.offset, since_ms, is_commit=True)


def _row(position: int | None, still_ms: int | None, *, is_commit: bool) -> dict[str, Any]:
    return {"position": position, "is_commit": is_commit, "still_ms": still_ms}
