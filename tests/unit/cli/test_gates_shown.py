"""The lines and the JSON of what a group holds back."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from tidelog.cli.resizing.gates_shown import hint, lines_of, seconds
from tidelog.client.admin.open_transactions import OpenTransaction
from tidelog.client.groups.gated import Awaited
from tidelog.client.groups.progress import MemberProgress, PartitionProgress

MEMBER = MemberProgress("c-1", "c", "/h", True, 1_000, 45_000)
MOVING = PartitionProgress("c-1", 1_204, False, 3_000)
NEED = Awaited(2, MOVING, 1_377, MEMBER, False)


@pytest.mark.parametrize(
    ("need", "words"),
    [
        (NEED, None),
        (replace(NEED, progress=replace(MOVING, still_ms=9_999)), None),
        (replace(NEED, progress=replace(MOVING, still_ms=10_000)), "paused, or busy"),
        (replace(NEED, member=replace(MEMBER, silent_ms=15_000)), None),
        (replace(NEED, member=replace(MEMBER, silent_ms=15_001)), "crashed or stopped"),
        (replace(NEED, member=None), "no member owns it"),
        (replace(NEED, progress=PartitionProgress("c-1")), "has not reported"),
        (replace(NEED, progress=replace(MOVING, is_commit=True)), "its commits count"),
        (replace(NEED, progress=PartitionProgress("c-1", is_commit=True)), "its commits count"),
        (replace(NEED, upto=None), "its fence is not known"),
        (replace(NEED, is_gated=True), "it waits itself"),
    ],
)
def test_what_is_known_of_why(need: Awaited, words: str | None) -> None:
    said = hint(need)
    assert said is None if words is None else words in (said or "")


def gated(**changes: object) -> dict[str, object]:
    need: dict[str, object] = {
        "partition": 2,
        "position": 1_204,
        "upto": 1_377,
        "is_commit": False,
        "still_ms": 40_000,
        "member": "c-1",
        "transaction": None,
        "hint": None,
    }
    return {
        "topic": "orders",
        "partition": 6,
        "group_state": "Stable",
        "waits_for": [need | changes],
    }


def test_the_line_of_a_partition_that_waits() -> None:
    gates = {"gated": [gated()], "members_without_gates": {"orders": ["c-2"]}}
    assert lines_of(gates) == [
        "orders: partition 6 waits for partition 2: at 1,204 of 1,377, member c-1, last progress "
        "40 s ago",
        "orders: c-2 in this group know no resizes and wait for nothing: the keys of their "
        "partitions have no order over a resize",
    ]
    assert lines_of(gates, of_one_topic=True)[0].startswith("partition 6 waits")
    assert lines_of({"gated": None, "members_without_gates": {}}) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {},
            "the transaction of transactional id tx (producer 7), which is open since "
            "2026-11-30T19:00:00Z from offset 1,300 on",
        ),
        (
            {"transactional_id": None, "since_ms": -1},
            "the transaction of producer 7, which is open from offset 1,300 on",
        ),
    ],
)
def test_the_transaction_that_holds_readers_back_is_named(
    changes: dict[str, object], words: str
) -> None:
    since_ms = 1_796_065_200_000
    found = asdict(OpenTransaction(7, 1_300, "tx", since_ms)) | changes
    (line,) = lines_of({"gated": [gated(transaction=found)], "members_without_gates": {}})
    assert line.endswith(f", consumers of committed records wait for {words}")


def test_what_is_not_known_is_said_to_be() -> None:
    unknown = gated(position=None, upto=None, member=None, still_ms=None, hint="why")
    unknown["group_state"] = "PreparingRebalance"
    assert lines_of({"gated": [unknown], "members_without_gates": {}}) == [
        "orders: partition 6 waits for partition 2: at unknown of unknown, the group is in "
        "PreparingRebalance (why)"
    ]
    newer = gated()
    newer["waits_for"] = [{"partition": 6}]
    assert lines_of({"gated": [newer], "members_without_gates": {}}) == [
        "orders: partition 6 waits for the publication of a newer resize"
    ]
    commits = gated(is_commit=True)
    assert "last commit 40 s ago" in lines_of({"gated": [commits], "members_without_gates": {}})[0]


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, "an unknown time"),
        (0, "0.0 s"),
        (9_949, "9.9 s"),
        (40_900, "40 s"),
        (10_000, "10 s"),
        (9**7, "4,782 s"),
    ],
)
def test_times_are_readable(ms: int | None, text: str) -> None:
    assert seconds(ms) == text
