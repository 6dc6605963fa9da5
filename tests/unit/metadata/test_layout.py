"""Every node's JSON: the documents' own examples, Kafka's formats, and what is damaged."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from tidelog.metadata import layout, records
from tidelog.metadata.layout import Damaged
from tidelog.metadata.records import (
    BrokerNode,
    ClusterId,
    ConfigChange,
    ConfigNode,
    ControllerNode,
    Counter,
    DeletionMark,
    DeletionNode,
    EndedData,
    FormerPartition,
    LostRange,
    OfferedTransactions,
    PartitionNode,
    PartitionState,
    ProducerIdBlock,
    ReassignPartitionsNode,
    Record,
    ResizeKind,
    ResizePlan,
    ResizeStep,
    TopicHistory,
    TopicNode,
    UncertainReplicas,
    UncleanDebt,
    WentBack,
)

ID = "rB5qkJ2QTeyPfS9hWzD9Vg"

ROWS: list[tuple[str, str, Record]] = [
    # KIP-253, "Zookeeper" 1) and 2), with values.
    (
        "/brokers/topics/orders",
        '{"version": 3, "partitions": {"0": [1, 2], "1": [2, 3]}, "topic_id":'
        ' "rB5qkJ2QTeyPfS9hWzD9Vg", "adding_replicas": {}, "removing_replicas": {},'
        ' "initial_partition_count": 1, "undeleted_partition_count": 2}',
        TopicNode(
            {0: [1, 2], 1: [2, 3]},
            topic_id=ID,
            initial_partition_count=1,
            undeleted_partition_count=2,
        ),
    ),
    (
        "/brokers/topics/orders/partitions/6",
        '{"version": 1, "partition_epoch": 7, "leaderEpochAfterCreation": {"2": 5},'
        ' "leaderEpochBeforeDeletion": {"2": 9}, "birthEpoch": 3, "birthOffset": 40,'
        ' "retirementEpoch": 4}',
        PartitionNode(
            7,
            leader_epoch_after_creation={2: 5},
            leader_epoch_before_deletion={2: 9},
            birth_epoch=3,
            birth_offset=40,
            retirement_epoch=4,
        ),
    ),
    # KIP-455, "partition/state zNode content".
    (
        "/brokers/topics/orders/partitions/0/state",
        '{"version":1, "leader":1, "leader_epoch":1, "controller_epoch":1, "isr":[1, 2, 3],'
        ' "targetReplicas":[4, 5, 6]}',
        PartitionState(1, 1, 1, [1, 2, 3], target_replicas=[4, 5, 6]),
    ),
    # KIP-704 and KIP-966 beside Kafka's fields.
    (
        "/brokers/topics/orders/partitions/1/state",
        '{"version":1, "leader":-1, "leader_epoch":4, "controller_epoch":2, "isr":[],'
        ' "isUncleanLeader":true, "eligible_replicas":[3]}',
        PartitionState(-1, 4, 2, [], is_unclean_leader=True, eligible_replicas=[3]),
    ),
    # Kafka's.
    (
        "/brokers/ids/1",
        '{"version":5, "host":"h", "port":9092, "jmx_port":-1, "timestamp":"1700000000000",'
        ' "endpoints":["PLAINTEXT://h:9092"], "rack":"r",'
        ' "listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"}, "broker_epoch":3,'
        ' "directory_id":"rB5qkJ2QTeyPfS9hWzD9Vg", "incarnation_id":"rB5qkJ2QTeyPfS9hWzD9Vg"}',
        BrokerNode(
            ["PLAINTEXT://h:9092"],
            {"PLAINTEXT": "PLAINTEXT"},
            "h",
            9092,
            -1,
            "1700000000000",
            rack="r",
            broker_epoch=3,
            directory_id=ID,
            incarnation_id=ID,
        ),
    ),
    (
        "/config/topics/orders",
        '{"version":1, "config":{"retention.ms":"5"}}',
        ConfigNode({"retention.ms": "5"}),
    ),
    ("/config/brokers/<default>", '{"version":1, "config":{}}', ConfigNode({})),
    (
        "/config/changes/config_change_0000000001",
        '{"version":2, "entity_path":"topics/orders"}',
        ConfigChange("topics/orders"),
    ),
    (
        "/admin/reassign_partitions",
        '{"version":1, "partitions":[{"topic":"orders","partition":0,"replicas":[4,5,6]}]}',
        ReassignPartitionsNode([{"topic": "orders", "partition": 0, "replicas": [4, 5, 6]}]),
    ),
    ("/controller", '{"version":1, "brokerid":101, "timestamp":"5"}', ControllerNode(101, "5")),
    ("/cluster/id", '{"version":"1", "id":"rB5qkJ2QTeyPfS9hWzD9Vg"}', ClusterId(ID)),
    (
        "/latest_producer_id_block",
        '{"version":1, "broker":1, "block_start":"0", "block_end":"999"}',
        ProducerIdBlock(1, "0", "999"),
    ),
    # Ours.
    (
        "/tidelog/topics/orders",
        '{"version":1, "topic_id":"rB5qkJ2QTeyPfS9hWzD9Vg", "initial_partition_count":1,'
        ' "resize_epoch":2, "migrated":true, "original_replicas":{"0":[1,2]},'
        ' "pending_stops":{"0":{"4":7}},'
        ' "resize":{"kind":"grow","from_count":1,"to_count":2,"resize_epoch":2,"step":"fence",'
        '"cursor":1,"leader_epochs":[4]},'
        ' "former":{"6":[99,8,90,12,2]},'
        ' "unclean":{"0":{"leader":1,"leader_epoch":7,"end_offset":50,"end_epoch":6,'
        '"lost":[{"broker":2,"first":40,"end":50,"epochs":[5,6]}]}},'
        ' "unclean_past":{"1":[{"leader":2,"leader_epoch":3,"end_offset":9,"end_epoch":2}]}}',
        TopicHistory(
            ID,
            1,
            resize_epoch=2,
            migrated=True,
            original_replicas={0: [1, 2]},
            pending_stops={0: {4: 7}},
            resize=ResizePlan(
                ResizeKind.GROW, 1, 2, 2, ResizeStep.FENCE, cursor=1, leader_epochs=[4]
            ),
            former={6: FormerPartition(99, 8, 90, 12, 2)},
            unclean={0: UncleanDebt(1, 7, 50, 6, [LostRange(2, 40, 50, [5, 6])])},
            unclean_past={1: [UncleanDebt(2, 3, 9, 2)]},
        ),
    ),
    (
        "/tidelog/went_back",
        '{"version":1, "sentence":"It is older than itself.", "founded_as":"A"}',
        WentBack("It is older than itself.", "A"),
    ),
    (
        "/tidelog/ended_data",
        f'{{"version":1, "topics":{{"{ID}":[], "AAAAAAAAAAAAAAAAAAAAYw":[[3,1],[3,2]]}}}}',
        EndedData({ID: [], "AAAAAAAAAAAAAAAAAAAAYw": [(3, 1), (3, 2)]}),
    ),
    (
        "/tidelog/uncertain_replicas",
        '{"version":1, "topics":{"orders":{"0":[1,2]}}}',
        UncertainReplicas({"orders": {0: [1, 2]}}),
    ),
    ("/tidelog/transactions", '{"version":1, "level":"1.6"}', OfferedTransactions("1.6")),
    (
        f"/tidelog/deletions/{ID}",
        '{"version":1, "name":"orders", "partitions":{"0":[1,2]}, "leader_epochs":{"0":4}}',
        DeletionNode("orders", {0: [1, 2]}, {0: 4}),
    ),
]


@pytest.mark.parametrize(("path", "text", "record"), ROWS, ids=[row[0] for row in ROWS])
def test_a_node_is_read_and_written_as_specified(path: str, text: str, record: Record) -> None:
    assert layout.decode(path, text.encode()) == record
    assert json.loads(layout.encode(record)) == json.loads(text)


@pytest.mark.parametrize(("path", "text", "record"), ROWS, ids=[row[0] for row in ROWS])
def test_unknown_fields_are_ignored_and_damage_is_named(
    path: str, text: str, record: Record
) -> None:
    newer = {**json.loads(text), "from_the_future": {"a": [1]}}
    assert layout.decode(path, json.dumps(newer).encode()) == record
    too_deep = text[:-1] + ', "more": ' + "[" * 100_000 + "]" * 100_000 + "}"
    for bad in (text[:-1], "[]", "null", "\x00", '"x"', text.replace("}", "]"), too_deep):
        damaged = layout.decode(path, bad.encode())
        assert isinstance(damaged, Damaged), bad
        assert damaged.path == path
        assert path in str(damaged)


def test_a_text_that_is_no_utf_8_is_damage() -> None:
    damaged = layout.decode(layout.CLUSTER_ID, b'{"version":"1", "id":"\xff\xfe"}')
    assert isinstance(damaged, Damaged)


@pytest.mark.parametrize(
    "path",
    [
        layout.CONTROLLER_EPOCH,
        layout.PARTITION_EPOCH,
        layout.BROKER_EPOCH,
        layout.REVISION,
    ],
)
def test_counters_are_plain_numbers(path: str) -> None:
    assert layout.decode(path, b"42") == Counter(42)
    assert layout.encode(Counter(42)) == b"42"
    for bad in (b"", b"x", b"1.5", b"{}", b"9" * 30, b"-1", b"9" * 19):
        assert isinstance(layout.decode(path, bad), Damaged)


def test_a_topic_of_an_old_tool_has_no_counts_and_no_id() -> None:
    node = layout.decode("/brokers/topics/t", b'{"version":1,"partitions":{"0":[1]}}')
    assert node == TopicNode({0: [1]}, version=1)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/brokers/topics/t", '{"version":3,"partitions":{"0":[1]},"topic_id":"short"}'),
        ("/brokers/topics/t", '{"version":3,"partitions":{"-1":[1]}}'),
        ("/brokers/topics/t", '{"version":3,"partitions":{"0":[]}}'),
        ("/brokers/topics/t", '{"version":3,"partitions":{"zero":[1]}}'),
        ("/latest_producer_id_block", '{"version":1,"broker":1,"block_start":"0","block_end":"x"}'),
        ("/admin/reassign_partitions", '{"version":2,"partitions":[]}'),
        ("/admin/reassign_partitions", '{"version":1,"partitions":[]}' + " " * 900_000),
    ],
)
def test_what_json_allows_but_no_node_can_be(path: str, text: str) -> None:
    assert isinstance(layout.decode(path, text.encode()), Damaged)


STATE = {"version": 1, "leader": 1, "leader_epoch": 1, "controller_epoch": 1, "isr": [1, 2]}
HISTORY = {"version": 1, "topic_id": ID, "initial_partition_count": 2, "resize_epoch": 3}
GROWTH = {"kind": "grow", "from_count": 2, "to_count": 4, "resize_epoch": 3, "step": "fence"}


@pytest.mark.parametrize(
    ("path", "right", "wrong", "said"),
    [
        # What a request is refused for (KIP-455).
        ("/brokers/topics/t/partitions/0/state", STATE, {"targetReplicas": []}, "is empty"),
        ("/brokers/topics/t/partitions/0/state", STATE, {"targetReplicas": [1, 1]}, "1 twice"),
        ("/brokers/topics/t/partitions/0/state", STATE, {"targetReplicas": [-2]}, "no broker id"),
        ("/brokers/topics/t/partitions/0/state", STATE, {"isr": [1, 1]}, "1 twice"),
        ("/brokers/topics/t/partitions/0/state", STATE, {"leader": 3}, "not in its ISR"),
        ("/brokers/topics/t/partitions/0/state", STATE, {"leader": -2}, "not in its ISR"),
        ("/brokers/topics/t/partitions/0/state", STATE, {"leader_epoch": -1}, "no epoch"),
        ("/brokers/topics/t/partitions/0/state", STATE, {"controller_epoch": 2**31}, "no epoch"),
        ("/brokers/topics/t", {"partitions": {"0": [1]}}, {"partitions": {}}, "no partitions"),
        ("/brokers/topics/t", {"partitions": {"0": [1]}}, {"partitions": {"1": [1]}}, "not 0"),
        ("/brokers/topics/t", {"partitions": {"0": [1]}}, {"partitions": {"0": [1, 1]}}, "twice"),
        ("/brokers/topics/t/partitions/0", {"partition_epoch": 1}, {"birthOffset": -1}, "offset"),
        (
            "/brokers/topics/t/partitions/0",
            {"partition_epoch": 1, "birthEpoch": 3},
            {"retirementEpoch": 2},
            "before its birth",
        ),
        ("/tidelog/topics/t", HISTORY, {"resize_epoch": -1}, "no epoch"),
        ("/tidelog/topics/t", HISTORY, {"initial_partition_count": 0}, "is 0"),
        ("/tidelog/topics/t", HISTORY, {"pending_stops": {"0": {"-1": 3}}}, "pending_stops"),
        ("/tidelog/topics/t", HISTORY, {"original_replicas": {"0": [2, 2]}}, "2 twice"),
        ("/tidelog/topics/t", HISTORY, {"resize": {**GROWTH, "to_count": 1}}, "is no grow"),
        ("/tidelog/topics/t", HISTORY, {"resize": {**GROWTH, "step": "seal"}}, "is no grow"),
        ("/tidelog/topics/t", HISTORY, {"resize": {**GROWTH, "from_count": 1}}, "below the init"),
        ("/tidelog/topics/t", HISTORY, {"resize": {**GROWTH, "resize_epoch": 2}}, "epoch 2, and"),
        ("/tidelog/topics/t", HISTORY, {"resize": {**GROWTH, "cursor": 3}}, "3 of 2"),
        ("/tidelog/topics/t", HISTORY, {"resize": {**GROWTH, "cursor": 1}}, "0 leader epochs"),
        ("/tidelog/topics/t", HISTORY, {"former": {"2": [5, 1, 9, 2, 1]}}, "partition 2 ended"),
        (
            f"/tidelog/deletions/{ID}",
            {"name": "t", "partitions": {"0": [1]}},
            {"name": "../t"},
            "is no topic",
        ),
        (
            "/latest_producer_id_block",
            {"broker": 1, "block_start": "0", "block_end": "9"},
            {"block_start": "10"},
            "after its end",
        ),
    ],
)
def test_a_stored_record_passes_the_rules_of_a_request(
    path: str, right: dict[str, object], wrong: dict[str, object], said: str
) -> None:
    assert not isinstance(layout.decode(path, json.dumps(right).encode()), Damaged)
    damaged = layout.decode(path, json.dumps({**right, **wrong}).encode())
    assert isinstance(damaged, Damaged)
    assert said in str(damaged)


def test_names_that_no_controller_gives_are_not_tidelogs() -> None:
    for path in ("/brokers/ids/01", "/brokers/ids/2147483648", "/brokers/topics/a b"):
        assert layout.decode(path, b"{}") is None
    for path in ("/brokers/topics/t/partitions/00", "/config/brokers/x", "/tidelog/topics/.."):
        assert layout.kind_of(path) is None


def test_containers_and_strangers_hold_nothing() -> None:
    for path in (*layout.CONTAINERS, "/zookeeper/quota", "/brokers/topics/t/partitions"):
        assert layout.decode(path, b"whatever") is None
    # Kafka's own partition nodes are empty.
    assert layout.decode("/brokers/topics/t/partitions/0", b"") is None


def test_a_mark_of_deletion_is_a_node_whatever_a_tool_wrote_into_it() -> None:
    for content in (b"", b"null", b"\xff"):
        assert layout.decode("/admin/delete_topics/t", content) == DeletionMark()
    assert layout.encode(DeletionMark()) == b""
    assert layout.deletion_mark("t") == "/admin/delete_topics/t"


def test_partitions_are_found_by_their_paths() -> None:
    assert layout.partition_of(layout.state("t", 12)) == ("t", 12)
    assert layout.partition_of(layout.partition("t", 12)) == ("t", 12)
    for path in ("/brokers/topics/t/partitions/x", "/brokers/topics/t/partitions/0/other", "/a"):
        assert layout.partition_of(path) is None


def test_ids_are_written_as_kafka_writes_them() -> None:
    value = UUID("ac1e6a90-9d90-4dec-8f7d-2f615b30fd56")
    assert layout.id_text(value) == ID
    assert layout.parse_id(ID) == value
    for bad in ("", ID + "A", ID[:-1], "!" * 22, "é" * 22):
        assert layout.parse_id(bad) is None


def test_every_kind_of_node_of_the_table_has_a_row() -> None:
    kinds = {type(row[2]) for row in ROWS} | {Counter, DeletionMark}
    assert kinds == set(records.Record.__args__)  # type: ignore[attr-defined]


def test_debts_are_read_with_and_without_what_is_not_known() -> None:
    """Once every field was written, now those are not that have their defaults."""
    head = f'{{"topic_id":"{ID}","initial_partition_count":1,"unclean":{{"0":'
    record = TopicHistory(ID, 1, unclean={0: UncleanDebt(1, 7)})
    for more in (',"end_offset":-1,"end_epoch":-1,"lost":[]', ""):
        text = head + '{"leader":1,"leader_epoch":7' + more + "}}}"
        assert layout.decode("/tidelog/topics/orders", text.encode()) == record
