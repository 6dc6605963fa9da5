"""What ``tidelog topics --describe`` shows of resizes: counts, parents, fences, what is retired.

Owns these facts of a topic that has grown or shrunk in order (KIP-253). Of another topic, or of a
server that does not know resizes, there are none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidelog.cli.output import note, say
from tidelog.client.admin.nodes import RESIZES, RETIRED, UNAWARE_WRITERS
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.client.fences import DescribedFences, describe_fences
from tidelog.client.metadata import Topic
from tidelog.client.offsets import EARLIEST, MAX_TIMESTAMP, list_offsets
from tidelog.model.topics import TopicPartition
from tidelog.model.wording import NAMES_SHOWN, moment_text, named
from tidelog.partitioning.lineage import nearest_ancestor, parent_of

COLUMNS = ("Parent", "Birth", "Fences")
"""The columns, which are there only for a topic that was resized."""


async def add_resizes(
    cluster: Cluster,
    listed: list[Topic],
    shown: list[dict[str, Any]],
    settings: Mapping[str, Mapping[str, str | None]],
) -> None:
    """Add the counts of each described topic, and the lineage and fences of its partitions.

    Fences and what retired partitions hold are asked from the leaders, of topics that were resized
    only; None where a leader does not say it. ``settings``: the configurations of each topic.
    """
    topics = {topic.name: topic for topic in listed}
    asked: dict[TopicPartition, dict[str, Any]] = {}
    for item in shown:
        topic = topics[item["topic"]]
        is_counted = topic.resize_epoch >= 0
        item["initial_partition_count"] = topic.initial_partition_count if is_counted else None
        item["undeleted_partition_count"] = topic.undeleted_partition_count if is_counted else None
        item["resize_epoch"] = topic.resize_epoch if is_counted else None
        for partition in item["partitions"]:
            partition |= lineage(topic, partition["partition"])
            if topic.resize_epoch > 0:
                asked[TopicPartition(topic.name, partition["partition"])] = partition
    if not asked:
        return
    failed: dict[TopicPartition, ClientError] = {}
    fences = await describe_fences(cluster, asked, failed=failed)
    retired = [tp for tp, item in asked.items() if item["survivor"] is not None]
    starts = await list_offsets(cluster, dict.fromkeys(retired, EARLIEST), failed=failed)
    newest = await list_offsets(cluster, dict.fromkeys(retired, MAX_TIMESTAMP), failed={})
    for tp, described in fences.items():
        asked[tp]["fences"] = fences_shown(described)
    for tp in retired:
        if tp in starts and tp in fences:
            asked[tp]["held_records"] = held(fences[tp], starts[tp].offset)
        if tp in newest:
            asked[tp]["kept_until_ms"] = kept_until(newest[tp].timestamp, settings[tp.topic])
        asked[tp]["purge"] = purge_of(settings[tp.topic])
    for tp, error in failed.items():
        note(f"fences of {tp} are not shown: {error}")


def add_reported(condition: dict[str, Any] | None, shown: list[dict[str, Any]]) -> None:
    """Add what the controller reports of each topic; None where it does not say it.

    ``resize``: the one that is under way, or None. ``misplaced_records``: those of producers
    without a partition count that lie in a wrong partition, at least so many;
    ``unaware_write_ms``: when such a producer last wrote, or None, ``unaware_broker``: which broker
    saw it; ``unaware_client_ids``: some of them. Of each retired partition ``held_by`` has the
    groups that have not committed past it.
    """
    reported = {} if condition is None else condition
    plans = {row["topic"]: row for row in reported.get(RESIZES, ())}
    writers = {row["topic"]: row for row in reported.get(UNAWARE_WRITERS, ())}
    held = {(row["topic"], row["partition"]): row["groups"] for row in reported.get(RETIRED, ())}
    for item in shown:
        for partition in item["partitions"]:
            partition["held_by"] = held.get((item["topic"], partition["partition"]))
        plan, writer = plans.get(item["topic"]), writers.get(item["topic"], {})
        item["resize"] = None if plan is None else {x: y for x, y in plan.items() if x != "topic"}
        is_known = UNAWARE_WRITERS in reported
        item["misplaced_records"] = writer.get("misplaced_records", 0) if is_known else None
        item["unaware_write_ms"] = writer.get("last_write_ms")
        item["unaware_broker"] = writer.get("broker")
        item["unaware_client_ids"] = writer.get("client_ids", []) if is_known else None


def lineage(topic: Topic, index: int) -> dict[str, Any]:
    """Return the births and retirements of a partition, without what its leader knows.

    ``survivor`` takes the keys of a retired partition; ``parent`` had those of a child before.
    """
    partition = topic.partitions[index]
    initial = topic.initial_partition_count
    made: dict[str, Any] = {
        "partition_epoch": None if partition.partition_epoch < 0 else partition.partition_epoch,
        "parent": None,
        "birth_epoch": None,
        "birth_offset": None,
        "retirement_epoch": None,
        "survivor": None,
        "fences": None,
        "held_records": None,
        "kept_until_ms": None,
        "purge": None,
        "held_by": None,
    }
    if topic.resize_epoch < 0 or initial < 1:
        return made
    if partition.birth_epoch > 0:
        made["parent"] = parent_of(index, initial)
        made["birth_epoch"] = partition.birth_epoch
        made["birth_offset"] = partition.birth_offset
    if partition.retirement_epoch >= 0:
        made["retirement_epoch"] = partition.retirement_epoch
        together = [
            number
            for number, listed in topic.partitions.items()
            if listed.retirement_epoch == partition.retirement_epoch
        ]
        made["survivor"] = nearest_ancestor(index, initial, min(together))
    return made


def fences_shown(described: DescribedFences) -> list[dict[str, Any]]:
    """Return the fences of a partition as JSON shows them."""
    return [
        {
            "resize_epoch": one.fence.resize_epoch,
            "partition_count": one.undeleted_count,
            "offset": one.fence.offset,
            "kind": "seal" if one.is_seal else "fence",
        }
        for one in described.fences
    ]


def held(described: DescribedFences, start: int) -> int | None:
    """Return how many offsets with data lie between a log's start and its seal; None without one.

    The fences of earlier resizes among them are no data.
    """
    seals = [one for one in described.fences if one.is_seal]
    if not seals:
        return None
    end = seals[-1].fence.data_end
    among = sum(start <= one.fence.offset < end for one in described.fences)
    return max(0, end - start - among)


def purge_of(settings: Mapping[str, str | None]) -> str:
    """Return what empties the retired partitions of a topic: ``retention``, ``drained`` or, of a
    compacted topic, ``nothing``."""
    policies = (settings.get("cleanup.policy") or "delete").split(",")
    if "compact" in policies:
        return "retention" if "delete" in policies else "nothing"
    return settings.get("retired.purge") or "retention"


def kept_until(newest_ms: int, settings: Mapping[str, str | None]) -> int | None:
    """Return until when retention by time keeps a closed segment whose newest record has this
    time; None without a limit, or without a record."""
    limit = int(settings.get("retention.ms") or -1)
    return newest_ms + limit if newest_ms >= 0 and limit >= 0 else None


def headline(shown: dict[str, Any]) -> str:
    """Return what the line of a topic says of its counts; empty if it was never resized."""
    if not shown["resize_epoch"]:
        return ""
    return (
        f"UndeletedPartitionCount: {shown['undeleted_partition_count']}  "
        f"InitialPartitionCount: {shown['initial_partition_count']}  "
        f"ResizeEpoch: {shown['resize_epoch']}  "
    )


def cells(item: dict[str, Any]) -> list[str | None]:
    """Return the three cells of a partition."""
    fences = item["fences"]
    birth = item["birth_epoch"]
    return [
        None if item["parent"] is None else str(item["parent"]),
        None if birth is None else f"epoch {birth} at {item['birth_offset']}",
        None if fences is None else ", ".join(map(_fence_text, fences)),
    ]


def _fence_text(fence: dict[str, Any]) -> str:
    return f"{fence['kind']} {fence['resize_epoch']} at {fence['offset']}"


def print_plan(shown: dict[str, Any]) -> None:
    """Print a line for a resize that is under way: what it waits for, and how long already."""
    plan = shown["resize"]
    if plan is not None:
        say(plan_text(plan))


def plan_text(plan: dict[str, Any]) -> str:
    """Return the line of a resize."""
    text = (
        f"Resize: {plan['kind']} from {plan['from_count']} to {plan['to_count']} partitions, "
        f"resize epoch {plan['resize_epoch']}: "
    )
    partitions, brokers = plan["waits_for_partitions"], plan["waits_for_brokers"]
    if plan["published"]:
        return text + "done, and brokers are being sent it"
    if not partitions:
        return text + f"writes its step {plan['step']}"
    what = "seal" if plan["step"] == "seal" else "fence"
    return text + (
        f"waits {plan['waited_ms'] / 1000:.0f} s for the {what} of partition {named(partitions)}, "
        f"from broker {named(brokers)}; undone after resize.timeout.ms"
    )


def print_misplaced(shown: dict[str, Any]) -> None:
    """Print a line about records of producers without a count that are in a wrong partition, and
    one about when such a producer last wrote to a resized topic."""
    if shown["misplaced_records"]:
        clients = shown["unaware_client_ids"]
        of_clients = f" (client ids: {client_ids_text(clients)})" if clients else ""
        say(
            f"Misplaced: at least {shown['misplaced_records']} records of producers that send no "
            f"partition count{of_clients}: their keys are not in order (unaware.producers=refuse "
            "keeps such producers out)"
        )
    written_ms = shown["unaware_write_ms"]
    if shown["resize_epoch"] and written_ms is not None and written_ms >= 0:
        broker = shown["unaware_broker"]
        # Without a broker it is on record, some minutes ahead of what was seen.
        by = " before" if broker is None else f" to broker {broker} at"
        time = moment_text(written_ms)
        say(
            f"Producers without a partition count: the last one wrote{by} {time}; the topic does "
            "not shrink within an hour of that"
        )


def client_ids_text(client_ids: Sequence[str]) -> str:
    """Return client ids for a sentence; a producer may have none."""
    return ", ".join(client_id or "(none)" for client_id in client_ids)


def print_retired(shown: dict[str, Any]) -> None:
    """Print a line for each retired partition: what it holds, until when, and when it goes."""
    for item in shown["partitions"]:
        if item["retirement_epoch"] is not None:
            say(retired_text(item))


def retired_text(item: dict[str, Any]) -> str:
    """Return the line of a retired partition."""
    count = item["held_records"]
    what = "how much it still holds is not known" if count is None else f"{count} records left"
    if count:
        what += f", {_until(item)}"
    return (
        f"Retired: partition {item['partition']} in resize epoch {item['retirement_epoch']}, "
        f"its keys are in partition {item['survivor']} now: {what}; it is removed when it is "
        "empty and the highest partition"
    )


def _holder_text(holder: dict[str, Any]) -> str:
    expires = holder["offsets_expire_ms"]
    if expires is None:
        return f"{holder['group']}, which has members"
    time = moment_text(expires)
    return f"{holder['group']}, whose offsets expire at {time}"


def _until(item: dict[str, Any]) -> str:
    kept = item["kept_until_ms"]
    time = "" if kept is None else moment_text(kept)
    match item["purge"]:
        case "nothing":
            return "which compaction keeps for good"
        case "drained":
            text = "kept until every group has committed past them"
            if item["held_by"]:
                text += f" ({'; '.join(map(_holder_text, item['held_by'][:NAMES_SHOWN]))})"
            return f"{text}, or until {time} (retention.ms)" if time else text
        case _:
            return f"kept until {time} (retention.ms)" if time else "which no time limit removes"
