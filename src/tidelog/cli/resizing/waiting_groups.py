"""What ``tidelog topics --describe`` shows of the groups that wait in a resized topic (KIP-253).

Owns the choice of groups and topics. Not the facts and the lines: see ``gates_shown``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidelog.cli.output import note, say
from tidelog.cli.resizing.gates_shown import describe_gates, lines_of
from tidelog.client.admin.groups import list_groups
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.client.groups.consumer_protocol import PROTOCOL_TYPE
from tidelog.client.groups.gated import is_gated_topic
from tidelog.client.metadata import Topic


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
