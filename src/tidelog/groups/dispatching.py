"""Events of a group and the rules that decide them.

Owns which rule decides which event. Not what precedes every rule: see `table`.
"""

from __future__ import annotations

from tidelog.groups import offsets, positions, removals, retention
from tidelog.groups.decision import DecisionBuilder
from tidelog.groups.events import (
    CommitInTransaction,
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    Event,
    Expire,
    Heartbeat,
    Join,
    Leave,
    RemoveFormerTopicIds,
    RemoveMore,
    RemoveTopics,
    ReportPositions,
    Sync,
    Tick,
)
from tidelog.groups.group import Group
from tidelog.groups.joining import join
from tidelog.groups.leaving import heartbeat, leave
from tidelog.groups.rebalancing import tick
from tidelog.groups.syncing import sync


def dispatch(group: Group, event: Event, now_ms: int, out: DecisionBuilder) -> None:
    """Let the rule of an event decide it."""
    match event:
        case Join():
            join(group, event, now_ms, out)
        case Sync():
            sync(group, event, now_ms, out)
        case Heartbeat():
            heartbeat(group, event, now_ms, out)
        case Leave():
            leave(group, event, now_ms, out)
        case CommitOffsets():
            offsets.commit_offsets(group, event, now_ms, out)
        case CommitInTransaction():
            offsets.commit_in_transaction(group, event, now_ms, out)
        case DeleteOffsets():
            offsets.delete_offsets(group, event, out)
        case ReportPositions():
            positions.report_positions(group, event, now_ms, out)
        case DeleteGroup():
            retention.delete_group(group, event, out)
        case RemoveTopics():
            retention.remove_topics(group, event, out)
        case RemoveFormerTopicIds():
            retention.remove_former_topic_ids(group, event, out)
        case RemoveMore():
            removals.go_on(group, out)
        case Tick(come_ms):
            tick(group, now_ms, out, now_ms if come_ms is None else come_ms)
        case Expire():
            retention.expire(group, event, now_ms, out)
