"""What keeps retired partitions of a topic listed, and what removes them, for operators. Pure.

Owns the words of the refusal of a growth, of the doctor and of ``topics --describe``. Not which
partitions go: see ``removal``; not when leaders and coordinators are asked: see
``controller.retired``, whose last answers are in ``ClusterState.retained``.

| what is left in the highest ones | what removes them | what else does |
|---|---|---|
| nothing | the next check, which a refused growth begins | |
| it is not known yet | | |
| nothing, or what all groups have read, and a | ``retired.purge.delay.ms`` after the shrink | |
| producer may ask for a batch | | |
| data, only compacted | nothing | giving the values up |
| data, ``retired.purge=retention`` | retention | drained; DeleteRecords |
| drained, and groups have not committed past it | their commits; their expiry and deletion, if | |
| | another group has, or no data is left | retention and DeleteRecords |
| data, drained, and no group has committed | retention | a group that reads; DeleteRecords |
| drained, and not all groups can be asked | | retention and DeleteRecords |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from tidelog.controller.decisions.cluster import ClusterState, HoldingGroup, Retained
from tidelog.controller.decisions.problems import NOTICE, problem
from tidelog.controller.decisions.removal import (
    is_drained_first,
    retired_from_the_top,
    topics_with_retired,
)
from tidelog.model.topics import TopicPartition
from tidelog.model.wording import NAMES_SHOWN, moment_text, named

DELETE_RECORDS = (
    "delete their records (`tidelog delete-records`, or delete_records of an Admin client, with "
    "offset -1)"
)
AGAIN = "Then send the request again"


def keeps_for_good(cluster: ClusterState, name: str) -> bool:
    """Return whether nothing removes the data of a topic's retired partitions: it is compacted, and
    records do not expire."""
    configs = cluster.resolve(name).configs
    return configs.compacted and not configs.expires


def why_listed(cluster: ClusterState, name: str) -> str:
    """Return what the retired partitions of a topic hold, and what removes them: sentences."""
    what, ways = _held(cluster, name)
    return f"{what} {ways} {AGAIN}."


def of_retired(cluster: ClusterState) -> Iterator[dict[str, Any]]:
    """Yield a note for each topic that cannot grow because of what its retired partitions hold: the
    first ``NAMES_SHOWN``."""
    names = (x for x in topics_with_retired(cluster) if x not in cluster.marked)
    for name in islice((x for x in names if _held_back(cluster, x)), NAMES_SHOWN):
        what, ways = _held(cluster, name)
        sentence = f"The topic {name} cannot grow while {said_listed(cluster, name)}. {what}"
        places = [str(TopicPartition(name, index)) for index in _held_back(cluster, name)]
        yield problem("retired_partitions_held", sentence, ways, NOTICE, partitions=places)


def retired_on_record(cluster: ClusterState) -> list[dict[str, Any]]:
    """Return a row for each retired partition that was asked for, as plain data for JSON."""
    rows = []
    for name in topics_with_retired(cluster):
        retained = cluster.retained.get(cluster.topic_id(name), {})
        for index in retired_from_the_top(cluster, name):
            if index in retained:
                held = retained[index]
                rows.append(
                    {
                        "topic": name,
                        "partition": index,
                        "records": held.records,
                        "groups": [
                            {
                                "group": group.group,
                                "committed_offset": _known(group.committed),
                                "offsets_expire_ms": _known(group.expires_ms),
                            }
                            for group in held.groups
                        ],
                        "group_count": held.group_count,
                    }
                )
    return rows


def _held(cluster: ClusterState, name: str) -> tuple[str, str]:
    """Return what is left, and the ways out, each as sentences."""
    retained = cluster.retained.get(cluster.topic_id(name), {})
    kept = _held_back(cluster, name)
    listed = list(retired_from_the_top(cluster, name))
    asked = [retained[index] for index in listed if index in retained]
    delay = _delay(asked)
    if not kept:
        if len(asked) < len(listed):
            return (
                "What is left there is not known yet.",
                "See that the leaders live (tidelog doctor).",
            )
        count = sum(held.records for held in asked)
        what = f"{count} records, which all groups have read" if count else "no records"
        if delay:
            return f"{_they_hold(listed)} {what}. {delay}", "Wait until then."
        removed = "is" if len(listed) == 1 else "are"
        what = f"{_they_hold(listed)} {what}, and {removed} being removed."
        return what, "Wait for a moment."
    what, ways = _kept(cluster, name, kept)
    return f"{what} {delay}".rstrip(), ways


def _delay(asked: Sequence[Retained]) -> str:
    """Return until when producers may ask for batches in the meantime: a sentence, or nothing."""
    until_ms = max((held.until_ms for held in asked), default=0)
    if not until_ms:
        return ""
    return (
        f"Before {moment_text(until_ms)} none is removed in any case (retired.purge.delay.ms): a "
        "producer may ask whether a batch was written."
    )


def _kept(cluster: ClusterState, name: str, kept: Sequence[int]) -> tuple[str, str]:
    """Return what partitions hold that something other than the time of producers keeps."""
    configs = cluster.resolve(name).configs
    retained = cluster.retained[cluster.topic_id(name)]
    count = sum(retained[index].records for index in kept)
    they_hold = _they_hold([*retired_from_the_top(cluster, name)])
    what = f"{they_hold} at most {count} records"
    if keeps_for_good(cluster, name):
        return (
            f"{what}, which compaction keeps for good: the newest values of their keys.",
            "Copy the records to another topic, which keeps all values. Or give these values up: "
            f"set cleanup.policy=compact,delete and {DELETE_RECORDS}.",
        )
    limit = (
        f"retention removes them retention.ms ({configs.retention_ms}) after the newest one"
        if configs.expires and configs.retention_ms >= 0
        else "no time limit removes them"
    )
    if not is_drained_first(cluster, name):
        drained = (
            "Or set retired.purge=drained: then they go when every group of the topic has read "
            "them. "
        )
        ways = f"Wait for that. {'' if configs.compacted else drained}Or {DELETE_RECORDS}."
        return f"{what}: {limit}.", ways
    by_hand = f"set retired.purge=retention and {DELETE_RECORDS}"
    if any(retained[index].group_count < 0 for index in kept):
        return (
            f"{what}, and not all groups can be asked whether they have read them.",
            f"See that __consumer_offsets has its leaders (tidelog doctor). Or {by_hand}.",
        )
    groups = {group.group: group for index in kept for group in retained[index].groups}
    if not groups:
        return (
            f"{what}, and no group has committed offsets of the topic: {limit}.",
            f"Have a group read and commit them. Or {DELETE_RECORDS}.",
        )
    most = max(retained[index].group_count for index in kept)
    listed = named([_said(group) for group in groups.values()], max(most, len(groups)))
    what = f"{what}, and" if count else f"{they_hold} no records, but"
    what = f"{what} groups have not committed past them: {listed}."
    is_enough = not count or all(retained[index].is_read for index in kept)
    deleted = ", or delete those without members (tidelog groups --delete)" if is_enough else ""
    if not is_enough:
        what += f" When no group has committed offsets of the topic, {limit}."
    return what, f"Let these groups read them{deleted}. Or {by_hand}: these groups never get them."


def _known(number: int) -> int | None:
    return number if number >= 0 else None


def _said(group: HoldingGroup) -> str:
    if group.expires_ms < 0:
        return f"{group.group} (its members keep its offsets)"
    return f"{group.group} (its offsets expire at {moment_text(group.expires_ms)})"


def _held_back(cluster: ClusterState, name: str) -> list[int]:
    """Return what its records or its groups keep, and not only the time of producers."""
    retained = cluster.retained.get(cluster.topic_id(name), {})
    is_drained = is_drained_first(cluster, name)
    return sorted(
        index
        for index in retired_from_the_top(cluster, name)
        if index in retained
        and (retained[index].group_count or retained[index].records)
        and not (is_drained and retained[index].is_read and not retained[index].group_count)
    )


def _they_hold(listed: Sequence[int]) -> str:
    return "It holds" if len(listed) == 1 else "They hold"


def said_listed(cluster: ClusterState, name: str) -> str:
    """Return the clause that names the retired partitions of a topic, of which there are some."""
    listed = sorted(retired_from_the_top(cluster, name))
    numbers = f"s {listed[0]} to {listed[-1]} are" if len(listed) > 1 else f" {listed[0]} is"
    return f"its retired partition{numbers} listed"
