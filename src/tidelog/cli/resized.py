"""What ``tidelog topics --describe`` shows of resizes: counts, parents, fences, what is retired.

Owns these facts of a topic that has grown or shrunk in order (KIP-253). Of another topic, or of a
server that does not know resizes, there are none.
"""

from __future__ import annotations

from typing import Any

from tidelog.cli.output import note, say
from tidelog.client.admin.nodes import RESIZES
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.client.fences import DescribedFences, describe_fences
from tidelog.client.metadata import Topic
from tidelog.client.offsets import EARLIEST, list_offsets
from tidelog.model.topics import TopicPartition
from tidelog.partitioning.lineage import nearest_ancestor, parent_of

COLUMNS = ("Parent", "Birth", "Fences")
"""The columns, which are there only for a topic that was resized."""

SHOWN = 5
"""The numbers that a line names; it counts the others."""


async def add_resizes(cluster: Cluster, found: list[Topic], shown: list[dict[str, Any]]) -> None:
    """Add the counts of each described topic, and the lineage and fences of its partitions.

    Fences and what retired partitions hold are asked from the leaders, of topics that were resized
    only; None where a leader does not say it.
    """
    topics = {topic.name: topic for topic in found}
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
    retired = [where for where, item in asked.items() if item["survivor"] is not None]
    starts = await list_offsets(cluster, dict.fromkeys(retired, EARLIEST), failed=failed)
    for where, described in fences.items():
        asked[where]["fences"] = fences_shown(described)
    for where in retired:
        if where in starts and where in fences:
            asked[where]["held_records"] = held(fences[where], starts[where].offset)
    for where, error in failed.items():
        note(f"fences of {where} are not shown: {error}")


def add_plans(condition: dict[str, Any] | None, shown: list[dict[str, Any]]) -> None:
    """Add the resize that is under way to each topic: ``resize``, None without one, or when the
    controller does not say it."""
    rows = () if condition is None else condition.get(RESIZES, ())
    by_topic = {row["topic"]: row for row in rows}
    for item in shown:
        row = by_topic.get(item["topic"])
        item["resize"] = None if row is None else {x: y for x, y in row.items() if x != "topic"}


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
            for number, each in topic.partitions.items()
            if each.retirement_epoch == partition.retirement_epoch
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
        None if fences is None else " ".join(map(_fence_text, fences)),
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
    said = (
        f"Resize: {plan['kind']} from {plan['from_count']} to {plan['to_count']} partitions, "
        f"resize epoch {plan['resize_epoch']}: "
    )
    partitions, brokers = plan["waits_for_partitions"], plan["waits_for_brokers"]
    if plan["published"]:
        return said + "done, and brokers are being sent it"
    if not partitions:
        return said + f"writes its step {plan['step']}"
    what = "seal" if plan["step"] == "seal" else "fence"
    return said + (
        f"waits {plan['waited_ms'] / 1000:.0f} s for the {what} of partition {_first(partitions)}, "
        f"from broker {_first(brokers)}; undone after resize.timeout.ms"
    )


def _first(numbers: list[int]) -> str:
    more = f" and {len(numbers) - SHOWN} more" if len(numbers) > SHOWN else ""
    return ", ".join(map(str, numbers[:SHOWN])) + more


def print_retired(shown: dict[str, Any]) -> None:
    """Print a line for each retired partition: what it holds, and when it goes."""
    for item in shown["partitions"]:
        if item["retirement_epoch"] is None:
            continue
        count = item["held_records"]
        what = "how much it still holds is not known" if count is None else f"{count} records left"
        say(
            f"Retired: partition {item['partition']} in resize epoch {item['retirement_epoch']}, "
            f"its keys are in partition {item['survivor']} now: {what}; it is removed when it is "
            "empty and the highest partition"
        )
