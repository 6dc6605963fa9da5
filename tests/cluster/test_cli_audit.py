"""The audit of a live topic, from its log alone: through resizes, with records that are planted."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import confluent_kafka
import pytest

from tests.support.clients import create_topic
from tests.support.command_runs import Said, said_by
from tests.support.processes import DEADLINE_S
from tests.support.server import run_tidelog
from tests.support.target import TARGET
from tidelog.partitioning.hashing import hash_of_key, partition_of

pytestmark = [
    pytest.mark.long(30),
    pytest.mark.skipif(TARGET != "tidelog", reason="growing and shrinking is tidelog's"),
]

Tide = Callable[..., Said]
KEYS = 30


@pytest.fixture
def tide(bootstrap: str, capfd: pytest.CaptureFixture[str]) -> Tide:
    return lambda *arguments: said_by(bootstrap, capfd, *arguments)


def write(bootstrap: str, topic: str, numbers: Sequence[int]) -> None:
    """Write a record of each key for each number, by the product's own producer."""
    lines = "".join(
        f"k{key}={json.dumps({'n': number})}\n" for number in numbers for key in range(KEYS)
    )
    parsed = ("--property", "parse.key=true", "--property", "key.separator==")
    done = run_tidelog(
        "produce", "--bootstrap-server", bootstrap, "--topic", topic, *parsed, stdin=lines
    )
    assert done.returncode == 0, done.stderr


def plant(bootstrap: str, topic: str, partition: int, key: bytes, value: bytes) -> int:
    """Write a record with an explicit partition, as a stock producer; return its offset."""
    found: list[int] = []

    def stored(error: object, message: confluent_kafka.Message) -> None:
        offset = message.offset()
        assert error is None and offset is not None
        found.append(offset)

    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, value, key, partition=partition, on_delivery=stored)
    assert producer.flush(DEADLINE_S) == 0
    return found[0]


def test_a_topic_that_grew_and_shrank_is_right_until_a_record_is_planted(
    tide: Tide, bootstrap: str, topic_name: str
) -> None:
    create_topic(bootstrap, topic_name, 2)
    audit = ("audit", "--topic", topic_name, "--sequence", "n")
    write(bootstrap, topic_name, [0, 1])
    for number, count in ((2, "8"), (4, "3")):
        tide("topics", "--alter", "--topic", topic_name, "--partitions", count, "--force").good()
        write(bootstrap, topic_name, [number, number + 1])
    found = tide(*audit, "--json").json()
    assert (found["verdict"], found["findings"], found["remarks"]) == ("RIGHT", [], [])
    assert (found["initial_partition_count"], found["resize_epoch"]) == (2, 2)
    assert (found["partition_count"], len(found["partitions"])) == (3, 8)
    assert [x["partition"] for x in found["partitions"] if x["retired"]] == [3, 4, 5, 6, 7]
    # The six records of a key lie in two homes at least, and each is in order there and between.
    assert (found["records"], found["records_in_order_of_time"]) == (6 * KEYS, 6 * KEYS)
    assert found["keys_in_sequence"] == KEYS
    # Two fences of each survivor, a birth fence and a seal or fence of each child.
    assert found["control"] == 2 * 8
    unknown = tide("audit", "--topic", topic_name, "--sequence", "m")
    unknown.failed(f"none of {6 * KEYS} records", "the JSON field 'm'", status=2)
    # The planted records: one key in the partition of another, and one that goes back in its own.
    homes = {key: partition_of(hash_of_key(key), 2, 3) for key in (b"k0", b"k1")}
    wrong = (homes[b"k0"] + 1) % 3
    offset = plant(bootstrap, topic_name, wrong, b"k0", b'{"n": 6}')
    late = plant(bootstrap, topic_name, homes[b"k1"], b"k1", b'{"n": 4}')
    said = tide(*audit, "--json")
    assert said.status == 1, said
    home, sequence = json.loads(said.out)["findings"]
    assert (home["kind"], sequence["kind"]) == ("home", "sequence")
    belongs = f"belongs in partition {homes[b'k0']} in resize epoch 2"
    assert home["examples"] == [
        {"partition": wrong, "offset": offset, "key": "k0", "what": belongs}
    ]
    (step,) = sequence["examples"]
    assert (step["partition"], step["offset"], step["key"]) == (homes[b"k1"], late, "k1")
    said = tide("audit", "--topic", topic_name)
    assert said.status == 1, said
    lines = said.out.splitlines()
    assert lines[0].split() == [
        "Partition", "From", "To", "Records", "NoKey", "Misplaced", "State"
    ]  # fmt: skip
    assert [line.split()[5] for line in lines[1:9]].count("1") == 1
    assert f"  partition {wrong} offset {offset} key k0: {belongs}" in lines
    assert lines[-1].startswith(f"FAULTS: 1 found in {6 * KEYS + 2} records in 8 partitions: home")
    few = tide("audit", "--topic", topic_name, "--most-keys", "3")
    few.failed("more than 3 keys", "--placement-only", "tidelog.pipeline audit", status=2)


def test_a_topic_that_cannot_be_audited_is_neither_right_nor_wrong(
    tide: Tide, bootstrap: str, topic_name: str
) -> None:
    tide("audit", "--topic", topic_name).failed("does not exist", status=2)
    create_topic(bootstrap, topic_name, 2, enable_ordered_delivery="false")
    tide("audit", "--topic", topic_name).failed("enable.ordered.delivery=false", status=2)
    wrong = tide("audit", "--topic", topic_name, "--placement-only", "--sequence", "n")
    wrong.failed("leave --placement-only out", status=2)
    said = run_tidelog("audit", "--bootstrap-server", "127.0.0.1:1", "--topic", topic_name)
    assert said.returncode == 2 and said.stderr.splitlines()[-1].startswith("error: ")
