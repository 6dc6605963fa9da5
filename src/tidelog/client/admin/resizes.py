"""Resizes as the controller knows them: what one waits for, and which writers are unaware.

Owns the request, DescribeCondition with the subject "resize". Not the resize itself: see
``topics.create_partitions``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tidelog.client.admin.nodes import describe_condition
from tidelog.client.cluster import Cluster

RESIZE = "resize"
"""The subject of a request; the topics follow it."""


@dataclass(frozen=True, slots=True)
class DescribedResize:
    """A resize under way. ``missing`` are the first partitions whose fence it waits for."""

    kind: str
    from_count: int
    to_count: int
    resize_epoch: int
    published: bool
    missing: tuple[int, ...]
    missing_count: int
    why: str | None
    undone_in_ms: int | None
    """When it is undone, unless what it waits for comes before; None: it only goes forward, or does
    not wait now."""


@dataclass(frozen=True, slots=True)
class TopicResize:
    """A topic as the controller knows it. ``resize_epoch`` is also that of a plan under way."""

    partition_count: int
    initial_partition_count: int
    resize_epoch: int
    plan: DescribedResize | None
    last_undo: tuple[int, str] | None
    """The resize epoch of the last resize that was undone, and why."""
    unaware_ms: Mapping[int, int | None]
    """How long ago each leader last saw a writer that sends no partition count; None: never."""
    unknown: tuple[int, ...]
    """The leaders that have not said it."""
    unaware_clients: tuple[str, ...] = ()
    """Client ids of such writers: at least these, some ten of a topic."""


async def describe_resizes(
    cluster: Cluster, topics: Iterable[str]
) -> dict[str, TopicResize | None] | None:
    """Return what the controller says of topics; None from a server that does not say it.

    A topic that it does not know is None. Raises as ``describe_condition`` does.
    """
    condition = await describe_condition(cluster, subjects=[RESIZE, *topics])
    # A controller of an older version answers something else.
    if condition is None or "topics" not in condition:
        return None
    return {
        name: None if resize is None else read_resize(resize)
        for name, resize in condition["topics"].items()
    }


def read_resize(resize: Mapping[str, Any]) -> TopicResize:
    """Return what a response says of one topic."""
    plan, undo = resize["plan"], resize["last_undo"]
    return TopicResize(
        partition_count=resize["partition_count"],
        initial_partition_count=resize["initial_partition_count"],
        resize_epoch=resize["resize_epoch"],
        plan=None
        if plan is None
        else DescribedResize(
            plan["kind"],
            plan["from_count"],
            plan["to_count"],
            plan["resize_epoch"],
            plan["published"],
            tuple(plan["missing"]),
            plan["missing_count"],
            plan["why"],
            resize["undone_in_ms"],
        ),
        last_undo=None if undo is None else (undo["resize_epoch"], undo["why"]),
        unaware_ms={writer["broker"]: writer["ago_ms"] for writer in resize["unaware"]},
        unknown=tuple(resize["unknown"]),
        # A controller of an older version does not say them.
        unaware_clients=tuple(resize.get("unaware_clients", ())),
    )
