"""What ``topics --describe`` says of a topic that was resized."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from tidelog.cli import resized
from tidelog.client.fences import DescribedFence, DescribedFences
from tidelog.client.metadata import Partition, Topic
from tidelog.partitioning.gates import Fence


def partition(index: int, birth: int = 0, retirement: int = -1) -> Partition:
    return Partition(
        index,
        leader=1,
        leader_epoch=4,
        replicas=(1,),
        isr=(1,),
        offline=(),
        retirement_epoch=retirement,
        partition_epoch=10 + index,
        birth_epoch=birth,
        birth_offset=7 if birth else 0,
    )


def topic(*partitions: Partition, count: int, resize_epoch: int = 3) -> Topic:
    return Topic(
        "orders",
        UUID(int=1),
        internal=False,
        partitions={each.index: each for each in partitions},
        initial_partition_count=2,
        undeleted_partition_count=count,
        resize_epoch=resize_epoch,
    )


SHRUNK = topic(
    partition(0),
    partition(1),
    partition(2, birth=1),
    partition(3, birth=1, retirement=3),
    partition(4, birth=1, retirement=2),
    partition(5, birth=1, retirement=2),
    count=3,
)


@pytest.mark.parametrize(
    ("index", "parent", "survivor"),
    [
        # After 6 -> 4 -> 3: 4 and 5 fell to 0 and 1, which were left of their ancestors; 3 to 1.
        (0, None, None),
        (2, 0, None),
        (3, 1, 1),
        (4, 0, 0),
        (5, 1, 1),
    ],
)
def test_parents_and_survivors(index: int, parent: int | None, survivor: int | None) -> None:
    found = resized.lineage(SHRUNK, index)
    assert (found["parent"], found["survivor"]) == (parent, survivor)


def test_a_server_without_counts_says_nothing() -> None:
    unknown = topic(partition(0), count=-1, resize_epoch=-1)
    found = resized.lineage(unknown, 0)
    del found["partition_epoch"]
    assert set(found.values()) == {None}


def fence(epoch: int, offset: int, data_end: int, *, is_seal: bool = False) -> DescribedFence:
    return DescribedFence(Fence(epoch, offset, data_end), 4, is_seal)


@pytest.mark.parametrize(
    ("start", "expected"),
    [(0, 18), (5, 13), (11, 8), (19, 0), (20, 0), (30, 0)],
)
def test_what_a_retired_partition_holds_is_its_data_up_to_the_seal(
    start: int, expected: int
) -> None:
    # A fence at 10 is no data; between the data's end at 19 and the seal at 20 stands another one.
    fences = (fence(1, 10, 10), fence(2, 19, 19), fence(3, 20, 19, is_seal=True))
    assert resized.held(DescribedFences(4, fences), start) == expected


def test_without_a_seal_it_is_not_known() -> None:
    assert resized.held(DescribedFences(4, (fence(1, 10, 10),)), 0) is None


def test_only_a_resized_topic_has_a_headline() -> None:
    shown = {"resize_epoch": 0, "undeleted_partition_count": 2, "initial_partition_count": 2}
    assert resized.headline(shown) == ""
    shown = {"resize_epoch": 2, "undeleted_partition_count": 5, "initial_partition_count": 2}
    assert "UndeletedPartitionCount: 5" in resized.headline(shown)
    assert "ResizeEpoch: 2" in resized.headline(shown)


def test_the_cells_name_parent_birth_and_fences() -> None:
    item = resized.lineage(SHRUNK, 3)
    item["fences"] = resized.fences_shown(
        DescribedFences(4, (fence(1, 7, 7), fence(3, 20, 19, is_seal=True)))
    )
    assert resized.cells(item) == ["1", "epoch 1 at 7", "fence 1 at 7, seal 3 at 20"]


PLAN = {
    "topic": "orders",
    "kind": "grow",
    "step": "birth",
    "from_count": 4,
    "to_count": 12,
    "resize_epoch": 3,
    "published": False,
    "unpublished": [4, 12],
    "waits_for_partitions": [5],
    "waits_for_brokers": [2],
    "waited_ms": 12_400,
}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            {},
            "waits 12 s for the fence of partition 5, from broker 2; undone after "
            "resize.timeout.ms",
        ),
        (
            {"step": "seal", "waits_for_partitions": [*range(4, 11)], "waits_for_brokers": [1, 3]},
            "waits 12 s for the seal of partition 4, 5, 6, 7, 8 and 2 more, from broker 1, 3; "
            "undone after resize.timeout.ms",
        ),
        ({"waits_for_partitions": []}, "writes its step birth"),
        ({"published": True}, "done, and brokers are being sent it"),
    ],
)
def test_a_resize_that_is_under_way_has_a_line(changed: dict[str, object], expected: str) -> None:
    said = resized.plan_text({**PLAN, **changed})
    assert said == f"Resize: grow from 4 to 12 partitions, resize epoch 3: {expected}"


def test_a_topic_has_what_the_controller_reports_of_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    retired = {"partition": 5}
    shown: list[dict[str, Any]] = [
        {"topic": "orders", "resize_epoch": 1, "partitions": [{"partition": 4}, retired]},
        {"topic": "other", "resize_epoch": 0, "partitions": []},
    ]
    group = {"group": "g", "committed_offset": 3, "offsets_expire_ms": 1_800_000_000_000}
    row = {"topic": "orders", "partition": 5, "groups": [group]}
    writers = {"topic": "orders", "last_write_ms": 5, "misplaced_records": 7, "broker": 2}
    writers["client_ids"] = ["", "rdkafka"]
    reported = {"resizes": [PLAN], "unaware_writers": [writers], "retired": [row]}
    resized.add_reported(reported, shown)
    assert [each["held_by"] for each in shown[0].pop("partitions")] == [None, [group]]
    shown[1].pop("partitions")
    assert shown[0]["resize"] == {x: y for x, y in PLAN.items() if x != "topic"}
    assert (shown[0]["misplaced_records"], shown[0]["unaware_write_ms"]) == (7, 5)
    assert shown[0]["unaware_client_ids"] == ["", "rdkafka"]
    assert list(shown[1].values()) == ["other", 0, None, 0, None, None, []]
    for item in shown:
        resized.print_misplaced(item)
    said = capsys.readouterr().out
    assert said.startswith("Misplaced: at least 7 records of producers that")
    assert "send no partition count (client ids: (none), rdkafka): their keys" in said
    assert "the last one wrote to broker 2 at 1970-01-01T00:00:00Z; the topic does not" in said
    # An older controller, or none that responds.
    for condition in ({}, None):
        first: dict[str, Any] = {"topic": "orders", "resize_epoch": 1, "partitions": []}
        resized.add_reported(condition, [first])
        assert list(first.values()) == ["orders", 1, [], None, None, None, None, None]


DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("settings", "purge", "until"),
    [
        ({"retention.ms": str(DAY_MS)}, "retention", 5 + DAY_MS),
        ({"retention.ms": "-1", "retired.purge": "drained"}, "drained", None),
        ({"retention.ms": "0", "cleanup.policy": "compact"}, "nothing", 5),
        ({"retention.ms": "1", "cleanup.policy": "compact,delete"}, "retention", 6),
    ],
)
def test_what_empties_a_retired_partition_and_until_when(
    settings: dict[str, str | None], purge: str, until: int | None
) -> None:
    assert (resized.purge_of(settings), resized.kept_until(5, settings)) == (purge, until)
    assert resized.kept_until(-1, settings) is None


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, "3 records left, kept until 1970-01-02T00:00:00Z (retention.ms); it is removed"),
        ({"kept_until_ms": None}, "3 records left, which no time limit removes; it is removed"),
        (
            {"purge": "drained"},
            "left, kept until every group has committed past them, or until 1970-01-02T00:00:00Z",
        ),
        (
            {
                "purge": "drained",
                "held_by": [
                    {"group": "g", "offsets_expire_ms": DAY_MS},
                    {"group": "h", "offsets_expire_ms": None},
                ],
            },
            "committed past them (g, whose offsets expire at 1970-01-02T00:00:00Z; h, which has "
            "members), or",
        ),
        ({"purge": "nothing"}, "3 records left, which compaction keeps for good; it is removed"),
        ({"held_records": 0}, "0 records left; it is removed"),
        ({"held_records": None}, "how much it still holds is not known; it is removed"),
    ],
)
def test_a_retired_partition_has_a_line(changed: dict[str, object], expected: str) -> None:
    item = resized.lineage(SHRUNK, 3)
    item |= {"partition": 3, "held_records": 3, "kept_until_ms": DAY_MS, "purge": "retention"}
    said = resized.retired_text({**item, **changed})
    assert said.startswith("Retired: partition 3 in resize epoch 3, its keys are in partition 1")
    assert expected in said
